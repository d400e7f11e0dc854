"""What positions lie on: the pixels under the patches of a picture, the spectrogram under the states of a sound."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import numpy as np

from legato.data.batching.batch import Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.positions import Reading
from legato.folders.loaded import Loaded
from legato.inspect.report.page import Report

LARGEST: Final = 256  # pixels of a side, in a report
LONGEST: Final = 2000  # frames of a spectrogram

Array = np.ndarray[Any, np.dtype[np.float32]]


def add_backdrops(report: Report, loaded: Loaded, reading: Reading) -> None:
    """Give the streams of patches their picture (H, W, 3), those of frames their spectrogram (T, F)."""
    picture, sound = picture_in(reading), next((each for each in _values(reading) if each.ndim == 2), None)
    pixels = None if picture is None else report.whole(_pixels(loaded, picture), 0, 255)
    frames = None if sound is None else report.whole(_frames(sound), 0, 255)
    for name, places in reading.positions.items():
        if places.grid is not None and pixels is not None:
            report.streams[name]["pixels"] = pixels
        if places.kind == "frame" and frames is not None:
            report.streams[name]["frames"] = frames


def picture_in(reading: Reading) -> Array | None:
    """The picture (3, H, W) that a model reads, alone or beside a text; of a clip (N, 3, H, W), the first."""
    pictures = (each[0] if each.ndim == 4 else each for each in _values(reading))
    return next((each for each in pictures if each.ndim == 3 and len(each) == 3), None)


def _values(reading: Reading) -> list[Array]:
    """What the batch's parts have that is no ids, of its one row."""
    found = []
    for each in fields(reading.batch):
        part = getattr(reading.batch, each.name)
        if isinstance(part, Inputs) and part.values is not None:
            found.append(part.values[0].float().cpu().numpy())
    return found


def _pixels(loaded: Loaded, values: Array) -> Array:
    """(3, H, W) as a model reads it, back to 0 to 255, (H, W, 3)."""
    processor = loaded.processors.others.get("image")
    shown = values.transpose(1, 2, 0)
    if isinstance(processor, ImageProcessor):
        if processor.mean is not None:
            shown = shown * np.array(processor.std) + np.array(processor.mean)
        shown = shown / (processor.factor or 1.0)
    step = max(1, -(-max(shown.shape[:2]) // LARGEST))
    return np.asarray(shown[::step, ::step].clip(0, 255), dtype=np.float32)


def _frames(values: Array) -> Array:
    """(T, F), from the quietest that matters to the loudest, 0 to 255."""
    step = max(1, -(-len(values) // LONGEST))
    low, high = np.quantile(values, (0.02, 0.998))
    return np.asarray((values[::step] - low) / max(high - low, 1e-6) * 255, dtype=np.float32).clip(0, 255)
