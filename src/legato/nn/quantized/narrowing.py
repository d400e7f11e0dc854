"""How a model gets narrow matrices: from its own, or from a file's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from legato.nn.kernels.description import is_stock
from legato.nn.linear import Linear, PartlyBiased
from legato.nn.quantized.cells import CELLS, QuantizedCell
from legato.nn.quantized.layers import (
    Narrow,
    NarrowEmbedding,
    NarrowLinear,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedPartlyBiased,
    QuantizedReadout,
)
from legato.nn.quantized.weights import GROUP, OUTPUTS, QuantizedWeight, block_bytes, quantize
from legato.nn.readout import Readout, TokenEmbedding
from legato.nn.recurrent import Cell

BITS: Final = {"int8": 8, "int4": 4}
EMBEDDED: Final = 8  # bits of what tokens are looked up in, and read out of: a row speaks for a whole token
HELD: Final = ("blocks", "table", "exponent", "minimums")  # what a file has of a narrow matrix
READOUT: Final = "output"  # what models call the layer that gives a logit for each token
KINDS: Final[dict[Any, Callable[..., nn.Module]]] = {
    nn.Linear: NarrowLinear,
    Linear: QuantizedLinear,
    PartlyBiased: QuantizedPartlyBiased,
    Readout: QuantizedReadout,
    nn.Embedding: NarrowEmbedding,
    TokenEmbedding: QuantizedEmbedding,
    **CELLS,
}


@dataclass(frozen=True)
class _Wide:
    """A module that can become narrow: where it is, and its matrices by the names of what would hold them."""

    layer: nn.Module
    parent: nn.Module
    name: str  # in the parent
    path: str  # in the model
    matrices: Mapping[str, Tensor]
    table: bool  # of tokens
    kind: Callable[..., nn.Module]  # what it becomes


@torch.no_grad()
def quantize_layers(module: nn.Module, width: str) -> int:
    """Make all matrices of a model narrow, in place; how many there are. What is tied stays so."""
    bits, made, wide = BITS[width], dict[int, QuantizedWeight](), _wide(module)
    for each in wide:
        for matrix in each.matrices.values():
            if id(matrix) not in made:
                made[id(matrix)] = quantize(matrix, max(bits, EMBEDDED) if each.table else bits)
    return _replace(wide, made)


def _replace(wide: list[_Wide], made: Mapping[int, QuantizedWeight]) -> int:
    """Put narrow modules in place; one that stands in several places still does. How many matrices they have."""
    fresh: dict[int, nn.Module] = {}
    count = 0
    for each in wide:
        if id(each.layer) not in fresh:
            weights = [made[id(matrix)] for matrix in each.matrices.values()]
            fresh[id(each.layer)] = each.kind(each.layer, *weights).train(each.layer.training)
            count += len(weights)
        setattr(each.parent, each.name, fresh[id(each.layer)])
    return count


def hold_layers(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model the narrow matrices among a file's tensors. What does not fit is a ValueError."""
    found = {}
    for wide in _wide(module, small=True):
        for name, matrix in wide.matrices.items():
            if f"{name}.blocks" in tensors:
                parts = {part: tensors.get(f"{name}.{part}") for part in HELD}
                found[name] = _checked(f"{name}.", matrix.shape, parts)
    hold_weights(module, found, {name.removesuffix(".weight") for name in tensors if name.endswith(".weight")})


def hold_weights(
    module: nn.Module, weights: Mapping[str, QuantizedWeight], floats: frozenset[str] | set[str] = frozenset()
) -> list[str]:
    """Give layers of these names narrow matrices, and those that are tied to them the same: which took one.

    Layers that are named among `floats` keep theirs.
    """
    wide = _wide(module, small=True)
    made, taken = dict[int, QuantizedWeight](), []
    for each in wide:
        for name, matrix in each.matrices.items():
            if name in weights:
                made[id(matrix)] = weights[name]
                taken.append(name)
    full = [each for each in wide if all(id(matrix) in made for matrix in each.matrices.values())]
    _replace([each for each in full if each.path not in floats], made)
    return taken


def _checked(name: str, shape: torch.Size, parts: Mapping[str, Tensor | None]) -> QuantizedWeight:
    blocks, table, exponent = parts["blocks"], parts["table"], parts["exponent"]
    rows, columns = shape
    bits, minimums = (8 if table is None else 4), parts["minimums"] is not None
    wanted = (-(-rows // OUTPUTS), -(-columns // GROUP), block_bytes(bits, minimums))
    if blocks is None or blocks.dtype != torch.uint8 or tuple(blocks.shape) != wanted:
        found = "nothing" if blocks is None else f"{tuple(blocks.shape)} {str(blocks.dtype).removeprefix('torch.')}"
        raise ValueError(f"'{name}blocks' is {found}, but of a matrix {rows} × {columns} it is {wanted} uint8")
    if exponent is None or exponent.dtype != torch.int64 or exponent.numel() != 1 or abs(int(exponent)) > 200:
        raise ValueError(f"'{name}exponent' should be one whole number, from -200 to 200")
    if table is not None and (table.dtype != torch.int8 or tuple(table.shape) != (16,)):
        raise ValueError(f"'{name}table' should be 16 numbers of 8 bits")
    return QuantizedWeight(blocks, (rows, columns), bits, table, int(exponent), minimums)


def is_quantized(module: nn.Module) -> bool:
    return any(isinstance(part, Narrow) for part in module.modules())


def narrow_parameters(module: nn.Module) -> int:
    """How many numbers narrow matrices hold, without rows that pad a vocabulary; a tied one's count once."""
    held = {id(part.blocks): part for part in module.modules() if isinstance(part, Narrow)}
    return sum(
        (part.vocabulary if isinstance(part, TokenEmbedding | Readout) else part.matrix_shape[0])
        * part.matrix_shape[1]
        for part in held.values()
    )


def _wide(module: nn.Module, small: bool = False) -> list[_Wide]:
    """The modules that can become narrow; `small`: those, too, that are not worth it.

    One that stands in several places is there once for each.
    """
    found = []
    paths = {id(part): name for name, part in module.named_modules()}
    for parent in module.modules():
        for name, layer in parent._modules.items():  # `named_children` tells of each module once
            if layer is None or isinstance(layer, Narrow | QuantizedCell):
                continue
            path, kind = paths[id(layer)], _kind_of(layer)
            if isinstance(layer, Cell) and kind is not None and (small or layer.width >= GROUP):
                matrices = {f"{path}.narrow_ih": layer.weight_ih, f"{path}.narrow_hh": layer.weight_hh}
                found.append(_Wide(layer, parent, name, path, matrices, False, kind))
            elif isinstance(layer, nn.Linear | nn.Embedding) and kind is not None:
                rows, columns = layer.weight.shape
                table = isinstance(layer, nn.Embedding | Readout) or (type(layer) is nn.Linear and name == READOUT)
                if small or (rows >= OUTPUTS and columns >= GROUP):
                    found.append(_Wide(layer, parent, name, path, {path: layer.weight}, table, kind))
    return found


def _kind_of(layer: nn.Module) -> Any:
    """What a layer or a cell becomes; None of others, of what somebody made of one, and of one with a hook."""
    return KINDS.get(type(layer)) if is_stock(layer) else None
