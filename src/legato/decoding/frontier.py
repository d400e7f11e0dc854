"""What a search keeps: the open hypotheses, those that have closed, and when a prompt is done.

A closed hypothesis scores log p / length^α, the end token counted in both. A prompt is done when no open one
can still enter the n best: log-probabilities only fall and a longer length only helps, so an open hypothesis
ends at best with log p / max_tokens^α, and that is the bound. It is also done when `width` hypotheses have
closed that all score at least what the likeliest open one would if it ended here: a guess, without which a
search would rarely end early, and the one that Hugging Face's `generate` makes. (To stop at `width` closed ones
whatever they score would lose to greedy search: where the model is sure, all but the best row are unlikely, and
a few of those end soon.) Hypotheses still open at `max_tokens` are ranked by the same score, unfinished.

Done prompts leave the batch, on a CPU at once and elsewhere when they are half of it, and a hypothesis that goes on
stays in its row where it can: what moves is copied. The bookkeeping is on the host, in small arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from legato.decoding.candidates import Candidates, Floats, Integers
from legato.decoding.options import SearchOptions
from legato.decoding.scores import normalise

BROKEN = "\ufffd"  # what decoding gives for bytes that are no character

Allowed = Collection[int] | NDArray[np.bool_] | None
"""Tokens that may come next: their numbers, or for each token (V,) whether it may; None: all."""

Constraint = Callable[[int, list[int]], Allowed]
"""From a prompt's number and the tokens generated so far to those allowed next.

Where none is, the hypothesis ends.
"""

LogitsProcessor = Callable[[Tensor, list[list[int]], list[int]], Tensor]
"""From logits (rows, V), what each row has written and the number of its prompt to other logits."""


class Stops(NamedTuple):
    """Strings that end a text, where it is read so."""

    strings: tuple[str, ...]
    text_of: Callable[[Sequence[int]], str]


@dataclass
class Hypothesis:
    """A continuation of a prompt."""

    tokens: list[int]  # generated, without the end token
    score: float  # what the search ranks by: log p / length^α, after the repetition penalty if there is one
    logprob: float  # log p under the model, before any penalty or filter; the end token's included
    finished: bool  # by an end token, a stop string or a constraint, rather than by max_tokens
    token_logprobs: list[float]  # the terms of `logprob`: one more than tokens where it ended by a token


class Step(NamedTuple):
    """What one step added to every row. Linked by their parents, the steps are every row's history."""

    tokens: Integers  # (G · W,)
    parents: Integers  # (G · W,), which row of the step before each one continues
    logprobs: Floats  # (G · W,)

    def padded(self, rows: int) -> Step:
        """With so many rows behind, which nobody has written in."""
        around = (0, rows)
        return Step(np.pad(self.tokens, around), np.pad(self.parents, around), np.pad(self.logprobs, around))


class Frontier:
    """The open hypotheses, `width` rows for each of G groups, and those that have closed."""

    def __init__(
        self,
        limits: Integers,
        options: SearchOptions,
        ends: Sequence[int],
        vocabulary: int,
        on_token: Callable[[int, int], None] | None,
        text_of: Callable[[Sequence[int]], str] | None = None,
        *,
        groups: Integers | None = None,
    ) -> None:
        """`groups` (G,) are their numbers; left out: from 0 on."""
        self.options = options
        self.width, count = options.width, len(limits)
        self.on_token = on_token
        self.ends = np.zeros(vocabulary, dtype=bool)  # (V,)
        self.ends[list(ends)] = True
        self.groups = np.arange(count) if groups is None else groups  # (G,), the numbers of those in the batch
        self.done = np.zeros(count, dtype=bool)  # (G,)
        # All rows of a group are the same at first: one of them counts, or its candidates would repeat.
        self.scores = np.full((count, self.width), -np.inf, dtype=np.float32)  # (G, W), −∞: not a hypothesis
        self.scores[:, 0] = 0
        self.moved = False  # whether the rows are no longer those the model's state has
        self.limits = np.asarray(limits)  # (G,), the most tokens of each group
        self.steps: list[Step] = []
        self.begun = np.zeros(count, dtype=np.int64)  # (G,), how many steps there were when each group came
        # Those that have closed, by what two may not have in common: their tokens or, where it is told, their text.
        # Of several that are shown no two shall read the same, whatever tokens spell them.
        self.text_of = text_of if options.nbest > 1 and self.width > 1 else None
        self.closed: dict[int, dict[Hashable, Hypothesis]] = {int(number): {} for number in self.groups}
        self.stops: dict[int, Stops] = {}  # by the number of a group

    @property
    def written(self) -> Integers:
        """The tokens that each group has written, (G,)."""
        return len(self.steps) - self.begun

    def join(self, other: Frontier, places: Sequence[int] | None = None) -> None:
        """Groups that have made their first step elsewhere go on here, behind ours or in `places` of those done."""
        assert len(other.steps) == 1, "groups join after their first step"
        count = len(self.groups)
        here = np.arange(count, count + len(other.groups)) if places is None else np.array(places)
        rows = (here[:, None] * self.width + np.arange(self.width)).ravel()
        missing = max(int(rows.max()) + 1 - self.scores.size, 0)
        last = self.steps[-1].padded(missing)
        last.tokens[rows], last.logprobs[rows] = other.steps[0].tokens, other.steps[0].logprobs
        last.parents[rows] = rows  # nobody looks further back
        self.steps[-1] = last
        if places is None:
            self.groups, self.done = np.append(self.groups, other.groups), np.append(self.done, other.done)
            self.limits, self.begun = np.append(self.limits, other.limits), np.append(self.begun, other.begun)
            self.scores = np.concatenate([self.scores, other.scores])
        self.groups[here], self.done[here], self.scores[here] = other.groups, other.done, other.scores
        self.limits[here], self.begun[here] = other.limits, len(self.steps) - 1
        self.closed |= other.closed
        self.stops |= other.stops

    def cancel(self, number: int) -> None:
        """A group goes no further, and what it has found is dropped."""
        self.closed.pop(number, None)
        self.stops.pop(number, None)
        here = self.groups == number
        self.done[here] = True
        self.scores[here] = -np.inf

    def forget_steps(self) -> None:
        """Drop the steps that no group in the batch began after."""
        oldest = int(self.begun[~self.done].min()) if (~self.done).any() else len(self.steps) - 1
        if oldest > 0 and 2 * oldest >= len(self.steps):
            del self.steps[:oldest]
            self.begun = self.begun - oldest

    def open_rows(self) -> Iterator[int]:
        yield from (int(row) for row in np.flatnonzero(self.scores.ravel() > -np.inf))

    def history(self, row: int, last: int | None = None) -> tuple[list[int], list[float]]:
        """The tokens that led to a row, or only the last few, and their log-probabilities."""
        tokens, logprobs = [], []
        there = len(self.steps) - int(self.begun[row // self.width])
        for step in islice(reversed(self.steps), there if last is None else min(last, there)):
            tokens.append(int(step.tokens[row]))
            logprobs.append(float(step.logprobs[row]))
            row = int(step.parents[row])
        return tokens[::-1], logprobs[::-1]

    def histories(self, rows: Integers) -> list[tuple[list[int], list[float]]]:
        """The same of several rows (N,), walked back side by side."""
        written = self.written[rows // self.width]  # (N,)
        most = int(written.max(initial=0))
        tokens = np.empty((len(rows), most), dtype=np.int64)
        logprobs = np.empty((len(rows), most), dtype=np.float32)
        for back, step in enumerate(islice(reversed(self.steps), most), start=1):
            # Who came later has no parents further back; what is read of those is left out below.
            rows = np.minimum(rows, len(step.tokens) - 1)
            tokens[:, -back], logprobs[:, -back] = step.tokens[rows], step.logprobs[rows]
            rows = step.parents[rows]
        lists = zip(tokens.tolist(), logprobs.tolist(), (most - written).tolist(), strict=True)
        return [(ids[start:], logs[start:]) for ids, logs, start in lists]

    def prompt_of(self, row: int) -> int:
        """The number of the prompt that a row continues."""
        return int(self.groups[row // self.width]) // self.options.samples

    def allowed(self, constraint: Constraint, may_end: bool) -> NDArray[np.bool_]:
        """What the constraint leaves each row, (G · W, V). A row left nothing closes."""
        mask = np.ones((self.scores.size, len(self.ends)), dtype=bool)
        for row in self.open_rows():
            tokens = constraint(self.prompt_of(row), self.history(row)[0])
            if tokens is None:
                continue
            if isinstance(tokens, np.ndarray):
                mask[row] = tokens
            else:
                mask[row] = False
                mask[row, list(tokens)] = True
            if not mask[row].any() or (not may_end and not (mask[row] & ~self.ends).any()):
                self.close(np.array([row]), finished=True)
        return mask

    def broken(self, candidates: Candidates) -> str | None:
        """Where a hypothesis that goes on has logits that are not finite, for a message; None where all are."""
        groups = candidates.broken & ~self.done  # (G,)
        if not groups.any():
            return None
        prompt = int(self.groups[groups.argmax()]) // self.options.samples
        return f" (prompt {prompt + 1}, token {int(self.written[groups.argmax()]) + 1})"

    def advance(self, candidates: Candidates) -> None:
        """Close what ended, and make the rest the next frontier."""
        width = self.width
        each = np.arange(len(self.groups))[:, None]  # (G, 1)
        parents = candidates.parents + each * width  # (G, C), rows of the batch
        scores = self.scores[each, candidates.parents] + candidates.gains  # (G, C)
        scores[np.isnan(scores)] = -np.inf  # ∞ − ∞, of logits that a penalty has made infinite
        possible = scores > -np.inf  # (G, C)
        ending = self.ends[candidates.tokens] & possible  # (G, C)
        # A group that the model leaves nothing (its only token is a forbidden one) ends where it is.
        stuck = (self.scores > -np.inf) & ~possible.any(-1, keepdims=True)  # (G, W)
        if stuck.any():
            self.close(np.flatnonzero(stuck), finished=True)
        self._close_ended(candidates, ending[:, :width], parents, scores)
        if width == 1:
            scores[ending] = -np.inf
            self.scores = scores
            self._take(Step(candidates.tokens[:, 0], np.arange(len(scores)), candidates.logprobs[:, 0]), moved=False)
            return

        order = np.argsort(ending, axis=-1, kind="stable")[:, :width]  # (G, W), what goes on, then ends
        scores[ending] = -np.inf
        order = order[each, _seats(candidates.parents[each, order])]
        self.scores = scores[each, order]
        rows = np.arange(self.scores.size)
        step = Step(
            tokens=candidates.tokens[each, order].ravel(),
            # What is no hypothesis continues what was in its place, so that nothing moves for it.
            parents=np.where(self.scores.ravel() > -np.inf, parents[each, order].ravel(), rows),
            logprobs=candidates.logprobs[each, order].ravel(),
        )
        self._take(step, moved=not np.array_equal(step.parents, rows))

    def advance_open(self, packed: Floats) -> bool:
        """Take a step of candidates (5, G, C) that closes nothing, of rows that are all open; whether it is one.

        It is what `advance`, `close_spent` and `settle` come to then, and most steps are such.
        """
        if self.width > 1 or int((self.begun + self.limits).min()) <= len(self.steps) + 1 or self.done.any():
            return False
        tokens = packed[0, :, 0].astype(np.int64)  # (G,)
        if self.ends[tokens].any() or not np.isfinite(packed[3:]).all():
            return False
        self.scores = self.scores + packed[3]
        self._take(Step(tokens, np.arange(len(tokens)), packed[2, :, 0]), moved=False)
        return True

    def _take(self, step: Step, moved: bool) -> None:
        self.steps.append(step)
        self.moved = moved
        if self.on_token is not None and self.width == 1:
            for row in self.open_rows():
                self.on_token(int(self.groups[row]), int(step.tokens[row]))

    def _close_ended(
        self, candidates: Candidates, ending: NDArray[np.bool_], parents: Integers, scores: Floats
    ) -> None:
        """Close the hypotheses that candidates in these places (G, W) end."""
        if not ending.any():
            return
        places = np.argwhere(ending)
        histories = self.histories(np.array([parents[group, place] for group, place in places]))
        for (group, place), (tokens, logprobs) in zip(places, histories, strict=True):
            logprobs.append(float(candidates.logprobs[group, place]))
            self._add(group, tokens, logprobs, float(scores[group, place]), finished=True)

    def close_at_stop(self) -> None:
        """Close every hypothesis whose newest token completes a stop string."""
        for row in self.open_rows():
            stops = self.stops.get(int(self.groups[row // self.width]))
            if stops is not None and self._stops(row, *stops):
                self.close(np.array([row]), finished=True)

    def _stops(self, row: int, stops: tuple[str, ...], text_of: Callable[[Sequence[int]], str]) -> bool:
        """Whether the text of a row, none of whose beginnings holds a stop string, holds one.

        It would lie at the end, so the last few tokens are decoded alone: more of them, until their text
        is long enough. The first of them may be the rest of a character, which reads as U+FFFD, or lack
        its space; what comes after that is the end of the whole text.
        """
        count = int(self.written[row // self.width])
        if not any(BROKEN in stop for stop in stops):
            newest = text_of(self.history(row, 1)[0])
            needed = max(map(len, stops)) + len(newest)  # it may begin before all that is new
            last = needed
            while last < count:
                text = text_of(self.history(row, last)[0]).lstrip(BROKEN)
                if len(text) >= needed:
                    if not cut_at_stop(text, stops)[1]:
                        return False
                    break
                last *= 2
        return cut_at_stop(text_of(self.history(row)[0]), stops)[1]

    def close_spent(self) -> None:
        """Close what has run out of tokens."""
        spent = self.limits <= self.written  # (G,)
        if spent.any():
            rows = np.flatnonzero((self.scores > -np.inf) & spent[:, None])
            self.close(rows, finished=False)

    def close(self, rows: Integers, *, finished: bool) -> None:
        """Close the hypotheses of these rows (N,)."""
        for row, (tokens, logprobs) in zip(rows.tolist(), self.histories(rows), strict=True):
            group, place = divmod(row, self.width)
            score = float(self.scores[group, place])
            self.scores[group, place] = -np.inf
            self._add(group, tokens, logprobs, score, finished=finished)

    def _add(self, group: int, tokens: list[int], logprobs: list[float], score: float, *, finished: bool) -> None:
        score = normalise(score, len(logprobs), self.options.length_penalty)
        closed = self.closed[int(self.groups[group])]
        # Where there are several end tokens, they can close the same tokens again; the likeliest counts.
        key = tuple(tokens) if self.text_of is None else cut_at_stop(self.text_of(tokens), self.options.stop)[0]
        if key in closed and closed[key].score >= score:
            return
        closed.pop(key, None)  # a better one closes later
        closed[key] = Hypothesis(tokens, score, sum(logprobs), finished, logprobs)

    def settle(self) -> None:
        """Mark the groups that are done."""
        likeliest = self.scores.max(-1)  # (G,)
        if self.width == 1:  # one row: it is open, or it has closed
            self.done |= likeliest == -np.inf
            return
        written = self.written
        for group in np.flatnonzero(~self.done):
            closed = list(self.closed[int(self.groups[group])].values())
            open_score = float(likeliest[group])
            limit = int(self.limits[group])
            if (
                open_score > -np.inf
                and not self._full(closed, open_score, int(written[group]))
                and not self._settled(closed, open_score, limit)
            ):
                continue
            self.done[group] = True
            self.scores[group] = -np.inf
            if self.on_token is not None:
                for token in ranked(closed)[0].tokens:
                    self.on_token(int(self.groups[group]), token)

    def _full(self, closed: list[Hypothesis], open_score: float, written: int) -> bool:
        """Whether `width` hypotheses have closed that no open one is ahead of now."""
        if len(closed) < self.width:
            return False
        now = normalise(open_score, written, self.options.length_penalty)
        return ranked(closed)[self.width - 1].score >= now

    def _settled(self, closed: list[Hypothesis], open_score: float, limit: int) -> bool:
        """Whether no open hypothesis can enter the n best (the bound in the docstring at the top)."""
        wanted = self.options.nbest // self.options.samples
        if len(closed) < wanted:
            return False
        bound = normalise(open_score, limit, self.options.length_penalty)
        return ranked(closed)[wanted - 1].score >= bound

    def shrink(self, at_once: bool = False) -> Integers | None:
        """Drop the groups that are done, once they are half of the batch or `at_once`.

        Groups from the end take the places that become free, nothing else moves. Given back is where those that stay
        came from; None: nobody left.
        """
        gone = int(self.done.sum())
        if gone == 0 or (not at_once and 2 * gone < len(self.done)):
            return None
        left = np.flatnonzero(~self.done)
        order = np.arange(len(left))
        order[self.done[: len(left)]] = left[left >= len(left)]
        rows = (order[:, None] * self.width + np.arange(self.width)).ravel()
        # No other step is touched: earlier rows are reached only through the last step's parents.
        self.steps[-1] = Step(*(column[rows] for column in self.steps[-1]))
        self.groups, self.scores, self.done = self.groups[order], self.scores[order], self.done[order]
        self.limits, self.begun = self.limits[order], self.begun[order]
        self.moved = True
        return order


def ranked(hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
    """Best first; of equal scores the one that closed earlier."""
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string in it, which ends what is written, and whether there was one.

    >>> cut_at_stop("one. two.", (".", "two"))
    ('one', True)
    """
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _seats(parents: Integers) -> Integers:
    """Which child sits in each of W rows, (G, W), for the parents' rows (G, W) of W children, the best first.

    The best child of each row stays in it, since only what moves has to be copied; the others take what is free.

    >>> _seats(np.array([[2, 0, 2, 2]]))
    array([[1, 2, 0, 3]])
    """
    each, children = np.arange(len(parents))[:, None], np.arange(parents.shape[1])
    same = parents[:, :, None] == parents[:, None, :]  # (G, W, W)
    stays = ~(same & (children[:, None] > children)).any(-1)  # (G, W), no better child has the same parent
    taken = np.zeros_like(stays)  # (G, W)
    taken[each, parents] = True
    seats = np.empty_like(parents)
    # The others and the free rows, each in their order; what follows them in both lists is put right below.
    seats[each, np.argsort(taken, axis=-1, kind="stable")] = np.argsort(stays, axis=-1, kind="stable")
    group, child = np.nonzero(stays)
    seats[group, parents[group, child]] = child
    return seats
