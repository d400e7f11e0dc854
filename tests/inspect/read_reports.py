"""Reports as the studio reads them (studio/src/lib/report.ts)."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np

from legato.inspect.report.page import Report
from reports import SCRIPT

Array = np.ndarray[Any, np.dtype[np.float64]]


def array(report: Report, number: int) -> Array:
    """One of a report's arrays, from its bytes."""
    kept = report.arrays[number]
    read = np.frombuffer(zlib.decompress(kept.blob), np.uint8 if kept.dtype == "u8" else "<f2").reshape(kept.shape)
    share = read.astype(np.float64)
    return share if kept.dtype == "f16" else kept.low + (kept.high - kept.low) * (share / 255) ** kept.power


def told_in(page: str) -> dict[str, Any]:
    """The JSON of the one report that a page has in it."""
    (found,) = SCRIPT.findall(page)
    told: dict[str, Any] = json.loads(found)
    return told
