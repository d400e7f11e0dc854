"""Products of one row with a matrix, or of a few with a narrow one (`step.py`). Sums are in float32.

Functions without an underscore that are not kernels are called by those of attention_kernels.py, too.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


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
def wait(PDL: tl.constexpr):
    """Until the kernel before has ended: this one may begin earlier, and read what that one does not write.

    So may the next one from now on (programmatic dependent launch, which GPUs have from Hopper on).
    """
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _rows(x, weight, rows, inputs, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr):
    """Σ_k w[n, k] x[k] of some rows (BLOCK_N,). The next columns are asked for before these are multiplied."""
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    each = tl.arange(0, BLOCK_K)
    places = weight + rows[:, None] * inputs + each[None, :]
    w = tl.load(places, mask=(each < inputs)[None, :], other=0.0)
    wait(PDL)
    for start in range(0, inputs, BLOCK_K):
        k = start + each
        places += BLOCK_K
        after = tl.load(places, mask=(k + BLOCK_K < inputs)[None, :], other=0.0)
        total += w.to(tl.float32) * tl.load(x + k, mask=k < inputs, other=0.0).to(tl.float32)[None, :]
        w = after
    return tl.sum(total, 1)


@triton.jit
def product(
    x, weight, bias, out, outputs, inputs, ACTIVATION: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """f(W x + b) of one row, W (N, K). `GATED`: W has twice the outputs, gates first: f(gate) · up."""
    at = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.minimum(at, outputs - 1).to(tl.int64)
    made = _rows(x, weight, rows, inputs, BLOCK_N, BLOCK_K, PDL)
    gate = made
    if GATED:
        made = _rows(x, weight, rows + outputs, inputs, BLOCK_N, BLOCK_K, False)
    _finish(made, gate, bias, out, at, outputs, ACTIVATION, GATED, BIAS)


@triton.jit
def gate(y, out, units, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """f(gate) · up of rows (N, 2 · units), gates first, rounded as the modules round."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < units
    y += row * 2 * units
    kind = out.dtype.element_ty
    wait(PDL)
    opening = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
    up = tl.load(y + units + at, mask=there, other=0.0).to(tl.float32)
    made = _activated(opening, ACTIVATION).to(kind).to(tl.float32) * up
    tl.store(out + row * units + at, made.to(kind), mask=there)


@triton.jit
def store_int16(x, numbers, scales, first, groups, ORDER: tl.constexpr, COUNT: tl.constexpr):
    """Numbers (COUNT · 32,) of a row as x = s · q, q of 16 bits, 32 of them with one s: next to nothing is lost.

    `numbers` are words of two, (⌈K / 256⌉, 16, 8): the eight groups of 256 inputs lie beside each other. `scales` are
    (K / 32, 2): s, and the sum of the group. `ORDER` 1 is as inputs come, 2 as half-bytes lie in a word of 4 bits.
    """
    each = tl.reshape(x, (COUNT, 32))
    most = tl.max(tl.abs(each), 1)
    summed = tl.sum(each, 1)
    scale = most / 32767.0
    rounded = tl.floor(each / tl.where(scale > 0, scale, 1.0)[:, None] + 0.5).to(tl.int32)
    g, i = first + tl.arange(0, COUNT), tl.arange(0, 32)
    there = g < groups
    if ORDER == 2:
        i = i // 8 * 8 + i % 4 * 2 + i % 8 // 4
    place = (g // 8 * 128 + g % 8)[:, None] * 2 + (i // 2 * 16 + i % 2)[None, :]
    tl.store(numbers + place, rounded.to(tl.int16), mask=there[:, None])
    tl.store(scales + g * 2, scale + 0.0 * summed, mask=there)  # where something is not finite it must show
    tl.store(scales + g * 2 + 1, summed, mask=there)


@triton.jit
def to_int16(x, numbers, scales, groups, ORDER: tl.constexpr, COUNT: tl.constexpr, PDL: tl.constexpr):
    """Rows (R, K) as `store_int16` has them."""
    wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COUNT
    at = first * 32 + tl.arange(0, COUNT * 32)
    given = tl.load(x + row * groups * 32 + at, mask=at < groups * 32, other=0.0).to(tl.float32)
    numbers += row * tl.cdiv(groups, 8) * 256
    store_int16(given, numbers, scales + row * groups * 2, first, groups, ORDER, COUNT)


@triton.jit
def _byte(word, i: tl.constexpr):
    """Byte i of words, as a number from -128 to 127."""
    return (word << (24 - 8 * i)) >> 24


@triton.jit
def _dot4(total, word, one, two, ASM: tl.constexpr):
    """`total` and Σ of four numbers of 8 bits in a word, times four of 16 bits in two."""
    if ASM:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 t; dp2a.lo.s32.s32 t, $3, $2, $1; dp2a.hi.s32.s32 $0, $4, $2, t; }", "=r,r,r,r,r",
            [total, word, one, two], dtype=tl.int32, is_pure=True, pack=1,
        )  # fmt: skip
    total += _byte(word, 0) * ((one << 16) >> 16) + _byte(word, 1) * (one >> 16)
    return total + _byte(word, 2) * ((two << 16) >> 16) + _byte(word, 3) * (two >> 16)


@triton.jit
def _looked_up(word, t0, t1, t2, t3):
    """Eight half-bytes of a word as numbers of a table of 16 bytes, in two words."""
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 s, a, b;
        and.b32 s, $2, 0x7777;
        prmt.b32 a, $3, $4, s;
        prmt.b32 b, $5, $6, s;
        shr.u32 s, $2, 1;
        lop3.b32 s, s, 0x4444, 0x3210, 0xEA;
        prmt.b32 $0, a, b, s;
        shr.u32 s, $2, 16;
        and.b32 s, s, 0x7777;
        prmt.b32 a, $3, $4, s;
        prmt.b32 b, $5, $6, s;
        shr.u32 s, $2, 17;
        lop3.b32 s, s, 0x4444, 0x3210, 0xEA;
        prmt.b32 $1, a, b, s;
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
        total |= ((tl.load(table + place // 4 * 32) >> (8 * (place % 4))) & 255) << (8 * i)
    return total


@triton.jit
def _narrow_words(at, both, FIRST: tl.constexpr):
    """Four words of each output and group."""
    return (
        tl.load(at + FIRST * 16, mask=both, other=0),
        tl.load(at + FIRST * 16 + 16, mask=both, other=0),
        tl.load(at + FIRST * 16 + 32, mask=both, other=0),
        tl.load(at + FIRST * 16 + 48, mask=both, other=0),
    )


@triton.jit
def _inputs(x, there, PLACE: tl.constexpr):
    """Two words of four inputs, for every output."""
    one, two = tl.load(x + PLACE * 16, mask=there, other=0), tl.load(x + PLACE * 16 + 8, mask=there, other=0)
    return one[:, None], two[:, None]


@triton.jit
def _dot8(total, word, x, there, table, t0, t1, t2, t3, PLACE: tl.constexpr, TABLE: tl.constexpr, ASM: tl.constexpr):
    """`total` and Σ of eight numbers of 4 bits in a word, times as many inputs."""
    if TABLE and ASM:
        low, high = _looked_up(word, t0, t1, t2, t3)
    elif TABLE:
        low, high = _looked_up_plainly(word, table, 0), _looked_up_plainly(word, table, 4)
    else:
        low, high = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
    one, two = _inputs(x, there, 2 * PLACE)
    total = _dot4(total, low, one, two, ASM)
    one, two = _inputs(x, there, 2 * PLACE + 1)
    return _dot4(total, high, one, two, ASM)


@triton.jit
def _dot16(total, w0, w1, w2, w3, x, there, FIRST: tl.constexpr, ASM: tl.constexpr):
    """`total` and Σ of sixteen numbers of 8 bits in four words, times as many inputs."""
    one, two = _inputs(x, there, FIRST)
    total = _dot4(total, w0, one, two, ASM)
    one, two = _inputs(x, there, FIRST + 1)
    total = _dot4(total, w1, one, two, ASM)
    one, two = _inputs(x, there, FIRST + 2)
    total = _dot4(total, w2, one, two, ASM)
    one, two = _inputs(x, there, FIRST + 3)
    return _dot4(total, w3, one, two, ASM)


@triton.jit
def _narrow_blocks(
    numbers, given, words, halves, table, block, groups, BITS: tl.constexpr, TABLE: tl.constexpr,
    MINIMUMS: tl.constexpr, GROUPS: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Σ_k w[n, k] x[k] of a block's 16 outputs, without the factor. What lies where: `QuantizedWeight`.

    The next groups are asked for before those that are there are multiplied, the first of them before the kernel that
    makes the inputs has ended. A table is there 32 times, so that no two threads look at the same place: the
    compiler would keep what they share where byte permutations cannot read it.
    """
    count: tl.constexpr = 8 if BITS == 8 else 4  # words of an output
    size: tl.constexpr = count * 16 + (16 if MINIMUMS else 8)  # of a block
    n = tl.arange(0, 16)
    total = tl.zeros((GROUPS, 16), tl.float32)
    t0, t1, t2, t3 = 0, 0, 0, 0
    if TABLE and ASM:
        lane = (tl.arange(0, GROUPS)[:, None] * 4 + n[None, :] // 4) % 32
        t0, t1 = tl.load(table + lane), tl.load(table + 32 + lane)
        t2, t3 = tl.load(table + 64 + lane), tl.load(table + 96 + lane)
    g = tl.arange(0, GROUPS)
    there = g < groups
    base = (block * groups + g) * size
    at = words + base[:, None] + n[None, :]
    scales = halves + base[:, None] * 2 + count * 32 + n[None, :]
    w0, w1, w2, w3 = _narrow_words(at, there[:, None], 0)
    w4, w5, w6, w7 = w0, w1, w2, w3
    if BITS == 8:
        w4, w5, w6, w7 = _narrow_words(at, there[:, None], 4)
    scale = tl.load(scales, mask=there[:, None], other=0.0)
    wait(PDL)
    for start in range(0, groups, GROUPS):
        g = start + tl.arange(0, GROUPS)
        there = g < groups
        after = (g + GROUPS < groups)[:, None]
        at += GROUPS * size
        v0, v1, v2, v3 = _narrow_words(at, after, 0)
        v4, v5, v6, v7 = v0, v1, v2, v3
        if BITS == 8:
            v4, v5, v6, v7 = _narrow_words(at, after, 4)
        next_scale = tl.load(scales + GROUPS * size * 2, mask=after, other=0.0)
        x = numbers + g // 8 * 128 + g % 8
        dots = tl.zeros((GROUPS, 16), tl.int32)
        if BITS == 8:
            dots = _dot16(dots, w0, w1, w2, w3, x, there, 0, ASM)
            dots = _dot16(dots, w4, w5, w6, w7, x, there, 4, ASM)
        else:
            dots = _dot8(dots, w0, x, there, table, t0, t1, t2, t3, 0, TABLE, ASM)
            dots = _dot8(dots, w1, x, there, table, t0, t1, t2, t3, 1, TABLE, ASM)
            dots = _dot8(dots, w2, x, there, table, t0, t1, t2, t3, 2, TABLE, ASM)
            dots = _dot8(dots, w3, x, there, table, t0, t1, t2, t3, 3, TABLE, ASM)
        share = tl.load(given + g * 2, mask=there, other=0.0)[:, None]
        total += dots.to(tl.float32) * (scale.to(tl.float32) * share)
        if MINIMUMS:
            least = tl.load(scales + 16, mask=there[:, None], other=0.0).to(tl.float32)
            total += least * tl.load(given + g * 2 + 1, mask=there, other=0.0)[:, None]
        scales += GROUPS * size * 2
        w0, w1, w2, w3, w4, w5, w6, w7, scale = v0, v1, v2, v3, v4, v5, v6, v7, next_scale
    return tl.sum(total, 0)


@triton.jit
def narrow_product(
    numbers, given, words, halves, table, bias, out, outputs, groups, rows, factor,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, BIAS: tl.constexpr, BITS: tl.constexpr, TABLE: tl.constexpr,
    MINIMUMS: tl.constexpr, GROUPS: tl.constexpr, ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The same with W in 8 or 4 bits and rows in 16 (`store_int16`); a program makes 16 outputs of a row.

    Rows come first, so that programs side by side read the same block. `GATED`: the outputs are a multiple of 16.
    """
    row = tl.program_id(0) % rows
    block = (tl.program_id(0) // rows).to(tl.int64)
    numbers += row * tl.cdiv(groups, 8) * 128
    given += row * groups * 2
    made = factor * _narrow_blocks(
        numbers, given, words, halves, table, block, groups, BITS, TABLE, MINIMUMS, GROUPS, ASM, PDL
    )
    gate = made
    if GATED:
        made = factor * _narrow_blocks(
            numbers, given, words, halves, table, block + outputs // 16, groups, BITS, TABLE, MINIMUMS, GROUPS, ASM,
            False,
        )  # fmt: skip
    at = block * 16 + tl.arange(0, 16)
    _finish(made, gate, bias, out + row.to(tl.int64) * outputs, at, outputs, ACTIVATION, GATED, BIAS)


@triton.jit
def _four(b0, b1, b2, b3):
    """Four tensors side by side, (…, 2, 2)."""
    return tl.join(tl.join(b0, b2), tl.join(b1, b3))


@triton.jit
def _table_of(code, table):
    return ((tl.load(table + code // 4) >> (8 * (code % 4))) << 24) >> 24


@triton.jit
def _widened(code, scale, least, table, TABLE: tl.constexpr, MINIMUMS: tl.constexpr, like):
    if TABLE:
        code = _table_of(code, table)
    value = code.to(tl.float32) * scale
    if MINIMUMS:
        value += least
    return value.to(like.dtype.element_ty)


@triton.jit
def widen(
    words, halves, table, out, rows, columns, wide, size, factor, BITS: tl.constexpr, TABLE: tl.constexpr,
    MINIMUMS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """A narrow matrix (N, K) of blocks of 16 outputs × 32 inputs as it is: `size` words each (nn/quantized)."""
    block, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * GROUPS
    count: tl.constexpr = 8 if BITS == 8 else 4  # words of an output
    g, n, j = first + tl.arange(0, GROUPS), tl.arange(0, 16), tl.arange(0, count)
    base = (block * wide + g) * size  # (GROUPS,)
    there = g < wide
    word = tl.load(
        words + base[:, None, None] + j[None, :, None] * 16 + n[None, None, :], mask=there[:, None, None], other=0
    )  # (GROUPS, count, 16)
    scales = halves + base[:, None] * 2 + count * 32 + n[None, :]
    scale = tl.load(scales, mask=there[:, None], other=0.0).to(tl.float32)[:, None, :] * factor
    least = scale
    if MINIMUMS:
        least = tl.load(scales + 16, mask=there[:, None], other=0.0).to(tl.float32)[:, None, :] * factor
    if BITS == 8:
        b0 = _widened(_byte(word, 0), scale, least, table, TABLE, MINIMUMS, out)
        b1 = _widened(_byte(word, 1), scale, least, table, TABLE, MINIMUMS, out)
        b2 = _widened(_byte(word, 2), scale, least, table, TABLE, MINIMUMS, out)
        b3 = _widened(_byte(word, 3), scale, least, table, TABLE, MINIMUMS, out)
        value = tl.permute(_four(b0, b1, b2, b3), (2, 0, 1, 3, 4))
    else:
        # Byte i of a word has inputs i and 4 + i of its eight, the first in its lower half.
        b0 = _widened(word & 15, scale, least, table, TABLE, MINIMUMS, out)
        b1 = _widened((word >> 8) & 15, scale, least, table, TABLE, MINIMUMS, out)
        b2 = _widened((word >> 16) & 15, scale, least, table, TABLE, MINIMUMS, out)
        b3 = _widened((word >> 24) & 15, scale, least, table, TABLE, MINIMUMS, out)
        low = _four(b0, b1, b2, b3)
        b0 = _widened((word >> 4) & 15, scale, least, table, TABLE, MINIMUMS, out)
        b1 = _widened((word >> 12) & 15, scale, least, table, TABLE, MINIMUMS, out)
        b2 = _widened((word >> 20) & 15, scale, least, table, TABLE, MINIMUMS, out)
        b3 = _widened((word >> 28) & 15, scale, least, table, TABLE, MINIMUMS, out)
        value = tl.permute(tl.join(low, _four(b0, b1, b2, b3)), (2, 0, 1, 5, 3, 4))
    value = tl.reshape(value, (16, GROUPS * 32))
    output, column = block * 16 + n, first * 32 + tl.arange(0, GROUPS * 32)
    kept = (output < rows)[:, None] & (column < columns)[None, :]
    tl.store(out + output[:, None] * columns + column[None, :], value, mask=kept)
