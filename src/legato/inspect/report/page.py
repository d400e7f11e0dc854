"""A report: what the studio draws, as JSON beside compressed arrays, and as one HTML file that needs nothing else.

    report = report_of(model, "A dog runs.")
    report.write_html("dog.html")

The studio is one page, built from `studio/` (TypeScript, Svelte) and kept here as studio.html. A report goes into it:
the JSON, and each array as base64 of its deflated bytes. Numbers are uint8, spread between two ends, or float16.
A page may hold several reports, of which it shows the one that is chosen (`page_of`).
What the page shows of a text is set as text, and its policy allows no script but its own.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from legato.errors import DataError, reason_of
from legato.inspect.trace import Trace
from legato.output_files import replacing_file

VERSION: Final = 1
PLACE: Final = "<!--report-->"  # in the page, where a report goes
LEVEL: Final = 6  # of compression

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Kept:
    """An array as it travels."""

    dtype: Literal["u8", "f16"]
    shape: tuple[int, ...]
    low: float
    high: float
    power: float
    blob: bytes

    def told(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "blob"}


@dataclass
class Report:
    """What the studio draws: of one input of one model, or of several runs."""

    title: str
    given: str
    model: dict[str, str | int]
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    written: list[str] | None = None
    guesses: list[list[tuple[str, float]]] = field(default_factory=list)
    views: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # why this input has no view of that name
    arrays: list[Kept] = field(default_factory=list)
    trace: Trace | None = None  # what it was made of
    opens: str | None = None  # the view that is shown first; None: the first that there is

    @classmethod
    def of_trace(cls, trace: Trace, given: str) -> Report:
        streams = {name: asdict(places) for name, places in trace.positions.items()}
        name = str(trace.model["name"])
        return cls(f"{name} on {given}", given, trace.model, streams, trace.written, trace.guesses, trace=trace)

    def whole(self, values: Array, low: float | None = None, high: float | None = None, power: float = 1.0) -> int:
        """Keep numbers as bytes: q of 0 to 255 means low + (high − low) (q / 255)^power; its number is given back."""
        found = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
        low = float(found.min(initial=0.0)) if low is None else low
        high = float(found.max(initial=0.0)) if high is None else high
        share = np.clip((found - low) / ((high - low) or 1.0), 0, 1)
        if power != 1:
            share **= 1 / power
        return self._keep("u8", np.round(share * 255).astype(np.uint8), low, high, power)

    def signed(self, values: Array, most: float | None = None) -> int:
        """Keep numbers around 0 as bytes."""
        found = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=1e30, neginf=-1e30)
        top = float(np.abs(found).max(initial=0.0)) if most is None else most
        return self.whole(found, -(top or 1.0), top or 1.0)

    def halves(self, values: Array, *, gaps: bool = False) -> int:
        """Keep numbers as float16; NaN as 0, or with `gaps` as it is."""
        found = np.nan_to_num(np.asarray(values, dtype=np.float32), nan=np.nan if gaps else 0.0)
        return self._keep("f16", found.clip(-65504, 65504).astype("<f2"), 0.0, 0.0, 1.0)

    def _keep(self, dtype: Literal["u8", "f16"], values: Array, low: float, high: float, power: float) -> int:
        blob = zlib.compress(np.ascontiguousarray(values).tobytes(), LEVEL)
        self.arrays.append(Kept(dtype, values.shape, low, high, power, blob))
        return len(self.arrays) - 1

    def told(self) -> dict[str, Any]:
        """All but the arrays' bytes."""
        return {
            "version": VERSION,
            "title": self.title,
            "given": self.given,
            "model": self.model,
            "streams": self.streams,
            "written": self.written,
            "guesses": self.guesses,
            "opens": self.opens,
            "views": self.views,
            "absent": self.absent,
            "arrays": [each.told() for each in self.arrays],
        }

    def html(self) -> str:
        """One page with everything in it."""
        return page_of([self])

    def write_html(self, path: str | Path) -> None:
        write_page(path, [self])


def page_of(reports: Sequence[Report]) -> str:
    """One page with everything in it; of several reports it shows one at a time."""
    parts = []
    for number, report in enumerate(reports):
        which = f"-{number}" if number else ""
        parts.append(f'<script type="application/json" id="report{which}">{_inside(report.told())}</script>')
        for index, each in enumerate(report.arrays):
            text = base64.b64encode(each.blob).decode("ascii")
            parts.append(f'<script type="text/plain" id="blob{which}-{index}">{text}</script>')
    before, _, after = studio_page().partition(PLACE)
    return before + "\n".join(parts) + after


def write_page(path: str | Path, reports: Sequence[Report]) -> None:
    """Write the page of these reports; folders above it that are missing are made."""
    place = checked_place(path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(place) as fresh:
            fresh.write_text(page_of(reports), "utf-8")
    except OSError as problem:
        raise _unwritable(place, problem) from None


def checked_place(path: str | Path) -> Path:
    """Where a page can be written, as far as can be seen: asked before what takes long, refused in a line."""
    place = Path(path)
    try:
        if not place.name or place.is_dir():
            raise DataError(f"the report cannot be written to {place}, which is a folder; name a file in it")
        if place.exists() and not place.is_file():
            raise DataError(f"the report cannot be written to {place}, which is no regular file; name another place")
        above = next(folder for folder in place.absolute().parents if folder.exists())
        if not above.is_dir():
            raise DataError(f"the report cannot be written to {place}: {above} is no folder; name another place")
    except OSError as problem:
        raise _unwritable(place, problem) from None
    if not os.access(above, os.W_OK):
        raise DataError(f"the report cannot be written to {place}: {above} may not be written to; name another place")
    return place


def _unwritable(place: Path, problem: OSError) -> DataError:
    return DataError(f"the report cannot be written to {place}: {reason_of(problem) or problem}")


def _inside(told: Any) -> str:
    """JSON that no tag can end: a token may be </script>."""
    text = json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def studio_page() -> str:
    """The studio, as it is built: a page without a report."""
    return files("legato.inspect.report").joinpath("studio.html").read_text("utf-8")
