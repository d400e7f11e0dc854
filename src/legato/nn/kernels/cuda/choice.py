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
    """What a group may not write: by its kind 0 never, 1 as its first token, 2 before `least` tokens, 3 neither."""

    tokens: Tensor  # (N,)
    kinds: Tensor  # (N,) int32
    least: Tensor  # (G,) int32, or one number for all

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """What the kernels take, but for the tokens that are written."""
        return self.tokens, self.kinds, self.least, int(len(self.least) > 1)


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
    tokens, kinds, least, apart = forbidden.parts
    barred = tokens, kinds, written, least, apart
    how = {"FORBIDDEN": len(tokens), "BLOCK": BLOCK, "num_warps": 4}
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
    barred, kinds, least, apart = forbidden.parts
    kernels.scan_beams[(rows, blocks)](
        logits, logits.stride(0), barred, kinds, written, least, apart, values, tokens, sums, size, WIDTH=width,
        COUNT=count, FORBIDDEN=len(barred), BLOCK=BLOCK, num_warps=4,
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


def advance_rows(
    made: Tensor, log: Tensor, turn: Tensor, tokens: Tensor, written: Tensor, lengths: Tensor, last: int
) -> None:
    """Rows have chosen, `made` (5, R): the plain twin is `Runner._advance`."""
    rows = made.shape[1]
    kernels.advance_rows[(1,)](
        made, log, turn, len(log), tokens, written, lengths, last, rows, log.shape[2], BLOCK=next_power_of_2(rows),
        num_warps=1 if rows <= 32 else 4,
    )  # fmt: skip
