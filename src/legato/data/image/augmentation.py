"""Other views of pictures, drawn anew at every step, as tensor operations on the whole batch.

flip, shift, crop       one affine map for each picture: crop as Inception's (Szegedy et al. 2015), which is stretched
                        to the whole again
colour                  brightness, contrast and saturation, each multiplied by up to 1 ± colour
operations              so many of a list, drawn for each picture (RandAugment, Cubuk et al. 2020): turned, sheared,
                        moved, brighter, fewer shades, …
erase                   a square of grey, so wide a share of the side (Cutout, DeVries & Taylor 2017)
mixup, cutmix           the sum of two pictures (Zhang et al. 2018), or a piece of one in the other (Yun et al. 2019);
                        the loss is that of both labels, by their shares

Every choice is a function of the numbers that the batch brings for each row (`Inputs.draws`), which follow from the
seed, the step and the row. So a run resumes to the same pictures, and a step can be recorded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from legato.config import Section
from legato.data.batching.batches import mix_seed
from legato.data.image.image_processor import ImageProcessor

DRAWS: Final = 32  # numbers for each picture
MIXED, CUT = DRAWS - 2, DRAWS - 1  # the columns of mixup's and cutmix's share, drawn from Beta(a, a)
MOST_OPERATIONS: Final = 4
ASPECT: Final = 4 / 3  # of a crop's sides, at most
GREY: Final = 0.5
GEOMETRIC: Final = ("rotate", "shear_x", "shear_y", "move_x", "move_y")
SHADES: Final = ("brightness", "contrast", "saturation", "sharpness", "posterize", "solarize", "stretch")

Operations = list[tuple[Tensor, Tensor]]
"""For each of some operations, which one a picture gets, and how strong: (B,) draws."""


class AugmentConfig(Section):
    """How pictures are changed in training."""

    flip: bool = Field(False, description="left and right are swapped in half of the pictures")
    shift: float = Field(
        0.0, ge=0, lt=1, description="moved by up to this share of the side, in whole pixels, mirrored at the edge"
    )
    crop: float = Field(1.0, gt=0, le=1, description="smallest share of the area that is cut out and stretched")
    colour: float = Field(0.0, ge=0, lt=1, description="brightness, contrast, saturation: by up to 1 ± this")
    operations: int = Field(0, ge=0, le=MOST_OPERATIONS, description="of RandAugment's list, for each picture")
    magnitude: float = Field(0.5, ge=0, le=1, description="how strong those are")
    erase: float = Field(0.0, ge=0, lt=1, description="side of a grey square, as a share of the picture's")
    mixup: float = Field(0.0, ge=0, le=10, description="alpha of mixup; 0: none")
    cutmix: float = Field(0.0, ge=0, le=10, description="alpha of cutmix; 0: none")

    @property
    def mixes(self) -> bool:
        return bool(self.mixup or self.cutmix)


class Augmentation:
    """Pictures of 0 to 255 (B, H, W, 3) to what a model reads (B, 3, H, W)."""

    def __init__(self, config: AugmentConfig, processor: ImageProcessor, seed: int, *, mirrored: bool = True) -> None:
        """Beyond its edge a picture is `mirrored`, or black, where nothing may be seen twice."""
        self.config, self.processor, self.seed, self.mirrored = config, processor, seed, mirrored

    @property
    def idle(self) -> bool:
        """Whether it changes nothing."""
        return self.config == AugmentConfig(magnitude=self.config.magnitude)

    def draws(self, step: int, rows: int) -> Tensor:
        """The numbers of each row at a step, (B, DRAWS)."""
        draw = np.random.default_rng(mix_seed(self.seed, "augmentation", step))
        found = draw.random((rows, DRAWS), dtype=np.float32)  # what a row gets does not depend on those behind it
        for column, alpha in ((MIXED, self.config.mixup), (CUT, self.config.cutmix)):
            if alpha:
                shares = np.random.default_rng(mix_seed(self.seed, "mixing", step, column))
                found[:, column] = shares.beta(alpha, alpha, rows)
        return torch.from_numpy(found)

    @torch.no_grad()
    def __call__(self, pictures: Tensor, draws: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the model reads, and the share of each picture's own in it, (B,); the rest is of the row before it."""
        config = self.config
        x = pictures.movedim(-1, -3).float() / 255  # (B, 3, H, W)
        u = iter(draws.unbind(1))
        operations = [(next(u), next(u)) for _ in range(config.operations)]  # which, and how strong
        x = self._shades(self._moved(x, u, operations), u, operations)
        if config.erase:
            x = torch.where(_box(x, next(u), next(u), x.new_full((len(x),), config.erase)), GREY, x)
        own = None
        if config.mixes:
            x, own = self._mixed(x, u, draws[:, MIXED], draws[:, CUT])
        return self.processor.scaled_shares(x), own

    def _moved(self, x: Tensor, u: Iterator[Tensor], operations: Operations) -> Tensor:
        whole = self._map(x, u, operations)
        if whole is None:
            return x
        grid = F.affine_grid(whole[:, :2], list(x.shape), align_corners=False)
        padding = "reflection" if self.mirrored else "zeros"
        return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False)

    def _map(self, x: Tensor, u: Iterator[Tensor], operations: Operations) -> Tensor | None:
        """Where each pixel comes from: an affine map of places from -1 to 1, (B, 3, 3); None: from where it is."""
        config, one = self.config, x.new_ones(len(x))
        maps: list[Tensor] = []
        if config.flip:
            maps.append(_affine(one.where(next(u) < 0.5, -one), one))
        if config.shift:
            # By whole pixels: what lies between them would be blurred, as no picture is that is read later.
            across, down = (
                _whole_pixels((2 * next(u) - 1) * config.shift, side) for side in (x.shape[3], x.shape[2])
            )
            maps.append(_affine(one, one, x=across, y=down))
        if config.crop < 1:
            area = config.crop + (1 - config.crop) * next(u)
            aspect = torch.exp((2 * next(u) - 1) * math.log(ASPECT) / 2)
            wide, high = (area.sqrt() * aspect).clamp(max=1), (area.sqrt() / aspect).clamp(max=1)
            maps.append(_affine(wide, high, x=(1 - wide) * (2 * next(u) - 1), y=(1 - high) * (2 * next(u) - 1)))
        maps += [_turned(which, strength, config.magnitude) for which, strength in operations]
        return reduce(torch.matmul, maps) if maps else None

    @torch.no_grad()
    def boxes(self, boxes: Tensor, draws: Tensor, height: int, width: int) -> Tensor:
        """Where boxes (B, N, 4), corners in shares of the sides, are in the view that these draws make of a picture.

        They may reach beyond it, or lie outside. A turned picture has no such boxes: flip, shift and crop alone do.
        """
        if self.config.operations:
            raise ValueError("boxes do not follow what turns a picture")
        whole = self._map(boxes.new_empty(len(boxes), 3, height, width), iter(draws.unbind(1)), [])
        if whole is None:
            return boxes
        scale, move = whole.diagonal(dim1=1, dim2=2)[:, None, :2], whole[:, None, :2, 2]  # (B, 1, 2)
        first, last = (((2 * each - 1 - move) / scale + 1) / 2 for each in boxes.split(2, dim=-1))
        return torch.cat((torch.minimum(first, last), torch.maximum(first, last)), dim=-1)

    def _shades(self, x: Tensor, u: Iterator[Tensor], operations: Operations) -> Tensor:
        config = self.config
        if config.colour:
            for change in (_brightness, _contrast, _saturation):
                x = change(x, _wide(1 + config.colour * (2 * next(u) - 1)))
        for which, strength in operations:
            x = _shaded(x, which, strength, config.magnitude)
        return x.clamp(0, 1)

    def _mixed(self, x: Tensor, u: Iterator[Tensor], mixup: Tensor, cutmix: Tensor) -> tuple[Tensor, Tensor]:
        other, config = x.roll(1, 0), self.config
        choice, across, down = next(u), next(u), next(u)
        inside = _box(x, across, down, (1 - cutmix).sqrt())  # (B, 1, H, W)
        cut, kept = torch.where(inside, other, x), 1 - inside.float().mean((1, 2, 3))
        added = _wide(mixup) * x + _wide(1 - mixup) * other
        if not config.mixup:
            return cut, kept
        if not config.cutmix:
            return added, mixup
        first = choice < 0.5
        return torch.where(_wide(first), cut, added), torch.where(first, kept, mixup)


def _wide(each: Tensor) -> Tensor:
    """One number for each picture, (B,), as (B, 1, 1, 1)."""
    return each[:, None, None, None]


def _whole_pixels(share: Tensor, side: int) -> Tensor:
    """A share of the side, rounded to pixels, in places from -1 to 1."""
    return (share * side).round() * (2 / side)


def _affine(across: Tensor, down: Tensor, *, x: Any = 0.0, y: Any = 0.0, shear: Any = (0.0, 0.0)) -> Tensor:
    """Maps (B, 3, 3) that multiply and move places."""
    zero, one = torch.zeros_like(across), torch.ones_like(across)
    rows = [across, zero + shear[0], zero + x, zero + shear[1], down, zero + y, zero, zero, one]
    return torch.stack(rows, -1).view(-1, 3, 3)


def _turned(which: Tensor, strength: Tensor, magnitude: float) -> Tensor:
    """The operation that is drawn, where it is a geometric one."""
    choice = (which * (len(GEOMETRIC) + len(SHADES))).long()
    by = (2 * strength - 1) * magnitude
    one, zero = torch.ones_like(by), torch.zeros_like(by)
    chosen = {name: torch.where(choice == number, by, zero) for number, name in enumerate(GEOMETRIC)}
    angle = chosen["rotate"] * math.pi / 3
    turn = _affine(angle.cos(), angle.cos(), shear=(-angle.sin(), angle.sin()))
    shear = (0.6 * chosen["shear_x"], 0.6 * chosen["shear_y"])
    return turn @ _affine(one, one, x=0.9 * chosen["move_x"], y=0.9 * chosen["move_y"], shear=shear)


def _shaded(x: Tensor, which: Tensor, strength: Tensor, magnitude: float) -> Tensor:
    """The operation that is drawn, where it is one on shades."""
    choice = (which * (len(GEOMETRIC) + len(SHADES))).long() - len(GEOMETRIC)
    factor, by = _wide(1 + 0.9 * magnitude * (2 * strength - 1)), _wide(strength * magnitude)
    levels = (2 ** (8 - (4 * by).round())).clamp(max=256)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    views = {
        "brightness": _brightness(x, factor),
        "contrast": _contrast(x, factor),
        "saturation": _saturation(x, factor),
        "sharpness": torch.lerp(_blurred(x), x, factor),
        "posterize": (x * 255 * levels / 256).floor() * (256 / levels) / 255,
        "solarize": torch.where(x >= 1 - by, 1 - x, x),
        "stretch": (x - low) / (high - low).clamp(min=1 / 255),
    }
    for number, name in enumerate(SHADES):
        x = torch.where(_wide(choice == number), views[name], x)
    return x.clamp(0, 1)


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return x * factor


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_luma(x).mean((2, 3), keepdim=True), x, factor)


def _saturation(x: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(_luma(x), x, factor)


def _luma(x: Tensor) -> Tensor:
    """How light each pixel is to the eye (ITU-R 601), (B, 1, H, W)."""
    red, green, blue = x.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def _blurred(x: Tensor) -> Tensor:
    return F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)


def _box(x: Tensor, across: Tensor, down: Tensor, side: Tensor) -> Tensor:
    """Whether each pixel lies in a box about a place drawn in the picture, (B, 1, H, W); `side` is its share."""
    height, width = x.shape[2:]
    rows = (torch.arange(height, device=x.device) + 0.5) / height
    columns = (torch.arange(width, device=x.device) + 0.5) / width
    in_rows = (rows - down[:, None]).abs() < side[:, None] / 2  # (B, H)
    in_columns = (columns - across[:, None]).abs() < side[:, None] / 2  # (B, W)
    return (in_rows[:, :, None] & in_columns[:, None, :]).unsqueeze(1)
