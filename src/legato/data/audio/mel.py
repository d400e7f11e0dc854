"""Mel filters: triangles that stand evenly on a scale of pitch as it is heard.

Slaney's scale is linear below 1 kHz and logarithmic above; its triangles rise and fall over hertz and have one area:

    mel(f) = 3 f / 200                              f < 1000
             15 + 27 ln(f / 1000) / ln 6.4          else

Kaldi's is logarithmic throughout; its triangles rise and fall over mels and have one height:

    mel(f) = 1127 ln(1 + f / 700)
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

KINK, KINK_MELS = 1000.0, 15.0  # where Slaney's scale turns logarithmic, in hertz and in mels
STEP: Final = np.log(6.4) / 27  # of its logarithm for a mel

Array = np.ndarray[Any, np.dtype[np.float64]]


def slaney_filters(bins: int, fft: int, rate: int, highest: float) -> Array:
    """(1 + fft / 2, bins) of area 1, from 0 to `highest` hertz.

    >>> slaney_filters(80, 400, 16000, 8000.0).shape
    (201, 80)
    """
    end = 3 * highest / 200 if highest < KINK else KINK_MELS + np.log(highest / KINK) / STEP
    mels = np.linspace(0.0, end, bins + 2)
    above = np.maximum(mels - KINK_MELS, 0)
    corners = np.where(mels < KINK_MELS, 200 * mels / 3, KINK * np.exp(STEP * above))
    return _triangles(np.linspace(0, rate // 2, 1 + fft // 2), corners) * (2 / (corners[2:] - corners[:-2]))


def kaldi_filters(bins: int, fft: int, rate: int, lowest: float, highest: float) -> Array:
    """(1 + fft / 2, bins) of height 1, from `lowest` to `highest` hertz."""
    ends = _kaldi_mels(np.array([lowest, highest]))
    corners = np.linspace(ends[0], ends[1], bins + 2)
    return _triangles(_kaldi_mels(np.arange(1 + fft // 2) * rate / fft), corners)


def _kaldi_mels(hertz: Array) -> Array:
    return 1127 * np.log1p(hertz / 700)


def _triangles(places: Array, corners: Array) -> Array:
    """What triangles are at these places; each rises from one corner to the next and falls to the one after it."""
    distance, sides = places[:, None] - corners, np.diff(corners)
    return np.maximum(0, np.minimum(distance[:, :-2] / sides[:-1], -distance[:, 2:] / sides[1:]))
