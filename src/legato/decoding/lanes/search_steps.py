"""Steps of a search that stay on the model's device: the model, the choice of tokens, the next frontier.

All of a step's numbers lie in fixed places (`nn/slots`), so on CUDA it is recorded once and replayed. What was chosen
is written down in a ring of `2 · LOOK` steps, which the host reads when it looks.

A recording is kept for the next search of the same shape. Where none can be made, the steps run as they are, which is
the plain twin; the reason is told once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from legato.decoding.candidates import Chooser
from legato.decoding.lanes.device_frontier import DeviceFrontier
from legato.decoding.options import SearchOptions
from legato.decoding.row_settings import Level, RowSettings
from legato.errors import warn
from legato.nn.kernels.description import recording_key
from legato.nn.kernels.recording import failure_reason, record
from legato.nn.slots import Slots

LOOK = 16  # steps between two looks of the host, at most
KEPT = 4  # recordings of a model that are kept


class SearchSteps:
    """A search's steps over the groups of `slots`."""

    def __init__(
        self, slots: Slots, chooser: Chooser, ends: Sequence[int], vocabulary: int, device: torch.device
    ) -> None:
        self.slots, self.chooser = slots, chooser
        groups, width = slots.groups, slots.width
        ending = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        ending[list(ends)] = True
        self.frontier = DeviceFrontier(groups, width, ending)
        self.seeds = torch.zeros(groups, dtype=torch.long, device=device) if chooser.options.drawn else None
        # A group of one row has settings of its own (`row_settings.py`).
        self.rows = RowSettings([SearchOptions()] * groups, device) if width == 1 else None
        penalised = chooser.options.repetition_penalty != 1
        self.seen: Tensor | None = None
        self._device, self._vocabulary = device, vocabulary
        if penalised:
            self._remember_tokens()
        count = min(2 * width, width * vocabulary) if width > 1 else 1
        self._log = torch.zeros(2 * LOOK, 5, groups, count, device=device)
        self._turn = torch.zeros(1, dtype=torch.long, device=device)
        self._made = 0  # steps since the last reset
        self._graphs: dict[Level, Any] = {}  # of a step, by what it can do; None where none could be recorded
        # Where the host reads, twice: while it reads one, the other is written.
        self._looks = 0
        on_gpu = device.type == "cuda"
        self._copies = [torch.empty(self._log.shape, pin_memory=True) for _ in range(2)] if on_gpu else []
        self._events = [torch.cuda.Event() for _ in range(2)] if on_gpu else []

    def _remember_tokens(self) -> None:
        rows = self.slots.groups * self.slots.width
        self.seen = torch.zeros(rows, self._vocabulary, dtype=torch.bool, device=self._device)

    @torch.no_grad()
    def _step(self, level: Level) -> None:
        frontier = self.frontier
        parents = frontier.parents if self.slots.width > 1 else None
        logits = self.slots.step(frontier.tokens, parents)
        seen = self.seen if self.rows is None or level == Level.PENALISED else None
        if seen is not None:
            if parents is not None:
                seen.copy_(seen.index_select(0, parents))
            seen.scatter_(-1, frontier.tokens[:, None], True)
        candidates = self.chooser(
            logits, frontier.scores, frontier.written, self.seeds, seen, rows=self.rows, level=level
        )
        self._log.index_copy_(0, self._turn, candidates.unsqueeze(0))
        frontier.advance(candidates)
        self._turn.add_(1).remainder_(len(self._log))

    @torch.no_grad()
    def prepare(self, level: Level) -> None:
        """Be ready for steps that can do so much: recorded, where the device can; why not, is told.

        What is there stays: a recording runs the step a few times.
        """
        if level == Level.PENALISED and self.seen is None:
            self._remember_tokens()
        if level in self._graphs or self._device.type != "cuda":
            return
        changing = [*self.slots.changing, *self.frontier.changing, self._turn]
        changing += [] if self.seen is None else [self.seen]
        before = [each.clone() for each in changing]
        try:
            self._graphs[level] = record(partial(self._step, level), self._device)
        except torch.OutOfMemoryError:
            if not self._graphs:
                raise
            self._give_up(level, "the device's memory does not hold it")
        except RuntimeError as problem:
            self._give_up(level, failure_reason(problem))
        for each, kept in zip(changing, before, strict=True):
            each.copy_(kept)

    def _give_up(self, level: Level, reason: str) -> None:
        """Steps of this level run as they are from now on."""
        self._graphs[level] = None
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what was run to warm up may write still
        _tell(reason)

    def reset(self) -> None:
        """Forget all groups."""
        self.slots.reset()
        self.frontier.scores.fill_(-torch.inf)
        self.frontier.tokens.zero_()
        self._turn.zero_()
        self._made = 0

    def adopt(self, other: SearchSteps) -> None:
        """Go on with the groups of steps of the same kind, all of which were looked at, in smaller slots."""
        self.slots.adopt(other.slots)
        self.frontier.adopt(other.frontier)
        if self.seeds is not None and other.seeds is not None:
            self.seeds.copy_(other.seeds)
        if other.seen is not None:
            if self.seen is None:
                self._remember_tokens()
            assert self.seen is not None
            self.seen.copy_(other.seen)
        if self.rows is not None and other.rows is not None:
            self.rows.adopt(other.rows)

    def begin(
        self,
        places: Sequence[int],
        state: Any,
        tokens: Tensor,
        scores: Tensor,
        written: Tensor,
        seeds: Tensor | None,
        seen: Tensor | None,
        rows: RowSettings | None = None,
    ) -> None:
        """Groups go on in these places from what a state has, and from their first tokens."""
        where = torch.tensor(places, device=self._device)
        self.slots.put(where, state)
        self.frontier.place(where, tokens, scores, written)
        if self.seeds is not None and seeds is not None:
            self.seeds[where] = seeds
        if self.seen is not None and seen is not None:
            width = self.slots.width
            self.seen[(where[:, None] * width + torch.arange(width, device=self._device)).flatten()] = seen
        if self.rows is not None and rows is not None:
            self.rows.place(where, rows)

    def advance(self, steps: int, level: Level = Level.TAKEN) -> Callable[[], list[Any]]:
        """Make so many steps, up to LOOK; what gives, once they are made, each one's candidates (5, G, C)."""
        graph = self._graphs.get(level)
        for _ in range(steps):
            if graph is None:
                self._step(level)
            else:
                graph.replay()
        turns = [(self._made + step) % len(self._log) for step in range(steps)]
        self._made += steps
        if self._device.type != "cuda":
            read = self._log[turns].numpy()
            return lambda: list(read)
        copied, done = self._copies[self._looks % 2], self._events[self._looks % 2]
        self._looks += 1
        copied.copy_(self._log, non_blocking=True)
        done.record()

        def wait() -> list[Any]:
            done.synchronize()
            return list(copied.numpy()[turns])  # a copy: the place is written again

        return wait


_TOLD: set[str] = set()


def _tell(reason: str) -> None:
    if reason not in _TOLD:
        _TOLD.add(reason)
        warn(f"steps of this search are not recorded as a CUDA graph: {reason}")


class _Kept:
    """What was recorded for a model, the last used last."""

    def __init__(self) -> None:
        self.free: OrderedDict[Hashable, SearchSteps] = OrderedDict()
        self.lock = threading.Lock()

    def take(self, key: Hashable) -> SearchSteps | None:
        with self.lock:
            return self.free.pop(key, None)

    def give(self, key: Hashable, steps: SearchSteps) -> None:
        with self.lock:
            self.free[key] = steps
            while len(self.free) > KEPT:
                self.free.popitem(last=False)

    def clear(self) -> None:
        with self.lock:
            self.free.clear()

    def __reduce__(self) -> Any:
        return _Kept, ()  # a copy of the model has recordings of its own


def _kept_for(model: Any) -> _Kept:
    # With the model, which they refer to: what refers to itself alone is collected.
    return model.__dict__.setdefault("_recorded_steps", _Kept())


def forget_steps(model: Any) -> None:
    """Give back the memory of what was recorded for a model."""
    _kept_for(model).clear()


def _made(make: Callable[[], SearchSteps | None], kept: _Kept) -> SearchSteps | None:
    """What `make` makes, in the place of what is kept where memory runs out; None where that is not enough."""
    for _ in range(2):
        try:
            return make()
        except torch.OutOfMemoryError:
            kept.clear()
            torch.cuda.empty_cache()
    _tell("the device's memory does not hold it")
    return None


@contextmanager
def search_steps(model: Any, key: Hashable, make: Callable[[], SearchSteps | None]) -> Iterator[SearchSteps | None]:
    """Steps of the kind that `key` tells, empty: recorded before, or made and recorded now; None: there are none."""
    kept = _kept_for(model)
    weights = tuple(parameter.data_ptr() for parameter in model.parameters())
    key = (key, weights, recording_key(model))
    steps = kept.take(key)
    if steps is None:
        steps = _made(make, kept)
    else:
        steps.reset()
    try:
        yield steps
    finally:
        if steps is not None and model.device.type == "cuda":
            kept.give(key, steps)
