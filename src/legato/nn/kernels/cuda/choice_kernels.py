"""The tokens that a search takes or draws of a step's logits (`choice.py`)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scan_logits(logits, apart, parts, size, temperature, BLOCK: tl.constexpr):
    """Of each block of a row's logits (R, V): the largest m, its place, Σ exp(l − m), Σ exp((l − m) / T)."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + row * apart + at, mask=at < size, other=float("-inf")).to(tl.float32)
    # NaN must show in the sum; for the place it counts as the least.
    known = tl.where(score == score, score, float("-inf"))
    largest = tl.max(known, 0)
    place = tl.min(tl.where(known == largest, at, size), 0)
    base = tl.where(largest > float("-inf"), largest, 0.0)
    out = parts + (row * tl.num_programs(1) + block) * 4
    tl.store(out, largest)
    tl.store(out + 1, place.to(tl.float32))
    tl.store(out + 2, tl.sum(tl.exp(score - base), 0))
    tl.store(out + 3, tl.sum(tl.exp((known - base) / temperature), 0))


@triton.jit
def _mixed(x):
    """SplitMix64's scattering of a counter, as in decoding/draws.py."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def choose(
    parts, logits, apart, seeds, steps, size, blocks, temperature, out, rows, DRAWN: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """A row's best token, or one drawn by its seed and step; its log-probability; the log-sum-exp.

    `out` is (5, R) as `Candidates` has it: token, parent, log-probability twice, the sum.
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    there = block < blocks
    place = parts + (row * blocks + block) * 4
    largest = tl.load(place, mask=there, other=float("-inf"))
    base = tl.max(largest, 0)
    first = tl.load(place + 1, mask=there, other=0.0)
    sums = tl.load(place + 2, mask=there, other=0.0)
    # Where a block holds no finite score, its sum is as it was written: NaN stays NaN.
    shrink = tl.where(largest > float("-inf"), tl.exp(largest - base), 1.0)
    total = base + tl.log(tl.sum(sums * shrink, 0))
    token = tl.min(tl.where((largest == base) & there, first, size.to(tl.float32)), 0).to(tl.int32)
    if DRAWN:
        masses = tl.load(place + 3, mask=there, other=0.0) * tl.where(
            largest > float("-inf"), tl.exp((largest - base) / temperature), 0.0
        )
        counter = tl.load(steps + row).to(tl.uint64) + 1
        word = _mixed(tl.load(seeds + row).to(tl.uint64) + counter * 0x9E3779B97F4A7C15)
        aim = (word >> 40).to(tl.int32).to(tl.float32) * (1.0 / 16777216.0) * tl.sum(masses, 0)
        upto = tl.cumsum(masses, 0)
        # The first block whose mass exceeds the aim; the last that has any, where rounding leaves none.
        last = tl.max(tl.where(masses > 0, block, 0), 0)
        found = tl.min(tl.where((upto > aim) & (masses > 0), block, last), 0)
        before = tl.sum(tl.where(block < found, masses, 0.0), 0)
        at = found * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(logits + row * apart + at, mask=at < size, other=float("-inf")).to(tl.float32)
        each = tl.exp((score - base) / temperature)
        inside = before + tl.cumsum(each, 0)
        end = tl.max(tl.where(each > 0, at, 0), 0)
        token = tl.min(tl.where((inside > aim) & (each > 0), at, end), 0)
    logit = tl.load(logits + row * apart + tl.minimum(token, size - 1)).to(tl.float32)
    tl.store(out + row, token.to(tl.float32))
    tl.store(out + rows + row, 0.0)
    tl.store(out + 2 * rows + row, logit - total)
    tl.store(out + 3 * rows + row, logit - total)
    tl.store(out + 4 * rows + row, total)


@triton.jit
def scan_beams(logits, apart, values, tokens, sums, size, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Of each block of a row's logits (R, V): the COUNT best, first of equals first, and largest and Σ exp."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + row * apart + at, mask=at < size, other=float("-inf")).to(tl.float32)
    known = tl.where(score == score, score, float("-inf"))
    largest = tl.max(known, 0)
    base = tl.where(largest > float("-inf"), largest, 0.0)
    number = row * tl.num_programs(1) + block
    tl.store(sums + number * 2, largest)
    tl.store(sums + number * 2 + 1, tl.sum(tl.exp(score - base), 0))
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
        at = sums + ((group * WIDTH + r) * blocks + block) * 2
        largest = tl.load(at, mask=block < blocks, other=float("-inf"))
        each = tl.load(at + 1, mask=block < blocks, other=0.0)
        base = tl.max(largest, 0)
        shrink = tl.where(largest > float("-inf"), tl.exp(largest - base), 1.0)
        sum_of_row = base + tl.log(tl.sum(each * shrink, 0))
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
