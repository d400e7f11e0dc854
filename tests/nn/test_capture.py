"""Looking inside: names, values, and that looking changes nothing."""

from __future__ import annotations

from contextvars import copy_context
from threading import Barrier, Thread

import pytest
import torch
from torch import Tensor

from legato.nn.capture import capture, capturing, record, scope
from legato.nn.recurrent import CELLS, Layer, LSTMCell, Recurrent

T, B, E, D = 4, 2, 3, 5

NAMES = {
    "elman": ["hidden"],
    "gru": ["reset_gate", "update_gate", "candidate", "hidden"],
    "lstm": ["forget_gate", "input_gate", "candidate", "output_gate", "cell", "hidden"],
}


def stack_of(name: str, **more: bool) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(name, E, [D, D] if not more else [2 * D, 2 * D], **more)


def inputs() -> Tensor:
    return torch.randn(T, B, E, generator=torch.Generator().manual_seed(1))


def test_nothing_is_captured_when_nobody_looks() -> None:
    assert not capturing()
    with record() as trace:
        assert capturing()
    capture("late", torch.zeros(1), "unit")
    stack_of("lstm")(inputs())
    assert not capturing()
    assert not trace


def test_a_scope_stands_before_the_name() -> None:
    with record() as trace, scope("encoder"), scope("3"):
        capture("weights", torch.ones(1), "unit")
    assert list(trace) == ["encoder.3.weights"]


def test_a_scope_ends_even_when_its_block_fails() -> None:
    with record() as trace:
        with pytest.raises(ZeroDivisionError), scope("inner"):
            raise ZeroDivisionError
        capture("outer", torch.ones(1), "unit")
    assert list(trace) == ["outer"]


def test_recording_ends_even_when_its_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), record():
        raise ZeroDivisionError
    assert not capturing()


def test_an_inner_record_leaves_the_outer_one_alone() -> None:
    with record() as outer:
        with record() as inner:
            capture("a", torch.ones(1), "unit")
        capture("b", torch.ones(1), "unit")
    assert (list(outer), list(inner)) == (["b"], ["a"])


@pytest.mark.parametrize("name", CELLS)
def test_every_gate_is_named_by_cell_and_layer(name: str) -> None:
    with record() as trace:
        stack_of(name)(inputs())
    assert list(trace) == [f"{name}.{layer}.{what}" for layer in (0, 1) for what in NAMES[name]]


@pytest.mark.parametrize("name", CELLS)
def test_the_backward_direction_has_names_of_its_own(name: str) -> None:
    with record() as trace:
        stack_of(name, bidirectional=True)(inputs())
    assert {f"{name}.0.hidden", f"{name}.0.reverse.hidden", f"{name}.1.reverse.hidden"} <= set(trace)


@pytest.mark.parametrize("name", CELLS)
def test_there_is_one_tensor_a_time_step(name: str) -> None:
    with record() as trace:
        stack_of(name)(inputs())
    assert {(len(steps), steps[0].shape) for steps in trace.values()} == {(T, (B, D))}


@pytest.mark.parametrize("name", CELLS)
def test_looking_does_not_change_the_outputs(name: str) -> None:
    stack = stack_of(name)
    plain, plain_last = stack(inputs())
    with record():
        seen, seen_last = stack(inputs())
    torch.testing.assert_close(seen, plain)
    torch.testing.assert_close(seen_last, plain_last)


@pytest.mark.parametrize("name", CELLS)
def test_generation_is_captured_step_by_step(name: str) -> None:
    stack = stack_of(name)
    with record() as whole:
        stack(inputs())
    states = stack.start(B)
    with record() as stepwise:
        for x in inputs():
            _, states = stack.step(x, states)
    assert set(stepwise) == set(whole)
    for what, steps in whole.items():
        torch.testing.assert_close(torch.stack(stepwise[what]), torch.stack(steps))


@pytest.mark.parametrize("name", CELLS)
def test_the_hidden_states_captured_are_the_outputs(name: str) -> None:
    with record() as trace:
        y, _ = stack_of(name)(inputs())
    torch.testing.assert_close(torch.stack(trace[f"{name}.1.hidden"]), y)


def test_the_captured_gates_satisfy_the_lstms_equations() -> None:
    stack = stack_of("lstm")
    x = inputs()
    with record() as trace:
        stack(x)
    seen = {what: torch.stack(trace[f"lstm.0.{what}"]) for what in NAMES["lstm"]}
    cell = stack.layers[0][0].cell  # type: ignore[index]
    before = torch.cat([torch.zeros(1, B, D), seen["hidden"][:-1]])
    old_cell = torch.cat([torch.zeros(1, B, D), seen["cell"][:-1]])
    sums = x @ cell.weight_ih.T + before @ cell.weight_hh.T + cell.bias_ih + cell.bias_hh
    i, f, g, o = sums.detach().chunk(4, dim=-1)
    torch.testing.assert_close(seen["input_gate"], torch.sigmoid(i))
    torch.testing.assert_close(seen["forget_gate"], torch.sigmoid(f))
    torch.testing.assert_close(seen["candidate"], torch.tanh(g))
    torch.testing.assert_close(seen["output_gate"], torch.sigmoid(o))
    torch.testing.assert_close(seen["cell"], seen["forget_gate"] * old_cell + seen["input_gate"] * seen["candidate"])
    torch.testing.assert_close(seen["hidden"], seen["output_gate"] * torch.tanh(seen["cell"]))


def test_the_captured_gates_satisfy_the_grus_equations() -> None:
    stack = stack_of("gru")
    x = inputs()
    with record() as trace:
        stack(x)
    seen = {what: torch.stack(trace[f"gru.0.{what}"]) for what in NAMES["gru"]}
    cell = stack.layers[0][0].cell  # type: ignore[index]
    before = torch.cat([torch.zeros(1, B, D), seen["hidden"][:-1]])
    x_r, x_z, x_n = (x @ cell.weight_ih.T + cell.bias_ih).detach().chunk(3, dim=-1)
    h_r, h_z, h_n = (before @ cell.weight_hh.T + cell.bias_hh).detach().chunk(3, dim=-1)
    torch.testing.assert_close(seen["reset_gate"], torch.sigmoid(x_r + h_r))
    torch.testing.assert_close(seen["update_gate"], torch.sigmoid(x_z + h_z))
    torch.testing.assert_close(seen["candidate"], torch.tanh(x_n + seen["reset_gate"] * h_n))
    z = seen["update_gate"]
    torch.testing.assert_close(seen["hidden"], (1 - z) * seen["candidate"] + z * before)


def test_what_is_captured_carries_no_gradients() -> None:
    with record() as trace:
        stack_of("lstm")(inputs())
    assert not any(tensor.requires_grad for steps in trace.values() for tensor in steps)


def test_each_thread_captures_only_its_own() -> None:
    """Both record at once, in scopes of their own; a third runs beside them and looks at nothing."""
    together, traces, seen = Barrier(3), {}, []

    def look(name: str) -> None:
        with record() as trace, scope(name):
            together.wait()
            for _ in range(3):
                stack_of(name)(inputs())
                together.wait()
        traces[name] = trace

    def work() -> None:
        together.wait()
        for _ in range(3):
            seen.append(capturing())
            stack_of("elman")(inputs())
            capture("stray", torch.ones(1), "unit")
            together.wait()

    threads = [Thread(target=look, args=("lstm",)), Thread(target=look, args=("gru",)), Thread(target=work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [False] * 3
    assert not capturing()
    for name, trace in traces.items():
        assert set(trace) == {f"{name}.{name}.{layer}.{part}" for layer in (0, 1) for part in NAMES[name]}
        assert all(len(found) == 3 * T for found in trace.values())


def test_a_recording_ends_with_its_context() -> None:
    def look() -> bool:
        with record():
            return capturing()

    assert copy_context().run(look)
    assert not capturing()
    with record():
        assert copy_context().run(capturing)  # a task that was started inside sees what its caller does


@pytest.mark.slow
def test_compiled_code_is_one_graph_where_nobody_looks_and_is_seen_where_somebody_does() -> None:
    """Where nobody looks no context is read, which PyTorch could not trace."""
    block, x = Layer(LSTMCell(E, D)), torch.randn(B, E)
    state = block.cell.start(B)

    def step(x: Tensor) -> Tensor:
        with scope("lstm"):
            hidden = block.step(x, state)[0]
            capture("hidden", hidden, "row unit")
        return hidden

    expected = step(x)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="eager")
    with record() as trace:
        torch.testing.assert_close(compiled(x), expected)
    assert "lstm.hidden" in trace
    torch.testing.assert_close(compiled(x), expected)
