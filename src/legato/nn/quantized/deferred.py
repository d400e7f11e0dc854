"""Matrices that stay in their file until they are made narrow.

A model in float32 is four or seven times as large as in 8 or 4 bits. So one that is to be narrow is never made wide:
inside `deferring` a layer that can become narrow gets a `Deferred` for its matrix, a shape on PyTorch's `meta`
device. Whoever reads a file says which tensors its rows are, as they lie there, and an adapter what it adds to them.
`quantize_layers` (narrowing.py) then reads some rows at a time, straight into blocks, and `read_deferred` whatever
stays wide.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from legato.memory import let_go
from legato.nn.recurrent import Cell

MATRICES: Final = ("weight", "weight_ih", "weight_hh")  # what layers and cells call them
LEAST: Final = 512  # numbers of a matrix that can become narrow: a block


class Rows(Protocol):
    """Rows of a matrix: a tensor, or what reads them from a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class Deferred(nn.Parameter):
    """A matrix (N, K) without numbers: which rows are stacked in it, and what is to be done with them."""

    stacked: list[Rows]
    changes: list[Callable[[Tensor], object]]

    @classmethod
    def of(cls, parameter: nn.Parameter) -> Deferred:
        made = cls(parameter.detach().to("meta"), parameter.requires_grad)
        made.stacked, made.changes = [], []
        return made

    @torch.no_grad()
    def rows(self, start: int, stop: int) -> Tensor:
        """Some rows, unchanged; those behind all that are stacked are zeros, as they are of a table of tokens."""
        assert self.stacked or self.changes, "nobody has said where the rows are"
        made = torch.zeros(stop - start, self.shape[1], dtype=self.dtype)
        first = 0
        for part in self.stacked:
            begin, end = max(start, first), min(stop, first + len(part))
            if begin < end:
                found = part[begin - first : end - first]
                made[begin - start : end - start] = found
                let_go(found)
            first += len(part)
        return made

    @torch.no_grad()
    def read(self) -> Tensor:
        """All of it, anew each time."""
        made = self.rows(0, len(self))
        for change in self.changes:
            change(made)
        return made


def numbers_of(tensor: Tensor) -> Tensor:
    """The tensor, read if it is deferred."""
    return tensor.read() if isinstance(tensor, Deferred) else tensor.detach()


@torch.no_grad()
def put(tensor: Tensor, numbers: Tensor) -> None:
    """Copy numbers into a tensor; both may be deferred."""
    if isinstance(tensor, Deferred) and isinstance(numbers, Deferred):
        tensor.stacked, tensor.changes = list(numbers.stacked), list(numbers.changes)
    elif isinstance(tensor, Deferred):
        tensor.stacked, tensor.changes = [numbers], []
    elif not tensor.is_meta:
        tensor.copy_(numbers_of(numbers))
        let_go(numbers)


@torch.no_grad()
def change(tensor: Tensor, how: Callable[[Tensor], object]) -> None:
    """Change a tensor in place; one that is deferred, when it is read."""
    if isinstance(tensor, Deferred):
        tensor.changes.append(how)
    else:
        how(tensor)


@torch.no_grad()
def read_deferred(module: nn.Module) -> None:
    """Read what is still deferred; what is tied stays so."""
    made: dict[int, nn.Parameter] = {}
    for layer in module.modules():
        for name, parameter in layer._parameters.items():
            if isinstance(parameter, Deferred):
                if id(parameter) not in made:
                    made[id(parameter)] = nn.Parameter(parameter.read(), parameter.requires_grad)
                layer._parameters[name] = made[id(parameter)]


# --- making modules -----------------------------------------------------------------------------------


class _Making(threading.local):
    """What is made in this thread: bytes that a number of it will take, where matrices are deferred."""

    number_bytes: float | None = None


_MAKING = _Making()


@contextmanager
def deferring(number_bytes: float) -> Iterator[None]:
    """Layers that are made here, and can become narrow, have deferred matrices; a number will take so many bytes."""
    _watch()
    before, _MAKING.number_bytes = _MAKING.number_bytes, number_bytes
    try:
        yield
    finally:
        _MAKING.number_bytes = before


@cache
def _watch() -> None:
    """PyTorch's hook is for all threads, so it is set once, and asks whether its own is making such layers."""
    register_module_parameter_registration_hook(_defer)  # type: ignore[arg-type]  # what it returns counts


def _defer(layer: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    """What a layer gets instead of its matrix, before that is drawn; None: the parameter as it is."""
    if _MAKING.number_bytes is None or name not in MATRICES or not isinstance(layer, nn.Linear | nn.Embedding | Cell):
        return None
    if parameter is None or isinstance(parameter, Deferred) or parameter.dim() != 2 or parameter.numel() < LEAST:
        return None
    return Deferred.of(parameter)


def number_bytes() -> float:
    """Bytes that a number of a model which is made now will take."""
    return _MAKING.number_bytes or torch.get_default_dtype().itemsize


def is_deferring() -> bool:
    return _MAKING.number_bytes is not None


@contextmanager
def shapes_only(module: nn.Module) -> Iterator[None]:
    """While this is on, a module that has deferred matrices is a sketch: it runs, and tells shapes."""
    if not any(isinstance(parameter, Deferred) for parameter in module.parameters()):
        yield
        return
    tables: list[dict[str, Any]] = [each for part in module.modules() for each in (part._parameters, part._buffers)]
    held = [(tensors, dict(tensors)) for tensors in tables]
    for tensors in tables:
        tensors.update({name: None if each is None else each.to("meta") for name, each in tensors.items()})
    try:
        yield
    finally:
        for tensors, before in held:
            tensors.update(before)
