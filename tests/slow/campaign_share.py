"""The share of a campaign that a run of the tests takes: by default a tenth, and with each commit another one.

LEGATO_CAMPAIGN is the share, from 0 to 1 (`make fuzz` sets 1: the whole). LEGATO_CAMPAIGN_SEED says which cases
belong to it; by default the number of commits up to this one, so that ten commits in a row take every case once.
Where no commit is known it is the day's number.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

Case = TypeVar("Case")


def share() -> Fraction:
    """The part of all cases that is run, from 0 to 1."""
    return min(
        max(Fraction(os.environ.get("LEGATO_CAMPAIGN", "0.1")).limit_denominator(1000), Fraction(0)), Fraction(1)
    )


def seed() -> int:
    """Which part it is: seeds that follow each other take parts that follow each other."""
    if number := os.environ.get("LEGATO_CAMPAIGN_SEED"):
        return int(number)
    if _git("rev-parse", "--is-shallow-repository") != "false":  # its commits cannot be counted
        commit = _git("rev-parse", "HEAD")
        return int(commit[:8], 16) if commit else date.today().toordinal()
    return int(_git("rev-list", "--count", "HEAD"))


def select(cases: Iterable[Case], offset: int = 0) -> list[Case]:
    """The cases of this run, evenly spread over all; `offset` keeps small campaigns from having theirs together.

    The share's seed and the case's place are summed: over 1 / share seeds in a row, each case is taken once.
    """
    part, first = share(), seed() + offset
    return [case for place, case in enumerate(cases, first) if (place + 1) * part // 1 != place * part // 1]


def rounds(count: int) -> int:
    """How many of so many like rounds are run: at least one."""
    return max(1, round(count * share()))


def repetition() -> str:
    """What repeats this run, for the output of a test that fails."""
    return f"LEGATO_CAMPAIGN={float(share()):g} LEGATO_CAMPAIGN_SEED={seed()}"


def _git(*words: str) -> str:
    """What git says of this repository; an empty text where there is none."""
    command = ["git", *words]
    try:
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
