"""The lane in which steps stay on the model's device; the host looks at them while the next ones run.

Its requests are one cohort, in fixed places of a recorded graph (`search_steps.py`), where newcomers follow those
that are done. Whoever needs more columns, or a longer source, than a place has gets larger ones, into which the
others move.

A pass over prompts costs as much as many steps, however short they are, so that prompts are read together: while
others write, newcomers wait a few steps for one another. Long prompts are read in parts, where the engine does so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from legato.decoding.frontier import Frontier, Hypothesis
from legato.decoding.lanes.cohort import Cohort
from legato.decoding.lanes.host_lane import HostLane
from legato.decoding.lanes.prefill import Prefill
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.lanes.search_steps import LOOK, SearchSteps, search_steps
from legato.decoding.requests import Call, Manner, Setting
from legato.decoding.row_settings import Level, RowSettings, level_of

SMALLEST = 128  # columns of the smallest recorded cache
GATHER_STEPS: Final = 8  # for which newcomers wait for one another, where prompts are read in parts
MIN_REUSED: Final = (
    256  # tokens of a prompt's beginning that are worth a pass of its own, where they need not be read
)


class DeviceLane:
    """A cohort whose steps stay on the device."""

    def __init__(self, setting: Setting, manner: Manner, prefixes: PrefixCache | None = None) -> None:
        self.setting, self.manner, self.device = setting, manner, setting.model.device
        self._prefixes = prefixes
        self._cohort = Cohort(setting, manner)
        self._coming: list[Call] = []  # whose prompts are to be read
        self._prefills: list[Prefill] = []  # whose prompts are being read
        self._turn = self._waited = 0  # of reading, and steps since prompts were read
        self._steps: SearchSteps | None = None
        self._capacity = self._source = 0  # columns of a place, and tokens of its source
        self._largest = False  # whether there is no memory for larger places
        self._resources = ExitStack()
        self._unread: deque[Callable[[], list[Any]]] = deque()
        self._ahead = 0  # steps that were begun and not looked at
        self._looks = 0
        self._instead: HostLane | None = None  # where steps cannot stay on the device

    def has_room(self, call: Call) -> bool:
        if self._instead is not None:
            return self._instead.has_room(call)
        options = self.manner.options
        coming = sum(len(other.prompts) for other in self._coming_calls()) * options.samples
        wanted = coming + len(call.prompts) * options.samples
        if self._steps is None:
            # Who needs larger places than the first ones waits until those are there, and then they grow.
            first = self._coming_calls()[:1]
            larger = any(_bucket(call.capacity) > _bucket(max(each.capacity, SMALLEST)) for each in first)
            return not larger and (self.setting.rows is None or wanted * options.width <= self.setting.rows)
        return wanted <= self._free_groups(self._steps) and self._fits(call)

    def _free_groups(self, steps: SearchSteps) -> int:
        """Who may come yet; there may be more places than rows are allowed, since places are a power of two."""
        most, rows = steps.slots.groups, self.setting.rows
        if rows is not None:
            most = min(most, rows // self.manner.options.width)
        return most - self._cohort.alive // self.manner.options.width

    def _coming_calls(self) -> list[Call]:
        return [*self._coming, *(call for prefill in self._prefills for call in prefill.calls)]

    @torch.no_grad()
    def _fits(self, call: Call) -> bool:
        """Whether the places are large enough, or can be made so; where they cannot, the call waits for others."""
        wanted = max(call.capacity, self._capacity), max(_source_of(call), self._source)
        if wanted == (self._capacity, self._source):
            return True
        if self._largest or self._steps is None:
            return False
        self._look(0)
        before, held = self._steps, self._resources
        self._resources = ExitStack()
        like = self.setting.model.start(len(call.prompts), 1, call.memory)
        larger = self._make(before.slots.groups, *wanted, like, self._level)
        if larger is None:
            self._resources, self._largest = held, True
            return False
        larger.adopt(before)
        held.close()
        self._steps = larger
        return True

    def admit(self, call: Call) -> None:
        """Take in a call, whose prompts are read with the next steps."""
        if self._instead is not None:
            self._instead.admit(call)
        else:
            self._coming.append(call)

    # Not inference mode: tables that a model keeps for later, made here, must still serve its training.
    @torch.no_grad()
    def _read(self) -> None:
        """Read on in prompts, and begin with those that are read."""
        self._waited = 0
        self._group()
        budget, begun = self.setting.chunk, False
        while self._prefills:
            self._turn += 1
            left = min(self._prefills, key=lambda prefill: prefill.left)
            prefill = self._prefills[0] if self._turn % 2 else left  # as the host's lane does
            if (
                budget is not None
                and begun
                and (budget <= 0 or (prefill.rows * prefill.left > budget and not prefill.parts))
            ):
                return
            tokens = None if budget is None else max(1, min(budget, prefill.left))
            if budget is not None:
                budget -= prefill.rows * prefill.left if tokens is None or not prefill.parts else tokens
            begun = True
            logits = prefill.advance(tokens)
            if logits is not None:
                self._prefills.remove(prefill)
                self._enter(prefill, logits)

    def _group(self) -> None:
        """Who came is read together, up to a part's tokens; long prompts and what has a memory are read alone."""
        most = self.setting.chunk
        together: list[Call] = []
        for call in self._coming:
            longest = max(map(len, call.prompts))
            known = self._prefixes is not None and len(call.prompts) == 1 and longest > MIN_REUSED
            known = known and self._known(call.prompts[0]) >= MIN_REUSED
            if call.memory is not None or known or (most is not None and longest > most):
                self._prefill([call])
                continue
            rows = sum(len(each.prompts) for each in [*together, call])
            longest = max(len(prompt) for each in [*together, call] for prompt in each.prompts)
            if together and most is not None and rows * longest > most:
                self._prefill(together)
                together = []
            together.append(call)
        if together:
            self._prefill(together)
        self._coming.clear()

    def _known(self, prompt: list[int]) -> int:
        return 0 if self._prefixes is None else self._prefixes.known(prompt)

    def _prefill(self, calls: list[Call]) -> None:
        longest = max(len(prompt) for call in calls for prompt in call.prompts)
        self._prefills.append(Prefill(self.setting, calls, longest + 1, self._prefixes))

    def _enter(self, prefill: Prefill, logits: Tensor) -> None:
        """Calls whose prompts are read take their places."""
        self._look(0)
        cohort, samples, width = self._cohort, self.manner.options.samples, self.manner.options.width
        calls = prefill.calls
        if self._prefixes is not None:
            prefill.keep(MIN_REUSED)
        prefill.spread(samples * width)
        if self._steps is None:
            everybody = [*calls, *self._coming_calls()]
            wanted = sum(len(call.prompts) for call in everybody) * samples
            wanted = self.setting.rows // width if self.setting.rows else wanted
            capacity = max(self.setting.capacity or 0, *(call.capacity for call in everybody))
            self._steps = self._make(
                _bucket(wanted), capacity, max(map(_source_of, everybody)), prefill.state, self._level_of(calls)
            )
        if self._steps is None:
            self._instead = HostLane(self.setting, self._prefixes)
            for call in [*calls, *self._coming_calls()]:
                self._instead.admit(call)
            self._coming.clear()
            self._prefills.clear()
            return
        for call in calls:
            cohort.expect(call)
        rows = None
        if width == 1:
            rows = RowSettings(
                [call.manner.options for call in calls for _ in range(len(call.prompts) * samples)], self.device
            )
            self._steps.prepare(rows.level)
        new = cohort.begin(calls, logits, rows)
        device, last = self.device, new.frontier.steps[-1]
        if new.frontier.moved:
            parents = torch.from_numpy(last.parents).to(device)
            prefill.state.reorder(parents)
            new.seen = None if new.seen is None else new.seen[parents]
        places = list(range(len(new.frontier.groups)))
        if cohort.frontier is not None:
            places = np.flatnonzero(cohort.frontier.done)[: len(places)].tolist()
        self._steps.begin(
            places,
            prefill.state,
            torch.from_numpy(last.tokens).to(device),
            torch.from_numpy(new.frontier.scores).to(device),
            torch.from_numpy(new.frontier.written).to(device),
            new.seeds,
            new.seen,
            rows,
        )
        if cohort.frontier is None:
            self._begin(new.frontier, self._steps.slots.groups)
        else:
            cohort.frontier.join(new.frontier, places)
        for call in calls:
            for number in call.cancelled:
                cohort.cancel(number)
        self._looks = 0

    @property
    def _level(self) -> Level:
        """What a step has to be able to do for those who write."""
        if self._steps is None or self._steps.rows is None or self._cohort.frontier is None:
            return Level.TAKEN
        return Level(int(self._steps.rows.levels[~self._cohort.frontier.done].max(initial=0)))

    def _level_of(self, calls: list[Call]) -> Level:
        """What calls need of a step; a search of several rows is what its options say, whatever the level."""
        if self.manner.options.width > 1:
            return Level.TAKEN
        return max(level_of(call.manner.options) for call in calls)

    def _begin(self, frontier: Frontier, groups: int) -> None:
        """The frontier of the first call, with places for as many groups as there are."""
        missing = groups - len(frontier.groups)
        frontier.groups = np.pad(frontier.groups, (0, missing), constant_values=-1)
        frontier.done = np.pad(frontier.done, (0, missing), constant_values=True)
        frontier.scores = np.pad(frontier.scores, ((0, missing), (0, 0)), constant_values=-np.inf)
        frontier.limits = np.pad(frontier.limits, (0, missing), constant_values=1)
        frontier.begun = np.pad(frontier.begun, (0, missing))
        frontier.steps[-1] = frontier.steps[-1].padded(missing * frontier.width)
        self._cohort.frontier = frontier

    def _make(self, groups: int, capacity: int, source: int, like: Any, level: Level) -> SearchSteps | None:
        """Steps with places of so many columns, and so long a source, at least; `like` is a state of the model."""
        setting, model = self.setting, self.setting.model
        capacity, source = _bucket(capacity, SMALLEST), _bucket(source, 16) if source else 0
        forbidden = tuple(setting.suppress), tuple(setting.suppress_first), tuple(setting.ends), setting.normalised
        key = (groups, capacity, source, self.manner.options.model_dump_json(), forbidden)

        def make() -> SearchSteps | None:
            slots = model.slots(groups, self.manner.options.width, capacity, like, source)
            if slots is None:
                return None
            steps = SearchSteps(slots, self._cohort.chooser, setting.ends, model.vocabulary, model.device)
            steps.prepare(level)
            return steps

        steps = self._resources.enter_context(search_steps(model, key, make))
        if steps is not None:
            self._capacity, self._source = capacity, source
        return steps

    @property
    def idle(self) -> bool:
        if self._instead is not None:
            return self._instead.idle
        return not (self._coming or self._prefills) and self._cohort.idle

    @torch.no_grad()
    def step(self) -> None:
        if self._instead is None and self._read_now():
            self._read()
        if self._instead is not None:
            self._instead.step()
        elif not self._cohort.idle:
            self._write()

    def _read_now(self) -> bool:
        """Whether it is time to read prompts: nobody writes, or newcomers have waited for one another."""
        waits = self._cohort.alive and self.setting.chunk is not None and self._waited < GATHER_STEPS
        return bool(self._prefills or (self._coming and not waits))

    def _write(self) -> None:
        assert self._cohort.frontier is not None
        assert self._steps is not None
        alive = ~self._cohort.frontier.done
        left = int((self._cohort.frontier.limits - self._cohort.frontier.written)[alive].max()) - self._ahead
        # What streams is looked at step by step; else more seldom as the search goes on.
        count = 1 if self._cohort.streams else min(1 << self._looks, LOOK)
        if self._coming and self.setting.chunk is not None:
            count = min(count, max(1, GATHER_STEPS - self._waited))
        count = min(count, left)
        if count > 0:
            level = self._level
            self._steps.prepare(level)
            self._unread.append(self._steps.advance(count, level))
            self._ahead += count
            self._looks += 1
            self._waited += count
        self._look(1 if count > 0 else 0)

    def _look(self, unread: int) -> None:
        """Read what was chosen, but for the newest `unread` looks."""
        while len(self._unread) > unread:
            for packed in self._unread.popleft()():
                self._ahead -= 1
                if self._cohort.frontier is not None and not self._cohort.frontier.done.all():
                    self._cohort.advance(self._cohort.frontier, packed)
        if self._cohort.frontier is not None:
            self._cohort.frontier.forget_steps()

    def cancel(self, number: int) -> None:
        if self._instead is not None:
            self._instead.cancel(number)
        for call in self._coming_calls():
            if call.first <= number < call.first + len(call.prompts):
                call.cancelled.add(number)
        self._coming = [call for call in self._coming if _wanted(call)]
        self._prefills = [prefill for prefill in self._prefills if any(map(_wanted, prefill.calls))]
        self._cohort.cancel(number)

    def finished(self) -> dict[int, list[Hypothesis]]:
        return self._instead.finished() if self._instead is not None else self._cohort.finished()

    def close(self) -> None:
        self._unread.clear()
        self._resources.close()


def _wanted(call: Call) -> bool:
    """Whether somebody waits for it still."""
    return len(call.cancelled) < len(call.prompts)


def _source_of(call: Call) -> int:
    """Tokens of the longest source."""
    return 0 if call.memory is None else int(call.memory.states.shape[1])


def _bucket(size: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (max(size, 1) - 1).bit_length())
