"""Attention of rows whose keys and values lie in blocks, by a table of slots (`paged_attention.py`).

Keys are (blocks, kv heads, 16, K), and values so many numbers behind them (`apart`). Sums are in float32; products of
float32 numbers too, so that such models write what the modules write.
"""

from __future__ import annotations

import triton
import triton.language as tl

from legato.nn.kernels.cuda.product_kernels import store_int16, wait

LOG2E = tl.constexpr(1.4426950408889634)


# --- pieces -------------------------------------------------------------------------------------------


@triton.jit
def _places(slots, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, FAR: tl.constexpr):
    """Where keys of the first head in some slots lie. 16 are a block; the next head's are 16 · WIDTH behind."""
    if FAR:  # more than 2³¹ numbers
        slots = slots.to(tl.int64)
    return (slots >> 4) * (KV_HEADS * 16 * WIDTH) + (slots & 15) * WIDTH


@triton.jit
def _tile(pointer, places, at, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Keys or values at some places, (…, PADDED)."""
    if WIDTH == PADDED:
        tile = tl.load(pointer + (tl.expand_dims(places, -1) + at))
    else:
        tile = tl.load(pointer + (tl.expand_dims(places, -1) + at), mask=at < WIDTH, other=0.0)
    return tile


@triton.jit
def _heads(
    pointer, heads, used, at, eps, norm, NORM: tl.constexpr, position, cos, sin, ROTARY: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Queries or keys of some heads (G, PADDED), normed and turned to where they stand, as they would be stored."""
    half: tl.constexpr = WIDTH // 2
    kind = pointer.dtype.element_ty
    inside = at < WIDTH
    there = used[:, None] & inside[None, :]
    x = tl.load(pointer + heads[:, None] * WIDTH + at[None, :], mask=there, other=0.0).to(tl.float32)
    if NORM:
        inverse = (1.0 / tl.sqrt(tl.sum(x * x, 1) / WIDTH + eps))[:, None]
        scale = tl.load(norm + at, mask=inside, other=0.0).to(tl.float32)[None, :]
        x = (x * inverse * scale).to(kind).to(tl.float32)
    if ROTARY:
        other = tl.where(at < half, at + half, at - half)
        partner = tl.load(pointer + heads[:, None] * WIDTH + other[None, :], mask=there, other=0.0).to(tl.float32)
        if NORM:
            scale = tl.load(norm + other, mask=inside, other=0.0).to(tl.float32)[None, :]
            partner = (partner * inverse * scale).to(kind).to(tl.float32)
        turned = tl.where((at < half)[None, :], -partner, partner)
        angle = position * WIDTH + at
        cosine, sine = tl.load(cos + angle, mask=inside, other=0.0), tl.load(sin + angle, mask=inside, other=0.0)
        x = (x * cosine[None, :] + turned * sine[None, :]).to(kind).to(tl.float32)
    return x.to(kind)


@triton.jit
def _look(
    query, summed, total, largest, tables, keys, apart, at, first, stop, last, lowest, highest, scale,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    KEYS: tl.constexpr, FAR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take in the keys and values of tokens `first` … `stop`. Where `MASKED` a query sees those from `lowest` up to
    `highest`; after token `last` nothing is read."""
    columns = first + tl.arange(0, KEYS)
    slots = tl.load(tables + tl.minimum(columns, last))
    for _ in tl.range(first, stop, KEYS, num_stages=STAGES):
        places = _places(slots, KV_HEADS, WIDTH, FAR)
        slots = tl.load(tables + tl.minimum(columns + KEYS, last))  # the next ones, where keys are asked for early
        key = _tile(keys, places, at[None, :], WIDTH, PADDED)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if MASKED:
            visible = columns[None, :] <= highest[:, None]
            if WINDOW > 0:
                visible &= columns[None, :] >= lowest[:, None]
            scores = tl.where(visible, scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1) * scale)
        shares = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(shares, 1)
        summed = summed * shrink[:, None]
        value = _tile(keys + apart, places, at[None, :], WIDTH, PADDED)
        summed = tl.dot(shares.to(value.dtype), value, summed, input_precision="ieee")
        largest = higher
        columns += KEYS
    return summed, total, largest


# --- one token a row ----------------------------------------------------------------------------------


@triton.jit
def _shares(positions, rows, spare, ROWS: tl.constexpr, WINDOW: tl.constexpr, LEAST: tl.constexpr):
    """How many tokens one program should look at, and how many programs each row has beside its first (ROWS,).

    There are `spare` programs for that: Σ (n - s/2) / s over the rows is never more.
    """
    m = tl.arange(0, ROWS)
    tokens = tl.load(positions + m, mask=m < rows, other=0).to(tl.int32)
    if WINDOW > 0:
        tokens = tl.minimum(tokens, WINDOW - 1)
    share = tl.maximum(tl.cdiv(tl.sum(tokens, 0), spare), LEAST)
    return share, tl.maximum(tokens - share // 2 - 1, 0) // share


@triton.jit
def _repeated(x, TALL: tl.constexpr):
    """Rows (G, K) again and again, (TALL, K)."""
    times: tl.constexpr = TALL // x.shape[0]
    return tl.reshape(tl.broadcast_to(x[None, :, :], (times, x.shape[0], x.shape[1])), (TALL, x.shape[1]))


@triton.jit
def attend_rows(
    qkv,  # (M, (H + 2 · kv heads) · K)
    keys, apart,
    positions, slots,  # (M,)
    tables, capacity,
    cos, sin,  # (longest, K)
    query_norm, key_norm, eps,
    out,  # (M, H · K), with an `ORDER` numbers of 16 bits
    scales,  # of those
    partial,  # (programs, H, K): what programs that share a row come to
    weights,  # (programs, H, 2): the largest score and the sum of each
    rows, spare, scale,
    TOGETHER: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
    NARROW: tl.constexpr, TALL: tl.constexpr, KEYS: tl.constexpr, ROTARY: tl.constexpr, NORM: tl.constexpr,
    WINDOW: tl.constexpr, ORDER: tl.constexpr, ROWS: tl.constexpr, LEAST: tl.constexpr, DOT: tl.constexpr,
    FAR: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """softmax(q Kᵀ · scale) V of `TOGETHER` heads of one row that share keys, over the row's tokens and the new one.

    Program m has row m, or its first tokens; with `ROWS` long rows are shared, and programs from `rows` on have the
    others of their tokens. The first also writes the new key and value into its slot. The heads, `NARROW` with those
    that fill up to a power of two, are repeated up to `TALL`, which matrix units want.

    What tells where a row stands is read before the kernel before has ended.
    """
    head, item = tl.program_id(0) * TOGETHER, tl.program_id(1)
    shared = head // GROUP  # the head of keys and values
    row, part, parts = item, 0, 1
    heads: tl.constexpr = GROUP * KV_HEADS
    if ROWS > 0:
        share, more = _shares(positions, rows, spare, ROWS, WINDOW, LEAST)
        if item >= rows:
            ends = tl.cumsum(more, 0)
            number = item - rows
            row = tl.sum((ends <= number).to(tl.int32), 0)
            here = tl.arange(0, ROWS) == row
            part = number + 1 - tl.sum(tl.where(here, ends - more, 0), 0)
        if row >= rows:
            return
    position = tl.load(positions + row).to(tl.int32)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(position + 1 - WINDOW, 0)
    stop = position
    if ROWS > 0:
        count = position - first
        parts = 1 + tl.maximum(count - share // 2 - 1, 0) // share
        stop = first + ((part + 1) * count) // parts
        first += (part * count) // parts
    at = tl.arange(0, PADDED)
    wide = row.to(tl.int64)
    tables += wide * capacity
    qkv += wide * ((heads + 2 * KV_HEADS) * WIDTH)
    keys += shared * (16 * WIDTH)
    scale *= LOG2E
    columns = first + tl.arange(0, KEYS)
    last = tl.maximum(stop - 1, 0)
    here = tl.load(tables + tl.minimum(columns, last))
    wait(PDL)

    g = tl.arange(0, NARROW)
    query = _heads(qkv, head + g, g < TOGETHER, at, eps, query_norm, NORM, position, cos, sin, ROTARY, WIDTH)
    total = tl.zeros((NARROW,), tl.float32)
    largest = tl.full((NARROW,), -1e30, tl.float32)  # not -∞: two of them may meet
    summed = tl.zeros((NARROW, PADDED), tl.float32)
    if part == 0:  # the new token
        one = tl.arange(0, 1)
        base = heads + shared
        key = _heads(qkv, base + one, one == 0, at, eps, key_norm, NORM, position, cos, sin, ROTARY, WIDTH)
        there = (at < WIDTH)[None, :]
        value = tl.load(qkv + (base + KV_HEADS) * WIDTH + at[None, :], mask=there, other=0.0)
        if head % GROUP == 0:
            place = _places(tl.load(slots + row), KV_HEADS, WIDTH, FAR)
            tl.store(keys + place + at[None, :], key, mask=there)
            tl.store(keys + apart + place + at[None, :], value, mask=there)
        largest = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
        total += 1.0
        summed += value.to(tl.float32)
    if DOT:
        query = _repeated(query, TALL)
        summed = _repeated(summed, TALL)
        largest = tl.reshape(_repeated(largest[:, None], TALL), (TALL,))
        total = tl.reshape(_repeated(total[:, None], TALL), (TALL,))
    for _ in tl.range(first, stop, KEYS, num_stages=STAGES):
        places = _places(here, KV_HEADS, WIDTH, FAR)
        here = tl.load(tables + tl.minimum(columns + KEYS, last))  # the next ones, so that keys come early
        key = _tile(keys, places, at[None, :], WIDTH, PADDED)
        if DOT:
            scores = tl.dot(query, tl.trans(key))
        else:  # of one head
            scores = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1)[None, :]
        scores = tl.where((columns < stop)[None, :], scores, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1) * scale)
        shares = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(largest - higher)
        total = total * shrink + tl.sum(shares, 1)
        summed = summed * shrink[:, None]
        value = _tile(keys + apart, places, at[None, :], WIDTH, PADDED)
        if DOT:
            summed = tl.dot(shares.to(value.dtype), value, summed)
        else:
            summed += tl.sum(tl.trans(shares) * value.to(tl.float32), 0)[None, :]
        largest = higher
        columns += KEYS
    tall: tl.constexpr = TALL if DOT else 1
    h = tl.arange(0, tall)
    there = (h < TOGETHER)[:, None] & (at < WIDTH)[None, :]
    if parts == 1:
        context = (summed / total[:, None]).to(keys.dtype.element_ty)
        if ORDER == 0:
            out += wide * (heads * WIDTH) + head * WIDTH
            tl.store(out + h[:, None] * WIDTH + at[None, :], context, mask=there)
        else:  # WIDTH is a multiple of 32, and PADDED
            _store_int16(context, out, scales, wide, head, TOGETHER, heads, ORDER, tall, WIDTH)
    if ROWS > 0:  # noqa: SIM102
        if parts > 1:  # the outer one is the compiler's
            number = item * heads + head + h
            tl.store(partial + number[:, None] * WIDTH + at[None, :], summed, mask=there)
            tl.store(weights + number * 2, largest, mask=h < TOGETHER)
            tl.store(weights + number * 2 + 1, total, mask=h < TOGETHER)


@triton.jit
def _store_int16(context, out, scales, row, head, count, HEADS: tl.constexpr, ORDER: tl.constexpr, TALL: tl.constexpr,
                 WIDTH: tl.constexpr):  # fmt: skip
    """`count` heads of a row from `head` on, of TALL that there are numbers for."""
    groups: tl.constexpr = HEADS * WIDTH // 32
    size: tl.constexpr = WIDTH // 32
    out += row * ((groups + 7) // 8 * 256)
    numbers = tl.reshape(context.to(tl.float32), (TALL * WIDTH,))
    first = head * size
    store_int16(numbers, out, scales + row * groups * 2, first, first + count * size, ORDER, TALL * size)


@triton.jit
def merge_rows(
    positions, partial, weights, out, scales, like, rows, spare,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, WINDOW: tl.constexpr, ORDER: tl.constexpr,
    ROWS: tl.constexpr, LEAST: tl.constexpr, PARTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The attention of a head of a row that programs have shared, rounded to the type of `like`."""
    head, row = tl.program_id(0), tl.program_id(1)
    m = tl.arange(0, ROWS)
    _, more = _shares(positions, rows, spare, ROWS, WINDOW, LEAST)
    parts = 1 + tl.sum(tl.where(m == row, more, 0), 0)
    begin = rows + tl.sum(tl.where(m < row, more, 0), 0) - 1
    wait(PDL)
    if parts == 1:
        return
    at = tl.arange(0, PADDED)
    there = (at < WIDTH)[None, :]
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    summed = tl.zeros((PADDED,), tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        number = tl.where(part == 0, row, begin + part) * HEADS + head
        inside = part < parts
        high = tl.load(weights + number * 2, mask=inside, other=float("-inf"))
        sums = tl.load(weights + number * 2 + 1, mask=inside, other=0.0)
        x = tl.load(partial + number[:, None] * WIDTH + at[None, :], mask=inside[:, None] & there, other=0.0)
        higher = tl.maximum(largest, tl.max(high, 0))
        shares, shrink = tl.exp2(high - higher), tl.exp2(largest - higher)
        total = total * shrink + tl.sum(sums * shares, 0)
        summed = summed * shrink + tl.sum(x * shares[:, None], 0)
        largest = higher
    context = (summed / total).to(like.dtype.element_ty)
    wide = row.to(tl.int64)
    if ORDER == 0:
        tl.store(out + (wide * HEADS + head) * WIDTH + at, context, mask=at < WIDTH)
    else:
        _store_int16(context[None, :], out, scales, wide, head, 1, HEADS, ORDER, 1, WIDTH)


# --- tokens of any number -----------------------------------------------------------------------------


@triton.jit
def write_heads(
    qkv,  # (N, (H + 2 · kv heads) · K)
    keys, apart,
    positions, slots,  # (N,)
    cos, sin,  # (longest, K)
    query_norm, key_norm, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, TOGETHER: tl.constexpr,
    ROTARY: tl.constexpr, NORM: tl.constexpr, FAR: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some heads of a token: queries, normed and turned where they lie, and keys that go to their slot with values.

    A program has both halves of a head in the same places: what one overwrites, no other reads.
    """
    token = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = (WIDTH + 1) // 2
    kind = qkv.dtype.element_ty
    head = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)
    at = tl.arange(0, HALF)
    position = tl.load(positions + token)
    slot = tl.load(slots + token)
    is_query, is_value = head < HEADS, head >= HEADS + KV_HEADS
    inside = (head < HEADS + 2 * KV_HEADS)[:, None]
    one, two = inside & (at < half)[None, :], inside & (half + at < WIDTH)[None, :]
    qkv += token * ((HEADS + 2 * KV_HEADS) * WIDTH)
    source = qkv + head[:, None] * WIDTH + at[None, :]
    wait(PDL)
    low = tl.load(source, mask=one, other=0.0)
    high = tl.load(source + half, mask=two, other=0.0)
    if NORM or ROTARY:
        x, y = low.to(tl.float32), high.to(tl.float32)
        if NORM:
            inverse = (1.0 / tl.sqrt((tl.sum(x * x, 1) + tl.sum(y * y, 1)) / WIDTH + eps))[:, None]
            of_query, of_key, rest = query_norm + at, key_norm + at, half + at < WIDTH
            for_query = tl.load(of_query, mask=at < half, other=0.0).to(tl.float32)[None, :]
            for_key = tl.load(of_key, mask=at < half, other=0.0).to(tl.float32)[None, :]
            x = (x * inverse * tl.where(is_query[:, None], for_query, for_key)).to(kind).to(tl.float32)
            for_query = tl.load(of_query + half, mask=rest, other=0.0).to(tl.float32)[None, :]
            for_key = tl.load(of_key + half, mask=rest, other=0.0).to(tl.float32)[None, :]
            y = (y * inverse * tl.where(is_query[:, None], for_query, for_key)).to(kind).to(tl.float32)
        if ROTARY:
            angle = position * WIDTH + at
            cosine = tl.load(cos + angle, mask=at < half, other=0.0)[None, :]
            sine = tl.load(sin + angle, mask=at < half, other=0.0)[None, :]
            x, y = x * cosine - y * sine, y * cosine + x * sine
        low = tl.where(is_value[:, None], low, x.to(kind))
        high = tl.where(is_value[:, None], high, y.to(kind))
    of_queries = is_query[:, None]
    if NORM or ROTARY:
        tl.store(source, low, mask=one & of_queries)
        tl.store(source + half, high, mask=two & of_queries)
    shared = tl.where(is_value, head - HEADS - KV_HEADS, head - HEADS)
    place = _places(slot, KV_HEADS, WIDTH, FAR) + shared * (16 * WIDTH) + tl.where(is_value, apart, 0).to(tl.int64)
    target = keys + place[:, None] + at[None, :]
    tl.store(target, low, mask=one & (is_query[:, None] == 0))
    tl.store(target + half, high, mask=two & (is_query[:, None] == 0))


@triton.jit
def attend_prompts(
    queries, query_apart,  # (N, H, K), tokens so far apart
    keys, apart,
    tiles,  # (T, 2), a row and the first of its new tokens
    starts,  # (M + 1,)
    positions,  # (N,)
    tables, capacity,
    out,  # (N, H · K)
    scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, QUERIES: tl.constexpr,
    KEYS: tl.constexpr, WINDOW: tl.constexpr, FAR: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """softmax(q Kᵀ · scale) V of some tokens of a row, for the heads that share keys, over all that they see.

    Queries of a tile are those of its first token, head by head, of its second, and so on.
    """
    head, tile = tl.program_id(0), tl.program_id(1)
    row, offset = tl.load(tiles + tile * 2), tl.load(tiles + tile * 2 + 1)
    begin, end = tl.load(starts + row), tl.load(starts + row + 1)
    position = tl.load(positions + begin).to(tl.int32) + offset  # of the tile's first token
    tokens: tl.constexpr = QUERIES // GROUP
    count = tl.minimum(end - begin - offset, tokens)
    tables += row.to(tl.int64) * capacity
    at, q = tl.arange(0, PADDED), tl.arange(0, QUERIES)
    token = q // GROUP
    there = (token < count)[:, None] & (at < WIDTH)[None, :]
    heads: tl.constexpr = GROUP * KV_HEADS
    number = (begin + offset + token).to(tl.int64)
    inner = (head * GROUP + q % GROUP) * WIDTH
    keys += head * (16 * WIDTH)
    scale *= LOG2E
    wait(PDL)
    query = tl.load(queries + (number * query_apart + inner)[:, None] + at[None, :], mask=there, other=0.0)

    stop = position + count
    highest = tl.minimum(position + token, stop - 1)
    lowest = tl.maximum(highest + 1 - WINDOW, 0)
    summed = tl.zeros((QUERIES, PADDED), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    largest = tl.full((QUERIES,), -1e30, tl.float32)  # not -∞: a block may have nothing for some queries
    first, all_see = 0, (position + 1) // KEYS * KEYS
    if WINDOW > 0:
        first = tl.maximum(position + 1 - WINDOW, 0) // KEYS * KEYS
        edge = tl.cdiv(tl.maximum(stop - WINDOW, 0), KEYS) * KEYS  # from here on the last token sees all
        all_see = tl.maximum(all_see, first)
        edge = tl.minimum(edge, all_see)
        summed, total, largest = _look(
            query, summed, total, largest, tables, keys, apart, at, first, edge, stop - 1, lowest, highest, scale,
            True, WINDOW, KV_HEADS, WIDTH, PADDED, KEYS, FAR, STAGES,
        )  # fmt: skip
        first = edge
    summed, total, largest = _look(
        query, summed, total, largest, tables, keys, apart, at, first, all_see, stop - 1, lowest, highest, scale,
        False, 0, KV_HEADS, WIDTH, PADDED, KEYS, FAR, STAGES,
    )  # fmt: skip
    summed, total, largest = _look(
        query, summed, total, largest, tables, keys, apart, at, all_see, stop, stop - 1, lowest, highest, scale,
        True, WINDOW, KV_HEADS, WIDTH, PADDED, KEYS, FAR, STAGES,
    )  # fmt: skip
    context = (summed / total[:, None]).to(out.dtype.element_ty)
    places = out + (number * (heads * WIDTH) + inner)[:, None] + at[None, :]
    tl.store(places, context, mask=there)
