"""Looking inside: one primitive by which a block names what is worth seeing.

A block calls `capture("forget_gate", f, "row unit")`. Off, which is the rule, `capturing()` is False, the block
runs its fused kernel and nothing is kept. Inside `record()` the block runs its written-out equations
and each captured tensor lands in the trace under its full name:

    with record() as trace:
        model(batch)
    trace["lstm.0.forget_gate"]        # a list of tensors, one a time step
    trace.axes["lstm.0.forget_gate"]   # ("row", "unit")

Axes have names:

    row         of the batch
    position    what the block reads: tokens, patches, frames, what is asked for
    seen        the same, where it is looked at
    source      what an encoder has read, where a decoder looks at it
    head, unit  of attention, of anything else
    frame       of a clip, each of which its block reads as a row of its own (`frames`)

`record(keep)` keeps what a function of the full name says, so that a large model's trace fits.

A recording belongs to the caller's context (`contextvars`): who looks sees the forward passes of the same thread or
task, and other threads' run as if nobody looked. Whether anybody in the process looks is a plain variable, which is
asked first: so it costs nothing where nobody does, and a compiled graph reads nothing that it cannot trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock

from torch import Tensor


class Recording(dict[str, list[Tensor]]):
    """What was captured, by full names, in the order in which it was computed."""

    def __init__(self, keep: Callable[[str], bool] | None = None, *, attached: bool = False) -> None:
        super().__init__()
        self.keep, self.attached = keep, attached
        self.axes: dict[str, tuple[str, ...]] = {}
        self.met: dict[str, None] = {}  # every name, kept or not

    def add(self, name: str, tensor: Tensor, axes: str) -> None:
        self.met[name] = None
        if self.keep is not None and not self.keep(name):
            return
        self.setdefault(name, []).append(tensor if self.attached else tensor.detach())
        self.axes[name] = tuple(axes.split())


_traces: ContextVar[Recording | None] = ContextVar("trace", default=None)
_scopes: ContextVar[tuple[str, ...]] = ContextVar("scopes", default=())
_anybody = False  # whether somebody in the process records
_open = 0  # how many do
_frames: ContextVar[int | None] = ContextVar("frames", default=None)
_lock = Lock()
_UNNAMED = nullcontext()


def capturing() -> bool:
    """Whether the caller is looking, so that the written-out equations must run."""
    return _anybody and _traces.get() is not None


def capture(name: str, tensor: Tensor, axes: str) -> None:
    """Keep `tensor`, whose dimensions are `axes`, under the current scope's `name`; nothing when nobody looks."""
    if _anybody and (trace := _traces.get()) is not None:
        if (count := _frames.get()) is not None:
            tensor = tensor.unflatten(axes.split().index("row"), (-1, count))
            axes = axes.replace("row", "row frame")
        trace.add(".".join([*_scopes.get(), name]), tensor, axes)


def scope(name: str) -> AbstractContextManager[None]:
    """Names captured inside are prefixed with `name.`; nothing, quickly, where nobody looks."""
    return _scope(name) if capturing() else _UNNAMED


@contextmanager
def _scope(name: str) -> Iterator[None]:
    before = _scopes.set((*_scopes.get(), name))
    try:
        yield
    finally:
        _scopes.reset(before)


def frames(count: int) -> AbstractContextManager[None]:
    """What is captured inside has as rows the `count` frames of each row, which get an axis of their own."""
    return _framed(count) if capturing() else _UNNAMED


@contextmanager
def _framed(count: int) -> Iterator[None]:
    before = _frames.set(count)
    try:
        yield
    finally:
        _frames.reset(before)


@contextmanager
def record(keep: Callable[[str], bool] | None = None, *, attached: bool = False) -> Iterator[Recording]:
    """Capture everything that the caller runs inside the block, or only the names that `keep` says.

    What is `attached` stays in the graph, so that gradients with respect to it can be asked for.
    """
    trace = Recording(keep, attached=attached)
    before = _traces.set(trace)
    _count(1)
    try:
        yield trace
    finally:
        _count(-1)
        _traces.reset(before)


def _count(change: int) -> None:
    global _open, _anybody
    with _lock:
        _open += change
        _anybody = _open > 0
