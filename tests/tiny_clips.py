"""Clips that become lighter or darker, small enough for a test."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from tiny_pictures import SIDE

SHADES = {"up": (0, 60, 120, 180, 240), "down": (240, 180, 120, 60, 0)}  # brighter and brighter, or darker


def frames_of(kind: str, seed: int = 0) -> list[Image.Image]:
    noise = np.random.default_rng(seed)
    made = [np.clip(shade + noise.integers(-8, 9, (SIDE, SIDE, 3)), 0, 255) for shade in SHADES[kind]]
    return [Image.fromarray(frame.astype(np.uint8)) for frame in made]


def animated(kind: str, seed: int = 0, form: str = "GIF") -> bytes:
    first, *others = frames_of(kind, seed)
    file = io.BytesIO()
    exact = {"lossless": True} if form == "WEBP" else {}
    first.save(file, form, save_all=True, append_images=others, duration=40, **exact)
    return file.getvalue()


def write_clips(folder: Path, count: int = 4) -> Path:
    """Class folders with animated files, and for each class one folder of frames."""
    for kind in SHADES:
        (folder / kind / "0").mkdir(parents=True)
        for number, frame in enumerate(frames_of(kind), start=8):  # by their names, 10 would be before 8
            frame.save(folder / kind / "0" / f"{number}.png")
        for number in range(1, count):
            form = ("GIF", "WEBP")[number % 2]
            (folder / kind / f"{number}.{form.lower()}").write_bytes(animated(kind, number, form))
    return folder
