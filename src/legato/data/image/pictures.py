"""Pictures as people have them: a file of JPEG, PNG, WebP or GIF becomes red, green and blue.

A picture is looked at before it is unpacked: a file of some kilobytes may say that it is 30,000 pixels wide and as
high. Cameras write pictures as they were held and note how to turn them; here they are turned. Of an animated one the
first frame is read.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.errors import DataError, brief
from legato.input_files import read_bytes
from legato.registry import require_extra

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF")
ENDINGS: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif")
MAX_PIXELS: Final = 120_000_000  # the largest cameras' pictures have as many
MAX_BYTES: Final = 1 << 29  # of a file


def is_picture_file(name: str | Path) -> bool:
    """Whether there is a file of this name that should be a picture."""
    try:
        return Path(name).suffix.lower() in ENDINGS and Path(name).is_file()
    except (OSError, ValueError):  # no file could be called so
        return False


def read_picture(source: Path | bytes, name: str | None = None) -> Any:
    """The picture in a file, or in its bytes, as Pillow's `Image` of mode RGB; `name` is what an error calls it."""
    name = name or str(source if isinstance(source, Path) else "a picture")
    raw = read_bytes(source, MAX_BYTES) if isinstance(source, Path) else source
    image = require_extra("vision", "PIL.Image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow's own limit, which is another
            picture = image.open(io.BytesIO(raw), formats=FORMATS)
    except image.DecompressionBombError:
        raise DataError(f"{name} says that it has more than {MAX_PIXELS:,} pixels; make it smaller") from None
    except (OSError, ValueError, SyntaxError):  # what its readers say of damage
        raise DataError(f"{name} is no picture of {', '.join(FORMATS)}") from None
    return decoded(picture, name)


def decoded(picture: Any, name: str) -> Any:
    """Pillow's `Image`, which may not have been unpacked yet, upright and of mode RGB."""
    image, ops = require_extra("vision", "PIL.Image"), require_extra("vision", "PIL.ImageOps")
    width, height = picture.size
    if width * height > MAX_PIXELS:
        raise DataError(f"{name} has {width:,} × {height:,} pixels, more than {MAX_PIXELS:,}; make it smaller")
    try:
        if getattr(picture, "is_animated", False):  # only Pillow's formats of several frames have it
            warnings.warn(f"{name} is animated; its first frame is read", stacklevel=2)
        return _rgb(ops.exif_transpose(picture), image)
    except (OSError, ValueError, SyntaxError, EOFError, image.DecompressionBombError) as problem:
        raise DataError(f"{name} is damaged: {brief(problem, 200)}") from None


def _rgb(picture: Any, image: Any) -> Any:
    """As red, green and blue of 8 bits each; of 16 bits, the upper ones."""
    if picture.mode.startswith("I"):
        numbers = np.asarray(picture).astype(np.int64)
        shift = 8 if numbers.max(initial=0) > 255 else 0
        picture = image.fromarray((numbers >> shift).clip(0, 255).astype(np.uint8))
    return picture if picture.mode == "RGB" else picture.convert("RGB")
