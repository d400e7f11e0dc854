"""A linear layer that is quick while a model generates on a CPU.

Generation multiplies a few rows by the same weights again and again, which the usual matrix product
does not like: with 4 to 64 rows it reaches a third to two thirds of what the cores can do. oneDNN does
better with weights laid out its own way. Laying them out costs about one product and as much memory
again, so only layers that `pack` names do it, when they are first used so in evaluation, and again when their
weights have changed. With fewer than `FEW` rows, on another device, in another precision or under autograd,
`Linear` is `nn.Linear`, except in float16 on an Arm CPU: oneDNN has no fast kernel for that, and float32 is used.
So it is with `MANY` rows, for which both layouts are as fast, unless their number is always the same: oneDNN makes
code and room for each number of rows that it meets, 0.6 to 3 MB, and keeps those of the last thousand.

It may have low-rank adapters, its own (`lora.py`) or each row's (`lora_by_row.py`), which are added to
whichever product was made.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.adapters.lora import LowRank
from legato.nn.adapters.lora_by_row import LowRankRows, bound_rows
from legato.nn.kernels.description import is_stock, register

# A CPU without bf16 products makes them another way, slower and right; PyTorch tells of it in a page of text.
warnings.filterwarnings("ignore", message="mkldnn_matmul failed", category=UserWarning)

FEW = 4  # rows from which the other layout wins; one row is bound by memory, whatever the layout
MANY = 128  # rows from which it does not


@register("product")
class Linear(nn.Linear):
    """y = x Wᵀ + b, and with adapters + s (x Aᵀ) Bᵀ"""

    low_rank: LowRank | None
    low_rank_rows: LowRankRows | None = None

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        self.packs = 0.0  # rows below which weights are laid out otherwise
        self._packed: Tensor | None = None
        self._of: tuple[int, int] | None = None  # which weights `_packed` was made of
        self.low_rank = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.adapted:
            return self._product(x)
        x = x.to(product_dtype(x))  # once for both products
        y = self._product(x)
        if self.low_rank is not None:
            y = self.low_rank(x, y)
        rows = None if self.low_rank_rows is None else bound_rows()
        return y if self.low_rank_rows is None or rows is None else self.low_rank_rows(x, y, rows)

    @property
    def adapted(self) -> bool:
        """Whether adapters add something to the product: its own, or now those of some row."""
        return self.low_rank is not None or (self.low_rank_rows is not None and bound_rows() is not None)

    @property
    def plain(self) -> bool:
        """Whether y = x Wᵀ + b is all that it does, and nobody listens."""
        return type(self) is Linear and self.bias is not None and not self.adapted and is_stock(self)

    def gelu(self, x: Tensor) -> Tensor:
        """gelu(y), in one pass over y where weights are laid out."""
        packed = self._ready(x) if type(self) is Linear and not self.adapted and is_stock(self) else None
        if packed is None:
            return F.gelu(self(x))
        return torch.ops.mkldnn._linear_pointwise(x, packed, self.added_bias, "gelu", [], "none")

    def _product(self, x: Tensor) -> Tensor:
        packed = self._ready(x)
        if packed is not None:
            return torch.ops.mkldnn._linear_pointwise(x, packed, self.added_bias, "none", [], "")
        weight, bias = self.weight, self.added_bias
        if not _better_widened(x):
            return F.linear(x, weight, bias)
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)

    def _ready(self, x: Tensor) -> Tensor | None:
        """The weights in oneDNN's layout, where these rows are multiplied with them."""
        used = self.packs and not self.training and not torch.is_grad_enabled()
        return self._laid_out(x) if used and FEW <= x.numel() // x.shape[-1] < self.packs else None

    @property
    def added_bias(self) -> Tensor | None:
        """What is added to the product, a number for each output."""
        return self.bias

    def _laid_out(self, x: Tensor) -> Tensor | None:
        weight = self.weight
        if not (x.dtype == weight.dtype == torch.float32 and x.is_cpu and weight.is_cpu):
            return None
        now = (weight.data_ptr(), weight._version)
        if now != self._of:
            self._packed, self._of = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 64), now
        return self._packed

    def train(self, mode: bool = True) -> Linear:
        # A fused optimiser changes weights without counting it in their version.
        self._packed, self._of = None, None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        # The layout cannot be copied or pickled, and need not be.
        return {**self.__dict__, "_packed": None, "_of": None}


@register("product")
class PartlyBiased(Linear):
    """Matrices that are stacked in one, of which those of some `heights` have no bias: no number is kept for them."""

    def __init__(self, inputs: int, heights: Sequence[int], biased: Sequence[bool]) -> None:
        super().__init__(inputs, sum(heights), bias=False)
        self.heights, self.biased = tuple(heights), tuple(biased)
        self.bias = nn.Parameter(torch.zeros(sum(rows for rows, has in zip(heights, biased, strict=True) if has)))

    @property
    def added_bias(self) -> Tensor | None:
        held = iter(self.bias.split([rows for rows, has in zip(self.heights, self.biased, strict=True) if has]))
        parts = zip(self.heights, self.biased, strict=True)
        return torch.cat([next(held) if has else self.bias.new_zeros(rows) for rows, has in parts])


ARM: Final = platform.machine() == "aarch64"


def _better_widened(x: Tensor) -> bool:
    """Whether a product of float16 is made faster in float32, as it is on an Arm CPU from two rows on: 50 times."""
    return ARM and x.dtype == torch.float16 and x.is_cpu and x.numel() > x.shape[-1]


def product_dtype(x: Tensor) -> torch.dtype:
    """What products with `x` are made in: autocast may have its own opinion."""
    kind = x.device.type
    autocast = not x.is_meta and torch.is_autocast_enabled(kind)  # which knows no sketch
    return torch.get_autocast_dtype(kind) if autocast else x.dtype


def as_wide_as(weight: Tensor, x: Tensor) -> Tensor:
    """What comes from outside, a picture or a sound, in the dtype of the weights that it meets first."""
    return x if x.is_meta or torch.is_autocast_enabled(x.device.type) else x.to(weight.dtype)


def pack(*modules: nn.Module, below: float = MANY) -> None:
    """Say that the linear layers inside will meet the same weights many times, with fewer rows than `below`."""
    pack_layers(chain.from_iterable(module.modules() for module in modules), below)


def pack_layers(layers: Iterable[nn.Module], below: float = MANY) -> None:
    """As `pack`, of layers that are known."""
    if torch.backends.mkldnn.is_available():
        for layer in layers:
            if isinstance(layer, Linear) and layer.packs != below:
                layer.packs = below


def xavier(layer: nn.Linear, *stacked: int) -> None:
    """Xavier's uniform start. Matrices of these heights `stacked` in one start as if each stood alone.

    Drawn for the stack as a whole, they would start out smaller than they should.
    """
    for part in layer.weight.split(list(stacked) or layer.out_features):
        nn.init.xavier_uniform_(part)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
