"""What a search without draws takes of logits, on a CPU in one call of the C++ library (`cpu/choice.h`).

Its plain twin is `Chooser._taken` (decoding/candidates.py).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from legato.nn.kernels import library as c


def take_best(
    logits: Tensor,  # (G · W, V)
    before: NDArray[np.float32],  # (G, W), what each row has scored
    forbidden: Tensor,  # (F,), tokens that nobody may write
    normalised: bool,
) -> NDArray[np.float32] | None:
    """Candidates (5, G, C) as `Chooser` gives them; None where the kernels have none. Logits stay what they are."""
    if not (logits.is_cpu and logits.dtype == torch.float32 and logits.stride(1) == 1):
        return None
    kernels = c.library()
    if kernels is None:
        return None
    groups, width = before.shape
    vocabulary = logits.shape[1]
    count = min(2 * width, width * vocabulary) if width > 1 else 1
    found = np.empty((5, groups, count), dtype=np.float32)
    before = np.ascontiguousarray(before)
    choice = c.Choice(
        groups=groups,
        width=width,
        stride=logits.stride(0),
        vocabulary=vocabulary,
        logits=logits.data_ptr(),
        before=before.ctypes.data,
        normalised=normalised,
        to=found.ctypes.data,
    )
    if len(forbidden):
        choice.forbidden, choice.forbidden_count = forbidden.data_ptr(), len(forbidden)
    kernels.choose(choice, torch.get_num_threads())
    return found
