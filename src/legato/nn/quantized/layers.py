"""Layers whose matrix has 8 or 4 bits: they stand wherever a linear layer or a table of tokens can.

A layer's `weight` is made when somebody asks for it, so that whoever computes with that gets the right numbers,
slowly. Gradients go through the product to what the layer reads, and to its bias, not into the matrix:

    y = x Wᵀ + b            dx = dy W            W is dequantised once for either, and kept for neither
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.kernels.description import register
from legato.nn.kernels.library import Library, Matrix, library
from legato.nn.linear import Linear, PartlyBiased, product_dtype
from legato.nn.quantized.weights import QuantizedWeight, matrix_of
from legato.nn.readout import Readout, TokenEmbedding


class NarrowProduct(torch.autograd.Function):
    """x Wᵀ + b by the dequantised W: the kernels' plain twin."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, weight: QuantizedWeight) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight.dequantize(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        of_x, of_bias, _ = ctx.needs_input_grad
        dx = grad @ ctx.weight.dequantize(grad.dtype) if of_x else None
        return dx, grad.flatten(0, -2).sum(0) if of_bias else None, None


def narrow_product(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """(…, K) to (…, N), in what products are made in around it."""
    dtype = product_dtype(x)
    made: Tensor = NarrowProduct.apply(x.to(dtype), None if bias is None else bias.to(dtype), weight)
    return made


class Narrow(nn.Module):
    """A module whose matrix is a `QuantizedWeight`: its blocks are a buffer, so that they are saved and moved."""

    blocks: Tensor
    table: Tensor | None
    exponent: Tensor
    minimums: Tensor | None
    wide: Tensor

    def hold(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        self.bits, self.matrix_shape = weight.bits, weight.shape
        self.register_buffer("blocks", weight.blocks)
        self.register_buffer("table", weight.table)
        # Whole numbers: a model that is brought to another dtype leaves them as they are.
        self.register_buffer("exponent", torch.tensor(weight.exponent))
        self.register_buffer("minimums", torch.ones(1, dtype=torch.uint8) if weight.minimums else None)
        self._exponent = weight.exponent
        wide = torch.empty(0, dtype=dtype, device=weight.blocks.device)  # of the width around it
        self.register_buffer("wide", wide, persistent=False)
        self._matrix: Matrix | None = None
        self._matrix_of: tuple[int, ...] = ()

    @property
    def quantized(self) -> QuantizedWeight:
        return QuantizedWeight(
            self.blocks, self.matrix_shape, self.bits, self.table, self._exponent, self.minimums is not None
        )

    @property
    def weight(self) -> Tensor:
        return self.quantized.dequantize(self.number_dtype)

    @property
    def number_dtype(self) -> torch.dtype:
        """Of what the layer gives back."""
        return self.wide.dtype

    def kernels_for(self, x: Tensor) -> Library | None:
        """The kernels, where they multiply `x`."""
        return library() if x.is_cpu and x.dtype == torch.float32 and not torch.is_grad_enabled() else None

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x Wᵀ + b"""
        if self.kernels_for(x) is None:
            return narrow_product(x, self.quantized, bias)
        return self.kernel_product(x, self.laid_out(bias, bias))

    def kernel_product(self, x: Tensor, matrix: Matrix) -> Tensor:
        kernels = library()
        assert kernels is not None
        rows = x.numel() // x.shape[-1]
        given = F.pad(x, (0, matrix.columns - x.shape[-1])).contiguous()
        made = x.new_empty(*x.shape[:-1], matrix.rows)
        kernels.linear(matrix, given.data_ptr(), rows, made.data_ptr(), 0, torch.get_num_threads())
        return made if matrix.rows == self.matrix_shape[0] else made[..., : self.matrix_shape[0]]

    def laid_out(self, bias: Tensor | None, of: Tensor | None) -> Matrix:
        """What the CPU kernels read; `bias` is made of that tensor, or is it."""
        now = (self.blocks.data_ptr(), 0 if of is None else of.data_ptr(), 0 if of is None else of._version)
        if self._matrix is None or now != self._matrix_of:
            self._matrix_of = now
            self._matrix = matrix_of(self.quantized, bias)
        return self._matrix

    def extra_repr(self) -> str:
        rows, columns = self.matrix_shape
        return f"{columns}, {rows}, bits={self.bits}"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_matrix": None, "_matrix_of": ()}


class NarrowMatrix(Narrow):
    """A matrix alone, of a module that has its biases."""

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.hold(weight, dtype)


class NarrowLinear(Narrow, nn.Linear):  # type: ignore[override]
    """y = x Wᵀ + b with a narrow W, in place of PyTorch's layer, which has no adapters."""

    def __init__(self, layer: nn.Linear, weight: QuantizedWeight) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.hold(weight, layer.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x, self.bias)


@register("product")
class QuantizedLinear(NarrowLinear, Linear):  # type: ignore[override]
    """y = x Wᵀ + b, and what adapters add, with a narrow W."""

    def __init__(self, layer: Linear, weight: QuantizedWeight) -> None:
        super().__init__(layer, weight)
        self.low_rank, self.low_rank_rows = layer.low_rank, layer.low_rank_rows
        self.packs, self._packed, self._of = 0.0, None, None

    def forward(self, x: Tensor) -> Tensor:
        return Linear.forward(self, x)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(self(x))

    def _product(self, x: Tensor) -> Tensor:
        if self.kernels_for(x) is None:
            return narrow_product(x, self.quantized, self.added_bias)
        return self.kernel_product(x, self.as_matrix())

    def as_matrix(self) -> Matrix:
        """What the CPU kernels read."""
        return self.laid_out(self.added_bias, self.bias)


@register("product")
class QuantizedPartlyBiased(QuantizedLinear, PartlyBiased):  # type: ignore[override]
    """… of matrices stacked in one, of which some have no bias."""

    def __init__(self, layer: PartlyBiased, weight: QuantizedWeight) -> None:
        super().__init__(layer, weight)
        self.heights, self.biased = layer.heights, layer.biased


@register("product")
class QuantizedReadout(QuantizedLinear, Readout):  # type: ignore[override]
    """A logit for each token, of a narrow table."""

    def __init__(self, layer: Readout, weight: QuantizedWeight) -> None:
        super().__init__(layer, weight)
        self.vocabulary = layer.vocabulary

    def forward(self, x: Tensor) -> Tensor:
        return QuantizedLinear.forward(self, x)[..., : self.vocabulary]


class NarrowEmbedding(Narrow, nn.Embedding):  # type: ignore[override]
    """A vector for each token, of a narrow table."""

    def __init__(self, table: nn.Embedding, weight: QuantizedWeight) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.padding_idx = table.padding_idx
        self.hold(weight, table.weight.dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        kernels = self.kernels_for(self.wide) if tokens.is_cpu else None
        made = self._kernel_rows(tokens) if kernels is not None else None
        return self.quantized.rows(tokens, self.number_dtype) if made is None else made

    def _kernel_rows(self, tokens: Tensor) -> Tensor | None:
        """The same by the CPU kernels; None where a token is none of the table's."""
        kernels, matrix, places = library(), self.laid_out(None, None), tokens.contiguous()
        assert kernels is not None
        made = self.wide.new_empty(*tokens.shape, matrix.columns)
        rows, columns = self.matrix_shape
        if not kernels.rows(matrix, places.data_ptr(), places.numel(), rows, made.data_ptr()):
            return None
        return made if columns == matrix.columns else made[..., :columns]


class QuantizedEmbedding(NarrowEmbedding, TokenEmbedding):  # type: ignore[override]
    """… of a table whose rows beyond the vocabulary are zeros."""

    def __init__(self, table: TokenEmbedding, weight: QuantizedWeight) -> None:
        super().__init__(table, weight)
        self.vocabulary = table.vocabulary
