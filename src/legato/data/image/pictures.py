"""Pictures as people have them: a file of JPEG, PNG, WebP or GIF becomes red, green and blue.

A picture is looked at before it is unpacked: a file of some kilobytes may say that it is 30,000 pixels wide and as
high. Cameras write pictures as they were held and note how to turn them; here they are turned. Of an animated one the
first frame is read, or where clips are asked for, frames evenly from the whole.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.errors import DataError, brief, warn
from legato.input_files import read_bytes
from legato.registry import require_extra

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF")
ENDINGS: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif")
MAX_PIXELS: Final = 120_000_000  # the largest cameras' pictures have as many
MAX_BYTES: Final = 1 << 29  # of a file
MAX_FRAMES: Final = 20_000  # of an animated picture, each of which is unpacked to see the next
DAMAGE: Final = (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error)  # what Pillow says of it
ORIENTATION: Final = 0x0112  # EXIF's tag of how the camera was held …
LYING: Final = (5, 6, 7, 8)  # … and those of its values with which width and height change places


def is_picture_file(name: str | Path) -> bool:
    """Whether there is a file of this name that should be a picture."""
    try:
        return Path(name).suffix.lower() in ENDINGS and Path(name).is_file()
    except (OSError, ValueError):  # no file could be called so
        return False


def read_picture(source: Path | bytes, name: str | None = None) -> Any:
    """The picture in a file, or in its bytes, as Pillow's `Image` of mode RGB; `name` is what an error calls it."""
    name = name or str(source if isinstance(source, Path) else "a picture")
    return decoded(_opened(read_bytes(source, MAX_BYTES) if isinstance(source, Path) else source, name), name)


def picture_size(raw: bytes, name: str) -> tuple[int, int]:
    """Width and height of the picture in these bytes, upright, as its file says; its pixels are not unpacked."""
    picture = _opened(raw, name)
    _refuse_large(picture, name)
    width, height = picture.size
    if picture.format == "PNG" and b"eXIf" not in raw:  # Pillow would unpack it to look for one
        return width, height
    try:
        lying = picture.getexif().get(ORIENTATION, 1) in LYING
    except (OSError, ValueError, SyntaxError, EOFError) as problem:  # of such a PNG, all is read up to its end
        raise DataError(f"{name} is damaged: {brief(problem, 200)}") from None
    return (height, width) if lying else (width, height)


def _opened(raw: bytes, name: str) -> Any:
    """Pillow's `Image`, not unpacked yet."""
    image = require_extra("vision", "PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow's own limit, which is another
            return image.open(io.BytesIO(raw), formats=FORMATS)
    except image.DecompressionBombError:
        raise DataError(f"{name} says that it has more than {MAX_PIXELS:,} pixels; make it smaller") from None
    except (OSError, ValueError, SyntaxError):  # what its readers say of damage
        raise DataError(f"{name} is no picture of {', '.join(FORMATS)}") from None


def decoded(picture: Any, name: str) -> Any:
    """Pillow's `Image`, which may not have been unpacked yet, upright and of mode RGB."""
    image, ops = require_extra("vision", "PIL.Image"), require_extra("vision", "PIL.ImageOps")
    _refuse_large(picture, name)
    try:
        if getattr(picture, "is_animated", False):  # only Pillow's formats of several frames have it
            warn(f"{name} is animated; its first frame is read")
        return _rgb(ops.exif_transpose(picture), image)
    except (*DAMAGE, image.DecompressionBombError) as problem:
        raise DataError(f"{name} is damaged: {brief(problem, 200)}") from None


def _refuse_large(picture: Any, name: str) -> None:
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise DataError(f"{name} has {width:,} × {height:,} pixels, more than {MAX_PIXELS:,}; make it smaller")


def evenly(total: int, count: int) -> list[int]:
    """So many numbers below `total`, in the middle of as many equal parts; where that is less, some come again.

    >>> evenly(9, 3), evenly(3, 3), evenly(2, 4)
    ([1, 4, 7], [0, 1, 2], [0, 0, 1, 1])
    """
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


def read_frames(raw: bytes, name: str, count: int) -> Iterator[Any]:
    """So many frames of the picture in these bytes, evenly from the whole; of one that is not animated, it again."""
    image, ops = require_extra("vision", "PIL.Image"), require_extra("vision", "PIL.ImageOps")
    picture = _opened(raw, name)
    _refuse_large(picture, name)
    last, frame = -1, None
    try:
        total = getattr(picture, "n_frames", 1)  # only Pillow's formats of several frames have it
        if total > MAX_FRAMES:
            raise DataError(f"{name} has {total:,} frames, more than {MAX_FRAMES:,}; cut it")
        for number in evenly(total, count):
            if number != last:
                if total > 1:
                    picture.seek(number)
                frame, last = _rgb(ops.exif_transpose(picture), image), number
            yield frame
    except (*DAMAGE, image.DecompressionBombError) as problem:
        raise DataError(f"{name} is damaged: {brief(problem, 200)}") from None


def _rgb(picture: Any, image: Any) -> Any:
    """As red, green and blue of 8 bits each; of 16 bits, the upper ones."""
    if picture.mode.startswith("I"):
        numbers = np.asarray(picture).astype(np.int64)
        shift = 8 if numbers.max(initial=0) > 255 else 0
        picture = image.fromarray((numbers >> shift).clip(0, 255).astype(np.uint8))
    return picture if picture.mode == "RGB" else picture.convert("RGB")
