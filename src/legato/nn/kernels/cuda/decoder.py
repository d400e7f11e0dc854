"""Whether CUDA's kernels take a decoder's step."""

from __future__ import annotations

import os
from typing import Any

from legato.nn.kernels.cuda import has_kernels


def cuda_step(model: Any, slots: Any) -> Any:
    """What takes a step of `slots` on CUDA; None where the plain modules do it."""
    on = slots.store.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    if not on or not has_kernels():
        return None
    from legato.nn.kernels.cuda.step import CudaStep, suits

    return CudaStep(model, slots) if suits(model, slots.store.dtype) else None


def paged_step(model: Any, cache: Any) -> Any:
    """What reads rows of a cache in blocks on CUDA; None where the plain modules do it."""
    on = cache.store.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"
    if not on or not has_kernels():
        return None
    from legato.nn.kernels.cuda.paged_step import PagedStep
    from legato.nn.kernels.cuda.step import suits

    return PagedStep(model) if suits(model, cache.store.dtype) else None
