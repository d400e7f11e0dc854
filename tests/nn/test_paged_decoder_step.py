"""New tokens of rows of a cache in blocks, through a decoder, in one call on the CPU: the same as by the modules."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from test_decoder_step import V, made, put_adapters
from torch import Tensor

from legato.nn.adapters.lora_by_row import BASE, AdapterRows, adapter_rows
from legato.nn.block_cache import BLOCK, KVCache, Reading
from legato.nn.capture import record
from legato.nn.kernels.library import library
from legato.nn.kernels.paged_decoder import PagedStep
from legato.nn.quantized import quantize_layers

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")
KINDS = ("gpt2", "llama with shared keys", "llama with a window", "qwen3")
WIDE: Any = {"heads": 2, "width": 64, "feedforward": 96, "length": 160}  # heads wide enough for panels
ROWS = 5
# Tokens that rows read in some steps: prompts, ends of prompts, and one each.
STEPS = ({0: 20, 1: 3}, {0: 1, 1: 9, 2: 1}, {0: 9, 1: 1, 2: 1, 3: 31}, {1: 5, 0: 1, 3: 1, 2: 17})
LONG_STEPS = (*STEPS, {0: 50, 1: 1, 2: 70, 3: 39}, {0: 1, 1: 9, 2: 8, 3: 1})


class Rows:
    """Rows that a model reads, with the kernel or without, each in blocks of its own, but for those it shares."""

    def __init__(self, model: Any, kernel: bool = True, *, capacity: int = 160, mixed: bool = False) -> None:
        self.model = model
        self.cache: KVCache = model.new_cache(60, ROWS, capacity)
        assert isinstance(self.cache.kernel, PagedStep)
        self.cache.store.normal_()  # what lies in memory
        if not kernel:
            self.cache.kernel = None
        self.table = torch.arange(ROWS * capacity, dtype=torch.int32).view(ROWS, capacity) + BLOCK
        if mixed:  # slots anywhere
            places = torch.randperm(ROWS * capacity, generator=torch.Generator().manual_seed(3))
            self.table = self.table.view(-1)[places].view(ROWS, capacity)
        self.lengths = [0] * ROWS

    def read(self, counts: dict[int, int]) -> Tensor:
        rows = list(counts)
        before = [self.lengths[row] for row in rows]
        places = [torch.arange(start, start + counts[row]) for row, start in zip(rows, before, strict=True)]
        slots = torch.cat([self.table[row, at] for row, at in zip(rows, places, strict=True)]).long()
        tokens = torch.cat([(7 * at + 3 * row) % V for row, at in zip(rows, places, strict=True)])
        starts = torch.tensor([0, *counts.values()]).cumsum(0).int()
        for row in rows:
            self.lengths[row] += counts[row]
        longest, deepest = max(counts.values()), max(self.lengths[row] for row in rows)
        reading = Reading(starts, torch.cat(places), slots, self.table[rows], longest, deepest)
        logits: Tensor = self.model.read_rows(tokens, reading, self.cache)
        return logits

    def walk(self, steps: Sequence[dict[int, int]] = STEPS) -> list[Tensor]:
        return [self.read(counts) for counts in steps]


def compare(model: Any, steps: Sequence[dict[int, int]] = STEPS, near: float = 1e-5, **how: Any) -> None:
    ours, theirs = (Rows(model, kernel, **how).walk(steps) for kernel in (True, False))
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() < near * other.norm()


@pytest.mark.parametrize("mixed", [False, True], ids=["whole blocks", "slots anywhere"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_as_by_the_modules(kind: str, mixed: bool) -> None:
    if not mixed:
        compare(made(kind))
    compare(made(kind, **WIDE), LONG_STEPS, mixed=mixed)


def test_what_a_window_hides_is_not_read() -> None:
    compare(made("llama with a window", **WIDE, window=60), LONG_STEPS)
    rows = Rows(made("llama with a window", **WIDE, window=20))
    rows.read({0: 100, 1: 30})
    expected = rows.read({0: 1, 1: 1})
    rows.cache.store[:, :, rows.table[0, : 4 * BLOCK : BLOCK] // BLOCK] = torch.nan
    rows.lengths[:2] = [100, 30]
    torch.testing.assert_close(rows.read({0: 1, 1: 1}), expected)


@pytest.mark.parametrize("width", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["gpt2", "llama with shared keys"])
def test_narrow_weights_are_read_as_by_their_modules(kind: str, width: str) -> None:
    model = made(kind, **WIDE)
    quantize_layers(model, width)
    compare(model, near=0.02)  # the last bits of an activation may decide which of two codes it gets


def test_rows_share_a_beginning() -> None:
    model = made("llama with shared keys", heads=4, width=64, feedforward=96)
    ours, alone = Rows(model), Rows(model)
    ours.read({0: 40})
    ours.table[1:3, : 2 * BLOCK] = ours.table[0, : 2 * BLOCK]
    ours.lengths[1:3] = [2 * BLOCK] * 2
    alone.table[1:3] = alone.table[0]
    expected = []
    for row, others in ((1, 0), (2, 0)):
        alone.lengths[others] = 0
        alone.read({others: 2 * BLOCK})
        alone.lengths[row] = 2 * BLOCK
        expected += [alone.read({row: 12}), alone.read({row: 1})]
    found = [ours.read({1: 12, 2: 12, 0: 1}), ours.read({2: 1, 1: 1})]
    torch.testing.assert_close(found[0][:2], torch.cat(expected[::2]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1].flip(0), torch.cat(expected[1::2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 4, 22])
def test_many_tokens_are_read_in_parts_that_hold_several_rows_and_pieces_of_rows(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made("llama", **WIDE)
    put_adapters(model, {1: 3, 2: 16})
    adapters = AdapterRows([2, BASE, 1, 2])
    steps = [{0: 90, 1: 1, 2: 13, 3: 1}, {3: 22, 2: 1, 1: 22, 0: 30}]
    with adapter_rows(adapters):
        whole = Rows(model).walk(steps)
        monkeypatch.setattr("legato.nn.kernels.paged_decoder.AT_ONCE", at_once)
        for one, other in zip(Rows(model).walk(steps), whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("width", [None, "int8"])
def test_each_row_has_its_adapter(width: str | None) -> None:
    model = made("gpt2", **WIDE)
    if width is not None:
        quantize_layers(model, width)
    put_adapters(model, {1: 3, 2: 16})
    steps = [{0: 20, 1: 3, 2: 1}, {0: 1, 1: 9, 2: 5}, {0: 1, 1: 1, 2: 1}]
    with adapter_rows(AdapterRows([2, BASE, 1])):
        compare(model, steps, near=0.02 if width else 1e-5)
        adapted = Rows(model).walk(steps)
    plain = Rows(model).walk(steps)
    assert all(torch.equal(one[1], other[1]) for one, other in zip(adapted, plain, strict=True))
    assert not any(torch.allclose(one[::2], other[::2], atol=1e-3) for one, other in zip(adapted, plain, strict=True))
    late = Rows(model)
    put_adapters(model, {3: 4})
    with adapter_rows(AdapterRows.all_of(3)):  # which came when the weights were laid out
        found, expected = late.read({0: 5, 1: 1}), Rows(model).read({0: 5, 1: 1})  # by the modules, by the kernel
    assert (found - expected).norm() < (0.02 if width else 1e-5) * expected.norm()


def test_threads_share_rows_of_very_different_lengths() -> None:
    model, threads = made("llama with shared keys", **{**WIDE, "heads": 4}), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        compare(model, [{0: 90, 1: 1, 2: 2}, {0: 1, 1: 1, 2: 9, 3: 1}])
    finally:
        torch.set_num_threads(threads)


def test_a_cache_has_a_kernel_of_the_modules_and_weights_as_they_are() -> None:
    model = made("gpt2")
    before = Rows(model).read({0: 4})
    with torch.no_grad():
        model.stack.layers[1].feedforward.outer.weight.mul_(2)
    assert not torch.allclose(Rows(model).read({0: 4}), before)
    compare(model, [{0: 4}])
    rows = Rows(model)
    with record() as trace:
        rows.read({0: 2})
    assert any(name.endswith("attention.weights") for name in trace)
    hook = model.stack.layers[0].feedforward.outer.register_forward_hook(lambda *_: None)
    assert model.new_cache(4, 1, 16).kernel is None
    hook.remove()
    assert copy.deepcopy(model).new_cache(4, 1, 16).kernel is not None
    assert model.double().new_cache(4, 1, 16).kernel is None
