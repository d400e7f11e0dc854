"""Sounds that are made and not downloaded: digits told by tones and chirps (`data.train=toy:sounds`).

Each digit is a tone, or a chirp from one pitch to another; a sound is some of them with pauses, as one voice has them
(its pitch, its pace, its overtones), over slight noise. Its transcript is the digits, a word each: `3 1 4`.

Sound `number` is a pure function of (settings, split, seed, number): more of them move none. Which split a transcript
may be in follows from its hash, and it is drawn until it is in its own: no transcript of one split is one of another,
whatever their seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, overload

import numpy as np
from pydantic import Field

from legato.config import Section
from legato.data.audio.sound_files import Sound
from legato.data.audio.sounds import Samples
from legato.data.digests import sha256_of
from legato.data.image.scenes import in_split, stream_of
from legato.data.sources.files import SPLITS
from legato.data.sources.toys import MOST_ROWS, TOY
from legato.errors import ConfigError, suggest

SOUNDS: Final = f"{TOY}sounds"  # as a source
VERSION: Final = 1  # of what is made: another one makes other sounds of the same settings
PITCHES: Final = (  # of each digit, in hertz, where it begins and where it ends
    *((400, 400), (600, 600), (900, 900), (1350, 1350), (2000, 2000)),
    *((400, 900), (900, 400), (900, 2000), (2000, 900), (600, 1350)),
)
LEAST_DIGITS: Final = 3  # of fewer there are too few for each split to have its own
LASTING: Final = (120, 220)  # milliseconds of a digit, from the shortest …
PAUSE: Final = (40, 120)  # … to the longest, and between two of them
VOICE: Final = (92, 108)  # per cent of the pitches: well below the half step between two tones
LOUDNESS: Final = (20, 60)  # per cent of full scale
OVERTONE: Final = (0, 50)  # per cent of the tone, an octave above it
RAMP: Final = 0.01  # seconds in which a digit swells and fades, so that it does not click
NOISE: Final = 0.004  # of full scale
SAMPLE: Final = 8  # sounds that are made for a digest


class ToySoundsConfig(Section):
    """Sounds that are made: how long, how many."""

    rate: int = Field(16_000, ge=8_000, le=48_000, description="samples for a second")
    most_digits: int = Field(6, ge=LEAST_DIGITS, le=40, description=f"a sound has from {LEAST_DIGITS} to as many")
    count: int = Field(10_000, ge=1, le=MOST_ROWS, description="sounds to train on")
    valid_count: int = Field(200, ge=1, le=MOST_ROWS, description="sounds of validation")
    test_count: int = Field(200, ge=1, le=MOST_ROWS, description="sounds of testing")

    def count_of(self, split: str) -> int:
        return {"train": self.count, "valid": self.valid_count, "test": self.test_count}[split]


@dataclass(frozen=True)
class ToySound:
    """What is told, and how. `key` says which sound it is; all that is drawn for it follows from that."""

    digits: tuple[int, ...]
    lasting: tuple[int, ...]  # milliseconds of each
    pauses: tuple[int, ...]  # before each, and at the end
    voice: int  # per cent
    loudness: int
    overtone: int
    rate: int
    key: str

    @property
    def text(self) -> str:
        return " ".join(map(str, self.digits))

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        """Seconds at which each digit begins and ends."""
        ends = np.cumsum([each for pair in zip(self.pauses[:-1], self.lasting, strict=True) for each in pair]) / 1000
        return tuple((float(first), float(last)) for first, last in ends.reshape(-1, 2))

    @property
    def sound(self) -> Sound:
        return Sound(self.key, make=partial(samples_of, self), rate=self.rate)


def draw_sound(config: ToySoundsConfig, split: str, seed: int, number: int) -> ToySound:
    """The sound of this number, whatever others there are."""
    key = f"sounds/{split}/{seed}/{number}"
    stream = stream_of(key)
    count = stream.randint(LEAST_DIGITS, config.most_digits)
    digits = tuple(stream.randrange(len(PITCHES)) for _ in range(count))
    while not in_split(digits, split):
        digits = tuple(stream.randrange(len(PITCHES)) for _ in range(count))
    lasting = tuple(stream.randint(*LASTING) for _ in digits)
    pauses = tuple(stream.randint(*PAUSE) for _ in range(count + 1))
    voice, loudness, overtone = (stream.randint(*span) for span in (VOICE, LOUDNESS, OVERTONE))
    return ToySound(digits, lasting, pauses, voice, loudness, overtone, config.rate, key)


def samples_of(sound: ToySound) -> Samples:
    """The sound itself, (N,), of steps of 16 bits."""
    whole = np.zeros(round((sum(sound.lasting) + sum(sound.pauses)) * sound.rate / 1000))
    for digit, (start, end) in zip(sound.digits, sound.spans, strict=True):
        first = round(start * sound.rate)
        piece = _told(digit, round((end - start) * sound.rate), sound)
        whole[first : first + len(piece)] += piece[: len(whole) - first]
    # SHAKE and not NumPy's numbers, which another version may draw otherwise.
    noise = np.frombuffer(hashlib.shake_128(sound.key.encode()).digest(2 * len(whole)), np.int16)
    steps = np.round((whole + noise * (NOISE / 2**15)) * 2**15)  # also hides the last bits of a machine's sines
    return (np.clip(steps, -(2**15), 2**15 - 1) / 2**15).astype(np.float32)


def _told(digit: int, length: int, sound: ToySound) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """One digit: the sine of a phase whose pitch goes evenly from where it begins to where it ends."""
    times = np.arange(length) / sound.rate
    begins, ends = (pitch * sound.voice / 100 for pitch in PITCHES[digit])
    phase = 2 * np.pi * (begins * times + (ends - begins) * times**2 * sound.rate / (2 * length))
    share = sound.overtone / 100
    tone = (np.sin(phase) + share * np.sin(2 * phase)) / (1 + share)
    swell = np.minimum(1, np.minimum(times, times[::-1]) / RAMP)
    told: np.ndarray[tuple[int], np.dtype[np.float64]] = tone * swell * (sound.loudness / 100)
    return told


class ToySounds(Sequence[ToySound]):
    """The sounds of a split, each drawn when it is read and none kept; any process may read any of them.

    >>> ToySounds(ToySoundsConfig(), "train", seed=0)[3].text
    '4 0 0 4'
    """

    def __init__(self, config: ToySoundsConfig, split: str, seed: int) -> None:
        if split not in SPLITS:
            raise ConfigError(f"{SOUNDS} has no split '{split}'; {suggest(split, SPLITS)}")
        self.config, self.split, self.seed = config, split, seed

    def __len__(self) -> int:
        return self.config.count_of(self.split)

    @overload
    def __getitem__(self, number: int) -> ToySound: ...
    @overload
    def __getitem__(self, number: slice) -> list[ToySound]: ...
    def __getitem__(self, number: int | slice) -> ToySound | list[ToySound]:
        rows = range(len(self))[number]
        return [self._draw(row) for row in rows] if isinstance(rows, range) else self._draw(rows)

    def _draw(self, number: int) -> ToySound:
        return draw_sound(self.config, self.split, self.seed, number)

    def digest(self) -> str:
        """SHA-256 of what decides the sounds, and of the first ones as they are: another way to make them shows."""
        settings = self.config.model_dump_json(include={"rate", "most_digits"})
        parts: list[str | bytes] = [f"{VERSION} {settings} {self.split} {self.seed} {len(self)}"]
        for row in self[:SAMPLE]:
            parts += [repr(row), samples_of(row).tobytes()]
        return sha256_of(parts)
