"""Work on a CPU that is many alike pieces: a thread for each core, with a piece of its own.

PyTorch's own threads share one operation at a time, and wait for the slowest of them behind each. Pieces that need
nothing of one another go faster side by side; what is bound by memory in one meets what is bound by arithmetic in
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeVar

import torch

AHEAD: Final = 4  # pieces for each thread that are taken at once

Piece = TypeVar("Piece")
Made = TypeVar("Made")


def in_threads(work: Callable[[Piece], Made], pieces: Iterable[Piece], device: torch.device) -> list[Made]:
    """What `work` makes of each piece, in their order; on a CPU in as many threads as PyTorch has.

    >>> in_threads(len, ["a", "bc"], torch.device("cpu"))
    [1, 2]
    """
    threads, left = torch.get_num_threads(), iter(pieces)
    if device.type != "cpu" or threads < 2:
        return [work(piece) for piece in left]
    made: list[Made] = []
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            while some := list(islice(left, AHEAD * threads)):  # so that few pieces are there at a time
                made += [work(some[0])] if not made and len(some) == 1 else pool.map(work, some)
        return made
    finally:
        torch.set_num_threads(threads)  # libraries of matrix products have one number for all threads
