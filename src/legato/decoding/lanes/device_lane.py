"""The lane in which steps stay on the model's device; the host looks at them while the next ones run.

Its requests are one cohort, in fixed places of a recorded graph (`search_steps.py`), where newcomers follow those
that are done. Whoever needs more columns, or a longer source, than a place has gets larger ones, into which the
others move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from legato.decoding.frontier import Frontier, Hypothesis
from legato.decoding.lanes.cohort import Cohort
from legato.decoding.lanes.host_lane import HostLane
from legato.decoding.lanes.prefill import Prefill
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.lanes.search_steps import LOOK, SearchSteps, search_steps
from legato.decoding.requests import Call, Manner, Setting

SMALLEST = 128  # columns of the smallest recorded cache


class DeviceLane:
    """A cohort whose steps stay on the device."""

    def __init__(self, setting: Setting, manner: Manner, prefixes: PrefixCache | None = None) -> None:
        self.setting, self.manner, self.device = setting, manner, setting.model.device
        self._prefixes = prefixes
        self._cohort = Cohort(setting, manner)
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
        if self._steps is None or self._cohort.frontier is None:
            return True
        free = int(self._cohort.frontier.done.sum())
        return len(call.prompts) * self.manner.options.samples <= free and self._fits(call)

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
        larger = self._make(before.slots.groups, *wanted, like)
        if larger is None:
            self._resources, self._largest = held, True
            return False
        larger.adopt(before)
        held.close()
        self._steps = larger
        return True

    # Not inference mode: tables that a model keeps for later, made here, must still serve its training.
    @torch.no_grad()
    def admit(self, call: Call) -> None:
        if self._instead is not None:
            self._instead.admit(call)
            return
        self._look(0)
        cohort, samples, width = self._cohort, self.manner.options.samples, self.manner.options.width
        prefill = Prefill(self.setting, call, max(map(len, call.prompts)) + 1, self._prefixes)
        logits = prefill.advance()
        assert logits is not None
        prefill.spread(samples * width)
        if self._steps is None:
            wanted = self.setting.rows // width if self.setting.rows else len(call.prompts) * samples
            capacity = max(call.capacity, self.setting.capacity or 0)
            self._steps = self._make(_bucket(wanted), capacity, _source_of(call), prefill.state)
        if self._steps is None:
            self._instead = HostLane(self.setting, self._prefixes)
            self._instead.admit(call)
            return
        cohort.expect(call)
        new = cohort.begin(call, logits)
        device, last = self.device, new.frontier.steps[-1]
        if new.frontier.moved:
            rows = torch.from_numpy(last.parents).to(device)
            prefill.state.reorder(rows)
            new.seen = None if new.seen is None else new.seen[rows]
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
        )
        if cohort.frontier is None:
            self._begin(new.frontier, self._steps.slots.groups)
        else:
            cohort.frontier.join(new.frontier, places)
        self._looks = 0

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

    def _make(self, groups: int, capacity: int, source: int, like: Any) -> SearchSteps | None:
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
            steps.record()
            return steps

        steps = self._resources.enter_context(search_steps(model, key, make))
        if steps is not None:
            self._capacity, self._source = capacity, source
        return steps

    @property
    def idle(self) -> bool:
        return self._instead.idle if self._instead is not None else self._cohort.idle

    @torch.no_grad()
    def step(self) -> None:
        if self._instead is not None:
            self._instead.step()
            return
        assert self._cohort.frontier is not None
        assert self._steps is not None
        alive = ~self._cohort.frontier.done
        left = int((self._cohort.frontier.limits - self._cohort.frontier.written)[alive].max()) - self._ahead
        # What streams is looked at step by step; else more seldom as the search goes on.
        count = 1 if self._cohort.streams else min(1 << self._looks, LOOK)
        count = min(count, left)
        if count > 0:
            self._unread.append(self._steps.advance(count))
            self._ahead += count
            self._looks += 1
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
        self._cohort.cancel(number)

    def finished(self) -> dict[int, list[Hypothesis]]:
        return self._instead.finished() if self._instead is not None else self._cohort.finished()

    def close(self) -> None:
        self._unread.clear()
        self._resources.close()


def _source_of(call: Call) -> int:
    """Tokens of the longest source."""
    return 0 if call.memory is None else int(call.memory.states.shape[1])


def _bucket(size: int, least: int = 1) -> int:
    """The next power of two."""
    return max(least, 1 << (max(size, 1) - 1).bit_length())
