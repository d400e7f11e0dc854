"""How answers are written down for OpenAI's clients: whole, or in chunks as they come."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from legato.data.text.any_tokenizer import AnyTokenizer
from legato.data.text.vocabularies import from_byte_letters
from legato.decoding.logprobs import TokenLogprob

MARK: Final = "\0"  # stands for a piece of text, where no name of a model has it
PARTIAL: Final = "\N{REPLACEMENT CHARACTER}"  # what a part of a character is decoded as


class Spelling:
    """Tokens as they read in a text; one that is no whole character goes by its name in the vocabulary."""

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        self.tokenizer = tokenizer

    def text(self, token: int) -> str:
        text = self.tokenizer.decode([token])
        return text if text and PARTIAL not in text else self.tokenizer.token(token)

    def bytes(self, token: int) -> bytes:
        """What clients put together where a character is of several tokens."""
        text = self.text(token)
        if token in self.tokenizer.special_ids or self.tokenizer.decode([token]) == text:
            return text.encode("utf-8", "replace")
        pieces = self.tokenizer.pieces
        return from_byte_letters(text) if pieces is None else pieces[token]


class Answer(NamedTuple):
    """A text of an answer, and why it ends."""

    text: str
    reason: str | None  # stop, length or tool_calls; None while it goes on
    logprobs: Sequence[TokenLogprob] | None = None
    calls: Sequence[dict[str, Any]] = ()  # of tools


def sse(event: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


class Form(Protocol):
    """How an answer is written down."""

    def whole(self, answers: Sequence[Any], usage: dict[str, int]) -> dict[str, Any]: ...

    def first(self, choice: int) -> dict[str, Any] | None: ...

    def piece(
        self, choice: int, text: str, reason: str | None, logprobs: Sequence[TokenLogprob] | None = None
    ) -> dict[str, Any]: ...

    def line(self, choice: int, text: str, logprobs: Sequence[TokenLogprob] | None = None) -> str:
        """A server-sent event with some text that is not the last."""
        ...

    def calls(self, choice: int, calls: Sequence[dict[str, Any]]) -> dict[str, Any]: ...

    def sources(self, texts: Sequence[str]) -> dict[str, Any] | None:
        """A last chunk with the sources of an answer from an index, by the texts of all choices."""
        ...

    def last(self, usage: dict[str, int]) -> dict[str, Any]: ...


class LineTemplates:
    """What stands around a piece of text in a server-sent event: of one choice it is the same for each piece."""

    _around: dict[int, tuple[str, str]]

    def __init__(self) -> None:
        self._around = {}

    def piece(
        self, choice: int, text: str, reason: str | None, logprobs: Sequence[TokenLogprob] | None = None
    ) -> dict[str, Any]:
        raise NotImplementedError

    def line(self, choice: int, text: str, logprobs: Sequence[TokenLogprob] | None = None) -> str:
        if logprobs is not None:
            return sse(self.piece(choice, text, None, logprobs))
        if choice not in self._around:
            before, _, behind = sse(self.piece(choice, MARK, None)).partition(json.dumps(MARK))
            self._around[choice] = before, behind
        before, behind = self._around[choice]
        return f"{before}{json.dumps(text, ensure_ascii=False)}{behind}"


class ChatForm(LineTemplates):
    """`chat.completion` and its chunks."""

    def __init__(self, model: str, spelling: Spelling | None = None) -> None:
        super().__init__()
        self.about = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self.spelling = spelling

    def whole(self, answers: Sequence[Any], usage: dict[str, int]) -> dict[str, Any]:
        choices = [self._choice(index, Answer(*answer)) for index, answer in enumerate(answers)]
        return {**self.about, "object": "chat.completion", "choices": choices, "usage": usage}

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            message |= {"content": answer.text or None, "tool_calls": list(answer.calls)}
        logprobs = self._logprobs(answer.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": answer.reason}

    def first(self, choice: int) -> dict[str, Any] | None:
        return self._chunk(choice, {"role": "assistant", "content": ""}, None)

    def piece(
        self, choice: int, text: str, reason: str | None, logprobs: Sequence[TokenLogprob] | None = None
    ) -> dict[str, Any]:
        return self._chunk(choice, {"content": text} if text else {}, reason, logprobs)

    def calls(self, choice: int, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return self._chunk(choice, {"tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]}, None)

    def sources(self, texts: Sequence[str]) -> dict[str, Any] | None:
        return None

    def last(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self.about, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def _chunk(
        self, choice: int, delta: dict[str, Any], reason: str | None, logprobs: Sequence[TokenLogprob] | None = None
    ) -> dict[str, Any]:
        held = {"index": choice, "delta": delta, "logprobs": self._logprobs(logprobs), "finish_reason": reason}
        return {**self.about, "object": "chat.completion.chunk", "choices": [held]}

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
        if tokens is None:
            return None
        content = [
            {**self._token(each.token, each.logprob), "top_logprobs": [self._token(*other) for other in each.top]}
            for each in tokens
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        assert self.spelling is not None, "log-probabilities are of tokens that can be spelled"
        return {"token": self.spelling.text(token), "logprob": logprob, "bytes": [*self.spelling.bytes(token)]}


class CompletionForm(LineTemplates):
    """`text_completion`, whole or in chunks."""

    def __init__(self, model: str, echoed: Sequence[str], each: int, spelling: Spelling) -> None:
        """`echoed` is what stands before the texts of each prompt, `each` how many those are."""
        super().__init__()
        self.about = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self.echoed, self.each, self.spelling = echoed, each, spelling
        self._written: dict[int, int] = {}  # characters of each choice so far

    def whole(self, answers: Sequence[Any], usage: dict[str, int]) -> dict[str, Any]:
        choices = [self._whole_choice(index, Answer(*answer)) for index, answer in enumerate(answers)]
        return {**self.about, "choices": choices, "usage": usage}

    def _whole_choice(self, index: int, answer: Answer) -> dict[str, Any]:
        before = self._before(index)
        return self._choice(index, before + answer.text, answer.reason, answer.logprobs, len(before))

    def first(self, choice: int) -> dict[str, Any] | None:
        before = self._before(choice)
        self._written[choice] = len(before)
        return {**self.about, "choices": [self._choice(choice, before, None)]} if before else None

    def piece(
        self, choice: int, text: str, reason: str | None, logprobs: Sequence[TokenLogprob] | None = None
    ) -> dict[str, Any]:
        begin = self._written.get(choice, 0)
        self._written[choice] = begin + sum(len(self.spelling.text(each.token)) for each in logprobs or ())
        return {**self.about, "choices": [self._choice(choice, text, reason, logprobs, begin)]}

    def calls(self, choice: int, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError("a completion calls nothing")

    def sources(self, texts: Sequence[str]) -> dict[str, Any] | None:
        return None

    def last(self, usage: dict[str, int]) -> dict[str, Any]:
        return {**self.about, "choices": [], "usage": usage}

    def _before(self, choice: int) -> str:
        return self.echoed[choice // self.each]

    def _choice(
        self,
        choice: int,
        text: str,
        reason: str | None,
        logprobs: Sequence[TokenLogprob] | None = None,
        begin: int = 0,
    ) -> dict[str, Any]:
        return {
            "index": choice,
            "text": text,
            "logprobs": self._logprobs(logprobs, begin),
            "finish_reason": reason,
        }

    def _logprobs(self, tokens: Sequence[TokenLogprob] | None, begin: int) -> dict[str, Any] | None:
        if tokens is None:
            return None
        texts = [self.spelling.text(each.token) for each in tokens]
        offsets = [begin + sum(map(len, texts[:place])) for place in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": [each.logprob for each in tokens],
            "top_logprobs": [{self.spelling.text(token): value for token, value in each.top} for each in tokens],
            "text_offset": offsets,
        }
