"""What a machine can do at most, measured beside what is made of it: reading and copying memory, and multiplying.

    python benchmarks/machine.py [--device cuda] [--threads 2]

A step that writes one token reads every weight once, so nothing writes faster than memory is read; with many rows it
is the products that take the time. All limits are PyTorch's, measured in the same run as everybody else, and a share
is of what the machine did then: a kernel that is better than PyTorch's may pass it. Products in float32 are that, not
TF32. Products in bf16 are measured where the device has them; elsewhere their limit is that of float32. The last line
printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

ROUNDS = 5


class Sizes(NamedTuple):
    """What is measured with: more than any cache holds, and long enough to be timed."""

    outputs: int  # of the matrix that one row is multiplied with
    inputs: int
    product: tuple[int, int, int]
    calls: int  # in a round


SIZES = {
    "cpu": Sizes(16_384, 4_096, (1_024, 1_024, 4_096), 1),  # 256 MiB
    "cuda": Sizes(65_536, 8_192, (8_192, 8_192, 8_192), 10),  # 1 GiB in bf16
}


class Limits(NamedTuple):
    read: float  # bytes a second, of weights that one row is multiplied with
    products: float  # float32 operations a second
    bf16: float | None = None  # bf16 operations a second; None: not measured
    copy: float | None = None  # bytes a second, read and written counted both
    device: str = "cpu"

    def rate(self, dtype: str) -> float:
        """Operations a second."""
        return self.bf16 if dtype == "bfloat16" and self.bf16 is not None else self.products

    def least_seconds(self, read: float, operations: float, dtype: str) -> float:
        """What a step takes at least that reads so many bytes: reading or multiplying, whichever takes longer."""
        return max(read / self.read, operations / self.rate(dtype))

    def tell(self) -> str:
        copies = "" if self.copy is None else f", copies {self.copy / 1e9:,.1f} GB/s"
        narrow = "" if self.bf16 is None else f", {self.bf16 / 1e9:,.0f} in bf16"
        products = f"multiplies {self.products / 1e9:,.0f} GFLOP/s in float32{narrow}"
        return f"limits of {self.device}: reads {self.read / 1e9:,.1f} GB/s{copies}, {products}"

    def figures(self) -> dict[str, Any]:
        rates = {
            "read_gb_per_s": self.read,
            "copy_gb_per_s": self.copy,
            "float32_gflop_per_s": self.products,
            "bf16_gflop_per_s": self.bf16,
        }
        return {"device": self.device, **{name: round(rate / 1e9, 1) for name, rate in rates.items() if rate}}


def limits_side(threads: int, device: str = "cpu") -> Callable[[Any], Limits]:
    """For a process of its own."""
    import torch
    from torch.nn.functional import linear

    from legato.training.devices import multiplies_bf16

    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    place = torch.device(device)
    sizes = SIZES[place.type]
    kinds = [torch.float32, torch.bfloat16] if multiplies_bf16(place) else [torch.float32]
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else f"a CPU ({threads} threads)"

    def reading(dtype: Any) -> float:
        row = torch.randn(1, sizes.inputs, device=place, dtype=dtype)
        large = torch.randn(sizes.outputs, sizes.inputs, device=place, dtype=dtype)
        return large.numel() * large.element_size() / _best(lambda: linear(row, large), place, sizes.calls)

    def copying() -> float:
        source = torch.randn(sizes.outputs, sizes.inputs, device=place)
        target = torch.empty_like(source)
        return 2 * 4 * source.numel() / _best(lambda: target.copy_(source), place, sizes.calls)

    def multiplying(dtype: Any) -> float:
        rows, inputs, outputs = sizes.product
        a = torch.randn(rows, inputs, device=place, dtype=dtype)
        b = torch.randn(outputs, inputs, device=place, dtype=dtype)
        return 2 * rows * inputs * outputs / _best(lambda: linear(a, b), place, sizes.calls)

    def answer(_: Any) -> Limits:
        with torch.inference_mode():
            reads = reading(torch.float32) if place.type == "cpu" else max(map(reading, kinds))
            products = [multiplying(dtype) for dtype in kinds]
            return Limits(reads, products[0], products[1] if len(kinds) > 1 else None, copying(), name)

    return answer


def _best(work: Callable[[], Any], device: Any, calls: int) -> float:
    """Seconds of a call in the best round."""

    def run() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            work()
        if device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) / calls

    run()
    return min(run() for _ in range(ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    options = parser.parse_args()
    limits = limits_side(options.threads, options.device)(None)
    print(limits.tell())
    print(json.dumps({"benchmark": "machine", **vars(options), "limits": limits.figures()}))


if __name__ == "__main__":
    main()
