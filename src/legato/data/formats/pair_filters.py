"""Which pairs are fit to train on, and a report on those that are not.

Empty on one side, too long, or of very different lengths: such pairs are mostly faults of alignment. They are
left out, counted, and the first of each kind is named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from legato.data.formats.text_pairs import Pairs
from legato.errors import DataError

RATIO_FROM: Final = 10  # tokens; below, "Yes." may well be three times as long in another language


@dataclass(frozen=True)
class Reason:
    """Why some pairs are left out."""

    text: str
    count: int
    first: str  # where the first of them stands

    def __str__(self) -> str:
        return f"{self.count:,} {self.text} ({self.first if self.count == 1 else f'first: {self.first}'})"


@dataclass(frozen=True)
class FilterReport:
    """How many pairs are left out of how many, and why."""

    total: int
    reasons: tuple[Reason, ...] = ()

    @property
    def left_out(self) -> int:
        return sum(reason.count for reason in self.reasons)

    def __str__(self) -> str:
        if not self.reasons:
            return f"kept all {self.total:,} pairs" if self.total != 1 else "kept the only pair"
        why = ", ".join(map(str, self.reasons))
        return f"left out {self.left_out:,} of {self.total:,} pairs: {why}"

    def __add__(self, later: FilterReport) -> FilterReport:
        """This and what was left out of the rest afterwards."""
        return FilterReport(self.total, self.reasons + later.reasons)


def clean(pairs: Pairs) -> tuple[Pairs, FilterReport]:
    """The pairs that have text on both sides, and a report on those that have not."""
    filled = np.array([[bool(s.strip()), bool(t.strip())] for s, t in zip(pairs.sources, pairs.targets, strict=True)])
    filled = filled.reshape(len(pairs), 2)
    reasons = {
        "empty on one side": filled[:, 0] != filled[:, 1],
        "empty on both sides": ~filled.any(axis=1),
    }
    kept, report = _judge(reasons, pairs.place, pairs.source)
    return (pairs if len(kept) == len(pairs) else pairs.select(kept.tolist())), report


def filter_lengths(
    source_ids: Sequence[Sized],
    target_ids: Sequence[Sized],
    max_length: int | None = None,
    max_ratio: float | None = None,
    pairs: Pairs | None = None,
) -> tuple[list[int], FilterReport]:
    """Which pairs are neither too long nor of very different lengths, counted in tokens.

    The ratio is the longer side to the shorter, and is judged only where the longer has ten tokens or
    more. `pairs` are those that the ids belong to: with them the report can name lines.
    """
    source = np.fromiter(map(len, source_ids), dtype=np.int64, count=len(source_ids))
    target = np.fromiter(map(len, target_ids), dtype=np.int64, count=len(target_ids))
    longer, shorter = np.maximum(source, target), np.minimum(source, target)
    reasons = {"without tokens on one side": shorter == 0}
    if max_length:
        reasons[f"longer than {max_length:,} tokens"] = longer > max_length
    if max_ratio:
        reasons[f"more than {max_ratio:g} times longer on one side"] = (longer >= RATIO_FROM) & (
            longer > max_ratio * shorter
        )

    def number(index: int) -> str:
        return f"pair {index + 1:,}"

    kept, report = _judge(reasons, pairs.place if pairs else number, pairs.source if pairs else "the data")
    return kept.tolist(), report


def _judge(
    reasons: dict[str, np.ndarray[Any, np.dtype[np.bool_]]], place: Callable[[int], str], name: str
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], FilterReport]:
    """The indices against which no reason speaks; a pair is counted under the first that does."""
    total = len(next(iter(reasons.values())))
    keep = np.ones(total, dtype=bool)
    found = []
    for text, bad in reasons.items():
        new = np.flatnonzero(bad & keep)
        if len(new):
            found.append(Reason(text, len(new), place(int(new[0]))))
            keep[new] = False
    report = FilterReport(total, tuple(found))
    if not keep.any():
        raise DataError(f"{name}: no pair is left: {report}" if total else f"{name} holds no pairs")
    return np.flatnonzero(keep), report
