"""The loop: rows wait, read their prompts, write and leave, side by side in one batch.

    plan      which rows read how many tokens in this step, under one budget: a prompt is a row that has more than one
              to read
    run       the model reads them and the sampler chooses, for all rows that have nothing left to read (`runner.py`)
    update    what the device has chosen comes to the host, which closes the rows that have ended

The host looks at what a step has chosen while the next one runs: at each step where somebody hears of each token,
else every few. What a row has written past its end is dropped. Where no block is left for a row, the newest one waits
again, and reads what it has written together with its prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from legato.decoding.draws import seeds_of
from legato.decoding.frontier import Hypothesis, ranked
from legato.decoding.requests import Call, Setting
from legato.decoding.row import Row, masks_of, too_long
from legato.decoding.runner import SYNC_EVERY, Chosen, Runner
from legato.decoding.runners import blocks_for, runner_for
from legato.folders.finite_scores import not_finite
from legato.nn.block_cache import BLOCK

BUDGET: Final = 16_384  # tokens that a step reads, where the engine does not say
MAX_ROWS: Final = 256  # that write side by side, where the engine does not say
GATHER_STEPS: Final = 8  # for which newcomers wait for one another while others write


class Unread(NamedTuple):
    """Some steps that the host has not looked at: what they choose, and whose each column is."""

    chosen: Chosen
    rows: list[tuple[int, Row]]


class Batch:
    """Rows of one model that write together."""

    def __init__(self, setting: Setting, computed: Hashable = None, prefix_bytes: int | None = None) -> None:
        """`computed` is what a step of the model depends on beside its weights (`recording_key`); no more than
        `prefix_bytes` are kept of what rows have read that have left."""
        self.setting, self.model, self._computed = setting, setting.model, computed
        self._prefix_bytes = prefix_bytes
        self._ahead = int(setting.recorded)  # looks by which the device is ahead of the host
        self._turn = 0  # of reading
        self.budget = setting.chunk or BUDGET
        self._waiting: deque[Row] = deque()
        self._rows: list[Row | None] = []  # by place
        self._calls: dict[int, Call] = {}  # by request
        self._texts: dict[int, dict[int, Hypothesis]] = {}  # of requests that are not done: by sample
        self._finished: dict[int, list[Hypothesis]] = {}
        self._runner: Runner | None = None
        self._resources = ExitStack()
        self._unread: deque[Unread] = deque()
        self._unnamed: dict[Row, tuple[int, ...]] = {}  # rows that read, by what they begin with
        self._stuck: list[Row] = []  # rows that have ended and are still in their places
        self._limit = 0  # rows that write side by side
        self._waited = 0  # steps since prompts were read
        self._looks = 0

    # ── what an engine asks for ───────────────────────────────────────────────────────────────────────

    def prepare(self) -> None:
        """Record steps before somebody waits for them."""
        self._open()
        assert self._runner is not None
        self._runner.prepare()

    def has_room(self, call: Call) -> bool:
        return True  # who comes waits here

    def admit(self, call: Call) -> None:
        """Take in a call's prompts; they are read with the next steps."""
        if self._runner is not None and not self.setting.recorded:
            self.model.choose_kernel(self._runner.cache)  # of the modules as they are now: some may have a hook
        samples = call.manner.options.samples
        for number, prompt in enumerate(call.prompts):
            request = call.first + number
            if request in call.cancelled:
                continue
            self._calls[request] = call
            self._texts[request] = {}
            if self.model.max_length is not None and len(prompt) > self.model.max_length:
                raise too_long(len(prompt), self.model.max_length)
            for sample in range(samples):
                self._waiting.append(self._row(call, number, prompt, sample))

    def _row(self, call: Call, number: int, prompt: list[int], sample: int) -> Row:
        options, group = call.manner.options, number * call.manner.options.samples + sample
        ends = self.setting.ends if call.manner.ends is None else call.manner.ends
        return Row(
            call.first + number,
            sample,
            prompt,
            options,
            call.limits[number],
            frozenset(ends),
            int(seeds_of([call.seeds[group]])[0]) if options.drawn else 0,
            call.adapter,
            call.manner.text_of if options.stop else None,
            None if call.on_token is None else partial(call.on_token, group),
            None if call.manner.constraint is None else partial(call.manner.constraint, number),
        )

    def cancel(self, request: int) -> None:
        self._texts.pop(request, None)
        self._calls.pop(request, None)
        self._finished.pop(request, None)
        self._waiting = deque(row for row in self._waiting if row.request != request)
        gone = [row for row in self._rows if row is not None and row.request == request]
        for row in gone:
            row.done = True
        self._leave(gone)

    @property
    def idle(self) -> bool:
        return not self._waiting and not any(self._rows)

    def finished(self) -> dict[int, list[Hypothesis]]:
        """Requests that are done; they are given once."""
        finished, self._finished = self._finished, {}
        return finished

    def abandon(self, problem: BaseException) -> None:
        """Drop all rows, and with them what is left of steps that a problem has broken off."""
        self._unread.clear()
        with suppress(type(problem)):
            self._resources.__exit__(type(problem), problem, problem.__traceback__)

    def close(self) -> None:
        """Drop all rows; what they had is given back."""
        self._unread.clear()
        self._resources.close()

    @torch.no_grad()  # not inference mode: tables that a model keeps for later, made here, must serve its training
    def step(self) -> None:
        """Let rows read or write on, and look at what was chosen before."""
        if any(row is not None and row.constraint is not None for row in self._rows):
            self._look(0)  # what may follow depends on what was chosen
        self._check_capacity()
        if self._reads():
            writing = [row for row in self._able() if self._reserve(row, self._length(row) + 1)]
            plan = self._plan(max(self.budget - len(writing), 1))
            if plan:
                self._read([row for row in writing if row.place >= 0 and row.read == len(row.tokens)], plan)
                self._name_blocks()
                self._look(self._ahead)
                return
        self._look(self._ahead if self._write() else 0)

    def _check_capacity(self) -> None:
        """Refuse a row that has no room for another token and has not ended."""
        for row in self._able():
            assert self._runner is not None
            if self._length(row) >= self._runner.cache.capacity and not row.done:
                self._look(0)
                if not row.done:
                    raise too_long(self._length(row) + 1, self._runner.cache.capacity)

    # ── the plan ──────────────────────────────────────────────────────────────────────────────────────

    def _reads(self) -> bool:
        """Whether it is time to read prompts: nobody writes, or newcomers have waited for one another."""
        if any(row is not None and row.read < len(row.tokens) for row in self._rows):
            return True
        gathers = self.setting.recorded and self.setting.chunk is not None  # a pass costs as much as many steps
        return bool(self._waiting) and not (gathers and self._waited < GATHER_STEPS and any(self._able()))

    def _plan(self, budget: int) -> list[tuple[Row, int]]:
        """Rows that read prompts in this step, and how many tokens of them; others come in where there is room.

        In turn those with the least left to read come first, so that short prompts are soon done, and the oldest.
        """
        self._enter_waiting()
        self._turn += 1
        rows = [row for row in self._rows if row is not None and row.read < len(row.tokens)]
        if self._turn % 2:
            rows.sort(key=lambda row: (row.request, row.sample))
        else:
            rows.sort(key=lambda row: len(row.tokens) - row.read)
        plan = []
        for row in rows:
            if count := self._part(row, budget):
                budget -= count
                plan.append((row, count))
        return plan

    def _enter_waiting(self) -> None:
        """Let rows that wait have places, where there is room."""
        entered = []
        while self._waiting and self._enters(self._waiting[0]):
            entered.append(self._waiting.popleft())
        if not entered:
            return
        assert self._runner is not None
        self._runner.sampler.enter(entered)

    def _part(self, row: Row, budget: int) -> int:
        """How many tokens a row reads now: it has slots for them."""
        assert self._runner is not None
        if budget <= 0:
            return 0
        if row.read == 0:
            if tuple(row.tokens[:BLOCK]) in self._unnamed.values():
                self._name_blocks(whole=False)
            row.read = self._runner.cache.begin(row.place, row.tokens, row.adapter)
        count = min(budget, len(row.tokens) - row.read)
        if not self._runner.cache.reserve(row.place, row.read + count):
            return 0
        row.read += count
        # In a step whose rows read one token each, nobody may read what another one writes in it.
        self._unnamed[row] = tuple(row.tokens[:BLOCK]) if count > 1 else ()
        return count

    def _name_blocks(self, *, whole: bool = True) -> None:
        """Let others begin with what rows read, or with what may be read in the same step.

        It takes time, so as a rule it is done while the device reads.
        """
        assert self._runner is not None
        for row, beginning in list(self._unnamed.items()):
            if whole or beginning:
                del self._unnamed[row]
                if row.place >= 0:
                    self._runner.cache.name_blocks(row.place, row.tokens[: row.read], row.adapter)

    def _enters(self, row: Row) -> bool:
        """Let a row have a place, where there is one, and there are blocks for what it has to read."""
        alone = not any(self._rows)
        more = self.setting.rows is None and len(self._waiting) > self._limit
        if self._runner is not None and alone and (more or self._needed(row) > self._runner.cache.blocks):
            self._resources.close()
            self._runner = None
        if self._runner is None:
            self._open()
        assert self._runner is not None
        cache = self._runner.cache
        if None not in self._rows and len(self._rows) < self._limit:
            self._rows.append(None)
        promised = sum(
            max(blocks_for(len(other.tokens) + 1) - blocks_for(cache.reserved[other.place]), 0)
            for other in self._rows
            if other is not None and other.read < len(other.tokens)
        )
        needed = blocks_for(min(len(row.tokens) + 1, cache.capacity))
        if None not in self._rows or needed + promised > cache.free:
            return False
        place = row.place = self._rows.index(None)
        self._rows[place] = row
        row.read = 0
        self._looks = 0
        return True

    def _needed(self, row: Row) -> int:
        """Blocks that a row takes at most."""
        tokens = len(row.tokens) - row.restarted + row.limit
        return blocks_for(min(tokens, self.model.max_length or tokens))

    def _open(self) -> None:
        """A runner for those that wait: with so many rows, and blocks for them, as memory allows."""
        setting = self.setting
        rows = setting.rows or min(MAX_ROWS, len(self._waiting))
        needs = sorted(map(self._needed, self._waiting), reverse=True) or [1]
        blocks = sum(needs[:rows])
        if setting.rows is not None:  # others will come
            blocks = max(blocks, rows * blocks_for(setting.capacity or self.model.max_length or BLOCK * needs[0]))
        self._runner = self._resources.enter_context(runner_for(setting, self._computed, rows, blocks, needs[0]))
        self._rows, self._limit = [], setting.rows or self._runner.cache.rows
        if self._prefix_bytes is not None:
            self._runner.cache.most_idle = self._prefix_bytes // self.model.block_bytes

    # ── the steps ─────────────────────────────────────────────────────────────────────────────────────

    def _read(self, writing: list[Row], plan: list[tuple[Row, int]]) -> None:
        """A step in which some rows read prompts, beside those that write."""
        assert self._runner is not None
        self._waited = 0
        ids: list[int] = [-1] * len(writing)
        last = [self._length(row) + 1 for row in writing]
        rows: list[Row] = []
        counts, choosing = [], []
        for row, count in plan:
            ids += row.tokens[row.read - count : row.read]
            last.append(row.read)
        for row, count in [*((row, 1) for row in writing), *plan]:
            if row.read == len(row.tokens):
                choosing.append((len(rows), row.place))
                row.launched += 1
            rows.append(row)
            counts.append(count)
        level = self._runner.sampler.level([place for _, place in choosing])
        masks = self._masks([rows[number] for number, _ in choosing])
        places, adapters = [row.place for row in rows], [row.adapter for row in rows]
        chosen = self._runner.read(ids, counts, places, last, level, choosing, masks, adapters)
        self._unread.append(Unread(chosen, [(n, rows[number]) for n, (number, _) in enumerate(choosing)]))

    def _write(self) -> bool:
        """Some steps in which each row reads what it has written and writes on; whether there is one that can."""
        rows = self._able()
        constrained = any(row.constraint is not None for row in rows)
        if not rows:
            return False
        assert self._runner is not None
        streams = constrained or any(row.on_token is not None for row in rows)
        # What streams is looked at step by step; else more seldom as the search goes on.
        steps = 1 if streams or not self._ahead else min(1 << self._looks, SYNC_EVERY)
        if self._waiting and self.setting.chunk is not None:
            steps = min(steps, max(1, GATHER_STEPS - self._waited))
        steps = min(steps, max(row.left for row in rows))
        steps = min([steps, *(self._runner.cache.capacity - self._length(row) for row in rows)])
        rows = [row for row in rows if self._reserve(row, self._length(row) + min(steps, row.left))]
        rows = [row for row in rows if row.place >= 0]
        if not rows:
            return True
        last = max(row.place for row in rows) + 1
        count = min(1 << (last - 1).bit_length(), self._runner.cache.rows) if self._ahead else last
        # Those that have ended are in their places until the host has seen it, and the device goes on with them.
        there = [row for row in self._rows if row is not None and row.read == len(row.tokens)]
        deepest = max(self._length(row) + (steps if row.left else 3 * SYNC_EVERY) for row in there)
        level = self._runner.sampler.level([row.place for row in rows])
        masks = {rows[number].place: mask for number, mask in self._masks(rows).items()} if constrained else None
        adapters = [0 if row is None else row.adapter for row in self._rows[:count]]
        chosen = self._runner.write(steps, count, deepest, level, masks, adapters)
        for row in rows:
            row.launched = min(row.launched + steps, row.limit)
        self._unread.append(Unread(chosen, [(row.place, row) for row in rows]))
        self._looks += 1
        self._waited += steps
        return True

    def _masks(self, rows: list[Row]) -> dict[int, NDArray[np.bool_]]:
        """What rows may write next, by their number among these, where that is not all.

        A row that may write nothing ends; it chooses with the others, and nobody looks at what.
        """
        masks, stuck = masks_of(rows, self.model.vocabulary)
        for row in stuck:
            self._end(row, row.end())
        self._stuck += stuck
        return masks

    def _able(self) -> list[Row]:
        """Rows that may write."""
        return [row for row in self._rows if row is not None and row.read == len(row.tokens) and row.left > 0]

    @staticmethod
    def _length(row: Row) -> int:
        """Tokens that the cache has of a row that writes; the last one chosen is not among them."""
        return len(row.tokens) + row.launched - row.restarted - 1

    def _reserve(self, row: Row, tokens: int) -> bool:
        """Slots for a row, if need be those of the newest one, which waits again."""
        assert self._runner is not None
        while row.place >= 0 and not self._runner.cache.reserve(row.place, tokens):
            if self._unread:
                self._look(0)  # some may have ended
                continue
            others = [other for other in self._rows if other is not None]
            self._restart(max(others, key=lambda other: (other.request, other.sample)))
        return row.place >= 0 and not row.done

    def _restart(self, row: Row) -> None:
        """A row waits again; it will read what it has written."""
        self._leave([row])
        row.tokens = [*row.tokens[: len(row.tokens) - row.restarted], *row.written]
        row.restarted = row.launched = len(row.written)
        row.read = 0
        self._waiting.appendleft(row)

    # ── what was chosen ───────────────────────────────────────────────────────────────────────────────

    def _look(self, unread: int) -> None:
        """Read what was chosen, but for the newest `unread` looks."""
        while len(self._unread) > unread:
            entry = self._unread.popleft()
            made = entry.chosen()  # (K, 5, M)
            ended = []
            for column, row in entry.rows:
                if row.done:
                    continue
                tokens, _, logprobs, gains, sums = made[:, :, column].T
                before = len(row.written)
                text = row.take(tokens.astype(np.int64), logprobs, gains)
                broken = np.flatnonzero(~np.isfinite(sums[: len(row.written) - before + 1]))
                if len(broken):
                    where = f" (prompt {row.request + 1}, token {before + int(broken[0]) + 1})"
                    raise not_finite(self.model, where)
                if text is not None:
                    ended.append(row)
                    self._end(row, text)
            self._leave(ended)
        stuck, self._stuck = self._stuck, []
        self._leave(stuck)

    def _end(self, row: Row, text: Hypothesis) -> None:
        if row.request not in self._texts:
            return
        texts, call = self._texts[row.request], self._calls[row.request]
        texts[row.sample] = text
        if len(texts) == call.manner.options.samples:
            best = ranked(texts[sample] for sample in sorted(texts))
            self._finished[row.request] = best[: call.manner.options.nbest]
            del self._texts[row.request], self._calls[row.request]

    def _leave(self, rows: Iterable[Row]) -> None:
        """Rows give back their places and blocks; those in the last places may take theirs."""
        places = [row.place for row in rows if row.place >= 0]
        if not places or self._runner is None:
            return
        for place in places:
            row = self._rows[place]
            assert row is not None
            if row.done and row.read == len(row.tokens):  # a dialogue may go on from here
                known = [*row.tokens[: len(row.tokens) - row.restarted], *row.written]
                self._runner.cache.name_blocks(place, known[: max(self._length(row), 0)], row.adapter)
            self._rows[place], row.place = None, -1
        self._runner.leave(places)
        self._move_together()

    def _move_together(self) -> None:
        """Let rows in the last places have lower ones, where a step of fewer rows will do then."""
        assert self._runner is not None
        while self._rows and self._rows[-1] is None:
            self._rows.pop()
        count = sum(row is not None for row in self._rows)
        if not count or len(self._rows) == count:
            return
        if self._ahead and (len(self._rows) - 1).bit_length() == (count - 1).bit_length():
            return
        free = [place for place, row in enumerate(self._rows[:count]) if row is None]
        high = [place for place, row in enumerate(self._rows) if row is not None and place >= count]
        for place, to in zip(high, free, strict=True):
            row = self._rows[place]
            assert row is not None
            self._rows[to], self._rows[place], row.place = row, None, to
        self._runner.move(high, free)
        del self._rows[count:]
