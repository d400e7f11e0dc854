"""Codes of positions as tables: what a model adds to its tokens, or turns them by.

The sinusoidal code has, for every distance k, one matrix that takes any position to the one k further:

    M_k P(t) = P(t + k)          M_k turns each pair (sin ω t, cos ω t) by ω k

so relative position is linear in it (Vaswani et al. 2017, section 3.5), and P(s) · P(t) depends on t − s alone. A
learned table need not be so, which its dot products show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from legato.errors import LegatoError
from legato.nn.positions import Learned, Sinusoidal, sinusoids

Array = np.ndarray[Any, np.dtype[np.float64]]


def sinusoidal_table(length: int, width: int) -> Array:
    """P, (length, width): all sines, then all cosines.

    >>> sinusoidal_table(2, 4)[0].tolist()
    [0.0, 0.0, 1.0, 1.0]
    """
    return sinusoids(length, width).double().numpy()


def position_table(model: Any) -> Array:
    """The table that a model, which `legato.load` gave, adds to its tokens: learned or sinusoidal, (T, D)."""
    module = model.loaded.module
    for part in module.modules():
        if isinstance(part, Sinusoidal):
            return part.table.double().cpu().numpy()
        if isinstance(part, Learned):
            return next(part.parameters()).detach().double().cpu().numpy()
    raise LegatoError(f"{model.loaded.folder}: {module.config.name} has no table of positions")


def dot_products(table: Array, *, cosine: bool = False) -> Array:
    """P(s) · P(t) of all pairs, (T, T); with `cosine` of unit vectors."""
    rows = table / np.linalg.norm(table, axis=1, keepdims=True).clip(1e-12) if cosine else table
    found: Array = rows @ rows.T
    return found


def rotation(distance: int, width: int) -> Array:
    """M_k of the sinusoidal code, (D, D): P(t + k) = M_k P(t) for every t.

    >>> table = sinusoidal_table(30, 8)
    >>> bool(np.allclose(rotation(5, 8) @ table[7], table[12], atol=1e-6))
    True
    """
    if width % 2:
        raise LegatoError(f"a width of {width} has a sine without its cosine; use an even one")
    half = width // 2
    angles = distance * 10000 ** (-torch.arange(0, width, 2, dtype=torch.float64).numpy() / width)
    made = np.zeros((width, width))
    places = np.arange(half)
    made[places, places] = made[half + places, half + places] = np.cos(angles)
    made[places, half + places] = np.sin(angles)
    made[half + places, places] = -np.sin(angles)
    return made
