"""The lane in which the host sees each step's candidates before the next one.

All requests share one state of the model, however they are searched: a step of the model is one for all of them, and
then each cohort chooses from the logits of its rows. Rows join behind those that are there, and those that are done
leave, on a CPU at once, elsewhere when they are half of a cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.decoding.candidates import Integers
from legato.decoding.frontier import Hypothesis
from legato.decoding.lanes.cohort import Cohort, Newcomers
from legato.decoding.lanes.prefill import Prefill
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.requests import Call, Setting
from legato.nn.adapters.lora_by_row import BASE, AdapterRows, adapter_rows


class HostLane:
    """One state, and the cohorts whose rows it has."""

    def __init__(self, setting: Setting, prefixes: PrefixCache | None = None) -> None:
        self.setting, self.device = setting, setting.model.device
        self._prefixes = prefixes
        self._cohorts: dict[tuple[Any, ...], Cohort] = {}
        self._prefills: list[Prefill] = []  # whose prompts are being read, the oldest first
        self._turn = 0
        self._prompts: dict[int, list[int]] = {}  # by group, of those that are kept when they are done
        self._state: Any = None
        self._tokens: Tensor = torch.empty(0)  # (B,), what each row has to take in
        self._adapters: Integers = np.arange(0)  # (B,), whose each row is
        self._adapter_rows: AdapterRows | None = None  # the same, for the model; None: all are the base's

    @property
    def idle(self) -> bool:
        return not self._prefills and all(cohort.idle for cohort in self._cohorts.values())

    def has_room(self, call: Call) -> bool:
        if self.setting.rows is None:
            return True
        alive = sum(cohort.alive for cohort in self._cohorts.values())
        coming = sum(_rows_of(prefill.calls[0]) for prefill in self._prefills)
        return alive + coming + _rows_of(call) <= self.setting.rows

    def admit(self, call: Call) -> None:
        """Read a call's prompts; where the engine reads in parts, with the next steps."""
        prefill = Prefill(self.setting, [call], call.capacity, self._prefixes)
        if self.setting.chunk is None:
            self._read(prefill, None)
        else:
            self._prefills.append(prefill)

    def cancel(self, number: int) -> None:
        for prefill in list(self._prefills):
            call = prefill.calls[0]
            if call.first <= number < call.first + len(call.prompts):
                call.cancelled.add(number)
                if len(call.cancelled) == len(call.prompts):
                    self._prefills.remove(prefill)
        self._prompts.pop(number, None)
        for cohort in self._cohorts.values():
            cohort.cancel(number)

    def finished(self) -> dict[int, list[Hypothesis]]:
        """Requests that are done; they are given once."""
        found: dict[int, list[Hypothesis]] = {}
        for cohort in self._cohorts.values():
            found |= cohort.finished()
        self._cohorts = {key: cohort for key, cohort in self._cohorts.items() if not cohort.idle}
        return found

    def close(self) -> None:
        """There is nothing to give back."""

    @torch.no_grad()
    def step(self) -> None:
        """Let all that are alive write a token, and read on in what is to be read."""
        alive = [cohort for cohort in self._cohorts.values() if not cohort.idle]
        if alive:
            self._write(alive)
        budget = self.setting.chunk or 0
        while self._prefills and budget > 0:
            prefill = self._next_prefill()  # also where nobody writes: whoever comes meanwhile would wait
            tokens = min(budget, prefill.left)
            budget -= tokens
            self._read(prefill, tokens)

    def _next_prefill(self) -> Prefill:
        """In turn the one with the least left to read, so that short ones are soon done, and the oldest."""
        self._turn += 1
        return self._prefills[0] if self._turn % 2 else min(self._prefills, key=lambda prefill: prefill.left)

    # Not inference mode: tables that a model keeps for later, made here, must still serve its training.
    @torch.no_grad()
    def _read(self, prefill: Prefill, tokens: int | None) -> None:
        logits = prefill.advance(tokens)
        if logits is None:
            return
        if prefill in self._prefills:
            self._prefills.remove(prefill)
        call = prefill.calls[0]
        cohort = self._cohorts.get(call.manner.key)
        if cohort is None:
            cohort = self._cohorts[call.manner.key] = Cohort(self.setting, call.manner)
        cohort.expect(call)
        prefill.spread(call.manner.options.samples * call.manner.options.width)
        new = cohort.begin([call], logits)
        if new.frontier.done.all():
            cohort.keep(new.frontier)
        else:
            self._join(cohort, new, prefill.state, call.adapter)
            if self._prefixes is not None and call.memory is None and _rows_of(call) == len(call.prompts):
                self._prompts |= {call.first + n: prompt for n, prompt in enumerate(call.prompts)}
        for number in call.cancelled:
            cohort.cancel(number)

    def _join(self, cohort: Cohort, new: Newcomers, state: Any, adapter: int) -> None:
        alone = Cohort(self.setting, cohort.manner)
        alone.join(new, np.arange(len(new.frontier.steps[-1].tokens)))
        tokens, _ = self._settled([alone], state, len(alone.rows))
        before = 0 if self._state is None else len(self._tokens)
        if self._state is None:
            self._state, self._tokens, self._adapters = state, tokens, np.arange(0)
        else:
            self._state.join(state)
            self._tokens = torch.cat([self._tokens, tokens])
        self._have_adapters(np.append(self._adapters, np.full(len(tokens), adapter)))
        cohort.join(Newcomers(new.frontier, alone.seeds, alone.seen), alone.rows + before)

    def _write(self, alive: list[Cohort]) -> None:
        with adapter_rows(self._adapter_rows):
            logits = self.setting.model.step(self._tokens, self._state)  # (B, V)
        for cohort in alive:
            assert cohort.frontier is not None
            whole = np.array_equal(cohort.rows, np.arange(len(logits)))
            own = logits if whole else logits[torch.from_numpy(cohort.rows).to(self.device)]
            cohort.choose(cohort.frontier, own, cohort.seeds, cohort.seen)
        if self._prefixes is not None:
            self._keep_done(alive, self._prefixes)
        left = [cohort for cohort in alive if not cohort.idle]
        if not left:
            self._state = None
            return
        self._tokens, came = self._settled(left, self._state, len(self._tokens))
        if came is not None:
            self._have_adapters(self._adapters[came])
        for cohort in left:
            if cohort.changed and cohort.frontier is not None:
                cohort.frontier.forget_steps()

    def _have_adapters(self, adapters: Integers) -> None:
        """The rows are these adapters' from now on."""
        if not np.array_equal(adapters, self._adapters):
            self._adapter_rows = AdapterRows(adapters.tolist()) if (adapters != BASE).any() else None
        self._adapters = adapters

    def _keep_done(self, cohorts: Sequence[Cohort], prefixes: PrefixCache) -> None:
        """Keep what was computed for requests that are done: a dialogue may go on from there."""
        for cohort in cohorts:
            frontier = cohort.frontier
            if frontier is None or not cohort.changed:
                continue
            for place in np.flatnonzero(frontier.done):
                number = int(frontier.groups[place])
                prompt, closed = self._prompts.pop(number, None), frontier.closed.get(number)
                if prompt is not None and closed:
                    row = int(cohort.rows[place])
                    taken = int(self._state.lengths[row])  # of what was written the last token was not taken in
                    written = next(iter(closed.values())).tokens
                    adapter = int(self._adapters[row])
                    prefixes.keep([*prompt, *written][:taken], self._state, row, adapter)

    def _settled(self, cohorts: Sequence[Cohort], state: Any, rows_before: int) -> tuple[Tensor, Integers | None]:
        """The next tokens (B,), once done groups have left and rows are where their hypotheses are.

        And which row each was before, where that has changed.
        """
        device = self.device
        sources, moved = [], False
        for cohort in cohorts:
            frontier = cohort.frontier
            assert frontier is not None
            # On a CPU a row costs its share of every step, and to copy a few only theirs.
            order = frontier.shrink(at_once=device.type == "cpu")
            last = frontier.steps[-1]
            sources.append(cohort.rows[last.parents] if frontier.moved else cohort.rows)
            moved = moved or frontier.moved
            if cohort.seen is not None:
                if frontier.moved:
                    cohort.seen = cohort.seen[torch.from_numpy(last.parents).to(device)]
                cohort.seen.scatter_(-1, torch.from_numpy(last.tokens).to(device)[:, None], True)
            if cohort.seeds is not None and order is not None:
                cohort.seeds = cohort.seeds[torch.from_numpy(order).to(device)]
        tokens = np.concatenate([cohort.frontier.steps[-1].tokens for cohort in cohorts if cohort.frontier])
        before = np.concatenate(sources)  # (B,), the row that each one goes on from
        places, came = before, None
        if moved or len(before) != rows_before:
            places = _seats(before)
            cohort_rows = np.split(places, np.cumsum([len(each) for each in sources])[:-1])
            for cohort, rows in zip(cohorts, cohort_rows, strict=True):
                cohort.rows = rows
            came = np.empty_like(before)
            came[places] = before
            state.reorder(torch.from_numpy(came).to(device))
        placed = np.empty_like(tokens)
        placed[places] = tokens
        return torch.from_numpy(placed).to(device), came


def _rows_of(call: Call) -> int:
    options = call.manner.options
    return len(call.prompts) * options.samples * options.width


def _seats(sources: Integers) -> Integers:
    """A place (B,) for each of B rows that go on from rows `sources`: where that was, if it can be, or what is free.

    >>> _seats(np.array([0, 4, 2, 2]))
    array([0, 1, 2, 3])
    """
    count = len(sources)
    places = np.full(count, -1)
    found, first = np.unique(sources, return_index=True)
    stays = found < count
    places[first[stays]] = found[stays]
    free = np.ones(count, dtype=bool)
    free[found[stays]] = False
    places[places < 0] = np.flatnonzero(free)
    return places
