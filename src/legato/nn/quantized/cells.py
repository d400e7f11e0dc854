"""Recurrent cells whose matrices W and U have 8 or 4 bits.

One step multiplies by them as a layer does. Over a whole sequence the CPU kernels do so, too, step after step; where
there are none both are dequantised once, and PyTorch's kernel makes all steps.
"""

from __future__ import annotations

from torch import Tensor, nn

from legato.nn.kernels.description import register
from legato.nn.quantized.layers import NarrowMatrix
from legato.nn.quantized.weights import QuantizedWeight
from legato.nn.recurrent import Cell, ElmanCell, GRUCell, LSTMCell


class QuantizedCell(Cell):
    """What the three have in common."""

    def __init__(self, cell: Cell, of_input: QuantizedWeight, recurrent: QuantizedWeight) -> None:
        nn.Module.__init__(self)
        self.width = cell.width
        dtype = cell.bias_hh.dtype
        self.narrow_ih, self.narrow_hh = NarrowMatrix(of_input, dtype), NarrowMatrix(recurrent, dtype)
        self.bias_ih, self.bias_hh = cell.bias_ih, cell.bias_hh

    @property
    def weight_ih(self) -> Tensor:  # type: ignore[override]
        return self.narrow_ih.weight

    @property
    def weight_hh(self) -> Tensor:  # type: ignore[override]
        return self.narrow_hh.weight

    @property
    def inputs(self) -> int:
        return self.narrow_ih.matrix_shape[1]

    def fuses(self, x: Tensor) -> bool:
        return x.dim() == 3 and self.narrow_hh.kernels_for(x) is None

    def from_input(self, x: Tensor) -> Tensor:
        return self.narrow_ih.product(x, self.bias_ih)

    def from_hidden(self, h: Tensor, recurrent: Tensor | None) -> Tensor:
        if recurrent is not None:  # dropout has changed it
            return super().from_hidden(h, recurrent)
        return self.narrow_hh.product(h, self.bias_hh)


@register("cell")
class QuantizedElman(QuantizedCell, ElmanCell):
    pass


@register("cell")
class QuantizedGRU(QuantizedCell, GRUCell):
    pass


@register("cell")
class QuantizedLSTM(QuantizedCell, LSTMCell):
    pass


CELLS: dict[type[Cell], type[QuantizedCell]] = {
    ElmanCell: QuantizedElman,
    GRUCell: QuantizedGRU,
    LSTMCell: QuantizedLSTM,
}
