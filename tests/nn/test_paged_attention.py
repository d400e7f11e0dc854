"""Attention over blocks on CUDA: the same as the equation, token by token.

They run on a GPU, or in Triton's interpreter; there the tests of this file are run again, in a process of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from interpreted_kernels import DEVICE, GPU, needs_interpreter, needs_kernels, run_interpreted
from legato.nn.block_cache import BLOCK, Reading
from legato.nn.linear import Linear
from legato.nn.positions import Rotary, Rotation, rotate
from legato.nn.quantized import quantize_layers

NARROW = torch.bfloat16 if GPU else torch.float16  # Triton's interpreter has no products of bfloat16


@pytest.mark.slow
@needs_interpreter
def test_all_of_this_file_in_triton_interpreter() -> None:
    run_interpreted(__file__)


class Case(NamedTuple):
    heads: int = 2
    kv_heads: int = 1
    width: int = 16
    window: int | None = None
    rotary: bool = True
    norms: bool = False
    dtype: torch.dtype = torch.float32


CASES = {
    "heads that share keys": Case(4, 2),
    "a head of its own each": Case(2, 2, rotary=False),
    "three heads, a window, norms": Case(3, 1, 16, 7, norms=True),
    "an uneven width": Case(2, 1, 24, norms=True),
    "narrow numbers": Case(4, 2, dtype=NARROW),
    "narrow numbers, a window": Case(2, 2, 24, 20, norms=True, dtype=NARROW),
}


def near(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}


class Example(NamedTuple):
    """Rows with tokens in the cache, and new ones."""

    qkv: Tensor
    store: Tensor
    reading: Reading
    rotation: Rotation | None
    query_norm: Any
    key_norm: Any

    @property
    def norms(self) -> tuple[Any, Any]:
        return self.query_norm, self.key_norm


def example_of(
    case: Case, lengths: list[int], new: list[int], *, shared: int = 0, capacity: int | None = None
) -> Example:
    """Rows of `lengths` and `new` tokens, whose first `shared` tokens lie in the same slots, at any place."""
    draw = torch.Generator().manual_seed(0)
    rows, tokens, kv = len(lengths), sum(new), case.kv_heads
    capacity = capacity or max(b + n for b, n in zip(lengths, new, strict=True))
    blocks = -(-rows * capacity // BLOCK) + 1
    store = torch.randn(2, blocks, kv, BLOCK, case.width, generator=draw)
    slots = torch.randperm((blocks - 1) * BLOCK, generator=draw)[: rows * capacity] + BLOCK
    tables = slots.view(rows, capacity).int()
    for m in range(rows):
        if lengths[m] >= shared > 0:  # it does not write there
            tables[m, :shared] = tables[1, :shared]
    places = [range(b, b + n) for b, n in zip(lengths, new, strict=True)]
    reading = Reading(
        torch.tensor(np.cumsum([0, *new]), dtype=torch.int32),
        torch.tensor([place for row in places for place in row]),
        torch.tensor([int(tables[m, place]) for m, row in enumerate(places) for place in row], dtype=torch.int32),
        tables, max(new), capacity,
    )  # fmt: skip
    reading = Reading(*(part.to(DEVICE) if isinstance(part, Tensor) else part for part in reading))
    qkv = torch.randn(tokens, (case.heads + 2 * kv) * case.width, generator=draw).to(DEVICE, case.dtype)
    norms: list[Any] = [None, None]
    if case.norms:
        norms = [nn.RMSNorm(case.width, eps=1e-5).to(DEVICE, case.dtype) for _ in range(2)]
        for norm in norms:
            norm.weight.data.copy_(1 + 0.3 * torch.randn(case.width, generator=draw))
    rotary = Rotary(capacity, case.width)
    rotation = Rotation(rotary.cos.to(DEVICE), rotary.sin.to(DEVICE)) if case.rotary else None
    return Example(qkv, store.to(DEVICE, case.dtype), reading, rotation, *norms)


def plain(case: Case, example: Example) -> tuple[Tensor, Tensor, Tensor]:
    """What the new tokens see, (N, H · K), their queries, and the store after them: row by row, token by token."""
    reading, store, kv = example.reading, example.store.clone(), case.kv_heads
    query, key, value = example.qkv.view(len(example.qkv), -1, case.width).split((case.heads, kv, kv), dim=1)
    if example.query_norm is not None:
        query, key = example.query_norm(query), example.key_norm(key)
    if example.rotation is not None:
        at = Rotation(*(part[reading.positions].unsqueeze(1) for part in example.rotation))
        query, key = rotate(query, at), rotate(key, at)
    block, place = reading.slots // BLOCK, reading.slots % BLOCK
    store[0, block, :, place], store[1, block, :, place] = key, value
    contexts = []
    for row in range(len(reading.starts) - 1):
        for token in range(int(reading.starts[row]), int(reading.starts[row + 1])):
            last = int(reading.positions[token]) + 1
            slots = reading.tables[row, max(0, last - (case.window or last)) : last].long()
            both = store[:, slots // BLOCK, :, slots % BLOCK].double()  # (S, 2, kv heads, K)
            keys, values = both.repeat_interleave(case.heads // kv, 2).unbind(1)
            scores = torch.einsum("hk,shk->hs", query[token].double(), keys) / case.width**0.5
            contexts.append(torch.einsum("hs,shk->hk", scores.softmax(1), values).flatten())
    return torch.stack(contexts).to(case.dtype), query, store


@needs_kernels
@pytest.mark.parametrize("programs", ["one", "one of few warps", "several"])  # for a row
@pytest.mark.parametrize("name", CASES)
def test_rows_that_read_a_token_see_all_before(name: str, programs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.nn.kernels.cuda import paged_attention

    case = CASES[name]
    if programs == "one of few warps":
        monkeypatch.setattr(paged_attention, "BUSY", 1)
    if programs == "several":
        monkeypatch.setattr(paged_attention, "LEAST", 8)
        apart = case.heads if case.dtype == torch.float32 else case.kv_heads
        monkeypatch.setattr(paged_attention, "PROGRAMS", 11 * apart)
    lengths = [0, 70, 3, 16, 37]
    example = example_of(case, lengths, [1] * 5, shared=3, capacity=80)
    example.reading.slots[0] = example.reading.tables[0, 0] = 5  # in block 0, of a row that nobody uses
    expected, _, store = plain(case, example)
    context = paged_attention.attend_rows(
        example.qkv, example.store, example.reading, example.rotation, *example.norms, case.window, None, case.heads,
        case.kv_heads, case.width,
    )  # fmt: skip
    torch.testing.assert_close(context, expected, **near(case.dtype))
    torch.testing.assert_close(example.store, store, **near(case.dtype))


@needs_kernels
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_narrow_matrix_reads_what_rows_see(rows: int, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.nn.kernels.cuda import paged_attention
    from legato.nn.kernels.cuda.product import Product

    if few:
        monkeypatch.setattr(paged_attention, "LEAST", 8)
    case = Case(6, 2, 32)
    holder = nn.Sequential(Linear(192, 32))
    quantize_layers(holder, "int8")
    layer: Any = holder.to(DEVICE)[0]
    example = example_of(case, [40, 9, 0][:rows], [1] * rows)
    expected, _, _ = plain(case, example)
    reader = Product(layer)
    context = paged_attention.attend_rows(
        example.qkv, example.store, example.reading, example.rotation, None, None, None, reader, 6, 2, 32
    )
    torch.testing.assert_close(reader(context, torch.float32), layer(expected), rtol=1e-2, atol=1e-2)


@needs_kernels
@pytest.mark.parametrize("name", CASES)
def test_tokens_of_any_number_see_all_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.nn.kernels.cuda import paged_attention
    from legato.nn.kernels.cuda.paged_attention import PromptTile

    case = CASES[name]
    monkeypatch.setattr(
        paged_attention, "prompt_tile",
        lambda dtype, padded, group, large: PromptTile(64 if large and GPU else 32 if large else 16, 16, 4, 3),
    )  # fmt: skip
    lengths, new = [0, 30, 5, 17, 0], [1, 1, 50, 23, 33]
    example = example_of(case, lengths, new, shared=5)
    expected, turned, store = plain(case, example)
    reading, group = example.reading, case.heads // case.kv_heads
    shape = case.heads, case.kv_heads, case.width
    queries = paged_attention.write_heads(
        example.qkv, example.store, reading, example.rotation, *example.norms, *shape
    )
    torch.testing.assert_close(queries, turned, **near(case.dtype))
    torch.testing.assert_close(example.store, store, **near(case.dtype))
    tiles = paged_attention.tiles_of(reading.starts.cpu().numpy(), np.array(lengths), group, case.dtype, case.width)
    assert 0 < tiles.large < len(tiles.places)
    tiles = tiles._replace(places=torch.from_numpy(tiles.places).to(DEVICE))
    context = paged_attention.attend_prompts(queries, example.store, reading, tiles, case.window, *shape)
    torch.testing.assert_close(context, expected, **near(case.dtype))
