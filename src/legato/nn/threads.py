"""Work on a CPU that is many alike pieces: a thread for each core, with a piece of its own.

PyTorch's own threads share one operation at a time, and wait for the slowest of them behind each. Pieces that need
nothing of one another go faster side by side; what is bound by memory in one meets what is bound by arithmetic in
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Piece = TypeVar("Piece")
Made = TypeVar("Made")


def in_threads(work: Callable[[Piece], Made], pieces: Iterable[Piece], device: torch.device) -> list[Made]:
    """What `work` makes of each piece, in their order; on a CPU in as many threads as PyTorch has.

    >>> in_threads(len, ["a", "bc"], torch.device("cpu"))
    [1, 2]
    """
    every, threads = list(pieces), torch.get_num_threads()
    if device.type != "cpu" or min(threads, len(every)) < 2:
        return [work(piece) for piece in every]
    try:
        with ThreadPoolExecutor(min(threads, len(every)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, every))
    finally:
        torch.set_num_threads(threads)  # libraries of matrix products have one number for all threads
