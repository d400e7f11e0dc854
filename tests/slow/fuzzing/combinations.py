"""Several damages at once, drawn by hypothesis: what fails is made as small as a few more runs can make it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from fuzzing.cases import Case, Damage, Example, Workshop

SHRINKING: Final = 25  # runs spent on making one failure smaller

Record = Callable[[Case, Any, str | None], None]


class Failed(AssertionError):
    """A case that ended as none may."""


def damages(example: Example) -> st.SearchStrategy[tuple[Damage, ...]]:
    """One to three different things of an example, each damaged in a way that it can be."""
    one = st.sampled_from(sorted(example.targets)).flatmap(
        lambda target: st.builds(
            Damage, st.just(target), st.sampled_from(example.targets[target]), st.integers(0, 10**6)
        )
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda damage: damage.target).map(tuple)


def cases(shop: Workshop) -> st.SearchStrategy[Case]:
    """Any case of any example."""
    return st.sampled_from(sorted(shop.examples)).flatmap(
        lambda name: st.builds(Case, st.just(name), damages(shop.examples[name]))
    )


def combine(shop: Workshop, count: int, number: int, where: Path, record: Record) -> None:
    """Run `count` drawn cases in a folder of their own; what is found once is not looked into again."""
    known: set[str] = set()
    left, turn = count, 0
    while left > 0:
        spent = _search(shop, left, number * 1000 + turn, where, record, known)
        left -= max(spent, 1)
        turn += 1


def _search(shop: Workshop, count: int, number: int, where: Path, record: Record, known: set[str]) -> int:
    """Draw until something new fails and is small; how many cases were run."""
    spent = 0
    failing: str | None = None
    shrinking = 0

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
    )
    @given(case=cases(shop))
    def holds(case: Case) -> None:
        nonlocal spent, failing, shrinking
        if failing is not None:
            shrinking += 1
            if shrinking > SHRINKING:
                return
        outcome, failure = shop.run(case, where.name)
        spent += 1
        record(case, outcome, failure)
        if failure is not None and failure not in known and failing in (None, failure):
            failing = failure
            raise Failed(failure)

    try:
        holds()
    except (Failed, HypothesisException, ExceptionGroup):  # the record has it; what did not repeat is there, too
        if failing is not None:
            known.add(failing)
    return spent
