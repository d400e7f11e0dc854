"""Causal attention to the last few tokens, or to those of one's own text, on CUDA: forward and backward.

    O = softmax(Q Kᵀ · scale + mask) V          query t sees keys first[t] … t, and `first` never falls

As flash attention (Dao 2023), for what is seen only: neither scores nor a mask are written, and blocks that nobody
sees are not read. Products are in the inputs' numbers, sums in float32. Kept for the gradient is the logarithm of
each softmax's sum; with it P is made again, and with Δ = Σ dO ∘ O over a row

    dV = Pᵀ dO      dS = P ∘ (dO Vᵀ - Δ)      dQ = dS K · scale      dK = dSᵀ Q · scale

`attend_queries` makes dQ and Δ, block of queries by block of queries, `attend_keys` dK and dV after it. Nothing is
added up out of order, so the same inputs have the same gradients. `spans/window.py` is the operator.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, disable-error-code="import-not-found,untyped-decorator"
# Kernels have no types: Triton reads the annotations of their arguments.

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E: Final = 1.4426950408889634


class Tile(NamedTuple):
    """How a kernel cuts up its work."""

    queries: int  # that a program sees together
    keys: int
    warps: int
    stages: int  # blocks on their way from memory
    split: bool = False  # blocks that every query sees whole in a loop without a mask


# By kernel and head width; `.sight/window_probe.py` tries others.
TILES: dict[tuple[str, int], Tile] = {
    **{("forward", width): Tile(64, 64, 4, 3) for width in (16, 32, 64)},
    **{("queries", width): Tile(64, 64, 4, 2) for width in (16, 32, 64)},
    **{("keys", width): Tile(32, 64, 4, 3) for width in (16, 32, 64)},
    ("forward", 128): Tile(128, 64, 8, 2),
    ("queries", 128): Tile(64, 64, 4, 2),
    ("keys", 128): Tile(64, 64, 8, 2),
}


# --- pieces -------------------------------------------------------------------------------------------


@triton.jit
def _tile(pointer, offsets, places, length, EVEN: tl.constexpr):
    """A block of vectors, one for each place (N,); zeros after the end."""
    if EVEN:
        block = tl.load(pointer + offsets)
    else:
        block = tl.load(pointer + offsets, mask=(places < length)[:, None], other=0.0)
    return block


@triton.jit
def _each(pointer, places, length, other, EVEN: tl.constexpr):
    """A number for each place."""
    if EVEN:
        found = tl.load(pointer + places)
    else:
        found = tl.load(pointer + places, mask=places < length, other=other)
    return found


@triton.jit
def _reach(first, places, window, length, BORDERS: tl.constexpr, EVEN: tl.constexpr):
    """How many keys before its own each query sees."""
    if BORDERS:
        reach = places - _each(first, places, length, 0, EVEN)
    else:
        reach = tl.zeros_like(places) + (window - 1)
    return reach.to(tl.uint32)


@triton.jit
def _key_bounds(first, start, window, length, BORDERS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Of a block of queries: the first key that one of them sees, and between which two all see all keys."""
    end = tl.minimum(start + QUERIES, length) - 1
    if BORDERS:
        lowest, highest = tl.load(first + start), tl.load(first + end)
    else:
        lowest, highest = tl.maximum(start - window + 1, 0), tl.maximum(end - window + 1, 0)
    stop = (start + 1) // KEYS * KEYS
    return lowest // KEYS * KEYS, tl.minimum(tl.cdiv(highest, KEYS) * KEYS, stop), stop


@triton.jit
def _query_bounds(last, start, window, length, BORDERS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Of a block of keys: the first query that sees one, between which two all see all, and where the last ends."""
    end = tl.minimum(start + KEYS, length) - 1
    if BORDERS:
        lowest, highest = tl.load(last + start), tl.load(last + end)
    else:
        lowest, highest = tl.minimum(start + window, length) - 1, tl.minimum(end + window, length) - 1
    stop = highest + 1
    whole = tl.minimum(tl.cdiv(end, QUERIES) * QUERIES, stop)
    return start // QUERIES * QUERIES, whole, tl.maximum((lowest + 1) // QUERIES * QUERIES, whole), stop


# --- forward ------------------------------------------------------------------------------------------


@triton.jit
def _look(
    query, summed, total, largest, keys, values, apart, rows, reach, start, stop, length, scale,
    MASKED: tl.constexpr, EVEN: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Take in the keys and values of `start` … `stop`."""
    at = tl.arange(0, KEYS)
    offsets = at[:, None] * apart + tl.arange(0, WIDTH)[None, :]
    keys += start.to(tl.int64) * apart
    values += start.to(tl.int64) * apart
    for place in range(start, stop, KEYS):
        columns = place + at
        key = _tile(keys, offsets, columns, length, EVEN)  # (N, K)
        scores = tl.dot(query, tl.trans(key))  # (M, N)
        if MASKED:  # one comparison for both ends: what lies ahead is a huge number without a sign
            seen = (rows[:, None] - columns[None, :]).to(tl.uint32) <= reach[:, None]
            scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1) * scale)
        shares = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(shares, 1)
        summed = summed * shrink[:, None]
        value = _tile(values, offsets, columns, length, EVEN)
        summed = tl.dot(shares.to(value.dtype), value, summed)
        largest = higher
        keys += KEYS * apart
        values += KEYS * apart
    return summed, total, largest


@triton.jit
def attend(
    qkv, qkv_row, apart,  # (B, T, H + 2 · kv heads, K), rows and tokens so far apart
    first,  # (B, T) int32
    out,  # (B, T, H, K)
    sums,  # (B, H, T), logarithms to base 2
    length, window, scale,
    BORDERS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The context of a block of queries of one head. `scale` is for powers of 2."""
    start, head, row = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2).to(tl.int64)
    kv_heads: tl.constexpr = HEADS // GROUP
    shared = HEADS + head // GROUP
    qkv += row * qkv_row
    if BORDERS:
        first += row * length
    rows, at = start + tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    queries = qkv + head * WIDTH + start.to(tl.int64) * apart
    query = _tile(queries, tl.arange(0, QUERIES)[:, None] * apart + at[None, :], rows, length, EVEN)  # (M, K)
    reach = _reach(first, rows, window, length, BORDERS, EVEN)
    lowest, whole, border = _key_bounds(first, start, window, length, BORDERS, QUERIES, KEYS)
    stop = tl.minimum(start + QUERIES, length)
    keys, values = qkv + shared * WIDTH, qkv + (shared + kv_heads) * WIDTH

    summed = tl.zeros((QUERIES, WIDTH), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    largest = tl.full((QUERIES,), -1e30, tl.float32)  # not -∞: a block may have nothing for some queries
    if SPLIT:
        summed, total, largest = _look(
            query, summed, total, largest, keys, values, apart, rows, reach, lowest, whole, length, scale,
            True, EVEN, KEYS, WIDTH,
        )  # fmt: skip
        summed, total, largest = _look(
            query, summed, total, largest, keys, values, apart, rows, reach, whole, border, length, scale,
            False, EVEN, KEYS, WIDTH,
        )  # fmt: skip
        lowest = border
    summed, total, largest = _look(
        query, summed, total, largest, keys, values, apart, rows, reach, lowest, stop, length, scale,
        True, EVEN, KEYS, WIDTH,
    )  # fmt: skip
    made = (summed / total[:, None]).to(out.dtype.element_ty)
    out += ((row * length + start) * HEADS + head) * WIDTH
    sums += (row * HEADS + head) * length
    places = out + tl.arange(0, QUERIES)[:, None] * (HEADS * WIDTH) + at[None, :]
    if EVEN:
        tl.store(places, made)
        tl.store(sums + rows, largest + tl.log2(total))
    else:
        tl.store(places, made, mask=(rows < length)[:, None])
        tl.store(sums + rows, largest + tl.log2(total), mask=rows < length)


# --- backward -----------------------------------------------------------------------------------------


@triton.jit
def _slopes_of_queries(
    query, slope, summed, sums, deltas, keys, values, apart, rows, reach, start, stop, length, scale,
    MASKED: tl.constexpr, EVEN: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add what the keys of `start` … `stop` give to dQ, but for the scale."""
    at = tl.arange(0, KEYS)
    offsets = at[:, None] * apart + tl.arange(0, WIDTH)[None, :]
    keys += start.to(tl.int64) * apart
    values += start.to(tl.int64) * apart
    for place in range(start, stop, KEYS):
        columns = place + at
        key = _tile(keys, offsets, columns, length, EVEN)  # (N, K)
        value = _tile(values, offsets, columns, length, EVEN)
        scores = tl.dot(query, tl.trans(key))  # (M, N)
        against = tl.dot(slope, tl.trans(value))
        shares = tl.exp2(scores * scale - sums[:, None])
        if MASKED:
            seen = (rows[:, None] - columns[None, :]).to(tl.uint32) <= reach[:, None]
            shares = tl.where(seen, shares, 0.0)
        change = shares * (against - deltas[:, None])
        summed = tl.dot(change.to(key.dtype), key, summed)
        keys += KEYS * apart
        values += KEYS * apart
    return summed


@triton.jit
def attend_queries(
    qkv, qkv_row, apart, first,
    out,  # (B, T, H, K)
    slopes, slope_row, slope_apart, slope_head,  # dO (B, T, H, K)
    sums,  # (B, H, T)
    deltas,  # (B, H, T), written
    into,  # (B, T, H + 2 · kv heads, K), of which dQ is written
    length, window, scale, shrink,
    BORDERS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dQ and Δ of a block of queries of one head. `scale` is for powers of 2, `shrink` the equation's."""
    start, head, row = tl.program_id(0) * QUERIES, tl.program_id(1), tl.program_id(2).to(tl.int64)
    kv_heads: tl.constexpr = HEADS // GROUP
    shared = HEADS + head // GROUP
    qkv += row * qkv_row
    if BORDERS:
        first += row * length
    own, at = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    rows = start + own
    query = _tile(
        qkv + head * WIDTH + start.to(tl.int64) * apart, own[:, None] * apart + at[None, :], rows, length, EVEN
    )  # (M, K)
    slopes += row * slope_row + head * slope_head + start.to(tl.int64) * slope_apart
    slope = _tile(slopes, own[:, None] * slope_apart + at[None, :], rows, length, EVEN)
    out += ((row * length + start) * HEADS + head) * WIDTH
    context = _tile(out, own[:, None] * (HEADS * WIDTH) + at[None, :], rows, length, EVEN)
    delta = tl.sum(slope.to(tl.float32) * context.to(tl.float32), 1)  # (M,)
    line = (row * HEADS + head) * length
    if EVEN:
        tl.store(deltas + line + rows, delta)
    else:
        tl.store(deltas + line + rows, delta, mask=rows < length)
    logs = _each(sums + line, rows, length, 0.0, EVEN)
    reach = _reach(first, rows, window, length, BORDERS, EVEN)
    lowest, whole, border = _key_bounds(first, start, window, length, BORDERS, QUERIES, KEYS)
    stop = tl.minimum(start + QUERIES, length)
    keys, values = qkv + shared * WIDTH, qkv + (shared + kv_heads) * WIDTH

    summed = tl.zeros((QUERIES, WIDTH), tl.float32)
    if SPLIT:
        summed = _slopes_of_queries(
            query, slope, summed, logs, delta, keys, values, apart, rows, reach, lowest, whole, length, scale,
            True, EVEN, KEYS, WIDTH,
        )  # fmt: skip
        summed = _slopes_of_queries(
            query, slope, summed, logs, delta, keys, values, apart, rows, reach, whole, border, length, scale,
            False, EVEN, KEYS, WIDTH,
        )  # fmt: skip
        lowest = border
    summed = _slopes_of_queries(
        query, slope, summed, logs, delta, keys, values, apart, rows, reach, lowest, stop, length, scale,
        True, EVEN, KEYS, WIDTH,
    )  # fmt: skip
    into_apart: tl.constexpr = (HEADS + 2 * kv_heads) * WIDTH
    into += (row * length + start) * into_apart + head * WIDTH
    places = into + own[:, None] * into_apart + at[None, :]
    made = (summed * shrink).to(into.dtype.element_ty)
    if EVEN:
        tl.store(places, made)
    else:
        tl.store(places, made, mask=(rows < length)[:, None])


@triton.jit
def _slopes_of_keys(
    key, value, key_sum, value_sum, queries, apart, slopes, slope_apart, sums, deltas, first, columns, window,
    start, stop, length, scale,
    BORDERS: tl.constexpr, MASKED: tl.constexpr, EVEN: tl.constexpr, QUERIES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add what the queries of `start` … `stop` of one head give to dK, but for the scale, and to dV."""
    own, at = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    offsets = own[:, None] * apart + at[None, :]
    slope_offsets = own[:, None] * slope_apart + at[None, :]
    queries += start.to(tl.int64) * apart
    slopes += start.to(tl.int64) * slope_apart
    for place in range(start, stop, QUERIES):
        rows = place + own
        query = _tile(queries, offsets, rows, length, EVEN)  # (M, K)
        slope = _tile(slopes, slope_offsets, rows, length, EVEN)
        logs = _each(sums, rows, length, 0.0, EVEN)
        delta = _each(deltas, rows, length, 0.0, EVEN)
        scores = tl.dot(key, tl.trans(query))  # (N, M): all is turned over, so that sums go by keys
        against = tl.dot(value, tl.trans(slope))
        shares = tl.exp2(scores * scale - logs[None, :])
        if MASKED:
            reach = _reach(first, rows, window, length, BORDERS, EVEN)
            seen = (rows[None, :] - columns[:, None]).to(tl.uint32) <= reach[None, :]
            shares = tl.where(seen, shares, 0.0)
        value_sum = tl.dot(shares.to(slope.dtype), slope, value_sum)
        change = shares * (against - delta[None, :])
        key_sum = tl.dot(change.to(query.dtype), query, key_sum)
        queries += QUERIES * apart
        slopes += QUERIES * slope_apart
    return key_sum, value_sum


@triton.jit
def attend_keys(
    qkv, qkv_row, apart, first,
    last,  # (B, T) int32, the last query that sees each key
    slopes, slope_row, slope_apart, slope_head, sums, deltas, into, length, window, scale, shrink,
    BORDERS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """dK and dV of a block of keys of one of their heads, from all heads of queries that it serves."""
    start, shared, row = tl.program_id(0) * KEYS, tl.program_id(1), tl.program_id(2).to(tl.int64)
    kv_heads: tl.constexpr = HEADS // GROUP
    qkv += row * qkv_row
    slopes += row * slope_row
    if BORDERS:
        first += row * length
        last += row * length
    own, at = tl.arange(0, KEYS), tl.arange(0, WIDTH)
    columns = start + own
    keys = qkv + (HEADS + shared) * WIDTH + start.to(tl.int64) * apart
    key = _tile(keys, own[:, None] * apart + at[None, :], columns, length, EVEN)  # (N, K)
    value = _tile(keys + kv_heads * WIDTH, own[:, None] * apart + at[None, :], columns, length, EVEN)
    lowest, whole, border, stop = _query_bounds(last, start, window, length, BORDERS, QUERIES, KEYS)

    key_sum = tl.zeros((KEYS, WIDTH), tl.float32)
    value_sum = tl.zeros((KEYS, WIDTH), tl.float32)
    for member in range(GROUP):
        head = shared * GROUP + member
        queries, slope = qkv + head * WIDTH, slopes + head * slope_head
        line = (row * HEADS + head) * length
        begin = lowest
        if SPLIT:
            key_sum, value_sum = _slopes_of_keys(
                key, value, key_sum, value_sum, queries, apart, slope, slope_apart, sums + line, deltas + line,
                first, columns, window, lowest, whole, length, scale, BORDERS, True, EVEN, QUERIES, WIDTH,
            )  # fmt: skip
            key_sum, value_sum = _slopes_of_keys(
                key, value, key_sum, value_sum, queries, apart, slope, slope_apart, sums + line, deltas + line,
                first, columns, window, whole, border, length, scale, BORDERS, False, EVEN, QUERIES, WIDTH,
            )  # fmt: skip
            begin = border
        key_sum, value_sum = _slopes_of_keys(
            key, value, key_sum, value_sum, queries, apart, slope, slope_apart, sums + line, deltas + line,
            first, columns, window, begin, stop, length, scale, BORDERS, True, EVEN, QUERIES, WIDTH,
        )  # fmt: skip
    into_apart: tl.constexpr = (HEADS + 2 * kv_heads) * WIDTH
    into += (row * length + start) * into_apart + (HEADS + shared) * WIDTH
    places = into + own[:, None] * into_apart + at[None, :]
    key_made, value_made = (key_sum * shrink).to(into.dtype.element_ty), value_sum.to(into.dtype.element_ty)
    if EVEN:
        tl.store(places, key_made)
        tl.store(places + kv_heads * WIDTH, value_made)
    else:
        there = (columns < length)[:, None]
        tl.store(places, key_made, mask=there)
        tl.store(places + kv_heads * WIDTH, value_made, mask=there)


# --- launches -----------------------------------------------------------------------------------------


class Launch:
    """What the kernels are told of one attention: qkv (B, T, H + 2 · kv heads, K) and what each token sees."""

    def __init__(self, qkv: Tensor, heads: int, window: int, first: Tensor | None, last: Tensor | None) -> None:
        rows, length, every, width = qkv.shape
        if qkv.stride(-1) != 1 or qkv.stride(-2) != width:
            qkv = qkv.contiguous()
        self.qkv, self.window, self.first, self.last = qkv, window, first, last
        self.rows, self.length, self.heads, self.width = rows, length, heads, width
        self.kv_heads = (every - heads) // 2

    def forward(self, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
        """The context (B, T, H, K), and the sums' logarithms (B, H, T)."""
        tile = tile or TILES["forward", self.width]
        qkv = self.qkv
        out = torch.empty(self.rows, self.length, self.heads, self.width, dtype=qkv.dtype, device=qkv.device)
        sums = torch.empty(self.rows, self.heads, self.length, dtype=torch.float32, device=qkv.device)
        self._run(attend, tile, tile.queries, self.heads, self.first, out, sums, *self._numbers)
        return out, sums

    def backward(self, slope: Tensor, out: Tensor, sums: Tensor) -> Tensor:
        """The gradient of qkv, contiguous."""
        if slope.stride(-1) != 1:
            slope = slope.contiguous()
        into = torch.empty(self.qkv.shape, dtype=self.qkv.dtype, device=self.qkv.device)
        deltas = torch.empty_like(sums)
        self.slopes_of_queries(slope, out, sums, deltas, into)
        self.slopes_of_keys(slope, sums, deltas, into)
        return into

    def slopes_of_queries(
        self, slope: Tensor, out: Tensor, sums: Tensor, deltas: Tensor, into: Tensor, tile: Tile | None = None
    ) -> Any:
        tile = tile or TILES["queries", self.width]
        given = (self.first, out, slope, *slope.stride()[:3], sums, deltas, into, *self._numbers, self._scale)
        return self._run(attend_queries, tile, tile.queries, self.heads, *given)

    def slopes_of_keys(
        self, slope: Tensor, sums: Tensor, deltas: Tensor, into: Tensor, tile: Tile | None = None
    ) -> Any:
        tile = tile or TILES["keys", self.width]
        given = (self.first, self.last, slope, *slope.stride()[:3], sums, deltas, into, *self._numbers, self._scale)
        return self._run(attend_keys, tile, tile.keys, self.kv_heads, *given)

    @property
    def _scale(self) -> float:
        return float(self.width**-0.5)

    @property
    def _numbers(self) -> tuple[int, int, float]:
        return self.length, self.window, self._scale * LOG2E

    def _run(self, kernel: Any, tile: Tile, block: int, heads: int, *given: Any) -> Any:
        grid = (-(-self.length // block), heads, self.rows)
        even = self.length % tile.queries == 0 and self.length % tile.keys == 0
        return kernel[grid](
            self.qkv, self.qkv.stride(0), self.qkv.stride(1), *given, BORDERS=self.first is not None,
            HEADS=self.heads, GROUP=self.heads // self.kv_heads, WIDTH=self.width, QUERIES=tile.queries,
            KEYS=tile.keys, SPLIT=tile.split, EVEN=even, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
