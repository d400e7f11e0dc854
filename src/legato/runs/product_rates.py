"""How fast a device multiplies numbers of each width: by matrices with many rows, and by one with a single row.

Many rows (training, encoding) are bound by arithmetic: GFLOP/s. One row (writing) is bound by reading the matrix:
GB/s of its bytes as they lie in memory. Each is measured in a fraction of a second, by the products that models make.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.memory import available
from legato.nn.kernels.library import Matrix, library
from legato.nn.kernels.stack_layout import KINDS
from legato.nn.quantized.layers import NarrowMatrix
from legato.nn.quantized.weights import EVEN, GROUP, OUTPUTS, QuantizedWeight

FLOATS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NARROW: Final = {"int8": 8, "int4": 4}
BITS: Final = {name: 8 * dtype.itemsize for name, dtype in FLOATS.items()} | NARROW
PATIENCE: Final = 0.1  # seconds of each measurement, and of one product
MATRIX: Final = 1 << 26  # bytes of the matrix that one row is multiplied with: more than most caches hold
WIDTH: Final = {"cpu": 512, "cuda": 4096, "mps": 2048}  # of a square matrix, and as many rows of it
Work = tuple[int, Callable[[], Tensor]]  # how much of it there is, and what does it


class Rate(NamedTuple):
    """Of one width."""

    many: float  # GFLOP/s
    one: float  # GB/s


@torch.no_grad()
def product_rates(device: torch.device) -> dict[str, Rate | None]:
    """Of each width; None where the device has no such products."""
    return {name: _measured(name, device) for name in (*FLOATS, *NARROW)}


def encoder_rate(name: str) -> float | None:
    """GFLOP/s of the products that an encoder makes on a CPU (nn/kernels/encoder.py); None where it has no such."""
    kernels, dtype, width = library(), FLOATS[name], WIDTH["cpu"]
    if kernels is None or dtype not in KINDS or (dtype == torch.float16 and not kernels.multiplies_halves):
        return None
    panels, x, y = torch.ones(width, width, dtype=dtype), torch.ones(width, width), torch.empty(width, width)
    matrix = Matrix(kind=KINDS[dtype], rows=width, columns=width, data=panels.data_ptr(), factor=1.0)

    def product() -> Tensor:
        kernels.linear(matrix, x.data_ptr(), width, y.data_ptr(), 0, torch.get_num_threads())
        return y

    return 2 * width**3 / _seconds(product, torch.device("cpu")) / 1e9


def copy_rate(device: torch.device) -> float:
    """GB/s of memory that is read and written."""
    numbers = torch.ones(_bytes(device) // 4, device=device)
    other = torch.empty_like(numbers)
    return 2 * 4 * numbers.numel() / _seconds(lambda: other.copy_(numbers), device) / 1e9


def _measured(name: str, device: torch.device) -> Rate | None:
    try:
        return Rate(_largest(_many_rows(name, device), device), _largest(_one_row(name, device), device))
    except (RuntimeError, TypeError):  # PyTorch's, where it has no such product
        return None


def _many_rows(name: str, device: torch.device) -> Iterator[Work]:
    for share in (16, 4, 1):
        width = WIDTH.get(device.type, 1024) // share
        product, _, dtype = _product(name, width, width, device)
        x = torch.randn(width, width, device=device).to(dtype)
        yield 2 * width**3, partial(product, x)


def _one_row(name: str, device: torch.device) -> Iterator[Work]:
    width = WIDTH.get(device.type, 1024)
    for share in (64, 8, 1):
        rows = 8 * _bytes(device) // share // BITS[name] // width // OUTPUTS * OUTPUTS or OUTPUTS
        product, size, dtype = _product(name, rows, width, device)
        yield size, partial(product, torch.randn(1, width, device=device).to(dtype))


def _largest(sizes: Iterator[Work], device: torch.device) -> float:
    """Billions a second, of the largest size that does not take too long: some devices are very slow at some."""
    rate = 0.0
    for amount, work in sizes:
        if rate and amount / rate > PATIENCE:
            break
        rate = amount / _seconds(work, device)
    return rate / 1e9


def _product(
    name: str, rows: int, columns: int, device: torch.device
) -> tuple[Callable[[Tensor], Tensor], int, torch.dtype]:
    """What multiplies by a matrix of that width, the matrix' bytes, and what it reads."""
    if name in FLOATS:
        dtype = FLOATS[name]
        # Drawing all of them would take longer than the products.
        weight = torch.randn(1, columns, device=device).to(dtype).expand(rows, -1).contiguous()
        return lambda x: F.linear(x, weight), weight.numel() * weight.element_size(), dtype
    bits = NARROW[name]
    size = OUTPUTS * GROUP * bits // 8 + 2 * OUTPUTS
    # Any bytes are codes; those behind them are made the scale 1.
    some = torch.randint(256, (1, columns // GROUP, size), dtype=torch.uint8, device=device)
    some[..., -2 * OUTPUTS :] = torch.ones(OUTPUTS, dtype=torch.float16, device=device).view(torch.uint8)
    blocks = some.expand(rows // OUTPUTS, -1, -1).contiguous()
    table = None if bits == 8 else torch.tensor(EVEN, dtype=torch.int8, device=device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    matrix = NarrowMatrix(QuantizedWeight(blocks, (rows, columns), bits, table), dtype)
    return lambda x: matrix.product(x, None), blocks.numel(), dtype


def _bytes(device: torch.device) -> int:
    """Of a matrix to read: less where there is little memory."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available()
    most = MATRIX * 8 if device.type == "cuda" else MATRIX
    return most if free is None else min(most, max(1 << 22, free // 8 >> 22 << 22))


def _seconds(work: Callable[[], Tensor], device: torch.device) -> float:
    """Of the fastest of some runs: a machine may have other things to do."""
    work()  # what is made ready once
    _wait(device)
    best, ends = float("inf"), time.perf_counter() + PATIENCE / 2
    while True:
        started = time.perf_counter()
        work()
        _wait(device)
        now = time.perf_counter()
        best = min(best, now - started)
        if now >= ends:
            return max(best, 1e-9)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
