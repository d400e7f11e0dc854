"""From pictures to what a model reads: resized, cropped, scaled, as `preprocessor_config.json` says.

The file is Hugging Face's, and so is what it means:

do_resize, size, resample       to {"height", "width"}, or so that the shorter side is {"shortest_edge"}
do_center_crop, crop_size       the middle; where a picture is smaller, with black around it
do_rescale, rescale_factor      0 to 255 becomes 0 to 1
do_normalize, image_mean, image_std     each colour has its mean taken off, and is divided by its spread

Folders of models that read texts, too, may have it in `processor_config.json` instead, under `image_processor`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.data.processors import SHARED_FILE, is_for_sound
from legato.errors import DataError
from legato.registry import require_extra
from legato.schema import OPEN, TypedDict, read_json, with_config, write_json

MAX_SIDE: Final = 4096  # pixels that a model reads
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Three = Annotated[list[float], Field(min_length=3, max_length=3)]
RESAMPLING: Final = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's


@with_config(OPEN)
class SizeEntries(TypedDict, total=False):
    """A size in preprocessor_config.json."""

    height: Side
    width: Side
    shortest_edge: Side


@with_config(OPEN)
class ImageEntries(TypedDict, total=False):
    """preprocessor_config.json."""

    image_processor_type: str | None
    feature_extractor_type: str | None
    do_resize: bool | None
    size: SizeEntries | Side | None
    resample: Annotated[int, Field(ge=0, le=5)] | None
    do_center_crop: bool | None
    crop_size: SizeEntries | Side | None
    do_rescale: bool | None
    rescale_factor: float | None
    do_normalize: bool | None
    image_mean: Three | None
    image_std: Three | None


@with_config(OPEN)
class SharedEntries(TypedDict, total=False):
    """processor_config.json."""

    image_processor: ImageEntries


@dataclass(frozen=True)
class ImageProcessor:
    """Pictures to pixels (B, 3, H, W)."""

    file: ClassVar[str] = "preprocessor_config.json"

    size: tuple[int, int] | int | None = (224, 224)  # height and width, or the shorter side; None: as it is
    crop: tuple[int, int] | None = None
    resample: int = 2
    factor: float | None = 1 / 255
    mean: tuple[float, float, float] | None = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    kind: str = "ViTImageProcessor"  # what Hugging Face calls it

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of what comes out; None where it depends on the picture."""
        return self.crop or (self.size if isinstance(self.size, tuple) else None)

    @classmethod
    def load(cls, folder: Path) -> ImageProcessor:
        file, shared = folder / cls.file, folder / SHARED_FILE
        entries: dict[str, Any]
        if file.is_file() or not shared.is_file():
            entries = {**read_json(file, ImageEntries, loose=True)}
        else:
            file, held = shared, read_json(shared, SharedEntries, loose=True)
            if "image_processor" not in held:
                raise DataError(f"{folder} lacks {cls.file}, and {SHARED_FILE} has no image_processor either")
            entries = {**held["image_processor"]}
        if is_for_sound(entries):
            raise DataError(f"{file} is a feature extractor's for sound; give an image processor's for pictures")
        given = {key: value for key, value in entries.items() if value is not None}
        size = _size(given.get("size", 224)) if given.get("do_resize", True) else None
        crop = _size(given.get("crop_size", 224)) if given.get("do_center_crop", False) else None
        if isinstance(crop, int):
            crop = (crop, crop)
        if isinstance(size, int) and not (isinstance(given.get("size"), dict) or crop is not None):
            size = (size, size)  # a plain number is a square, unless a crop follows
        normalised = given.get("do_normalize", True)
        std = tuple(given.get("image_std", (0.5, 0.5, 0.5)))
        if normalised and 0 in std:
            raise DataError(f"{file}: image_std is 0 for a colour; nothing can be divided by it")
        return cls(
            size,
            crop,
            given.get("resample", 2),
            given.get("rescale_factor", 1 / 255) if given.get("do_rescale", True) else None,
            tuple(given.get("image_mean", (0.5, 0.5, 0.5))) if normalised else None,
            std,
            str(given.get("image_processor_type") or given.get("feature_extractor_type") or cls.kind),
        )

    def save(self, folder: Path) -> None:
        entries: dict[str, Any] = {
            "image_processor_type": self.kind,
            "do_resize": self.size is not None,
            "resample": self.resample,
            "do_center_crop": self.crop is not None,
            "do_rescale": self.factor is not None,
            "do_normalize": self.mean is not None,
            "do_convert_rgb": True,
            "image_std": list(self.std),
        }
        if isinstance(self.size, int):
            entries["size"] = {"shortest_edge": self.size}
        elif self.size is not None:
            entries["size"] = dict(zip(("height", "width"), self.size, strict=True))
        if self.crop is not None:
            entries["crop_size"] = dict(zip(("height", "width"), self.crop, strict=True))
        if self.factor is not None:
            entries["rescale_factor"] = self.factor
        if self.mean is not None:
            entries["image_mean"] = list(self.mean)
        write_json(folder / self.file, entries)

    def fingerprint(self) -> str:
        said = {key: value for key, value in asdict(self).items() if key != "kind"}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def read(self, pictures: Sequence[Any]) -> Inputs:
        """Pictures of mode RGB (`read_picture`) as a batch."""
        return Inputs(values=self.scaled(torch.from_numpy(np.stack([self.pixels(picture) for picture in pictures]))))

    def pixels(self, picture: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """One picture, Pillow's or its pixels, resized and cropped: (H, W, 3), each 0 to 255."""
        if self.size is not None:
            high, wide = picture.shape[:2] if isinstance(picture, np.ndarray) else picture.size[::-1]
            height, width = self.size if isinstance(self.size, tuple) else _shorter_side((wide, high), self.size)
            if isinstance(picture, np.ndarray) and (high, wide) != (height, width):
                picture = require_extra("vision", "PIL.Image").fromarray(picture)
            if not isinstance(picture, np.ndarray):
                picture = picture.resize((width, height), self.resample)
        found = np.array(picture)
        return found if self.crop is None else _middle(found, *self.crop)

    def frame(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a picture of this width and height that is read: x0, y0, x1, y1 in its pixels.

        Where black stands around what is cut out, that is beyond the picture's edges.
        """
        if self.crop is None:
            return 0.0, 0.0, float(width), float(height)
        size = (height, width) if self.size is None else self.size
        rows, columns = size if isinstance(size, tuple) else _shorter_side((width, height), size)
        y, x = ((there - kept) // 2 for there, kept in zip((rows, columns), self.crop, strict=True))
        across, down = width / columns, height / rows  # pixels of the picture for one of what is read
        return x * across, y * down, (x + self.crop[1]) * across, (y + self.crop[0]) * down

    def scaled(self, pixels: Tensor) -> Tensor:
        """(…, H, W, 3) pixels of 0 to 255 to what a model reads, (…, 3, H, W)."""
        values = pixels.movedim(-1, -3).float()
        if self.factor is not None:
            values = values * self.factor
        return self._normalised(values).contiguous()

    def scaled_shares(self, shares: Tensor) -> Tensor:
        """The same of (…, 3, H, W) pixels of 0 to 1."""
        return self._normalised(shares * (255 * (1.0 if self.factor is None else self.factor)))

    def _normalised(self, values: Tensor) -> Tensor:
        if self.mean is None:
            return values
        # Colour by colour, with plain numbers: a tensor of them would have to be sent to the device each time.
        colours = zip(values.unbind(-3), self.mean, self.std, strict=True)
        return torch.stack([(colour - mean) / std for colour, mean, std in colours], -3)


def _size(entry: Any) -> tuple[int, int] | int:
    """Height and width, or the shorter side."""
    if isinstance(entry, int):
        return entry
    if "shortest_edge" in entry:
        side: int = entry["shortest_edge"]
        return side
    if "height" not in entry or "width" not in entry:
        raise DataError("a size in preprocessor_config.json should have height and width, or shortest_edge")
    return entry["height"], entry["width"]


def _shorter_side(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Height and width of a picture of this width and height, once its shorter side is `side` long.

    >>> _shorter_side((400, 300), 224)
    (224, 298)
    """
    width, height = size
    if width <= height:
        return int(side * height / width), side
    return side, int(side * width / height)


def _middle(pixels: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """The middle of a picture (H, W, 3); black where it has none."""
    there = pixels.shape[:2]
    up, left = (there[0] - height) // 2, (there[1] - width) // 2
    if up >= 0 and left >= 0:
        return pixels[up : up + height, left : left + width]
    whole = np.zeros((max(height, there[0]), max(width, there[1]), 3), pixels.dtype)
    top, first = -((there[0] - whole.shape[0]) // 2), -((there[1] - whole.shape[1]) // 2)
    whole[top : top + there[0], first : first + there[1]] = pixels
    return _middle(whole, height, width)
