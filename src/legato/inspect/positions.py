"""Codes of positions as tables: what a model adds to its tokens, or turns them by.

The sinusoidal code has, for every distance k, one matrix that takes any position to the one k further:

    M_k P(t) = P(t + k)          M_k turns each pair (sin ω t, cos ω t) by ω k

so relative position is linear in it (Vaswani et al. 2017, section 3.5), and P(s) · P(t) depends on t − s alone. A
learned table need not be so, which its dot products show.

A place in a picture has two numbers, so DETR and UniT give it two codes of half the width each (Carion et al. 2020,
appendix): P(r, c) = [waves of c; waves of r], and P(r, c) · P(r', c') is the sum of both codes' products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import nn

from legato.errors import LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.trace import Shaped
from legato.models.detr import DETRModel, cells_of, place_waves
from legato.models.image_encoder import ImageEncoder
from legato.models.unit import UnitModel
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


# --- places in a picture ------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class GridWaves(Shaped):
    """The waves that are added to the places of a grid: P(r, c) = [columns[c]; rows[r]]."""

    columns: Array  # (columns, D/2): sines, then cosines, of where each lies across the picture
    rows: Array  # (rows, D/2): the same of where each lies down the picture

    def table(self) -> Array:
        """P, (rows, columns, D)."""
        shape = len(self.rows), len(self.columns), self.rows.shape[1]
        across, down = np.broadcast_to(self.columns, shape), np.broadcast_to(self.rows[:, None], shape)
        return np.concatenate([across, down], axis=-1)


def grid_waves(model: Any, size: tuple[int, int] | None = None) -> GridWaves:
    """The waves of a model, which `legato.load` gave, that looks at places of a picture (DETR, UniT).

    They are those of a picture of this height and width, in pixels; left out: of what its pictures are brought to.
    """
    loaded: Loaded = model.loaded
    for part in loaded.module.modules():
        if has_grid_waves(part):
            return waves_of_grid(part, size or picture_size(loaded, part))
    raise LegatoError(f"{loaded.folder}: {loaded.module.config.name} adds no waves to the places of a picture")


def has_grid_waves(part: nn.Module) -> TypeGuard[DETRModel | UnitModel]:
    """Whether a part of a model adds waves to the places of a picture."""
    return isinstance(part, DETRModel | UnitModel) and part.source_encoder is not None


def waves_of_grid(part: DETRModel | UnitModel, size: tuple[int, int]) -> GridWaves:
    """Those of a picture of this height and width, in pixels."""
    encoder, width = part.source_encoder, part.config.width
    assert isinstance(encoder, ImageEncoder)
    cells = cells_of(encoder, *size, torch.device("cpu"))
    table = place_waves(cells, width).unflatten(0, encoder.grid(*size)).double().numpy()  # (rows, columns, D)
    half = 2 * (width // 4)  # what is left over of a width is 0
    return GridWaves(table[0, :, :half], table[:, 0, half : 2 * half])


def picture_size(loaded: Loaded, part: DETRModel | UnitModel) -> tuple[int, int]:
    """Height and width that all pictures are brought to; where each keeps its own, the encoder's."""
    processor, encoder = loaded.processors.others.get("image"), part.source_encoder
    assert isinstance(encoder, ImageEncoder)
    side: int = encoder.config.image
    return getattr(processor, "shape", None) or (side, side)
