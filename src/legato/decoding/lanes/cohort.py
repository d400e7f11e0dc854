"""Requests that choose their tokens together: their hypotheses, how the next ones are chosen, whom to tell of them.

A cohort knows nothing of the model's state but its rows in it; a lane keeps that (`host_lane.py`, `device_lane.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.decoding.candidates import Candidates, Chooser, Floats, Integers
from legato.decoding.draws import seeds_of
from legato.decoding.frontier import Allowed, Frontier, Hypothesis, Stops, ranked
from legato.decoding.requests import Call, Manner, Setting
from legato.decoding.row_settings import Level, RowSettings
from legato.decoding.sliding import Sliding
from legato.folders.finite_scores import not_finite
from legato.nn.pooling import inside


class Cohort:
    """Requests that choose together: on the host they are searched alike, on a device settings may be a row's own."""

    def __init__(self, setting: Setting, manner: Manner) -> None:
        self.setting, self.manner = setting, manner
        self.ends = setting.ends if manner.ends is None else list(manner.ends)
        self.device = setting.model.device
        self.chooser = Chooser(
            manner.options,
            self.ends,
            setting.suppress,
            setting.suppress_first,
            setting.normalised,
            self.device,
        )
        self.frontier: Frontier | None = None
        self.seeds: Tensor | None = None  # (G,), where tokens are drawn
        self.seen: Tensor | None = None  # (G · W, V), tokens that each row has; wanted by a repetition penalty
        self.rows: Integers = np.arange(0)  # (G · W,), of the lane's state
        self.changed = False  # whether something may have closed since `finished` was asked
        self._tellers: dict[int, tuple[Callable[[int, int], None], int]] = {}  # by group, and the first of its call
        self._first: int | None = None  # the number of the first request

    @property
    def idle(self) -> bool:
        return self.frontier is None or bool(self.frontier.done.all())

    @property
    def alive(self) -> int:
        """Rows that are written in."""
        return 0 if self.frontier is None else int((~self.frontier.done).sum()) * self.manner.options.width

    @property
    def streams(self) -> bool:
        """Whether somebody is told of each token."""
        return bool(self._tellers)

    def rows_of(self, call: Call) -> int:
        options = self.manner.options
        return len(call.prompts) * options.samples * options.width

    def expect(self, call: Call) -> None:
        """A call's requests come."""
        samples = self.manner.options.samples
        if call.on_token is not None:
            first = call.first * samples
            groups = range(first, first + len(call.prompts) * samples)
            self._tellers |= {n: (call.on_token, first) for n in groups if n // samples not in call.cancelled}
        self._first = call.first if self._first is None else self._first
        self.changed = True

    def begin(self, calls: Sequence[Call], logits: Tensor, rows: RowSettings | None = None) -> Newcomers:
        """The first tokens of calls are chosen of logits (B, V) behind their prompts; `rows` are their settings."""
        setting, options = self.setting, self.manner.options
        samples = options.samples
        frontier = Frontier(
            np.repeat([limit for call in calls for limit in call.limits], samples),
            options,
            self.ends,
            setting.model.vocabulary,
            self._teller,
            self.manner.text_of,
            groups=np.concatenate([call.first * samples + np.arange(len(call.prompts) * samples) for call in calls]),
        )
        for call in calls:
            if call.manner.options.stop and call.manner.text_of is not None:
                stops = Stops(call.manner.options.stop, call.manner.text_of)
                first = call.first * samples
                frontier.stops |= dict.fromkeys(range(first, first + len(call.prompts) * samples), stops)
        seeds = None
        if options.drawn:
            # A group that draws nothing has no seed.
            pairs = [pair for call in calls for pair in call.seeds or [(0, 0)] * len(call.prompts) * samples]
            seeds = seeds_of(pairs, self.device)  # (G,)
        seen = None
        if options.repetition_penalty != 1 or (rows is not None and rows.level == Level.PENALISED):
            prompts = [prompt for call in calls for prompt in call.prompts]
            seen = _tokens_in(Inputs.of(prompts, self.device), setting.model.vocabulary)  # (B, V)
        each = options.samples * options.width
        if each > 1:
            logits = logits.repeat_interleave(each, 0)  # (B · samples · width, V)
            seen = None if seen is None else seen.repeat_interleave(each, 0)
        self.choose(frontier, logits, seeds, seen, first=True, rows=rows)
        return Newcomers(frontier, seeds, seen)

    def join(self, new: Newcomers, rows: Integers) -> None:
        """Newcomers go on behind those that are there, in these rows of the lane's state."""
        if self.idle:
            self.keep(new.frontier)
            self.seeds, self.seen, self.rows = new.seeds, new.seen, rows
            return
        assert self.frontier is not None
        self.frontier.join(new.frontier)
        self.rows = np.append(self.rows, rows)
        if self.seeds is not None and new.seeds is not None:
            self.seeds = torch.cat([self.seeds, new.seeds])
        if self.seen is not None and new.seen is not None:
            self.seen = torch.cat([self.seen, new.seen])

    def keep(self, frontier: Frontier) -> None:
        """A frontier takes the place of one that is done, whose findings stay."""
        if self.frontier is None:
            self.frontier = frontier
        elif self.frontier.done.all():
            frontier.closed |= self.frontier.closed
            self.frontier = frontier
        else:
            self.frontier.closed |= frontier.closed

    @property
    def _teller(self) -> Callable[[int, int], None] | None:
        """Whom the frontier tells of tokens."""
        return self._tell if self._tellers else None

    def _tell(self, group: int, token: int) -> None:
        if group in self._tellers:
            on_token, first = self._tellers[group]
            on_token(group - first, token)

    def cancel(self, number: int) -> None:
        if self.frontier is None:
            return
        self.changed = True
        samples = self.manner.options.samples
        for group in range(number * samples, (number + 1) * samples):
            self.frontier.cancel(group)
            self._tellers.pop(group, None)

    def finished(self) -> dict[int, list[Hypothesis]]:
        """Requests all of whose groups are done; they are given once."""
        if self.frontier is None or not self.changed:
            return {}
        self.changed = False
        frontier, samples, found = self.frontier, self.manner.options.samples, {}
        open_requests = {int(group) // samples for group in frontier.groups[~frontier.done]}
        for number in sorted({group // samples for group in frontier.closed} - open_requests):
            groups = [frontier.closed.get(number * samples + walk, {}) for walk in range(samples)]
            best = ranked(chain(*(closed.values() for closed in groups)))
            found[number] = best[: self.manner.options.nbest]
        for number in found:
            for walk in range(samples):
                self._tellers.pop(number * samples + walk, None)
                frontier.stops.pop(number * samples + walk, None)
                if self.manner.observer is None:  # who may look at all that has closed
                    frontier.closed.pop(number * samples + walk, None)
        return found

    def choose(
        self,
        frontier: Frontier,
        logits: Tensor,
        seeds: Tensor | None,
        seen: Tensor | None,
        *,
        first: bool = False,
        rows: RowSettings | None = None,
    ) -> None:
        """Let the frontier's hypotheses take a token each of logits (G · W, V)."""
        manner, chooser, device = self.manner, self.chooser, self.device
        may_end: bool | None = True
        if manner.options.min_tokens > 0:
            enough = frontier.written >= manner.options.min_tokens
            may_end = None if enough.any() != enough.all() else bool(enough.all())
        allowed = None
        if manner.constraint is not None:
            allowed = torch.from_numpy(frontier.allowed(self._constraint, bool(may_end))).to(device)
        if manner.processor is not None:
            each = range(len(logits))
            first_number = self._first or 0
            logits = manner.processor(
                logits,
                [frontier.history(row)[0] for row in each],
                [frontier.prompt_of(row) - first_number for row in each],
            )
        if manner.observer is not None:
            manner.observer.scored(logits, chooser.forbidden[first, may_end is True], frontier)
        packed = None
        if seen is None and allowed is None and rows is None:
            packed = chooser.on_host(logits, frontier.scores, may_end=may_end, first=first)
        if packed is None:
            packed = (
                chooser(
                    logits,
                    torch.from_numpy(frontier.scores).to(device),
                    torch.from_numpy(frontier.written).to(device),
                    seeds,
                    seen,
                    allowed,
                    may_end=may_end,
                    first=first,
                    rows=rows,
                    level=None if rows is None else rows.level,
                )
                .cpu()
                .numpy()
            )  # the step's one wait
        self.advance(frontier, packed)

    def _constraint(self, prompt: int, tokens: list[int]) -> Allowed:
        assert self.manner.constraint is not None
        return self.manner.constraint(prompt - (self._first or 0), tokens)

    def advance(self, frontier: Frontier, packed: Floats) -> None:
        """What was chosen becomes the frontier: what ended closes, what is spent, too."""
        frontier.on_token = self._teller
        observer = self.manner.observer
        if observer is None and not frontier.stops and frontier.advance_open(packed):
            return
        self.changed = True
        candidates = Candidates.of(packed)
        if (where := frontier.broken(candidates)) is not None:
            raise not_finite(_module_of(self.setting.model), where)
        frontier.advance(candidates)
        if observer is not None:
            observer.advanced(candidates, frontier)
        if frontier.stops:
            frontier.close_at_stop()
        frontier.close_spent()
        frontier.settle()


class Newcomers:
    """What a call's requests have once their first tokens are chosen."""

    def __init__(self, frontier: Frontier, seeds: Tensor | None, seen: Tensor | None) -> None:
        self.frontier, self.seeds, self.seen = frontier, seeds, seen


def _module_of(model: Any) -> Any:
    """The model whose weights are searched with."""
    return model.model if isinstance(model, Sliding) else model


def _tokens_in(inputs: Inputs, vocabulary: int) -> Tensor:
    """Which tokens each prompt holds, (B, V)."""
    tokens = inputs.token_ids
    own = inside(tokens.unsqueeze(-1), inputs.lengths).squeeze(-1)  # (B, T)
    counts = torch.zeros(len(tokens), vocabulary, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add_(-1, tokens, own.long()) > 0
