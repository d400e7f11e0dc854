"""Attention over keys and values in blocks (`nn/block_cache.py`) on CUDA, or in Triton's interpreter.

A step whose rows read one token each calls `attend_rows`, once a layer; it may be recorded. One whose rows read more
calls `write_heads` and `attend_prompts`, with the `Tiles` that its caller has uploaded once for all layers:

    tiles = tiles_of(starts, lengths, heads // kv_heads, dtype, width)     of numbers that the host knows
    tiles = tiles._replace(places=upload(tiles.places, device))
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from triton import next_power_of_2

from legato.nn.block_cache import BLOCK, Reading
from legato.nn.kernels.cuda import paged_kernels as kernels
from legato.nn.kernels.cuda.product import Product, chained, room
from legato.nn.positions import Rotation
from legato.nn.quantized import GROUP

PROGRAMS: Final = 528  # that keep such a card busy: four on each of an H200's processors
BUSY: Final = 264  # that keep it busy where rows are short
SHORT: Final = 1024  # tokens of such rows
LEAST: Final = 256  # tokens that are worth a program
TALLEST: Final = 1024  # rows whose tokens a program can count
FEW: Final = 16  # queries of a small tile


class RowTile(NamedTuple):
    """How `attend_rows` cuts up its work."""

    keys: int  # that a program sees together
    warps: int
    stages: int  # blocks on their way from memory
    dot: bool  # whether matrix units multiply


class PromptTile(NamedTuple):
    """How `attend_prompts` does."""

    queries: int
    keys: int
    warps: int
    stages: int


class Tiles(NamedTuple):
    """Which tokens each program of `attend_prompts` has: large tiles first, the others are of rows with few."""

    places: Any  # (T, 2) int32, a row and the first of its new tokens: the host's, or on the device
    large: int  # how many are large; the others begin at an even place


def row_tile(dtype: torch.dtype, padded: int, busy: bool) -> RowTile:
    """Programs that keep the card `busy` by their number have few warps: they do not wait for one another."""
    if dtype == torch.float32:
        return RowTile(64, 4, 2, False)
    if padded > 64:
        return RowTile(32, 2, 3, True)
    return RowTile(32, 1, 3, True) if busy else RowTile(64, 4, 3, True)


def prompt_tile(dtype: torch.dtype, padded: int, group: int, large: bool) -> PromptTile:
    few = max(FEW, next_power_of_2(group))
    if dtype == torch.float32:  # without matrix units: larger ones do not fit into the registers
        return PromptTile(max(32, few) if large and padded <= 64 else few, 16, 4, 1)
    if padded > 128:
        return PromptTile(max(64, few) if large else few, 32, 4, 2)
    return PromptTile(max(128, few), 64, 8, 3) if large else PromptTile(few, 64, 4, 3)


def tiles_of(starts: NDArray[Any], lengths: NDArray[Any], group: int, dtype: torch.dtype, width: int) -> Tiles:
    """Tiles of rows whose new tokens begin at `starts` (M + 1,), behind `lengths` (M,); `group` heads share keys.

    Those that see most come first, so that none is late.
    """
    padded = next_power_of_2(width)
    tall = prompt_tile(dtype, padded, group, True).queries // group
    small = prompt_tile(dtype, padded, group, False).queries // group
    counts = np.diff(starts)
    places = []
    for tokens, of in ((tall, counts > small), (small, counts <= small)):
        tiles = np.where(of, -(-counts // tokens), 0)
        rows = np.repeat(np.arange(len(counts)), tiles)
        offsets = (np.arange(len(rows)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * tokens
        order = np.argsort(-(lengths[rows] + offsets), kind="stable")
        places.append(np.stack([rows, offsets], axis=1)[order].astype(np.int32))
    large, others = places
    # Kernels are compiled for pointers that are aligned to 16 bytes, and for others once more.
    between = np.zeros((len(large) % 2, 2), dtype=np.int32)
    return Tiles(np.concatenate([large, between, others]), len(large))


def _is_far(store: Tensor) -> bool:
    return store[0].numel() >= 2**31


def _norms(query_norm: Any, key_norm: Any) -> tuple[Tensor | None, Tensor | None, float]:
    if query_norm is None:
        return None, None, 0.0
    eps = torch.finfo(query_norm.weight.dtype).eps if query_norm.eps is None else query_norm.eps
    return query_norm.weight, key_norm.weight, eps


def _angles(rotation: Rotation | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if rotation is None else (rotation.cos, rotation.sin)


def attend_rows(
    qkv: Tensor, store: Tensor, reading: Reading, rotation: Rotation | None, query_norm: Any, key_norm: Any,
    window: int | None, reader: Product | None, heads: int, kv_heads: int, width: int,
) -> Any:  # fmt: skip
    """Queries, keys and values (M, (H + 2 · kv heads) · K) of a new token a row to (M, H · K), as `reader` wants it.

    `store` is the layer's, (2, blocks, kv heads, 16, K), and takes the new keys and values. `rotation` is of all
    positions, (longest, K) in float32. The reading's positions and tables are read before the kernel that makes `qkv`
    has ended: no kernel that is `chained` to this one may write them. Where the reading's `deepest` says that a row
    may have many tokens, several programs share it, and a second kernel puts together what they make.
    """
    rows, group, padded = len(qkv), heads // kv_heads, next_power_of_2(width)
    together = 1 if qkv.dtype == torch.float32 else group  # heads of a program
    busy = heads // together * rows >= BUSY
    tile = row_tile(qkv.dtype, padded, busy)
    narrow = next_power_of_2(together)
    exact = width % GROUP == 0 and width == padded
    out, order = room(qkv, heads * width, reader if exact else None)
    capacity = reading.tables.shape[1]
    deepest = min(reading.deepest, capacity, window or capacity) - 1  # tokens before the new one
    spare = max(PROGRAMS * together // heads, 1)
    alone = rows > TALLEST or (busy and deepest <= SHORT)
    more = 0 if alone else min(spare, rows * (max(deepest - LEAST // 2 - 1, 0) // LEAST))
    partial, weights = None, None
    if more:
        partial = qkv.new_empty(rows + more, heads, width, dtype=torch.float32)
        weights = qkv.new_empty(rows + more, heads, 2, dtype=torch.float32)
    common: dict[str, Any] = {
        "WIDTH": width, "PADDED": padded, "WINDOW": window or 0, "ORDER": order, "LEAST": LEAST,
        "ROWS": next_power_of_2(rows) if more else 0, **chained(qkv.device),
    }  # fmt: skip
    kernels.attend_rows[(heads // together, rows + more)](
        qkv, store, store.stride(0), reading.positions, reading.slots, reading.tables, capacity, *_angles(rotation),
        *_norms(query_norm, key_norm), *out, partial, weights, rows, spare, 1 / math.sqrt(width), TOGETHER=together,
        GROUP=group, KV_HEADS=kv_heads, NARROW=narrow, TALL=max(narrow, 16), KEYS=tile.keys,
        ROTARY=rotation is not None, NORM=query_norm is not None, DOT=tile.dot, FAR=_is_far(store),
        STAGES=tile.stages, num_warps=tile.warps, **common,
    )  # fmt: skip
    if more:
        kernels.merge_rows[(heads, rows)](
            reading.positions, partial, weights, *out, store, rows, spare, HEADS=heads, PARTS=32, num_warps=4,
            **common,
        )  # fmt: skip
    return out if order else out[0]


def write_heads(
    qkv: Tensor, store: Tensor, reading: Reading, rotation: Rotation | None, query_norm: Any, key_norm: Any,
    heads: int, kv_heads: int, width: int,
) -> Tensor:  # fmt: skip
    """Queries (N, H, K) of new tokens, normed and turned where they lie in `qkv`; keys and values go to the store."""
    both = heads + 2 * kv_heads
    half = max(next_power_of_2(width) // 2, 1)
    together = min(next_power_of_2(both), max(2048 // half, 1))
    kernels.write_heads[(len(qkv), -(-both // together))](
        qkv, store, store.stride(0), reading.positions, reading.slots, *_angles(rotation),
        *_norms(query_norm, key_norm), HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, HALF=half, TOGETHER=together,
        ROTARY=rotation is not None, NORM=query_norm is not None, FAR=_is_far(store), num_warps=4,
        **chained(qkv.device),
    )  # fmt: skip
    return qkv.view(len(qkv), both, width)[:, :heads]


def attend_prompts(
    queries: Tensor, store: Tensor, reading: Reading, tiles: Tiles, window: int | None, heads: int, kv_heads: int,
    width: int,
) -> Tensor:  # fmt: skip
    """Queries (N, H, K) of new tokens, whose keys are in the store, to (N, H · K); each sees what is before it."""
    group, padded = heads // kv_heads, next_power_of_2(width)
    out = queries.new_empty(len(queries), heads * width)
    rest = tiles.large + tiles.large % 2
    for large, places in ((True, tiles.places[: tiles.large]), (False, tiles.places[rest:])):
        if not len(places):
            continue
        tile = prompt_tile(queries.dtype, padded, group, large)
        kernels.attend_prompts[(kv_heads, len(places))](
            queries, queries.stride(0), store, store.stride(0), places, reading.starts, reading.positions,
            reading.tables, reading.tables.shape[1], out, 1 / math.sqrt(width), GROUP=group, KV_HEADS=kv_heads,
            WIDTH=width, PADDED=padded, QUERIES=tile.queries, KEYS=tile.keys, WINDOW=window or 0,
            FAR=_is_far(store), STAGES=tile.stages, num_warps=tile.warps, **chained(queries.device),
        )  # fmt: skip
    return out


assert BLOCK == 16  # as the kernels have it
