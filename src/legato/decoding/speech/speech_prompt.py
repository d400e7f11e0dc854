"""What Whisper's writing begins with, what it never writes, and how it writes times.

    <|startoftranscript|> <|en|> <|transcribe|> <|notimestamps|>        the prompt (Radford et al. 2022, figure 1)

Models of one language have neither the language nor the task in it. The entries of generation_config.json say which
tokens these are; older folders spell the prompt out, place by place (`forced_decoder_ids`). Signs that nobody speaks
are never written (`suppress_tokens`), a space and the end not as the first token (`begin_suppress_tokens`).

Without `<|notimestamps|>` what is said is written between times, each a token of its own, 20 ms from one to the next:

    <|0.00|> Mister Quilter … <|5.44|> <|5.44|> Nor is …

    prompt = SpeechPrompt.of(entries, start, tokenizer.id_of, language="en")
    search(model, [prompt.tokens], options, suppress=prompt.suppress, suppress_first=prompt.suppress_first, …)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Final, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from legato.errors import ConfigError, FolderError, brief
from legato.models.published.entries import Token
from legato.schema import OPEN, TypedDict, fit, with_config

FILE: Final = "generation_config.json"
TRANSCRIBE: Final = "transcribe"
START: Final = "<|startoftranscript|>"
NO_TIMESTAMPS: Final = "<|notimestamps|>"
TICK: Final = 0.02  # seconds from one time to the next
FIRST_AT: Final = 50  # ticks within which the first time lies, where the folder says nothing
NEVER: Final = -1e30  # a logit of what may not be written

Pair = Annotated[
    list[Token | None], Field(min_length=2, max_length=2)
]  # a place in the prompt, and what stands there


@with_config(OPEN)
class PromptEntries(TypedDict, total=False):
    """What is read of generation_config.json."""

    forced_decoder_ids: list[Pair] | None
    lang_to_id: dict[str, Token] | None
    task_to_id: dict[str, Token] | None
    no_timestamps_token_id: Token | None
    suppress_tokens: list[Token] | None
    begin_suppress_tokens: list[Token] | None
    max_initial_timestamp_index: Annotated[int, Field(ge=0)] | None


@dataclass(frozen=True)
class SpeechPrompt:
    """The tokens that writing begins with, and those that are not written."""

    tokens: tuple[int, ...]
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    languages: tuple[int, ...] = ()  # one of which is to stand behind the first token; the model says which
    no_timestamps: int | None = None  # the token behind which no times are written; times are those that follow it
    first_at: int = FIRST_AT
    spaced: bool = False  # what is written begins with a space

    @classmethod
    def of(
        cls,
        generation: Mapping[str, Any],
        start: int,
        number: Callable[[str], int | None] = lambda name: None,
        *,
        language: str | None = None,
        task: str | None = None,
        where: str = FILE,
    ) -> SpeechPrompt:
        """The prompt that a generation_config.json asks for; `number` is a token's by its name, `where` names the
        file in an error.

        >>> entries = {"lang_to_id": {"<|en|>": 8}, "task_to_id": {"transcribe": 9}, "suppress_tokens": [1, 2]}
        >>> prompt = SpeechPrompt.of({**entries, "no_timestamps_token_id": 6}, 7, language="en")
        >>> prompt.tokens, prompt.suppress
        ((7, 8, 9, 6), (1, 2))
        """
        said: Mapping[str, Any] = fit(dict(generation), PromptEntries, where)
        spaced = number(START) == start
        plain = said.get("no_timestamps_token_id")
        if plain is None and spaced:
            plain = number(NO_TIMESTAMPS)
        forced = _forced(said, where) if language is None and task is None else []
        languages, behind = ((), forced) if forced else _chosen(said, language, task)
        prompt = [start, *behind]
        if plain is not None and prompt[-1] != plain:
            prompt.append(plain)
        kept = (said.get(name) or () for name in ("suppress_tokens", "begin_suppress_tokens"))
        suppress, first = (tuple(sorted({token for token in tokens if token >= 0})) for tokens in kept)
        at = said.get("max_initial_timestamp_index")
        return cls(tuple(prompt), suppress, first, tuple(languages), plain, FIRST_AT if at is None else at, spaced)

    def within(self, vocabulary: int, where: str = FILE) -> SpeechPrompt:
        """The same, whose tokens are among so many."""
        named = {*self.tokens, *self.suppress, *self.suppress_first, *self.languages}
        if max(named) >= vocabulary:
            raise FolderError(f"{where} names the token {max(named)}, and the model has {vocabulary}")
        return self

    def speaking(self, language: int) -> SpeechPrompt:
        """The same with the token of the language that was found."""
        return replace(self, tokens=(self.tokens[0], language, *self.tokens[1:]), languages=())

    def timed(self, vocabulary: int) -> SpeechPrompt | None:
        """The same for writing with times; None where the model has none."""
        if self.no_timestamps is None or self.no_timestamps + 1 >= vocabulary:
            return None
        return replace(self, tokens=tuple(token for token in self.tokens if token != self.no_timestamps))


def _forced(said: Mapping[str, Any], where: str) -> list[int]:
    """The prompt after its first token where it is spelt out; nothing where it leaves the language open."""
    pairs = said.get("forced_decoder_ids") or []
    placed = dict(pairs)
    if len(placed) != len(pairs) or placed.keys() != set(range(1, len(pairs) + 1)):
        raise FolderError(f"{where}: forced_decoder_ids leave places out: {brief(repr(pairs))}")
    tokens = [placed[place] for place in sorted(placed)]
    return [] if None in tokens else tokens


def _chosen(said: Mapping[str, Any], language: str | None, task: str | None) -> tuple[Sequence[int], list[int]]:
    """Of a model that has several: the languages where none is named, and the tokens of the one and of the task."""
    languages, tasks = said.get("lang_to_id") or {}, said.get("task_to_id") or {}
    if not languages:
        if language is not None or task is not None:
            raise ConfigError("this model writes one language and has one task; leave language and task out")
        return (), []
    known = {name.strip("<|>"): token for name, token in languages.items()}
    if language is not None and language not in known:
        raise ConfigError(f"this model does not write '{brief(language)}'; it has {', '.join(sorted(known))}")
    task = TRANSCRIBE if task is None and tasks else task
    if task is not None and task not in tasks:
        raise ConfigError(f"this model has no task '{brief(task)}'; it has {', '.join(sorted(tasks)) or 'none'}")
    asked = [] if task is None else [tasks[task]]
    return (tuple(known.values()), asked) if language is None else ((), [known[language], *asked])


class Timestamps:
    """What may follow, where times are written: in pairs around what is said, each no earlier than the one before.

    Where all times together are more probable than any text, one of them follows.
    """

    def __init__(self, prompt: SpeechPrompt, eos: int, never: Sequence[int] = ()) -> None:
        """Of what is `never` written nothing is more probable than times."""
        assert prompt.no_timestamps is not None
        self.never = torch.tensor(sorted(never), dtype=torch.long)
        self.plain, self.eos, self.first_at = prompt.no_timestamps, eos, prompt.first_at

    @property
    def begin(self) -> int:
        """The token of the time 0."""
        return self.plain + 1

    def __call__(self, logits: Tensor, written: list[list[int]], prompts: Sequence[int] = ()) -> Tensor:
        """Logits (rows, V) of what may follow what each row has written."""
        logits = logits.float().clone()
        logits[:, self.plain] = NEVER
        logits[:, self.never.to(logits.device)] = NEVER
        for scores, tokens in zip(logits, written, strict=True):
            self._restrict(scores, tokens)
        logs = logits.log_softmax(-1)
        times, texts = logs[:, self.begin :].logsumexp(-1), logs[:, : self.begin].amax(-1)
        timely = torch.arange(logits.shape[1], device=logits.device) >= self.begin
        return logits.masked_fill((times > texts)[:, None] & ~timely, NEVER)

    def _restrict(self, scores: Tensor, tokens: list[int]) -> None:
        begin = self.begin
        if not tokens:
            scores[:begin] = NEVER
            scores[begin + self.first_at + 1 :] = NEVER
            return
        times = [token for token in tokens if token >= begin]
        ended = tokens[-1] >= begin
        paired = len(tokens) < 2 or tokens[-2] >= begin
        if ended and paired:
            scores[begin:] = NEVER
        elif ended:
            scores[: self.eos] = NEVER
        if times:
            scores[begin : times[-1] + (0 if ended and not paired else 1)] = NEVER


class Segment(NamedTuple):
    """What is said from one time to another, in seconds from where the window begins."""

    start: float
    end: float
    tokens: list[int]


def segments(tokens: Sequence[int], begin: int, seconds: float) -> tuple[list[Segment], float]:
    """What was written between times, of a window of so many seconds, and where the next window should begin.

    >>> segments([100, 7, 8, 150, 150, 9], begin=100, seconds=30.0)
    ([Segment(start=0.0, end=1.0, tokens=[7, 8])], 1.0)
    """
    timely = [token >= begin for token in tokens]
    cuts = [place for place, pair in enumerate(pairwise(timely), start=1) if all(pair)]
    ends_once = len(timely) > 1 and timely[-1] and not timely[-2]
    if cuts:
        if ends_once:
            cuts.append(len(tokens))
        found = []
        for first, last in pairwise([0, *cuts]):
            part = tokens[first:last]
            found.append(Segment((part[0] - begin) * TICK, (part[-1] - begin) * TICK, _text(part, begin)))
        return found, seconds if ends_once else found[-1].end
    end = (tokens[-1] - begin) * TICK if ends_once else seconds
    start = (tokens[0] - begin) * TICK if tokens and timely[0] else 0.0
    return [Segment(start, max(start, end), _text(tokens, begin))], seconds


def _text(tokens: Sequence[int], begin: int) -> list[int]:
    return [token for token in tokens if token < begin]
