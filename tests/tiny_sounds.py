"""Sounds of a fraction of a second: two pitches that stand for two words, in files beside their tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

RATE = 16_000
PITCHES = {"low": 400, "high": 1600}
TEXTS = ("low", "high", "low high", "high low", "low low", "high high")
SMALL: dict[str, Any] = {
    "model": "conformer",
    "model.layers": 1,
    "model.width": 8,
    "model.heads": 2,
    "model.features": 8,
    "model.channels": 2,
    "data.batch_seconds": 3,
}


def samples_of(text: str, seed: int = 0) -> Any:
    """A tone of 0.15 s for each word, with pauses, over slight noise."""
    draw = np.random.default_rng(seed)
    times = np.arange(int(0.15 * RATE)) / RATE
    pause = np.zeros(int(0.05 * RATE))
    parts = [pause]
    for word in text.split():
        parts += [0.4 * np.sin(2 * np.pi * PITCHES[word] * times * draw.uniform(0.95, 1.05)), pause]
    whole = np.concatenate(parts)
    return (whole + 0.01 * draw.standard_normal(len(whole))).astype(np.float32)


def encoded(samples: Any, rate: int = RATE, kind: str = "WAV") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind)
    return file.getvalue()


def write_sound(path: Path, samples: Any, rate: int = RATE) -> Path:
    path.write_bytes(encoded(samples, rate, path.suffix[1:].upper()))
    return path


def write_table(path: Path, rows: list[tuple[str, str]], head: str = "audio\ttext") -> str:
    path.write_text("\n".join([head, *("\t".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return str(path)


def write_sounds(folder: Path, times: int = 2) -> dict[str, Any]:
    """Tables `train.tsv` and `valid.tsv`, the sounds of them, and `sound.wav`; the settings that name the tables."""
    rows = []
    for number, text in enumerate(TEXTS * times):
        name = f"{number}.{'flac' if number % 2 else 'wav'}"
        write_sound(folder / name, samples_of(text, number))
        rows.append((name, text))
    write_sound(folder / "sound.wav", samples_of("low high", 99))
    write_table(folder / "classes.tsv", [(name, text.split()[0]) for name, text in rows], "audio\tlabel")
    train, valid = write_table(folder / "train.tsv", rows), write_table(folder / "valid.tsv", rows[:2])
    return {"data.train": train, "data.valid": valid}
