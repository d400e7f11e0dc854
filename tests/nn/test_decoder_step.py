"""One token through a decoder: the C++ step against the modules it stands for."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Inputs
from legato.errors import LegatoError
from legato.models.base import Sizes
from legato.nn.adapters.lora import Part
from legato.nn.adapters.lora_by_row import BASE, AdapterRows, LowRankRows, adapter_rows
from legato.nn.capture import record
from legato.nn.feedforward import ACTIVATIONS
from legato.nn.kernels.decoder import decoder_step
from legato.nn.kernels.library import library
from legato.nn.kernels.stack_layout import NUMBERS
from legato.nn.linear import Linear
from legato.nn.quantized import quantize_layers
from legato.nn.state import Memory
from legato.registry import MODELS

V = 50
SMALL = {"layers": 2, "width": 32, "heads": 4, "length": 64, "dropout": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {"name": "gpt2"},
    "gpt2 relu": {"name": "gpt2", "activation": "relu"},
    "gpt2 silu": {"name": "gpt2", "activation": "silu"},
    "gpt2 gelu": {"name": "gpt2", "activation": "gelu"},
    "llama": {"name": "llama"},
    "llama with shared keys": {"name": "llama", "kv_heads": 2},
    "llama with a window": {"name": "llama", "family": "mistral", "window": 4},
    "qwen3": {"name": "llama", "family": "qwen3", "head_width": 16},
    "transformer": {"name": "transformer"},
    "transformer pre-norm": {"name": "transformer", "norm": "pre"},
}

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")


def made(kind: str, **more: Any) -> Any:
    name = KINDS[kind]["name"]
    model: Any = MODELS.get(name)
    known = model.Config.model_fields
    given = {key: value for key, value in {**SMALL, **KINDS[kind], **more}.items() if key in known}
    torch.manual_seed(0)
    module = model(validate(model.Config, given), Sizes(V)).eval()
    with torch.no_grad():
        for parameter in module.parameters():  # biases and norms that a fresh model has at 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def memory_of(model: Any, rows: int) -> Memory | None:
    if not model.is_encoder_decoder:
        return None
    return Memory(torch.randn(rows, 7, 32), torch.tensor([7, 3, 5][:rows]))


def walk(model: Any, kernel: bool, prompts: list[list[int]], *, orders: dict[int, list[int]] | None = None) -> Tensor:
    """Logits after the prompts and after each of some steps, of all rows."""
    torch.manual_seed(1)
    memory, found = memory_of(model, len(prompts)), []
    with torch.no_grad():
        state = model.start(len(prompts), 30, memory)
        assert state.kernel is not None
        if not kernel:
            state.kernel = None
        model.prefill(Inputs.of(prompts, "cpu"), state)
        for step in range(8):
            if orders and step in orders:
                state.reorder(torch.tensor(orders[step]))
            tokens = torch.tensor([(7 * step + 3 * row) % V for row in range(state.rows)])
            found.append(model.step(tokens, state))
        assert state.length == max(map(len, prompts)) + 8
    return torch.cat(found)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "prompts",
    [[[1, 2, 3]], [[1, 2, 3], [4, 5, 6]], [[1, 2, 3, 4, 5], [6], [7, 8, 9]]],
    ids=["one row", "even rows", "ragged rows"],
)
def test_a_step_is_what_the_modules_do(kind: str, prompts: list[list[int]]) -> None:
    model = made(kind)
    torch.testing.assert_close(walk(model, True, prompts), walk(model, False, prompts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama with shared keys", "transformer"])
def test_beams_move_multiply_and_leave(kind: str) -> None:
    model, orders = made(kind), {0: [0, 0, 0, 1, 1, 1], 3: [2, 0, 1, 3, 3, 5], 5: [3, 4, 5]}
    prompts = [[1, 2, 3], [4, 5]]
    found, expected = (walk(model, kernel, prompts, orders=orders) for kernel in (True, False))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("width", [None, "int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [(5, 1), (9, 3, 21), (40, 29)])
def test_prompts_are_read_as_by_the_modules(kind: str, width: str | None, lengths: tuple[int, ...]) -> None:
    """In parts of these lengths, with few tokens a query at a time and with many in panels; two rows of each."""
    wide = {} if KINDS[kind]["name"] == "transformer" else {"heads": 2, "width": 64, "feedforward": 96}
    model = made(kind, length=80, **wide)
    if width is not None:
        quantize_layers(model, width)
    found = []
    for kernel in (True, False):
        torch.manual_seed(1)
        memory = memory_of(model, 2)
        with torch.no_grad():
            state = model.start(2, 70, memory)
            if not kernel:
                state.kernel = None
            for length in lengths:
                prompts = torch.arange(2 * length).view(2, length) * 7 % V
                found.append(model.prefill(Inputs(ids=prompts), state))
            found.append(model.step(torch.tensor([1, 2]), state))
    half = len(found) // 2
    for ours, theirs in zip(found[:half], found[half:], strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).norm() < (0.02 if width else 1e-5) * theirs.norm()


def test_long_prompts_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = made("llama"), torch.arange(60).view(2, 30) % V
    with torch.no_grad():
        whole = model.prefill(Inputs(ids=prompts), model.start(2, 30))
        monkeypatch.setattr("legato.models.decoder.AT_ONCE", 22)
        state = model.start(2, 30)
        parts = model.prefill(Inputs(ids=prompts), state)
    assert state.length == 30
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("capacity", "length", "line"), [(25, 30, "25 columns; 30 were"), (70, 66, "of 66 tokens is too")]
)
def test_of_a_prompt_that_has_no_room_nothing_is_taken_in(
    monkeypatch: pytest.MonkeyPatch, capacity: int, length: int, line: str
) -> None:
    monkeypatch.setattr("legato.models.decoder.AT_ONCE", 22)
    model = made("llama")
    state = model.start(2, capacity)
    with pytest.raises((ValueError, LegatoError), match=line):
        model.prefill(Inputs(ids=torch.arange(2 * length).view(2, length) % V), state)
    assert state.length == 0
    assert model.prefill(Inputs(ids=torch.ones(2, 12, dtype=torch.long)), state).shape == (2, V)


def test_rows_that_join_are_read_from_where_they_begin() -> None:
    model = made("llama")
    found = []
    for kernel in (True, False):
        with torch.no_grad():
            states = [model.start(1, 30) for _ in range(2)]
            for state, prompt in zip(states, ([1, 2, 3, 4, 5, 6], [7, 8]), strict=True):
                model.prefill(Inputs.of([prompt], "cpu"), state)
            states[0].join(states[1])
            states[0].kernel = states[0].kernel if kernel else None
            found.append(torch.cat([model.step(torch.tensor([step, step + 1]), states[0]) for step in range(4)]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [None, "int8"])
@pytest.mark.parametrize("kind", ["gpt2", "llama with shared keys", "transformer"])
def test_rows_with_adapters_are_what_the_modules_make_of_them(kind: str, width: str | None) -> None:
    model = made(kind, heads=2, width=64, feedforward=96) if kind != "transformer" else made(kind)
    if width is not None:
        quantize_layers(model, width)
    put_adapters(model, {1: 3, 2: 16})
    prompts, adapters = [[1, 2, 3], [4], [5, 6]], AdapterRows([2, BASE, 1])
    with adapter_rows(adapters):
        found, expected = (walk(model, kernel, prompts) for kernel in (True, False))
    # Narrow: the last bits of an activation may decide which of two codes it gets.
    assert (found - expected).norm() < (0.01 if width else 1e-5) * expected.norm()
    without = walk(model, True, prompts)
    assert torch.equal(found[1::3], without[1::3])  # the row that has none
    assert not any(torch.allclose(found[row::3], without[row::3], atol=1e-3) for row in (0, 2))
    with adapter_rows(AdapterRows.all_of(1)):
        of_all = walk(model, True, prompts)
    assert (of_all[2::3] - found[2::3]).norm() < (0.01 if width else 1e-5) * found[2::3].norm()


def test_an_adapter_that_came_later_is_seen_where_it_lies_and_otherwise_by_the_modules() -> None:
    model = made("llama")
    put_adapters(model, {1: 4})
    with torch.no_grad(), adapter_rows(AdapterRows.all_of(2)):
        state = model.start(1, 30)
        put_adapters(model, {2: 4})
        model.prefill(Inputs.of([[1, 2]], "cpu"), state)
        assert not state.kernel.knows(AdapterRows.all_of(2))
        found = model.step(torch.tensor([3]), state)
        assert model.start(1, 30).kernel.knows(AdapterRows.all_of(2))
        state = model.start(1, 30)
        model.prefill(Inputs.of([[1, 2]], "cpu"), state)
        torch.testing.assert_close(found, model.step(torch.tensor([3]), state), rtol=1e-4, atol=1e-5)


def put_adapters(model: Any, ranks: dict[int, int]) -> None:
    """Random ones of these ranks beside products: odd ones leave every third without, even ones have parts of it."""
    layers = [layer for layer in [*model.writer.modules(), model.output] if isinstance(layer, Linear)]
    for number, rank in ranks.items():
        for place, layer in enumerate(layers):
            if number % 2 and place % 3 == 1:
                continue
            if layer.low_rank_rows is None:
                layer.low_rank_rows = LowRankRows(layer.out_features)
            edges = [0, layer.out_features] if number % 2 else [0, layer.out_features // 3, layer.out_features - 1]
            parts = []
            for start, end in itertools.pairwise(edges):
                a, b = torch.randn(rank, layer.in_features) / 6, torch.randn(end - start, rank) / 3
                parts.append((Part("", start, end), (a, b)))
            layer.low_rank_rows.put(number, parts, torch.empty(0))


def test_going_back_and_on_is_going_on() -> None:
    model = made("gpt2")
    with torch.no_grad():
        state = model.start(2, 30)
        model.prefill(Inputs.of([[1, 2, 3], [4]], "cpu"), state)
        first = model.step(torch.tensor([5, 6]), state)
        model.step(torch.tensor([7, 8]), state)
        state.rewind(3)
        torch.testing.assert_close(model.step(torch.tensor([5, 6]), state), first)


def test_changed_weights_are_seen() -> None:
    model = made("gpt2")
    before = walk(model, True, [[1, 2]])
    with torch.no_grad():
        model.stack.layers[1].feedforward.outer.weight.mul_(2)
    after = walk(model, True, [[1, 2]])
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, walk(model, False, [[1, 2]]), rtol=1e-4, atol=1e-5)
    model.train()
    model.stack.layers[0].attention.qkv.weight.data.zero_()  # uncounted, as a fused optimiser changes weights
    model.eval()
    torch.testing.assert_close(walk(model, True, [[1, 2]]), walk(model, False, [[1, 2]]), rtol=1e-4, atol=1e-5)


def test_who_looks_inside_sees_the_modules() -> None:
    model = made("gpt2")
    with torch.no_grad():
        state = model.start(1, 10)
        model.prefill(Inputs.of([[1, 2]], "cpu"), state)
        with record() as trace:
            model.step(torch.tensor([3]), state)
    assert any(name.endswith("attention.weights") for name in trace)


def test_adapters_hooks_training_and_odd_sizes_take_the_modules() -> None:
    model = made("gpt2")
    assert decoder_step(model.writer, model.output) is not None
    hook = model.stack.layers[0].feedforward.outer.register_forward_hook(lambda *_: None)
    assert decoder_step(model.writer, model.output) is None
    hook.remove()
    assert decoder_step(model.train().writer, model.output) is None
    assert decoder_step(model.eval().double().writer, model.output) is None
    odd = made("gpt2", width=36)
    assert decoder_step(odd.writer, odd.output) is None


def test_every_activation_is_known() -> None:
    assert set(ACTIVATIONS) <= set(NUMBERS)


@pytest.mark.parametrize("kind", ["gpt2", "llama with shared keys", "transformer"])
@pytest.mark.parametrize("width", ["int8", "int4"])
def test_a_step_of_narrow_weights_is_what_their_modules_do(kind: str, width: str) -> None:
    model = made(kind, heads=2, width=64, feedforward=96) if kind != "transformer" else made(kind)
    quantize_layers(model, width)
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    found, expected = walk(model, True, prompts), walk(model, False, prompts)
    # The last bits of an activation may decide which of two codes it gets.
    assert (found - expected).norm() < 0.01 * expected.norm()


def test_a_copy_has_a_step_of_its_own() -> None:
    model = made("gpt2")
    walk(model, True, [[1]])
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.output.weight.zero_()
    assert not walk(other, True, [[1]]).any()
    assert walk(model, True, [[1]]).any()


def test_columns_between_which_a_row_has_none_take_the_modules() -> None:
    model, found = made("llama"), []
    for kernel in (True, False):
        with torch.no_grad():
            state = model.start(2, 30)
            for prompts in ([[1, 2, 3], [4]], [[5], [6, 7, 8]]):  # the second leaves a hole in the first row
                model.prefill(Inputs.of(prompts, "cpu"), state)
            state.kernel = state.kernel if kernel else None
            found.append(torch.cat([model.step(torch.tensor([step, step + 1]), state) for step in range(3)]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
