"""Labels that stand out: missing ones, and the few that would decide what all the others are.

A missing label has many faces: nothing in a csv, null and NaN in JSON and parquet, the text `nan` where a program
wrote what it did not have. None of them is a class.

And a guess of what labels are must not hang on a slip: one 0.5 among a thousand whole numbers would make a scale of
classes, one `B_PER` plain tags of names. Where so few say one thing and all others another, nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

from legato.errors import brief

# In lower case: what stands where a number is missing, or is none.
NO_LABEL: Final = ("nan", "none", "null", "na", "n/a", "<na>")
NO_NUMBER: Final = (*NO_LABEL, "inf", "infinity")

AT_MOST: Final = 3  # that are few, where there are ten times as many others; else one in a hundred is
_BETWEEN: Final = re.compile(r"[;,|\s]+")


def few(count: int, others: int) -> bool:
    """Whether so many are too few to decide what so many others are.

    >>> few(1, 50), few(2, 10), few(9, 1000), few(20, 1000)
    (True, False, True, False)
    """
    return 100 * count <= others or (count <= AT_MOST and 10 * count <= others)


def is_number(text: Any) -> bool:
    """Whether something is a number, or spells one.

    >>> is_number("4.75"), is_number("nan"), is_number("2012test")
    (True, False, False)
    """
    try:
        return abs(float(text)) < float("inf")
    except (TypeError, ValueError, OverflowError):
        return False


def is_missing(label: Any, numeric: bool) -> bool:
    """Whether a label is none; `numeric` says that all others are numbers, among which `nan` is no name.

    >>> is_missing(float("nan"), False), is_missing("nan", True), is_missing("nan", False)
    (True, True, False)
    """
    if isinstance(label, str):
        return numeric and label.strip().lower().lstrip("+-") in NO_NUMBER
    return label is None or (isinstance(label, float) and not math.isfinite(label))


def are_numbers(labels: Iterable[Any]) -> bool:
    """Whether all labels are numbers, or several of them, but for those that are missing."""
    found = False
    for label in labels:
        if not isinstance(label, bool) and is_number(label):
            found = True
            continue
        parts = _BETWEEN.split(label) if isinstance(label, str) else label if isinstance(label, list) else [label]
        for part in parts:
            if isinstance(part, bool) or not (is_number(part) or part == "" or is_missing(part, True)):
                return False
            found |= is_number(part)
    return found


def told_missing(label: Any) -> str:
    """What a message says of a missing label."""
    if label is None:
        return "there is no label"
    return f"'{brief(label, 20)}' stands for a label that is missing"
