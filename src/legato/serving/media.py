"""Pictures and sounds in a request: data URLs or base64, held to what a server unpacks.

Nothing is fetched from an address and no file of the server is read, whatever a client names. A picture or a sound is
looked at before it is unpacked: a few kilobytes may say that they are 30,000 pixels wide, or a year long.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from typing import Final

from legato.data.audio.sounds import sound_extent
from legato.data.image.pictures import FORMATS, picture_size
from legato.errors import DataError
from legato.registry import require_extra

MOST_PIXELS: Final = 60_000_000  # of a picture
MOST_CLIP_PIXELS: Final = 1_000_000_000  # of all frames of a clip, each of which is unpacked to see the next
MOST_SECONDS: Final = 3600  # of a sound …
MOST_SAMPLES: Final = 1 << 28  # … and of a channel: an hour at 48 kHz has fewer
ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://|//")


def bytes_of(value: str, where: str) -> bytes:
    """What a data URL, or base64 alone, holds; `where` it stands begins what is said of it.

    >>> bytes_of("data:text/plain;base64,aGk=", "inputs.0"), bytes_of("aGk=", "inputs.0")
    (b'hi', b'hi')
    """
    if ADDRESS.match(value):
        raise DataError(f"{where} is an address, and nothing is fetched here; send the file itself, as a data: URL")
    payload = value
    if value[:5].lower() == "data:":
        head, comma, payload = value.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise DataError(f"{where} is a data: URL without base64; write data:image/png;base64,…")
    try:
        raw = base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise DataError(f"{where} is no base64 (and files of the server are not read); send a data: URL") from None
    if not raw:
        raise DataError(f"{where} is empty")
    return raw


def picture_of(value: str, where: str, *, clip: bool = False) -> bytes:
    """The bytes of a picture that may be unpacked, or of a `clip`."""
    raw = bytes_of(value, where)
    width, height = picture_size(raw, where)
    if width * height > MOST_PIXELS:
        raise DataError(f"{where} has {width:,} × {height:,} pixels; {MOST_PIXELS:,} are read here")
    if clip and width * height * _frames(raw, where) > MOST_CLIP_PIXELS:
        raise DataError(
            f"{where} has more than {MOST_CLIP_PIXELS:,} pixels in its frames; cut it, or make it smaller"
        )
    return raw


def _frames(raw: bytes, where: str) -> int:
    """How many there are; they are counted, not unpacked."""
    try:
        return int(
            getattr(require_extra("vision", "PIL.Image").open(io.BytesIO(raw), formats=FORMATS), "n_frames", 1)
        )
    except (OSError, ValueError, SyntaxError, EOFError):
        raise DataError(f"{where} is damaged") from None


def sound_of(value: str, where: str) -> bytes:
    """The bytes of a sound that may be unpacked."""
    return checked_sound(bytes_of(value, where), where)


def checked_sound(raw: bytes, where: str) -> bytes:
    """The same bytes, if the sound in them may be unpacked."""
    extent = sound_extent(raw, where)
    if extent is None:
        raise DataError(f"{where} does not say how long it is; write it anew, as WAV say")
    samples, rate = extent
    if samples > min(MOST_SECONDS * rate, MOST_SAMPLES):
        most = min(MOST_SECONDS, MOST_SAMPLES // rate)
        raise DataError(f"{where} lasts {samples / rate:,.0f} s; {most:,} are read here, so cut it")
    return raw


def seconds_of(raw: bytes, where: str) -> float:
    """How long a sound lasts."""
    extent = sound_extent(raw, where)
    return 0.0 if extent is None else extent[0] / extent[1]
