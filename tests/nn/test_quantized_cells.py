"""Recurrent cells whose matrices have 8 or 4 bits: what they compute is what cells with the dequantised ones do."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from test_quantized import off_by
from torch import Tensor

from legato.nn.capture import record
from legato.nn.kernels.library import library
from legato.nn.quantized import QuantizedCell, hold_layers, quantize_layers
from legato.nn.recurrent import CELLS, Cell, Recurrent

LENGTHS = torch.tensor([7, 2, 5])
BITS = {"int8": 8, "int4": 4}


def pair(cell: str, width: str, bidirectional: bool = False) -> tuple[Recurrent, Recurrent]:
    """A narrow stack, and a float one that holds its dequantised matrices."""
    torch.manual_seed(0)
    narrow = Recurrent(cell, 20, [64, 64], bidirectional=bidirectional).eval()
    plain = deepcopy(narrow)
    assert quantize_layers(narrow, width) == (8 if bidirectional else 4)
    for mine, theirs in zip(cells_of(narrow), cells_of(plain), strict=True):
        assert isinstance(mine, QuantizedCell)
        assert mine.narrow_hh.bits == mine.narrow_ih.bits == BITS[width]
        theirs.weight_ih.data, theirs.weight_hh.data = mine.weight_ih, mine.weight_hh
    return narrow, plain


def cells_of(stack: Recurrent) -> list[Cell]:
    return [part for part in stack.modules() if isinstance(part, Cell)]


def tensors_in(states: Any) -> list[Tensor]:
    return [part for state in states for part in state]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "ragged"])
@pytest.mark.parametrize("width", BITS)
@pytest.mark.parametrize("cell", CELLS)
def test_a_narrow_stack_computes_what_the_dequantised_one_does(
    cell: str, width: str, lengths: Tensor | None, bidirectional: bool
) -> None:
    narrow, plain = pair(cell, width, bidirectional)
    x = torch.randn(7, 3, 20, requires_grad=True)
    expected, last = plain(x, None, lengths)
    found, after = narrow(x, None, lengths)  # under autograd, so by PyTorch's kernels
    torch.testing.assert_close([found, *tensors_in(after)], [expected, *tensors_in(last)])
    wanted, given = (torch.autograd.grad(y.square().sum(), x)[0] for y in (expected, found))
    torch.testing.assert_close(given, wanted)
    with torch.no_grad(), record():  # written out
        torch.testing.assert_close(plain(x, None, lengths)[0], expected)
    with torch.no_grad():
        assert off_by(narrow(x, None, lengths)[0], expected) < 0.02
        assert off_by(torch.cat(tensors_in(narrow(x, None, lengths)[1])), torch.cat(tensors_in(last))) < 0.02


@pytest.mark.parametrize("width", BITS)
@pytest.mark.parametrize("cell", CELLS)
@torch.no_grad()
def test_steps_one_by_one_are_the_sequence(cell: str, width: str) -> None:
    narrow, plain = pair(cell, width)
    x = torch.randn(7, 3, 20)
    whole, _ = narrow(x)
    states, others = narrow.start(3), plain.start(3)
    for t in range(7):
        y, states = narrow.step(x[t], states)
        expected, others = plain.step(x[t], others)
        if library() is not None:
            torch.testing.assert_close(y, whole[t])
        assert off_by(y, expected) < 0.02


@pytest.mark.parametrize("cell", CELLS)
def test_one_step_under_autograd_is_the_dequantised_cells(cell: str) -> None:
    narrow, plain = pair(cell, "int8")
    x = torch.randn(3, 20, requires_grad=True)
    (expected, _), (found, _) = plain.step(x, plain.start(3)), narrow.step(x, narrow.start(3))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)))


@pytest.mark.parametrize("cell", CELLS)
def test_dropped_connections_are_drawn_of_the_dequantised_matrix(cell: str) -> None:
    narrow, plain = pair(cell, "int8")
    x = torch.randn(7, 3, 20)
    for stack in (narrow, plain):
        stack.train()
        for pair_of in stack.layers:
            pair_of[0].recurrent_dropout = 0.5
    results = []
    for stack in (narrow, plain):
        torch.manual_seed(1)
        drawn = stack.draw(3)
        _, states = stack.step(x[0], stack.start(3), drawn)
        results.append(torch.cat([stack(x)[0], stack.step(x[1], states, drawn)[0][None]]))  # of a state that is not 0
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("width", BITS)
@torch.no_grad()
def test_what_was_saved_is_held_again_by_cells(width: str) -> None:
    narrow, plain = pair("lstm", width)
    other = Recurrent("lstm", 20, [64, 64]).eval()
    tensors = narrow.state_dict()
    hold_layers(other, tensors)
    other.load_state_dict(tensors)
    x = torch.randn(7, 3, 20)
    torch.testing.assert_close(other(x)[0], narrow(x)[0], rtol=0, atol=0)
    assert other.layers[1][0].cell.narrow_hh.blocks is tensors["layers.1.0.cell.narrow_hh.blocks"]
    with pytest.raises(ValueError, match=r"'layers\.0\.0\.cell\.narrow_hh\.blocks' is"):
        hold_layers(plain, {**tensors, "layers.0.0.cell.narrow_hh.blocks": torch.zeros(1)})


def test_small_cells_stay_as_they_are() -> None:
    stack = Recurrent("gru", 64, [16])
    assert quantize_layers(stack, "int8") == 0
