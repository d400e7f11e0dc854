"""Cases of which `make test` runs a part and `make slow` the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def some(cases: Sequence[Any], quick: Collection[Any]) -> list[Any]:
    """For one name of `parametrize`: those that are not among the quick ones are slow."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def crossed(first: Sequence[Any], second: Sequence[Any], every: int) -> list[Any]:
    """For two names: all pairs, of which one in so many is quick; each of both is in one of those."""
    assert every <= min(len(first), len(second))
    return [
        pytest.param(one, other, marks=() if (i + j) % every == 0 else pytest.mark.slow)
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]
