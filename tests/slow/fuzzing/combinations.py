"""Several damages at once, drawn by hypothesis; of what fails, the one that is enough for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzzing.cases import Case, Damage, Example, Workshop

Record = Callable[[Case, Any, str | None], None]


def damages(example: Example) -> st.SearchStrategy[tuple[Damage, ...]]:
    """One to three different things of an example, each damaged in a way that it can be."""
    one = st.sampled_from(able(example)).flatmap(
        lambda target: st.builds(
            Damage, st.just(target), st.sampled_from(example.targets[target]), st.integers(0, 10**6)
        )
    )
    return st.lists(one, min_size=1, max_size=3, unique_by=lambda damage: damage.target).map(tuple)


def able(example: Example) -> list[str]:
    """What of an example can be damaged at all."""
    return sorted(target for target, kinds in example.targets.items() if kinds)


def cases(shop: Workshop) -> st.SearchStrategy[Case]:
    """Any case of any example."""
    return st.sampled_from(sorted(name for name in shop.examples if able(shop.examples[name]))).flatmap(
        lambda name: st.builds(Case, st.just(name), damages(shop.examples[name]))
    )


def combine(shop: Workshop, count: int, number: int, where: str, record: Record) -> None:
    """Run `count` drawn cases in a folder of their own, and note what each left."""

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(shop))
    def run(case: Case) -> None:
        outcome, failure = shop.run(case, where)
        if failure is not None and len(case.damages) > 1:
            case, outcome, failure = _smaller(shop, case, where) or (case, outcome, failure)
        record(case, outcome, failure)

    if count:
        run()


def _smaller(shop: Workshop, case: Case, where: str) -> tuple[Case, Any, str] | None:
    """One of the damages alone, if that fails, too; hypothesis would find it with many more runs."""
    for damage in case.damages:
        alone = Case(case.scenario, (damage,))
        outcome, failure = shop.run(alone, where)
        if failure is not None:
            return alone, outcome, failure
    return None
