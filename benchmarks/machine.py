"""What a machine can do at most, measured beside what is made of it: reading memory, and multiplying.

A step that writes one token reads every weight once, so nothing writes faster than memory is read; with many rows it
is the products that take the time. Both limits are PyTorch's, measured in the same run as everybody else, and a share
is of what the machine did then: a kernel that is better than PyTorch's may pass it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

ROUNDS = 5


class Limits(NamedTuple):
    read: float  # bytes a second, of weights that one row is multiplied with
    products: float  # float32 operations a second, of matrices 1,024 × 1,024 × 4,096

    def tell(self) -> str:
        return f"limits: reads {self.read / 1e9:.1f} GB/s, multiplies {self.products / 1e9:.0f} GFLOP/s in float32"

    def figures(self) -> dict[str, float]:
        return {"read_gb_per_s": round(self.read / 1e9, 1), "float32_gflop_per_s": round(self.products / 1e9, 1)}


def limits_side(threads: int) -> Callable[[Any], Limits]:
    """For a process of its own."""
    import torch

    torch.set_num_threads(threads)

    def answer(_: Any) -> Limits:
        with torch.inference_mode():
            large, row = torch.randn(16_384, 4_096), torch.randn(1, 4_096)  # 256 MiB, more than any cache
            a, b = torch.randn(1_024, 1_024), torch.randn(4_096, 1_024)
            reading = _best(lambda: torch.nn.functional.linear(row, large))
            product = _best(lambda: torch.nn.functional.linear(a, b))
        return Limits(4 * large.numel() / reading, 2 * 1_024 * 1_024 * 4_096 / product)

    return answer


def _best(work: Callable[[], Any]) -> float:
    work()
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
