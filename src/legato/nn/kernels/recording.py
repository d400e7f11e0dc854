"""Work on a GPU recorded as a CUDA graph, and replayed: launched at once, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


def recordable_stream() -> Any:
    """The stream to record from: the current one, or PyTorch's choice (None) where that is the default stream."""
    current = torch.cuda.current_stream()
    return None if current == torch.cuda.default_stream() else current


def end_recording(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Let ordinary work go on after a recording that failed.

    Where its end failed, too, PyTorch leaves its allocator and its generator as if it still went on: memory stays the
    recording's, and dropout refuses to draw. The allocator can be told; the generator takes it from the end of
    another recording, so a tiny one is made.
    """
    number = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # where PyTorch has told it
        torch._C._cuda_endAllocateToPool(number, pool)
    try:
        graph.pool()  # what ended gives its memory back itself
    except RuntimeError:
        with suppress(RuntimeError):
            torch._C._cuda_releasePool(number, pool)
    place = torch.zeros((), device=device)
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=recordable_stream()):
        place.zero_()


def failure_reason(problem: BaseException) -> str:
    """Why a recording failed, in a line: that its end then fails, too, is no news.

    A caller that kept the exception would keep the memory of the step that it was raised in.
    """
    while "previous error during capture" in str(problem) and problem.__context__ is not None:
        problem = problem.__context__
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if not lines:
        return type(problem).__name__
    # A compiler says first whose problem it was, and then which.
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def record(
    body: Callable[[], None], device: torch.device, warm: int = 2, pool: Any = None
) -> torch.cuda.CUDAGraph:
    """A graph of what `body` does. It is run a few times first: libraries set themselves up in those.

    Graphs that never run at once may share a `pool` of memory.
    """
    current, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    aside.wait_stream(current)
    with torch.cuda.stream(aside):
        for _ in range(warm):
            body()
    current.wait_stream(aside)
    graph, pool = torch.cuda.CUDAGraph(), pool or torch.cuda.graph_pool_handle()
    torch.cuda.synchronize(device)
    try:
        # Other threads may allocate meanwhile: only what this one does must be fit to be recorded.
        with torch.cuda.graph(graph, pool=pool, stream=recordable_stream(), capture_error_mode="thread_local"):
            body()
    except RuntimeError:
        end_recording(graph, pool, device)
        raise
    return graph
