"""The tokens that a search takes or draws of a step's logits (`choice.py`)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _may(at, forbidden, kinds, written, group, least, least_apart, FORBIDDEN: tl.constexpr):
    """Which tokens a group may write: not the FORBIDDEN ones, by their `kinds` (`choice.Forbidden`)."""
    may = at >= 0
    if FORBIDDEN > 0:
        count = tl.load(written + group)
        grown = count >= tl.load(least + group * least_apart)
        for i in tl.static_range(FORBIDDEN):
            kind = tl.load(kinds + i)
            barred = (kind == 0) | (((kind & 1) != 0) & (count == 0)) | (((kind & 2) != 0) & (grown == 0))
            may = may & ((at != tl.load(forbidden + i)) | (barred == 0))
    return may


@triton.jit
def scan_logits(
    logits, apart, forbidden, kinds, written, least, least_apart, parts, size, temperature,
    FORBIDDEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each block of a row's logits (R, V): the largest m of what may be written, its place, and Σ exp((l − m) / T)
    over that; of all the largest h and Σ exp(l − h)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    divisor = tl.load(temperature + row)
    divisor = tl.where(divisor > 0, divisor, 1.0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + row * apart + at, mask=at < size, other=float("-inf")).to(tl.float32)
    # NaN must show in the sum; for the place it counts as the least.
    known = tl.where(score == score, score, float("-inf"))
    highest = tl.max(known, 0)
    known = tl.where(_may(at, forbidden, kinds, written, row, least, least_apart, FORBIDDEN), known, float("-inf"))
    largest = tl.max(known, 0)
    place = tl.min(tl.where(known == largest, at, size), 0)
    out = parts + (row * tl.num_programs(1) + block) * 5
    tl.store(out, largest)
    tl.store(out + 1, place.to(tl.float32))
    tl.store(out + 2, tl.sum(tl.exp((known - tl.where(largest > float("-inf"), largest, 0.0)) / divisor), 0))
    tl.store(out + 3, highest)
    tl.store(out + 4, tl.sum(tl.exp(score - tl.where(highest > float("-inf"), highest, 0.0)), 0))


@triton.jit
def _mixed(x):
    """SplitMix64's scattering of a counter, as in decoding/draws.py."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _log_sum(at, there):
    """log Σ exp of a row, from the largest of each block and the block's sum below it, which stand side by side."""
    highest = tl.load(at, mask=there, other=float("-inf"))
    top = tl.max(highest, 0)
    # Where a block holds no finite score, its sum is as it was written: NaN stays NaN.
    shrink = tl.where(highest > float("-inf"), tl.exp(highest - top), 1.0)
    return top + tl.log(tl.sum(tl.load(at + 1, mask=there, other=0.0) * shrink, 0))


@triton.jit
def choose(
    parts, logits, apart, forbidden, kinds, written, least, least_apart, seeds, size, blocks, temperature,
    out, rows, DRAWN: tl.constexpr, FORBIDDEN: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """A row's best token, or one drawn by its seed and the tokens written; its log-probability; the log-sum-exp.

    With a temperature (R,) of 0 a row's best is taken.

    `out` is (5, R) as `Candidates` has it: token, parent, log-probability twice, the sum.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    there = block < blocks
    place = parts + (row * blocks + block) * 5
    largest = tl.load(place, mask=there, other=float("-inf"))
    base = tl.max(largest, 0)
    first = tl.load(place + 1, mask=there, other=0.0)
    total = _log_sum(place + 3, there)
    token = tl.min(tl.where((largest == base) & there, first, size.to(tl.float32)), 0).to(tl.int32)
    if DRAWN:
        own = tl.load(temperature + row)
        divisor = tl.where(own > 0, own, 1.0)
        masses = tl.load(place + 2, mask=there, other=0.0) * tl.where(
            largest > float("-inf"), tl.exp((largest - base) / divisor), 0.0
        )
        counter = tl.load(written + row).to(tl.uint64) + 1
        word = _mixed(tl.load(seeds + row).to(tl.uint64) + counter * 0x9E3779B97F4A7C15)
        aim = (word >> 40).to(tl.int32).to(tl.float32) * (1.0 / 16777216.0) * tl.sum(masses, 0)
        upto = tl.cumsum(masses, 0)
        # The first block whose mass exceeds the aim; the last that has any, where rounding leaves none.
        last = tl.max(tl.where(masses > 0, block, 0), 0)
        found = tl.min(tl.where((upto > aim) & (masses > 0), block, last), 0)
        before = tl.sum(tl.where(block < found, masses, 0.0), 0)
        at = found * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(logits + row * apart + at, mask=at < size, other=float("-inf")).to(tl.float32)
        may = _may(at, forbidden, kinds, written, row, least, least_apart, FORBIDDEN)
        each = tl.where(may, tl.exp((score - base) / divisor), 0.0)
        inside = before + tl.cumsum(each, 0)
        end = tl.max(tl.where(each > 0, at, 0), 0)
        token = tl.where(own > 0, tl.min(tl.where((inside > aim) & (each > 0), at, end), 0), token)
    logit = tl.load(logits + row * apart + tl.minimum(token, size - 1)).to(tl.float32)
    logit = tl.where(base > float("-inf"), logit, float("-inf"))
    tl.store(out + row, token.to(tl.float32))
    tl.store(out + rows + row, 0.0)
    tl.store(out + 2 * rows + row, logit - total)
    tl.store(out + 3 * rows + row, logit - total)
    tl.store(out + 4 * rows + row, total)


@triton.jit
def scan_beams(
    logits, apart, forbidden, kinds, written, least, least_apart, values, tokens, sums, size,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, FORBIDDEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each block of a row's logits (R, V): the COUNT best that may be written, first of equals first; of all the
    largest h and Σ exp(l − h)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + row * apart + at, mask=at < size, other=float("-inf")).to(tl.float32)
    known = tl.where(score == score, score, float("-inf"))
    highest = tl.max(known, 0)
    number = row * tl.num_programs(1) + block
    tl.store(sums + number * 2, highest)
    tl.store(sums + number * 2 + 1, tl.sum(tl.exp(score - tl.where(highest > float("-inf"), highest, 0.0)), 0))
    may = _may(at, forbidden, kinds, written, row // WIDTH, least, least_apart, FORBIDDEN)
    known = tl.where(may, known, float("-inf"))
    left = at < size
    for i in tl.static_range(COUNT):
        best = tl.max(tl.where(left, known, float("-inf")), 0)
        place = tl.min(tl.where(left & (known == best), at, 2147483647), 0)
        tl.store(values + number * COUNT + i, best)
        tl.store(tokens + number * COUNT + i, place)
        left = left & (at != place)


@triton.jit
def choose_beams(
    values, tokens, sums, scores, size, blocks, out, groups, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    ENTRIES: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The COUNT best continuations of a group's WIDTH rows: (5, G, COUNT) as `Candidates` has them.

    Equal scores go to the lower row, and of one row to the lower token.
    """
    group = tl.program_id(0).to(tl.int64)
    entry = tl.arange(0, ENTRIES)  # of (row, block, number)
    there = entry < WIDTH * blocks * COUNT
    row = tl.where(there, entry // (blocks * COUNT), 0)
    place = group * WIDTH * blocks * COUNT + entry
    value = tl.load(values + place, mask=there, other=float("-inf"))
    token = tl.load(tokens + place, mask=there, other=2147483647)
    total = tl.zeros((ENTRIES,), tl.float32)
    whole = 0.0
    block = tl.arange(0, BLOCKS)
    for r in tl.static_range(WIDTH):
        sum_of_row = _log_sum(sums + ((group * WIDTH + r) * blocks + block) * 2, block < blocks)
        total = tl.where(row == r, sum_of_row, total)
        whole += sum_of_row
    before = tl.load(scores + group * WIDTH + row, mask=there, other=float("-inf"))
    key = tl.where(there & (value > float("-inf")), value + (before - total), float("-inf"))
    key = tl.where(key == key, key, float("-inf"))
    order = row.to(tl.int64) * size + token
    left = there & (token < size)
    for i in tl.static_range(COUNT):
        best = tl.max(tl.where(left, key, float("-inf")), 0)
        picked = tl.min(tl.where(left & (key == best), order, 9223372036854775807), 0)
        here = left & (order == picked)
        logprob = tl.sum(tl.where(here, value - total, 0.0), 0)
        at = out + group * COUNT + i
        found = picked < 9223372036854775807
        tl.store(at, tl.where(found, picked % size, 0).to(tl.float32))
        tl.store(at + groups * COUNT, tl.where(found, picked // size, 0).to(tl.float32))
        tl.store(at + 2 * groups * COUNT, logprob)
        tl.store(at + 3 * groups * COUNT, tl.where(found & (best > float("-inf")), logprob, float("-inf")))
        tl.store(at + 4 * groups * COUNT, whole)
        left = left & (order != picked)


@triton.jit
def advance_beams(
    candidates, ends, scores, tokens, parents, written, groups, count, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """The next frontier of a group of WIDTH rows from its candidates (5, G, count): `DeviceFrontier.advance`.

    The first WIDTH of those that do not end, then of those that do, get a row each: a child its parent's, the better
    one of two, and the others in turn what is left. ROWS and COUNT are powers of two.
    """
    group = tl.program_id(0).to(tl.int64)
    one = tl.arange(0, COUNT)
    there = one < count
    at = candidates + group * count + one
    token = tl.load(at, mask=there, other=0.0).to(tl.int64)
    parent = tl.load(at + groups * count, mask=there, other=0.0).to(tl.int64)
    gain = tl.load(at + 3 * groups * count, mask=there, other=float("-inf"))
    first = group * WIDTH
    score = tl.load(scores + first + parent, mask=there, other=float("-inf")) + gain
    ending = (tl.load(ends + token, mask=there, other=0) != 0) & (score > float("-inf"))
    behind = tl.where(there, tl.where(ending, COUNT, 0), 2 * COUNT) + one  # in this order they come
    rank = tl.sum((behind[None, :] < behind[:, None]).to(tl.int32), 1)
    taken = rank < WIDTH
    # Of those that are taken, row by row: which have the same parent as a better one, and so must move.
    better = (rank[None, :] < rank[:, None]) & (rank[None, :] < WIDTH)
    moves = tl.sum((better & (parent[None, :] == parent[:, None])).to(tl.int32), 1) > 0
    before = tl.sum((better & moves[None, :]).to(tl.int32), 1)  # better ones that move
    row = tl.arange(0, ROWS)
    busy = tl.sum((taken[None, :] & (parent[None, :] == row[:, None])).to(tl.int32), 1) > 0  # (ROWS,)
    free = (row < WIDTH) & (busy == 0)
    number = tl.cumsum(free.to(tl.int32), 0) - 1  # of the free rows
    fits = free[None, :] & (number[None, :] == before[:, None])  # (COUNT, ROWS)
    seat = tl.where(moves, tl.sum(tl.where(fits, row[None, :], 0), 1), parent.to(tl.int32))
    score = tl.where(ending, float("-inf"), score)
    tl.debug_barrier()  # all have read the scores before one writes
    tl.store(scores + first + seat, score, mask=taken)
    tl.store(tokens + first + seat, token, mask=taken)
    # What is no hypothesis continues what was in its place.
    tl.store(parents + first + seat, first + tl.where(score > float("-inf"), parent, seat.to(tl.int64)), mask=taken)
    tl.store(written + group, tl.load(written + group) + 1)


@triton.jit
def advance_rows(
    made, log, turn, turns, tokens, written, lengths, last, rows, places, BLOCK: tl.constexpr
):  # fmt: skip
    """Rows have chosen, `made` (5, rows): write it down in the log (turns, 5, places), and go on; for one program.

    A row that nobody has stays empty; one that has ended stays within the cache.
    """
    row = tl.arange(0, BLOCK)
    there = row < rows
    now = tl.load(turn)
    token = tl.load(made + row, mask=there, other=0.0)
    for part in tl.static_range(5):
        value = tl.load(made + part * rows + row, mask=there, other=0.0)
        tl.store(log + (now * 5 + part) * places + row, value, mask=there)
    tl.store(tokens + row, token.to(tl.int64), mask=there)
    tl.store(written + row, tl.load(written + row, mask=there, other=0) + 1, mask=there)
    length = tl.load(lengths + row, mask=there, other=0)
    length = tl.minimum(length + (length > 0).to(tl.int64), last)
    tl.store(lengths + row, length, mask=there)
    tl.debug_barrier()  # all have read the turn
    tl.store(turn, (now + 1) % turns)
