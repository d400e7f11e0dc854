"""Adapters of several names over one model, of which each row of a batch has its own, or none.

    y_i = W x_i + b + s_a B_a A_a x_i          a: the adapter of row i; 0 is none, and adds nothing

so that texts of many adapters are written in one batch, as in S-LoRA (Sheng et al. 2023) and Punica (Chen et al.
2023).

Notable: the A's of all adapters in a batch are one matrix and so are the s B's, so that a layer costs two thin
products more whatever the number of adapters: (1) what every A makes of every row, (2) zeros where the A is not the
row's own, (3) the sum of what the B's make of that.

Whose a row is, is bound to the caller's context by `adapter_rows`, as what is recorded is (`capture.py`): where
nobody has bound anything, the model is the base, and its fused kernels run. A CPU's step of one token has its own way
(`kernels/cpu/low_rank.h`), to which what is here is the plain twin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.nn.adapters.lora import Part

BASE: Final = 0  # the adapter of rows that have none


class AdapterRows:
    """Which adapter each row of a batch has."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = tuple(rows)
        self.present = tuple(sorted({*self.rows} - {BASE}))
        self.mixed = len({*self.rows}) > 1
        self._foreign: dict[tuple[int, ...], Tensor] = {}
        self._numbers: Tensor | None = None

    @classmethod
    def all_of(cls, adapter: int) -> AdapterRows:
        """Of a batch of any number of rows."""
        return cls([adapter])

    def numbers(self, rows: int, tokens: int) -> Tensor:
        """(B T,) whose each of so many tokens of so many rows is, for the CPU kernels."""
        if self._numbers is None or len(self._numbers) != rows * tokens:
            numbers = torch.tensor(self.rows, dtype=torch.int32).expand(rows)
            self._numbers = numbers.repeat_interleave(tokens)
        return self._numbers

    def foreign(self, owners: tuple[int, ...], device: torch.device) -> Tensor:
        """Where (B, R) a row meets what is another adapter's; `owners` are whose each of the R are."""
        if owners not in self._foreign:
            rows, own = torch.tensor(self.rows)[:, None], torch.tensor(owners)
            self._foreign[owners] = (rows != own).to(device)
        return self._foreign[owners]


_bound: ContextVar[AdapterRows | None] = ContextVar("adapter_rows", default=None)


def bound_rows() -> AdapterRows | None:
    """Whose the rows are that are being computed; None where all are the base's."""
    return _bound.get()


@contextmanager
def adapter_rows(rows: AdapterRows | None) -> Iterator[None]:
    """Inside, the rows have these adapters; None leaves it as it is around."""
    if rows is None:
        yield
        return
    before = _bound.set(rows if rows.present else None)
    try:
        yield
    finally:
        _bound.reset(before)


class Thin(NamedTuple):
    """What one adapter adds to a layer."""

    down: Tensor  # (R, inputs), the A's of all its parts
    up: Tensor  # (R, outputs), their s Bᵀ, zero where a part has no say
    parts: tuple[tuple[int, int, int], ...]  # how many ranks each part has, and its first output and the one behind


class LowRankRows:
    """What adapters add to one linear layer, each to its own rows."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        self.own: dict[int, Thin] = {}  # by adapter
        self.version = 0  # how often one was put
        self._together: tuple[tuple[int, ...], Tensor, Tensor, tuple[int, ...]] | None = (
            None  # the last ones' of many
        )

    @torch.no_grad()
    def put(self, adapter: int, parts: Sequence[tuple[Part, tuple[Tensor, Tensor]]], like: Tensor) -> None:
        """An adapter's A and s B of each part of the layer, as wide and where `like` is."""
        down = torch.cat([a for _, (a, _) in parts])
        up = torch.cat([F.pad(b.t(), (part.start, self.outputs - part.end)) for part, (_, b) in parts])
        spans = tuple((len(a), part.start, part.end) for part, (a, _) in parts)
        self.own[adapter] = Thin(down.to(like).contiguous(), up.to(like).contiguous(), spans)
        self.version += 1
        self._together = None

    def __call__(self, x: Tensor, y: Tensor, rows: AdapterRows) -> Tensor:
        """y (…, outputs), which is W x + b, with what each row's adapter adds."""
        found = self._of(tuple(each for each in rows.present if each in self.own))
        if found is None:
            return y
        down, up, owners = found
        low = F.linear(x, down).view(-1, len(owners))  # (… , R)
        if rows.mixed:
            by_row = low.view(len(rows.rows), -1, len(owners))  # (B, T, R)
            by_row.masked_fill_(rows.foreign(owners, x.device)[:, None], 0)
        return torch.addmm(y.reshape(-1, self.outputs), low, up).view(y.shape)

    def _of(self, adapters: tuple[int, ...]) -> tuple[Tensor, Tensor, tuple[int, ...]] | None:
        """A's and B's of these adapters, one below the other, and whose each row of them is."""
        if len(adapters) < 2:
            one = [(down, up, adapters * len(down)) for down, up, _ in (self.own[each] for each in adapters)]
            return one[0] if one else None
        together = self._together  # which another thread may exchange
        if together is None or together[0] != adapters:
            downs, ups, _ = zip(*(self.own[each] for each in adapters), strict=True)
            owners = tuple(each for each, down in zip(adapters, downs, strict=True) for _ in range(len(down)))
            self._together = together = adapters, torch.cat(downs), torch.cat(ups), owners
        return together[1:]
