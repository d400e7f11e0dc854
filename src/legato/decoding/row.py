"""A row of a batch: one text that is written, from its prompt to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from legato.decoding.candidates import Floats, Integers
from legato.decoding.frontier import BROKEN, Allowed, Hypothesis, cut_at_stop
from legato.decoding.options import SearchOptions
from legato.decoding.requests import TextOf
from legato.decoding.scores import normalise
from legato.errors import LegatoError


@dataclass(eq=False)
class Row:
    """A prompt and what is written behind it. The device may be some steps ahead of what is known here."""

    request: int  # the number of its request
    sample: int  # which of the request's texts it is
    tokens: list[int]  # to read: the prompt, and what was written where the row has to begin again
    options: SearchOptions
    limit: int  # the most tokens to write
    ends: frozenset[int]
    seed: int = 0
    adapter: int = 0
    text_of: TextOf | None = None  # where there are stop strings
    on_token: Callable[[int], None] | None = None
    constraint: Callable[[list[int]], Allowed] | None = None  # from what is written to what may follow
    place: int = -1  # in the batch; -1: it waits
    read: int = 0  # of `tokens`, those whose reading has begun
    launched: int = 0  # tokens whose choice has begun
    restarted: int = 0  # tokens of `tokens` that it had written when it began again
    done: bool = False
    written: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    score: np.float32 = np.float32(0)  # noqa: RUF009

    @property
    def left(self) -> int:
        """Tokens that it may still begin to write."""
        return self.limit - self.launched

    def take(self, tokens: Integers, logprobs: Floats, gains: Floats) -> Hypothesis | None:
        """The tokens of some steps (K,), as they come from the device; what was written, where it has ended."""
        count = min(len(tokens), self.limit - len(self.written))
        possible = gains[:count] > -np.inf  # the model leaves a row nothing else than what it may not write
        ending = [int(token) in self.ends for token in tokens[:count].tolist()]
        plain = not any(ending) and bool(possible.all())
        if plain and self.text_of is None and self.on_token is None:
            self.written += tokens[:count].tolist()
            self.logprobs += logprobs[:count].tolist()
            self.score = np.add.accumulate([self.score, *gains[:count]], dtype=np.float32)[-1]
            return self._ended(finished=False) if len(self.written) == self.limit else None
        for step in range(count):
            if not possible[step]:
                return self._ended(finished=True)
            self.score = self.score + gains[step]
            self.logprobs.append(float(logprobs[step]))
            if ending[step]:
                return self._ended(finished=True)
            self.written.append(int(tokens[step]))
            if self.on_token is not None:
                self.on_token(self.written[-1])
            if self.text_of is not None and reaches_stop(self.written, self.options.stop, self.text_of):
                return self._ended(finished=True)
        return self._ended(finished=False) if len(self.written) == self.limit else None

    def allowed(self, vocabulary: int) -> NDArray[np.bool_] | None:
        """What the constraint leaves (V,), of all that the model may write next; None: all."""
        assert self.constraint is not None
        tokens = self.constraint(self.written)
        if tokens is None or isinstance(tokens, np.ndarray):
            return tokens
        mask = np.zeros(vocabulary, dtype=bool)
        mask[list(tokens)] = True
        return mask

    def has_no_way_on(self, mask: NDArray[np.bool_]) -> bool:
        """Whether nothing is left to write, or only an end that comes too early."""
        if len(self.written) >= self.options.min_tokens:
            return not mask.any()
        return mask.sum() == mask[list(self.ends)].sum()

    def end(self) -> Hypothesis:
        """Nothing may follow: the text ends here."""
        return self._ended(finished=True)

    def _ended(self, *, finished: bool) -> Hypothesis:
        self.done = True
        score = normalise(float(self.score), len(self.logprobs), self.options.length_penalty)
        return Hypothesis(self.written, score, sum(self.logprobs), finished, self.logprobs)


def masks_of(rows: Sequence[Row], vocabulary: int) -> tuple[dict[int, NDArray[np.bool_]], list[Row]]:
    """What rows may write next (V,), by their number here, where that is not all; and rows that have no way on."""
    masks, stuck = {}, []
    for number, row in enumerate(rows):
        if row.constraint is None or (mask := row.allowed(vocabulary)) is None:
            continue
        if row.has_no_way_on(mask):
            stuck.append(row)
        else:
            masks[number] = mask
    return masks, stuck


def too_long(tokens: int, most: int) -> LegatoError:
    return LegatoError(f"a sequence of {tokens} tokens is too long: this model goes up to {most}")


def reaches_stop(tokens: Sequence[int], stops: tuple[str, ...], text_of: TextOf) -> bool:
    """Whether the text of these tokens holds a stop string, where the text of all but the last holds none.

    It would lie at the end, so the last few tokens are decoded alone: more of them, until their text is long enough.
    The first of them may be the rest of a character, which reads as U+FFFD, or lack its space; what comes after that
    is the end of the whole text.
    """
    if not any(BROKEN in stop for stop in stops):
        needed = max(map(len, stops)) + len(text_of(tokens[-1:]))  # it may begin before all that is new
        last = needed
        while last < len(tokens):
            text = text_of(tokens[-last:]).lstrip(BROKEN)
            if len(text) >= needed:
                if not cut_at_stop(text, stops)[1]:
                    return False
                break
            last *= 2
    return cut_at_stop(text_of(tokens), stops)[1]
