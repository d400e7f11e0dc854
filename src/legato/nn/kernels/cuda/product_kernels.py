"""Products of one row with a matrix, or of a few with a narrow one (`step.py`). Sums are in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        x = tl.maximum(x, 0.0)
    elif ACTIVATION == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == 3:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)  # 0.5 (1 + tanh y) = σ(2 y)
    elif ACTIVATION == 4:
        x = x * tl.sigmoid(1.702 * x)
    elif ACTIVATION == 5:
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def _finish(made, gate, bias, out, at, outputs, ACTIVATION: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr):
    """Write what a product comes to: its bias, its activation, its gate, each rounded as the modules round."""
    kind = out.dtype.element_ty
    there = at < outputs
    if GATED:
        if BIAS:
            gate += tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
            made += tl.load(bias + outputs + at, mask=there, other=0.0).to(tl.float32)
        gate = _activated(gate.to(kind).to(tl.float32), ACTIVATION).to(kind).to(tl.float32)
        made = made.to(kind).to(tl.float32) * gate
    else:
        if BIAS:
            made += tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
        if ACTIVATION != 0:
            made = _activated(made.to(kind).to(tl.float32), ACTIVATION)
    tl.store(out + at, made.to(kind), mask=there)


@triton.jit
def _rows(x, weight, rows, inputs, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Σ_k w[n, k] x[k] of some rows (BLOCK_N,)."""
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    each = tl.arange(0, BLOCK_K)
    whole = inputs // BLOCK_K * BLOCK_K
    places = weight + rows[:, None] * inputs
    for start in range(0, whole, BLOCK_K):
        k = start + each
        total += tl.load(places + k[None, :]).to(tl.float32) * tl.load(x + k).to(tl.float32)[None, :]
    if whole < inputs:
        k = whole + each
        there = k < inputs
        given = tl.load(x + k, mask=there, other=0.0).to(tl.float32)
        total += tl.load(places + k[None, :], mask=there[None, :], other=0.0).to(tl.float32) * given[None, :]
    return tl.sum(total, 1)


@triton.jit
def product(
    x, weight, bias, out, outputs, inputs, ACTIVATION: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """f(W x + b) of one row, W (N, K). `GATED`: W has twice the outputs, gates first: f(gate) · up."""
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.minimum(at, outputs - 1).to(tl.int64)
    made = _rows(x, weight, rows, inputs, BLOCK_N, BLOCK_K)
    gate = made
    if GATED:
        made = _rows(x, weight, rows + outputs, inputs, BLOCK_N, BLOCK_K)
    _finish(made, gate, bias, out, at, outputs, ACTIVATION, GATED, BIAS)


@triton.jit
def two_planes(x, planes, scales, inputs, BLOCK: tl.constexpr):
    """A row's numbers x = s (q₁ + q₂ / 254), 32 of them with one s: two planes of 8 bits that lose next to nothing.

    `planes` are (R, 2, K / 4) words of four numbers, `scales` (R, K / 32, 2): s, and the sum of the group.
    """
    row = tl.program_id(0).to(tl.int64)
    groups = inputs // 32
    g = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = g < groups
    word, byte = tl.arange(0, 8), tl.arange(0, 4)
    at = g[:, None, None] * 32 + word[None, :, None] * 4 + byte[None, None, :]  # (BLOCK, 8, 4)
    given = tl.load(x + row * inputs + at, mask=there[:, None, None], other=0.0).to(tl.float32)
    most = tl.max(tl.max(tl.abs(given), 2), 1)  # (BLOCK,)
    scale = most / 127.0
    share = given / tl.where(scale > 0, scale, 1.0)[:, None, None]
    first = tl.floor(share + 0.5)
    second = tl.floor((share - first) * 254.0 + 0.5)
    shift = (byte * 8)[None, None, :]
    one = tl.sum((first.to(tl.int32) & 255) << shift, 2)  # (BLOCK, 8)
    two = tl.sum((second.to(tl.int32) & 255) << shift, 2)
    place = planes + row * 2 * groups * 8 + g[:, None] * 8 + word[None, :]
    tl.store(place, one, mask=there[:, None])
    tl.store(place + groups * 8, two, mask=there[:, None])
    out = scales + (row * groups + g) * 2
    # Where something is not finite it must show.
    tl.store(out, scale + 0.0 * tl.sum(tl.sum(given, 2), 1), mask=there)
    tl.store(out + 1, tl.sum(tl.sum(given, 2), 1), mask=there)


@triton.jit
def _byte(word, i: tl.constexpr):
    """Byte i of words, as a number from -128 to 127."""
    return (word << (24 - 8 * i)) >> 24


@triton.jit
def _dot4(one, two, ASM: tl.constexpr):
    """Σ of four products of the numbers of 8 bits in two words."""
    if ASM:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 z; mov.b32 z, 0; dp4a.s32.s32 $0, $1, $2, z; }", "=r,r,r", [one, two], dtype=tl.int32,
            is_pure=True, pack=1,
        )  # fmt: skip
    total = _byte(one, 0) * _byte(two, 0)
    for i in tl.static_range(1, 4):
        total += _byte(one, i) * _byte(two, i)
    return total


@triton.jit
def _looked_up(word, t0, t1, t2, t3):
    """Eight half-bytes of a word as numbers of a table of 16 bytes, in two words."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 s, a, b, m;
        and.b32 s, $2, 0x7777;
        prmt.b32 a, $3, $4, s;
        prmt.b32 b, $5, $6, s;
        and.b32 s, $2, 0x8888;
        prmt.b32 m, 0x7F, 0, s;
        shl.b32 s, m, 1;
        or.b32 m, m, s;
        lop3.b32 $0, a, b, m, 0xE4;
        shr.u32 m, $2, 16;
        and.b32 s, m, 0x7777;
        prmt.b32 a, $3, $4, s;
        prmt.b32 b, $5, $6, s;
        and.b32 s, m, 0x8888;
        prmt.b32 m, 0x7F, 0, s;
        shl.b32 s, m, 1;
        or.b32 m, m, s;
        lop3.b32 $1, a, b, m, 0xE4;
        }
        """,
        "=&r,=&r,r,r,r,r,r",
        [word, t0, t1, t2, t3],
        dtype=(tl.int32, tl.int32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def _looked_up_plainly(word, table, FIRST: tl.constexpr):
    """The same, of half-bytes 0 to 3 or 4 to 7, one by one."""
    total = tl.zeros_like(word)
    for i in tl.static_range(4):
        place = (word >> (4 * (i + FIRST))) & 15
        total |= ((tl.load(table + place // 4) >> (8 * (place % 4))) & 255) << (8 * i)
    return total


@triton.jit
def narrow_product(
    planes, given, codes, scales, minimums, table, bias, out, outputs, groups, factor,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, BITS: tl.constexpr, TABLE: tl.constexpr,
    MINIMUMS: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """The same with W in 8 or 4 bits, in `groups` of 32 inputs that share a scale, of `two_planes`; row by row."""
    row = tl.program_id(1).to(tl.int64)
    planes += row * 2 * groups * 8
    given += row * groups * 2
    out += row * outputs
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.minimum(at, outputs - 1).to(tl.int64)
    made = factor * _narrow_rows(
        planes, given, codes, scales, minimums, table, rows, groups, BITS, TABLE, MINIMUMS, BLOCK_N, GROUPS, ASM
    )
    gate = made
    if GATED:
        made = factor * _narrow_rows(
            planes, given, codes, scales, minimums, table, rows + outputs, groups, BITS, TABLE, MINIMUMS, BLOCK_N,
            GROUPS, ASM,
        )  # fmt: skip
    _finish(made, gate, bias, out, at, outputs, ACTIVATION, GATED, BIAS)


@triton.jit
def _narrow_rows(
    planes, given, codes, scales, minimums, table, rows, groups, BITS: tl.constexpr, TABLE: tl.constexpr,
    MINIMUMS: tl.constexpr, BLOCK_N: tl.constexpr, GROUPS: tl.constexpr, ASM: tl.constexpr,
):  # fmt: skip
    """Σ_k w[n, k] x[k] of some rows (BLOCK_N,), without the factor.

    Codes are words. Of 8 bits: 8 words a group, in order. Of 4 bits: 4 words; half-byte i of a word is input i of its
    eight; without a table, half-bytes 2 i and 2 i + 1 are inputs i and 4 + i.
    """
    words: tl.constexpr = 8 if BITS == 8 else 4
    each = tl.arange(0, words)
    total = tl.zeros((BLOCK_N, GROUPS), tl.float32)
    if TABLE and ASM:
        t0, t1, t2, t3 = tl.load(table), tl.load(table + 1), tl.load(table + 2), tl.load(table + 3)
    for start in range(0, groups, GROUPS):
        g = start + tl.arange(0, GROUPS)
        there = g < groups
        of = rows[:, None] * groups + g[None, :]  # (BLOCK_N, GROUPS)
        word = tl.load(codes + of[:, :, None] * words + each[None, None, :], mask=there[None, :, None], other=0)
        scale = tl.load(scales + of, mask=there[None, :], other=0.0).to(tl.float32)
        if BITS == 8:
            place = planes + g[:, None] * 8 + each[None, :]  # (GROUPS, words)
            one = tl.load(place, mask=there[:, None], other=0)[None, :, :]
            two = tl.load(place + groups * 8, mask=there[:, None], other=0)[None, :, :]
            first = tl.sum(_dot4(word, one, ASM), 2)
            second = tl.sum(_dot4(word, two, ASM), 2)
        else:
            if TABLE and ASM:
                low, high = _looked_up(word, t0, t1, t2, t3)
            elif TABLE:
                low, high = _looked_up_plainly(word, table, 0), _looked_up_plainly(word, table, 4)
            else:
                low, high = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
            place = planes + g[:, None] * 8 + 2 * each[None, :]
            one = tl.load(place, mask=there[:, None], other=0)[None, :, :]
            also_one = tl.load(place + 1, mask=there[:, None], other=0)[None, :, :]
            two = tl.load(place + groups * 8, mask=there[:, None], other=0)[None, :, :]
            also_two = tl.load(place + groups * 8 + 1, mask=there[:, None], other=0)[None, :, :]
            first = tl.sum(_dot4(low, one, ASM) + _dot4(high, also_one, ASM), 2)
            second = tl.sum(_dot4(low, two, ASM) + _dot4(high, also_two, ASM), 2)
        share = tl.load(given + g * 2, mask=there, other=0.0)[None, :]
        total += (first.to(tl.float32) + second.to(tl.float32) * (1.0 / 254.0)) * (scale * share)
        if MINIMUMS:
            summed = tl.load(given + g * 2 + 1, mask=there, other=0.0)[None, :]
            total += tl.load(minimums + of, mask=there[None, :], other=0.0).to(tl.float32) * summed
    return tl.sum(total, 1)


@triton.jit
def widen(
    words, halves, table, out, rows, columns, wide, size, factor, BITS: tl.constexpr, TABLE: tl.constexpr,
    MINIMUMS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A narrow matrix (N, K) of blocks of 16 outputs × 32 inputs as it is: `size` words each (nn/quantized)."""
    block, g = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    count: tl.constexpr = 8 if BITS == 8 else 4  # words of an output
    n, j = tl.arange(0, 16), tl.arange(0, count)
    base = (block * wide + g) * size  # (GROUPS,)
    there = g < wide
    inside = there[:, None, None]
    word = tl.load(words + base[:, None, None] + j[None, :, None] * 16 + n[None, None, :], mask=inside, other=0)
    scales = halves + base[:, None] * 2 + count * 32 + n[None, :]
    scale = tl.load(scales, mask=there[:, None], other=0.0).to(tl.float32)[:, None, :] * factor
    output = block * 16 + n
    place = out + output[None, None, :] * columns + g[:, None, None] * 32
    for i in tl.static_range(4 if BITS == 8 else 8):
        if BITS == 8:
            code = _byte(word, i)
            column = j * 4 + i
        else:
            # Byte i of a word has inputs i and 4 + i of its eight, the first in its lower half.
            code = (word >> (8 * (i % 4) + 4 * (i // 4))) & 15
            if TABLE:
                code = ((tl.load(table + code // 4) >> (8 * (code % 4))) << 24) >> 24
            column = j * 8 + i
        value = code.to(tl.float32) * scale
        if MINIMUMS:
            low = tl.load(scales + 16, mask=there[:, None], other=0.0).to(tl.float32)[:, None, :] * factor
            value += low
        at = g[:, None, None] * 32 + column[None, :, None]
        kept = inside & (output < rows)[None, None, :] & (at < columns)
        tl.store(place + column[None, :, None], value.to(out.dtype.element_ty), mask=kept)
