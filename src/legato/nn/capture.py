"""Looking inside: one primitive by which a block names what is worth seeing.

A block calls `capture("forget_gate", f)`. Off, which is the rule, `capturing()` is False, the block
runs its fused kernel and nothing is kept. Inside `record()` the block runs its written-out equations
and each captured tensor lands in the trace under its full name:

    with record() as trace:
        model(batch)
    trace["lstm.0.forget_gate"]        # a list of tensors, one a time step
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

Trace = dict[str, list[Tensor]]

_trace: Trace | None = None
_scope: list[str] = []


def capturing() -> bool:
    """Whether somebody is looking, so that the written-out equations must run."""
    return _trace is not None


def capture(name: str, tensor: Tensor) -> None:
    """Keep `tensor` under the current scope's `name`; does nothing when nobody looks."""
    if _trace is not None:
        _trace[".".join([*_scope, name])].append(tensor.detach())


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Names captured inside are prefixed with `name.`."""
    _scope.append(name)
    try:
        yield
    finally:
        _scope.pop()


@contextmanager
def record() -> Iterator[Trace]:
    """Capture everything that runs inside the block."""
    global _trace
    before, _trace = _trace, defaultdict(list)
    try:
        yield _trace
    finally:
        _trace = before
