"""The cells: by hand, gate by gate, fused, and beside PyTorch's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels import fuse
from legato.nn.recurrent import CELLS, CellState, ElmanCell, GRUCell, Layer, LSTMCell, Recurrent

THEIRS: dict[str, type[nn.RNNBase]] = {"elman": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}

T, B, E, D = 7, 4, 5, 6
RAGGED = torch.tensor([7, 1, 4, 6])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def random_state(name: str, rows: int, width: int) -> CellState:
    return tuple(0.5 * torch.randn(rows, width, dtype=torch.float64) for _ in range(CELLS[name].parts))


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def stack_of(name: str, *, layers: int = 1, bidirectional: bool = False) -> Recurrent:
    return Recurrent(name, E, [2 * D if bidirectional else D] * layers, bidirectional=bidirectional).double()


def copied_from(theirs: nn.RNNBase, ours: Recurrent) -> None:
    """Give ours the weights of PyTorch's module."""
    with torch.no_grad():
        for depth, pair in enumerate(ours.layers):
            for side, layer in enumerate(pair):  # type: ignore[arg-type]
                suffix = f"l{depth}{'_reverse' if side else ''}"
                for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                    getattr(layer.cell, kind).copy_(getattr(theirs, f"{kind}_{suffix}"))


# --- by hand ---------------------------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def tiny(cell: Any, w: list[float], u: list[float], b: list[float], c: list[float]) -> Any:
    """A cell of width 1 over inputs of width 1, with these weights."""
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor(w).unsqueeze(1))
        cell.weight_hh.copy_(torch.tensor(u).unsqueeze(1))
        cell.bias_ih.copy_(torch.tensor(b))
        cell.bias_hh.copy_(torch.tensor(c))
    return cell.double()


def one(value: float) -> Tensor:
    return torch.tensor([[value]], dtype=torch.float64)


def both_steps(cell: Any, x: float, state: CellState) -> list[CellState]:
    """One step by the equations and one by the kernel."""
    layer = Layer(cell)
    fused = layer.step(one(x), state)
    layer.fused = False
    return [fused, layer.step(one(x), state)]


def test_an_elman_step_is_what_its_equation_gives_by_hand() -> None:
    cell = tiny(ElmanCell(1, 1), [0.5], [-0.25], [0.125], [0.0625])
    expected = math.tanh(0.5 * 2.0 - 0.25 * 0.75 + 0.125 + 0.0625)
    for (hidden,) in both_steps(cell, 2.0, (one(0.75),)):
        assert hidden.item() == pytest.approx(expected, abs=1e-12)


def test_a_gru_step_is_what_its_equations_give_by_hand() -> None:
    w, u, b, c = [0.5, -1.0, 0.25], [0.75, 0.5, -0.5], [0.125, 0.0, 0.25], [0.0, 0.25, -0.125]
    x, h = 2.0, 0.75
    r = sigmoid(0.5 * x + 0.125 + 0.75 * h)
    z = sigmoid(-1.0 * x + 0.5 * h + 0.25)
    n = math.tanh(0.25 * x + 0.25 + r * (-0.5 * h - 0.125))
    for (hidden,) in both_steps(tiny(GRUCell(1, 1), w, u, b, c), x, (one(h),)):
        assert hidden.item() == pytest.approx((1 - z) * n + z * h, abs=1e-12)


def test_an_lstm_step_is_what_its_equations_give_by_hand() -> None:
    w, u = [0.5, -1.0, 0.25, 2.0], [0.75, 0.5, -0.5, 0.25]  # input, forget, candidate, output
    b, c = [0.125, 0.0, 0.25, -0.5], [0.0, 0.25, -0.125, 0.0]
    x, h, before = 2.0, 0.75, -1.5
    i = sigmoid(0.5 * x + 0.75 * h + 0.125)
    f = sigmoid(-1.0 * x + 0.5 * h + 0.25)
    g = math.tanh(0.25 * x - 0.5 * h + 0.25 - 0.125)
    o = sigmoid(2.0 * x + 0.25 * h - 0.5)
    after = f * before + i * g
    for hidden, cell_state in both_steps(tiny(LSTMCell(1, 1), w, u, b, c), x, (one(h), one(before))):
        assert cell_state.item() == pytest.approx(after, abs=1e-12)
        assert hidden.item() == pytest.approx(o * math.tanh(after), abs=1e-12)


# --- written out and fused -------------------------------------------------------------------------


def outcome(
    stack: Recurrent, fused: bool, x: Tensor, states: list[CellState] | None, lengths: Tensor | None
) -> dict[str, Any]:
    """Everything a pass gives: outputs, last states, and the gradients of weights, inputs and first states."""
    fuse(stack, fused)
    stack.zero_grad()
    x = x.clone().requires_grad_()
    given = None
    if states is not None:
        given = [tuple(part.clone().requires_grad_() for part in state) for state in states]
    y, last = stack(x, given, lengths)
    # A weight of its own for every number, so that no error cancels another.
    total = (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)).sum()
    for state in last:
        for part in state:
            total = total + (part * torch.linspace(-1, 1, part.numel(), dtype=y.dtype).view_as(part)).sum()
    total.backward()
    return {
        "outputs": y.detach(),
        "last states": [part.detach() for state in last for part in state],
        "input gradient": x.grad,
        "state gradients": [part.grad for state in given or [] for part in state],
        "weight gradients": {name: p.grad.clone() for name, p in stack.named_parameters() if p.grad is not None},
    }


@pytest.mark.parametrize("lengths", [None, RAGGED], ids=["full", "ragged"])
@pytest.mark.parametrize("given_state", [False, True], ids=["from-zero", "from-a-state"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("name", CELLS)
def test_the_written_out_cell_equals_the_fused_one(
    name: str, bidirectional: bool, given_state: bool, lengths: Tensor | None
) -> None:
    stack = stack_of(name, layers=2, bidirectional=bidirectional)
    count = 4 if bidirectional else 2
    states = [random_state(name, B, D) for _ in range(count)] if given_state else None
    x = torch.randn(T, B, E, dtype=torch.float64)
    fused = outcome(stack, True, x, states, lengths)
    written = outcome(stack, False, x, states, lengths)
    assert len(written["weight gradients"]) == 4 * count
    for what, value in fused.items():
        close(written[what], value)


# --- PyTorch's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "written-out"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("name", CELLS)
def test_a_stack_equals_torchs_with_the_same_weights(
    name: str, bidirectional: bool, layers: int, fused: bool
) -> None:
    theirs = THEIRS[name](E, D, layers, bidirectional=bidirectional).double()
    ours = stack_of(name, layers=layers, bidirectional=bidirectional)
    copied_from(theirs, ours)
    fuse(ours, fused)
    x = torch.randn(T, B, E, dtype=torch.float64)
    expected, final = theirs(x)
    y, last = ours(x)
    close(y, expected)
    for part, whole in enumerate(final if name == "lstm" else (final,)):
        close(torch.stack([state[part] for state in last]), whole)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_equal_those_of_torchs_module(name: str) -> None:
    theirs = THEIRS[name](E, D, 2).double()
    ours = stack_of(name, layers=2)
    copied_from(theirs, ours)
    x = torch.randn(T, B, E, dtype=torch.float64)
    for module in (theirs, ours):
        module(x)[0].pow(2).sum().backward()
    for depth, (layer,) in enumerate(ours.layers):  # type: ignore[misc]
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            close(getattr(layer.cell, kind).grad, getattr(theirs, f"{kind}_l{depth}").grad)


# --- padding and direction -------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "written-out"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one-way", "both-ways"])
@pytest.mark.parametrize("name", CELLS)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), extra=st.integers(0, 3), seed=st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_padding_never_changes_a_result_or_the_final_state(
    name: str, bidirectional: bool, fused: bool, lengths: list[int], extra: int, seed: int
) -> None:
    torch.manual_seed(seed)
    stack = stack_of(name, layers=2, bidirectional=bidirectional)
    fuse(stack, fused)
    x = 10 * torch.randn(max(lengths) + extra, len(lengths), E, dtype=torch.float64)  # noise behind every row
    states = [random_state(name, len(lengths), D) for _ in range(4 if bidirectional else 2)]
    y, last = stack(x, states, torch.tensor(lengths))
    assert y.shape[0] == max(lengths) + extra
    for row, length in enumerate(lengths):
        own = [tuple(part[row : row + 1] for part in state) for state in states]
        alone, alone_last = stack(x[:length, row : row + 1], own)
        close(y[:length, row : row + 1], alone)
        assert not y[length:, row].any()
        for together, single in zip(last, alone_last, strict=True):
            for part, single_part in zip(together, single, strict=True):
                close(part[row : row + 1], single_part)


@pytest.mark.parametrize("name", CELLS)
def test_a_reverse_layer_reads_from_right_to_left(name: str) -> None:
    cell = CELLS[name](E, D).double()
    x = torch.randn(T, B, E, dtype=torch.float64)
    backward, last = Layer(cell, reverse=True)(x)
    forward, forward_last = Layer(cell)(x.flip(0))
    close(backward, forward.flip(0))
    close(last, forward_last)


@pytest.mark.parametrize("name", CELLS)
def test_a_reverse_layer_starts_at_each_rows_own_end(name: str) -> None:
    layer = Layer(CELLS[name](E, D).double(), reverse=True)
    x = torch.randn(T, B, E, dtype=torch.float64)
    y, _ = layer(x, None, RAGGED)
    for row, length in enumerate(RAGGED.tolist()):
        close(y[:length, row : row + 1], layer(x[:length, row : row + 1])[0])


# --- steps, starts, sizes --------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "written-out"])
@pytest.mark.parametrize("name", CELLS)
def test_steps_one_by_one_equal_the_whole_sequence(name: str, fused: bool) -> None:
    stack = stack_of(name, layers=2)
    fuse(stack, fused)
    x = torch.randn(T, B, E, dtype=torch.float64)
    whole, last = stack(x)
    states = stack.start(B)
    for t in range(T):
        y, states = stack.step(x[t], states)
        close(y, whole[t])
    close(states, last)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "written-out"])
@pytest.mark.parametrize("name", CELLS)
def test_steps_with_drawn_dropout_drop_the_same_at_every_step(name: str, fused: bool) -> None:
    stack = Recurrent(name, E, [D, D], hidden_dropout=0.5, recurrent_dropout=0.5).double().train()
    fuse(stack, fused)
    x = torch.randn(T, 1, E, dtype=torch.float64)
    drawn, states, outputs = stack.draw(1), stack.start(1), []
    for t in range(T):
        y, states = stack.step(x[t], states, drawn)
        outputs.append(y)
    # The same with the dropout put into the weights.
    stack.eval()
    with torch.no_grad():
        for (layer,), (mask, recurrent) in zip(stack.layers, drawn, strict=True):  # type: ignore[misc]
            assert (layer.cell.weight_hh != recurrent).any()
            layer.cell.weight_hh.copy_(recurrent)
            if mask is not None:
                assert mask.unique().tolist() == [0.0, 2.0]
                layer.cell.weight_ih.mul_(mask)
    close(torch.stack(outputs), stack(x)[0])


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "written-out"])
@pytest.mark.parametrize("name", CELLS)
def test_a_row_without_a_token_keeps_its_state(name: str, fused: bool) -> None:
    stack = stack_of(name, layers=2, bidirectional=True)
    fuse(stack, fused)
    states = [random_state(name, 2, D) for _ in range(4)]
    y, last = stack(torch.randn(T, 2, E, dtype=torch.float64), states, torch.tensor([0, T]))
    assert not y[:, 0].any()
    for before, after in zip(states, last, strict=True):
        for part, same in zip(before, after, strict=True):
            close(same[0], part[0])


@pytest.mark.parametrize("name", CELLS)
def test_no_state_is_a_state_of_zeros(name: str) -> None:
    stack = stack_of(name)
    x = torch.randn(T, B, E, dtype=torch.float64)
    close(stack(x)[0], stack(x, stack.start(B))[0])


def test_the_forget_bias_lands_on_the_forget_gate_alone() -> None:
    torch.manual_seed(3)
    plain = LSTMCell(E, D)
    torch.manual_seed(3)
    biased = LSTMCell(E, D, forget_bias=2.0)
    added = biased.bias_ih - plain.bias_ih
    torch.testing.assert_close(added[D : 2 * D], torch.full((D,), 2.0))
    assert not torch.cat([added[:D], added[2 * D :]]).any()


def test_the_forget_bias_opens_the_forget_gate() -> None:
    from legato.nn.capture import record

    with record() as trace:
        Recurrent("lstm", E, [D], forget_bias=50.0)(torch.randn(T, B, E))
    assert min(gate.min().item() for gate in trace["lstm.0.forget_gate"]) > 0.999


@pytest.mark.parametrize("name", CELLS)
def test_a_bidirectional_layer_is_as_wide_as_the_one_it_replaces(name: str) -> None:
    for bidirectional in (False, True):
        y, _ = Recurrent(name, E, [8, 10], bidirectional=bidirectional)(torch.randn(T, B, E))
        assert y.shape == (T, B, 10)


# --- why gates -------------------------------------------------------------------------------------


def reach(stack: Recurrent, steps: int) -> float:
    """‖∂h_T / ∂x_1‖, summed over the outputs."""
    x = torch.randn(steps, 1, E, dtype=torch.float64, requires_grad=True)
    stack(x)[0][-1].sum().backward()
    assert x.grad is not None
    return x.grad[0].norm().item()


def test_gradients_vanish_through_a_long_elman_chain() -> None:
    stack = stack_of("elman")
    assert reach(stack, 100) < 1e-8 * reach(stack, 1)


def test_gradients_live_through_a_long_lstm_whose_forget_gate_is_open() -> None:
    stack = Recurrent("lstm", E, [D], forget_bias=10.0).double()
    assert reach(stack, 100) > 1e-2 * reach(stack, 1)
