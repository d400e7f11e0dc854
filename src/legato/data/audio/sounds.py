"""Sounds as people have them: a file of WAV, FLAC, Ogg or MP3 becomes one channel at the rate that is asked for.

A sound is looked at before it is unpacked: a file of some kilobytes may say that it is a year long. It is decoded in
pieces, of which the mean over the channels is kept, and resampled once (soxr).
"""

from __future__ import annotations

import io
import shlex
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.errors import DataError, brief
from legato.registry import require_extra

ENDINGS: Final = (".wav", ".flac", ".ogg", ".opus", ".mp3")
FORMATS: Final = {"WAV": "WAV", "WAVEX": "WAV", "RF64": "WAV", "FLAC": "FLAC", "OGG": "Ogg", "MP3": "MP3"}
CONTAINERS: Final = (  # of sounds that are not read here: what stands where in the file
    (4, b"ftyp", "MPEG-4"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "WMA"),
    (0, b"\x1a\x45\xdf\xa3", "WebM or Matroska"),
    (0, b"\xff\xf1", "AAC"),
    (0, b"\xff\xf9", "AAC"),
    (0, b"#!AMR", "AMR"),
)
MAX_BYTES: Final = 1 << 32  # of a file
MAX_SAMPLES: Final = 1 << 29  # of a channel: nine hours at 16 kHz, three at 48
MAX_CHANNELS: Final = 256
RATES: Final = (1_000, 1_000_000)  # samples for a second, the fewest and the most
LOUDEST: Final = 1e6  # where 1 is full scale, and 32,768 for those who forgot to divide
PIECE: Final = 1 << 21  # numbers that are decoded at once
UNKNOWN: Final = 1 << 62  # samples that a stream says it has which does not know
ESTIMATED: Final = 0.95  # of the samples that an MP3 promises, those that it has at least: its header may be a guess
OPEN_ENDED: Final = 0x7FFF_0000  # bytes that a WAV says it has which was written to a pipe, or more

Samples = np.ndarray[Any, np.dtype[np.float32]]


def is_sound_file(name: str | Path) -> bool:
    """Whether there is a file of this name that should be a sound."""
    try:
        return Path(name).suffix.lower() in ENDINGS and Path(name).is_file()
    except (OSError, ValueError):  # no file could be called so
        return False


def sound_extent(raw: bytes, name: str) -> tuple[int, int] | None:
    """Samples of each channel and their rate, as the file says; None where it does not know. Nothing is decoded."""
    with _opened(raw, name) as file:
        return None if file.frames >= UNKNOWN else (file.frames, file.samplerate)


def read_sound(raw: bytes, name: str, rate: int) -> Samples:
    """The sound in a file's bytes, (N,) at this rate; `name` is what an error calls it."""
    library = require_extra("audio", "soundfile")
    with _opened(raw, name) as file:
        promised, given, kind = file.frames, file.samplerate, file.format
        if promised >= UNKNOWN:
            file.seekable = lambda: False  # or else it looks for the end after each piece, which nobody knows
        pieces: list[Samples] = []
        total = 0
        try:
            while len(piece := file.read(PIECE // file.channels, dtype="float32", always_2d=True)):
                pieces.append(piece.mean(1))
                total += len(piece)
                if total > MAX_SAMPLES:
                    raise DataError(f"{name} has more than {MAX_SAMPLES:,} samples; cut it into pieces")
        except library.LibsndfileError as problem:
            raise DataError(f"{name} is damaged or cut short: {brief(problem, 200)}") from None
    if promised < UNKNOWN and total < promised * (ESTIMATED if kind == "MP3" else 1):
        raise DataError(f"{name} is cut short: it has {total:,} of {promised:,} samples; get the whole file")
    return resampled(checked(np.concatenate(pieces) if pieces else np.zeros(0, np.float32), name), given, rate)


def checked(samples: Samples, name: str) -> Samples:
    """The same, where a model can read it: some samples, each a number, none beyond all loudness."""
    if not len(samples):
        raise DataError(f"{name} has no samples; leave it out")
    loudest = max(-float(samples.min()), float(samples.max()))  # NaN where one is
    if not np.isfinite(loudest):
        raise DataError(f"{name} has samples that are not finite (NaN or infinite); write it anew, or leave it out")
    if loudest > LOUDEST:
        raise DataError(f"{name} has samples up to {loudest:.3g}, where 1 is full scale; divide them by the largest")
    return samples


def check_rate(rate: Any, name: str) -> int:
    """The samples for a second, where such a rate can be meant."""
    if not isinstance(rate, int | np.integer) or isinstance(rate, bool) or not RATES[0] <= rate <= RATES[1]:
        least, most = RATES
        raise DataError(
            f"{name} has a rate of {brief(rate)} samples for a second, not {least:,} to {most:,}; give its"
        )
    return int(rate)


def resampled(samples: Samples, given: int, rate: int) -> Samples:
    """From one rate to another; one sample at least."""
    if given == rate:
        return samples
    found: Samples = require_extra("audio", "soxr").resample(samples, given, rate)
    return found if len(found) else samples[:1]


def _opened(raw: bytes, name: str) -> Any:
    """soundfile's `SoundFile`, nothing of it decoded yet."""
    library = require_extra("audio", "soundfile")
    try:
        file = library.SoundFile(io.BytesIO(raw))
    except (library.LibsndfileError, RuntimeError, TypeError):  # TypeError: it takes it for a file without a header
        kind = next((kind for start, mark, kind in CONTAINERS if raw[start : start + len(mark)] == mark), None)
        if kind is not None:
            raise _unread(name, kind) from None
        raise DataError(f"{name} is no sound of WAV, FLAC, Ogg or MP3, or its beginning is damaged") from None
    try:
        if file.format not in FORMATS:
            raise _unread(name, file.format)
        check_rate(file.samplerate, name)
        if file.channels > MAX_CHANNELS:
            raise DataError(f"{name} has {file.channels:,} channels, more than {MAX_CHANNELS}; keep those of speech")
        if MAX_SAMPLES < file.frames < UNKNOWN:
            raise DataError(f"{name} says that it has {file.frames:,} samples, more than {MAX_SAMPLES:,}; cut it")
        if FORMATS[file.format] in CUT_SHORT and CUT_SHORT[FORMATS[file.format]](raw):
            raise DataError(f"{name} is cut short: its last part is not there; get the whole file")
    except DataError:
        file.close()
        raise
    return file


def _unread(name: str, kind: str) -> DataError:
    path = Path(name.rpartition(": ")[2])  # a member of a .tar stands behind the archive
    if not path.suffix or " " in path.suffix:  # a row of a table
        path = Path("sound.m4a")
    words = f"ffmpeg -i {shlex.quote(str(path))} {shlex.quote(str(path.with_suffix('.wav')))}"
    return DataError(f"{name} is a sound of {kind}, which is not read here; make it a WAV: {words}")


def _cut_wav(raw: bytes) -> bool:
    """Whether a WAV's samples should go on beyond its end, which libsndfile does not mind."""
    place = 12
    while place + 8 <= len(raw):
        kind, size = raw[place : place + 4], struct.unpack_from("<I", raw, place + 4)[0]
        if kind == b"data":
            return raw[:4] == b"RIFF" and size < OPEN_ENDED and place + 8 + size > len(raw)
        place += 8 + size + size % 2
    return False


def _cut_ogg(raw: bytes) -> bool:
    """Whether the last page of an Ogg ends before it should."""
    start = raw.rfind(b"OggS")
    if start < 0 or start + 27 > len(raw):
        return True
    sizes = raw[start + 27 : start + 27 + raw[start + 26]]
    return len(sizes) < raw[start + 26] or start + 27 + len(sizes) + sum(sizes) > len(raw)


CUT_SHORT: Final = {"WAV": _cut_wav, "Ogg": _cut_ogg}
