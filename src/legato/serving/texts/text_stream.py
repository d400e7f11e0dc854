"""A text from its tokens to what a client is sent: decoded, ended at a stop string, calls of tools kept back."""

from __future__ import annotations

from collections.abc import Sequence

from legato.data.text.tokenizers import AnyTokenizer, StreamDecoder
from legato.decoding.frontier import cut_at_stop
from legato.decoding.logprobs import TokenLogprob
from legato.serving.tool_calls import BEGIN, may_begin


class TextStream:
    """One text as it is written.

    What may be the beginning of a stop string is kept back until it is certain, and so is, with `tools`, what may be
    a call of one. What the model held of tokens goes with the text of theirs that is sent next.
    """

    def __init__(
        self, tokenizer: AnyTokenizer, prompt: Sequence[int], stops: Sequence[str] = (), *, tools: bool = False
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, after=prompt)
        self._stops, self._margin = stops, max(map(len, stops), default=1) - 1
        self._tools = tools
        self._end: int | None = None  # where a stop string begins
        self._logprobs: list[TokenLogprob] | None = None  # of tokens whose text was not sent
        self.text = ""  # all of it, with a stop string
        self.count = 0  # tokens
        self.sent, self.sent_logprobs = 0, 0  # characters, and tokens whose log-probabilities were sent

    def push(
        self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> tuple[str, list[TokenLogprob] | None]:
        """Take tokens; give the text to send now, with what the model held of its tokens."""
        self.count += len(tokens)
        if logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *logprobs]
        self._add(self._decoder.push_many(tokens))
        safe = self._safe()
        if safe <= self.sent:
            return "", None
        text, pending, self._logprobs = self.text[self.sent : safe], self._logprobs, None
        self.sent = safe
        self.sent_logprobs += len(pending or ())
        return text, pending

    def finish(self) -> str:
        """All of the text."""
        self._add(self._decoder.finish())
        return self.text

    def _add(self, text: str) -> None:
        begin = max(0, len(self.text) - self._margin)
        self.text += text
        if self._stops and self._end is None:
            before, stopped = cut_at_stop(self.text[begin:], self._stops)
            self._end = begin + len(before) if stopped else None

    def _safe(self) -> int:
        """How many characters may be sent."""
        safe = len(self.text) if self._end is None else self._end
        if self._stops and self._end is None:
            begun = (n for stop in self._stops for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
            safe -= max(begun, default=0)
        return _before_calls(self.text[:safe]) if self._tools else safe


def _before_calls(text: str) -> int:
    """How many characters of a text are certainly not of a call of a tool."""
    if not text.strip() or may_begin(text):
        return 0
    place = text.find(BEGIN)
    if place >= 0:
        return len(text[:place].rstrip())
    begun = max((n for n in range(1, len(BEGIN)) if text.endswith(BEGIN[:n])), default=0)
    return len(text[: len(text) - begun].rstrip())
