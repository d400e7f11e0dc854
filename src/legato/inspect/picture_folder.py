"""Pictures that are saved, each under the name of the one that it is about; boxes drawn into them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.data.image.picture_files import as_picture
from legato.data.image.pictures import ENDINGS
from legato.data.image.scenes import COLOURS
from legato.errors import DataError
from legato.registry import require_extra
from legato.tasks.predictions import Prediction

LEGIBLE: Final = 480  # pixels of the longer side that a picture is scaled up to, so that words can be read in it
LINE: Final = 2  # pixels of a box's outline
LETTERS: Final = 11  # pixels of their height


class PictureFolder:
    """A folder that gets pictures, each by the name of the one that it is about."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: set[str] = set()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise DataError(f"{path} cannot be made a folder: {problem.strerror}") from None

    def __len__(self) -> int:
        return len(self._names)

    def save(self, picture: Any, name: str) -> None:
        """Pillow's `Image`, as a PNG."""
        path = self.path / self._free(name)
        try:
            picture.save(path, "PNG")
        except OSError as problem:
            raise DataError(f"{path} cannot be written: {problem.strerror}") from None

    def _free(self, name: str) -> str:
        """A file's name that no other picture has."""
        path = Path(name)
        stem = path.stem if path.suffix.lower() in ENDINGS else path.name
        plain = re.sub(r"[^\w.-]+", "-", stem).strip("-.")[-100:] or "picture"
        number, made = 1, plain
        while made in self._names:
            number += 1
            made = f"{plain}-{number}"
        self._names.add(made)
        return f"{made}.png"


class BoxFolder:
    """A folder that gets each picture with the boxes that were predicted in it."""

    def __init__(self, path: Path) -> None:
        self.folder = PictureFolder(path)

    def add(self, pictures: Sequence[Any], predictions: Sequence[Prediction]) -> None:
        """Save those pictures that could be read."""
        for picture, prediction in zip(pictures, predictions, strict=True):
            if prediction.problem is None:
                self.folder.save(drawn(picture, prediction), prediction.input)

    def summary(self) -> str:
        """What there is, in a line."""
        count = len(self.folder)
        return f"the boxes are drawn in {self.folder.path}: {count:,} picture{'' if count == 1 else 's'}"


def drawn(picture: Any, prediction: Prediction) -> Any:
    """A picture with the boxes of a prediction, as Pillow's `Image`: a colour for each class, and its name."""
    image, draw = require_extra("vision", "PIL.Image"), require_extra("vision", "PIL.ImageDraw")
    held = as_picture(picture).load()
    found = image.fromarray(held) if isinstance(held, np.ndarray) else held.copy()
    scale = max(1, -(-LEGIBLE // max(found.size)))
    found = found.resize((found.width * scale, found.height * scale), image.Resampling.NEAREST)
    pen = draw.Draw(found)
    for answer in reversed(prediction.answers):  # the surest one lies above the others
        x0, y0, x1, y1 = (scale * side for side in answer.more["box"])
        colour = colour_of(answer.text)
        pen.rectangle((x0, y0, max(x1 - 1, x0), max(y1 - 1, y0)), outline=colour, width=LINE)
        pen.text((x0 + LINE + 1, max(y0 - LETTERS, 0)), f"{answer.text} {answer.score:.2f}", fill=colour)
    return found


def colour_of(label: str) -> tuple[int, int, int]:
    """The same for the same class, in every picture."""
    every = list(COLOURS.values())
    return every[zlib.crc32(label.encode()) % len(every)]
