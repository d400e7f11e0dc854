"""A step's candidates, in two kernels: what `decoding/candidates.py` does where nothing is special."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor
from triton import next_power_of_2

from legato.nn.kernels.cuda import choice_kernels as kernels

BLOCK: Final = 2048  # logits that a program looks at together
MOST_FORBIDDEN: Final = 16  # tokens that a program compares all of its own with
MOST_ENTRIES: Final = 8192  # candidates of a group's rows and blocks


class Forbidden(NamedTuple):
    """What nobody may write, and what may be written again once a group has written enough."""

    tokens: Tensor  # (N,)
    ending: Tensor | None = None  # (N,), those of which it depends
    least: int = 0  # tokens after which these are allowed


def choose(
    logits: Tensor,
    written: Tensor,
    forbidden: Forbidden,
    temperature: float | Tensor = 1.0,
    seeds: Tensor | None = None,
) -> Tensor:
    """From logits (R, V): candidates (5, R, 1), see `Candidates.of`.

    The best token of each row, the first of equal ones; with `seeds` (R,) the one that the row's number for so many
    tokens `written` (R,) (decoding/draws.py) falls on in the cumulative distribution at this temperature, or each
    row's (R,), 0 for the best.
    """
    rows, size = logits.shape
    blocks = -(-size // BLOCK)
    parts = torch.empty(rows, blocks, 5, dtype=torch.float32, device=logits.device)
    out = torch.empty(5, rows, 1, dtype=torch.float32, device=logits.device)
    if not isinstance(temperature, Tensor):
        temperature = torch.full((rows,), temperature, dtype=torch.float32, device=logits.device)
    barred = forbidden.tokens, forbidden.ending, written, forbidden.least
    how = {"FORBIDDEN": len(forbidden.tokens), "ENDS": forbidden.ending is not None, "BLOCK": BLOCK, "num_warps": 4}
    kernels.scan_logits[(rows, blocks)](logits, logits.stride(0), *barred, parts, size, temperature, **how)
    kernels.choose[(rows,)](
        parts, logits, logits.stride(0), *barred, seeds, size, blocks, temperature, out, rows,
        DRAWN=seeds is not None, BLOCKS=next_power_of_2(blocks), **how,
    )  # fmt: skip
    return out


def fits_beams(size: int, width: int) -> bool:
    """Whether `choose_beams` can hold all that it looks at."""
    return width * -(-size // BLOCK) * 2 * width <= MOST_ENTRIES


def choose_beams(logits: Tensor, scores: Tensor, written: Tensor, forbidden: Forbidden) -> Tensor:
    """From logits (G · W, V) and scores (G, W): the 2 W best continuations of each group, (5, G, 2 W)."""
    (rows, size), (groups, width) = logits.shape, scores.shape
    blocks, count = -(-size // BLOCK), min(2 * width, width * size)
    device = logits.device
    values = torch.empty(rows, blocks, count, dtype=torch.float32, device=device)
    tokens = torch.empty(rows, blocks, count, dtype=torch.int32, device=device)
    sums = torch.empty(rows, blocks, 2, dtype=torch.float32, device=device)
    out = torch.empty(5, groups, count, dtype=torch.float32, device=device)
    kernels.scan_beams[(rows, blocks)](
        logits, logits.stride(0), forbidden.tokens, forbidden.ending, written, forbidden.least, values, tokens, sums,
        size, WIDTH=width, COUNT=count, FORBIDDEN=len(forbidden.tokens), ENDS=forbidden.ending is not None,
        BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    kernels.choose_beams[(groups,)](
        values, tokens, sums, scores, size, blocks, out, groups, WIDTH=width, COUNT=count,
        ENTRIES=next_power_of_2(width * blocks * count), BLOCKS=next_power_of_2(blocks), num_warps=4,
    )  # fmt: skip
    return out


def advance_beams(
    candidates: Tensor, ends: Tensor, scores: Tensor, tokens: Tensor, parents: Tensor, written: Tensor
) -> None:
    """Make of candidates (5, G, C) the next frontier in the places of this one, see `DeviceFrontier`."""
    groups, width = scores.shape
    count = candidates.shape[-1]
    kernels.advance_beams[(groups,)](
        candidates, ends, scores, tokens, parents, written, groups, count, WIDTH=width, ROWS=next_power_of_2(width),
        COUNT=next_power_of_2(count), num_warps=1,
    )  # fmt: skip
