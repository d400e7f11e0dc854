"""Made sounds as files, for the commands of docs/sound.md: what `toy:sounds` makes, as people have sounds.

    python examples/sound_files.py [FOLDER]

writes

    sounds/0.wav …          sounds of digits that are tones, which no training of `toy:sounds` hears
    sounds.tsv              their names and transcripts
    recording.wav           twenty of them, one behind the other with a second of silence between them
    pitches/train/ … test/  digits alone, a folder for each
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import soundfile  # type: ignore[import-untyped]

from legato.data.audio.toy_sounds import LEAST_DIGITS, ToySounds, ToySoundsConfig

RATE = 16_000
FILES, JOINED, ALONE = 50, 20, 300


def write_sounds(folder: Path) -> None:
    sounds = ToySounds(ToySoundsConfig(), "test", seed=0)
    (folder / "sounds").mkdir(parents=True, exist_ok=True)
    lines = ["audio\ttext"]
    for number, made in enumerate(sounds[:FILES]):
        soundfile.write(folder / "sounds" / f"{number}.wav", made.sound.load(RATE), RATE)
        lines.append(f"{number}.wav\t{made.text}")
    (folder / "sounds.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    silence = np.zeros(RATE, np.float32)
    pieces = [piece for made in sounds[:JOINED] for piece in (made.sound.load(RATE), silence)]
    soundfile.write(folder / "recording.wav", np.concatenate(pieces), RATE)


def write_pitches(folder: Path) -> None:
    """The first digit of each of some sounds, cut off in the pause behind it."""
    config = ToySoundsConfig(most_digits=LEAST_DIGITS)
    for split, count in (("train", ALONE), ("test", ALONE // 10)):
        for number, made in enumerate(ToySounds(config, split, seed=0)[:count]):
            samples = made.sound.load(RATE)
            place = folder / "pitches" / split / made.text.split()[0]
            place.mkdir(parents=True, exist_ok=True)
            soundfile.write(place / f"{number}.wav", samples[: int(0.3 * RATE)], RATE)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    write_sounds(folder)
    write_pitches(folder)
    print(f"{FILES} sounds, a recording and {ALONE + ALONE // 10} digits are in {folder}")


if __name__ == "__main__":
    main()
