"""Norms and attention of a decoder's step, one token a row (`step.py`).

Sums are in float32 and without matrix units, so that float32 models write what the modules write.
"""

from __future__ import annotations

import triton
import triton.language as tl

from legato.nn.kernels.cuda.product_kernels import store_int16, wait


@triton.jit
def add_norm(
    x, added, total, out, scales, weight, bias, width, eps, RMS: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr,
    KEEP: tl.constexpr, ORDER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """total = x + added, out = norm(total), row by row; with an `ORDER` in numbers of 16 bits and their scales."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < width
    scale = tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    wait(PDL)
    value = tl.load(x + row * width + at, mask=there, other=0.0)
    if ADD:
        value = (value.to(tl.float32) + tl.load(added + row * width + at, mask=there, other=0.0).to(tl.float32)).to(
            x.dtype.element_ty
        )
    if KEEP:
        tl.store(total + row * width + at, value, mask=there)
    wide = value.to(tl.float32)
    if RMS:
        inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
        normed = wide * inverse * scale
    else:
        mean = tl.sum(wide, 0) / width
        centred = tl.where(there, wide - mean, 0.0)
        inverse = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
        normed = centred * inverse * scale
        if BIAS:
            normed += tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
    normed = normed.to(x.dtype.element_ty)
    if ORDER == 0:
        tl.store(out + row * width + at, normed, mask=there)
    else:
        groups = width // 32
        normed = tl.where(there, normed.to(tl.float32), 0.0)
        out += row * tl.cdiv(groups, 8) * 256
        store_int16(normed, out, scales + row * groups * 2, 0, groups, ORDER, BLOCK // 32)


@triton.jit
def _head(pointer, at, there, eps, norm, NORM: tl.constexpr, position, cos, sin, ROTARY: tl.constexpr,
          HALF: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """A query or key of one head, normed and turned to where it stands, as it would be stored."""
    kind = pointer.dtype.element_ty
    x = tl.load(pointer + at, mask=there, other=0.0).to(tl.float32)
    if NORM:
        inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + eps)
        x = (x * inverse * tl.load(norm + at, mask=there, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
    if ROTARY:
        other = tl.where(at < HALF, at + HALF, at - HALF)
        partner = tl.load(pointer + other, mask=there, other=0.0).to(tl.float32)
        if NORM:
            scale = tl.load(norm + other, mask=there, other=0.0).to(tl.float32)
            partner = (partner * inverse * scale).to(kind).to(tl.float32)
        turned = tl.where(at < HALF, -partner, partner)
        place = position * WIDTH + at
        x = x * tl.load(cos + place, mask=there, other=0.0) + turned * tl.load(sin + place, mask=there, other=0.0)
        x = x.to(kind).to(tl.float32)
    return x


@triton.jit
def _store_head(x, out, scales, row, head, HEADS: tl.constexpr, WIDTH: tl.constexpr, ORDER: tl.constexpr,
                PADDED: tl.constexpr):  # fmt: skip
    """What a head of a row comes to."""
    if ORDER == 0:
        at = tl.arange(0, PADDED)
        tl.store(out + (row * HEADS + head) * WIDTH + at, x, mask=at < WIDTH)
    else:  # WIDTH is a multiple of 32, and PADDED
        groups: tl.constexpr = HEADS * WIDTH // 32
        out += row * ((groups + 7) // 8 * 256)
        first = head * (WIDTH // 32)
        store_int16(x.to(tl.float32), out, scales + row * groups * 2, first, groups, ORDER, WIDTH // 32)


@triton.jit
def attend(
    qkv,  # (R, (H + 2 · kv heads) · K); of a source: (R, H · K)
    keys, values,  # (rows, kv heads, capacity, K), rows and heads so far apart
    row_apart, head_apart,
    lengths,  # (R,), tokens before the new one; of a source: (G,), all its tokens
    ancestors,  # (R, capacity), in which row each column was written
    capacity,
    cos, sin,  # (longest, K)
    query_norm, key_norm, eps,
    out,  # (R, H · K), where there are parts (PARTS, R, H, K), with an `ORDER` numbers of 16 bits
    scales,  # of those
    weights,  # (PARTS, R, H, 2): the largest score and the sum, of each part
    scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
    ROTARY: tl.constexpr, NORM: tl.constexpr, BEAMS: tl.constexpr, WINDOW: tl.constexpr, SOURCE: tl.constexpr,
    ORDER: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """softmax(q Kᵀ · scale) V of one head of one row, over its own tokens and the new one, or over a source's.

    The first head of a group also writes the new key and value into the cache.
    """
    wait(PDL)
    row, head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    shared = head // GROUP  # the head of keys and values
    at = tl.arange(0, PADDED)
    there = at < WIDTH
    half: tl.constexpr = WIDTH // 2
    if SOURCE > 0:
        length = tl.load(lengths + row // SOURCE)
        query = tl.load(qkv + (row * HEADS + head) * WIDTH + at, mask=there, other=0.0).to(tl.float32)
        place = (row // SOURCE) * row_apart + shared * head_apart
    else:
        length = tl.load(lengths + row)
        kv_heads: tl.constexpr = HEADS // GROUP
        base = qkv + row * (HEADS + 2 * kv_heads) * WIDTH
        query = _head(base + head * WIDTH, at, there, eps, query_norm, NORM, length, cos, sin, ROTARY, half, WIDTH)
        place = row * row_apart + shared * head_apart
    query *= scale

    first = 0
    if WINDOW > 0:
        first = tl.maximum(length + 1 - WINDOW, 0).to(tl.int32)
    last = length.to(tl.int32)
    if PARTS > 1:
        share = tl.cdiv(tl.cdiv(last - first, PARTS), BLOCK) * BLOCK
        first += share * part
        last = tl.minimum(last, first + share)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    summed = tl.zeros((PADDED,), tl.float32)
    if SOURCE == 0:  # noqa: SIM102
        if part == 0:  # the new token; the outer one is the compiler's
            new = base + HEADS * WIDTH + shared * WIDTH
            key = _head(new, at, there, eps, key_norm, NORM, length, cos, sin, ROTARY, half, WIDTH)
            value = tl.load(new + kv_heads * WIDTH + at, mask=there, other=0.0)
            if head % GROUP == 0:
                tl.store(keys + place + length * WIDTH + at, key.to(keys.dtype.element_ty), mask=there)
                tl.store(values + place + length * WIDTH + at, value.to(values.dtype.element_ty), mask=there)
            largest = tl.sum(query * key, 0)
            total += 1.0
            summed = value.to(tl.float32)
    for start in range(first, last, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < last
        if BEAMS:
            wrote = tl.load(ancestors + row * capacity + columns, mask=inside, other=0)
            offsets = wrote * row_apart + shared * head_apart + columns * WIDTH
        else:
            offsets = place + columns.to(tl.int64) * WIDTH
        both = inside[:, None] & there[None, :]
        key = tl.load(keys + offsets[:, None] + at[None, :], mask=both, other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(key * query[None, :], 1), float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 0))
        shrink = tl.exp(largest - higher)
        shares = tl.exp(scores - higher)
        value = tl.load(values + offsets[:, None] + at[None, :], mask=both, other=0.0).to(tl.float32)
        summed = summed * shrink + tl.sum(value * shares[:, None], 0)
        total = total * shrink + tl.sum(shares, 0)
        largest = higher
    if PARTS == 1:
        # A source that nobody has put there yet may have no tokens.
        summed = (summed / tl.where(total > 0, total, 1.0)).to(keys.dtype.element_ty)
        _store_head(summed, out, scales, row, head, HEADS, WIDTH, ORDER, PADDED)
    else:
        number = (part * tl.num_programs(0) + row) * HEADS + head
        tl.store(out + number * WIDTH + at, summed, mask=there)
        tl.store(weights + number * 2, largest)
        tl.store(weights + number * 2 + 1, total)


@triton.jit
def merge(parts, weights, out, scales, like, count, HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
          ORDER: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """The attention of a head of a row from those of its parts, (PARTS, R · H, K), rounded to the type of `like`."""
    wait(PDL)
    number = tl.program_id(0).to(tl.int64)
    at, part = tl.arange(0, PADDED), tl.arange(0, PARTS)
    there = at < WIDTH
    place = part * count + number
    largest, total = tl.load(weights + place * 2), tl.load(weights + place * 2 + 1)
    shares = tl.exp(largest - tl.max(largest, 0))  # 0 where a part has no token
    summed = tl.load(parts + place[:, None] * WIDTH + at[None, :], mask=there[None, :], other=0.0)
    mean = tl.sum(summed * shares[:, None], 0) / tl.sum(total * shares, 0)
    mean = mean.to(like.dtype.element_ty)
    _store_head(mean, out, scales, number // HEADS, number % HEADS, HEADS, WIDTH, ORDER, PADDED)
