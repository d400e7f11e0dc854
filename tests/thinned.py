"""Cases of which `make test` runs a part; of the others `make slow` runs a share, with each commit another one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from slow.campaign_share import select


def some(cases: Sequence[Any], quick: Collection[Any]) -> list[Any]:
    """For one name of `parametrize`: those that are not among the quick ones are rare."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.rare) for case in cases]


def thin(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark rare cases as slow, and of the slow ones leave out what is not of this commit's share.

    Of the product of a test marked `thinned(n)`, one case in n is quick, so that each value of each parameter is.
    """
    products: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.get_closest_marker("thinned") and isinstance(item, pytest.Function):
            products.setdefault(item.nodeid.partition("[")[0], []).append(item)
    problems: list[str] = []
    for name, product in products.items():
        [every] = product[0].get_closest_marker("thinned").args  # type: ignore[union-attr]
        places = _places(product)
        quick = [place for place in places if sum(place) % every == 0]
        if len(product) >= every and _values(quick) != _values(places):
            problems.append(f"{name}: thinned({every}) leaves out a value of a parameter altogether")
        for item, place in zip(product, places, strict=True):
            if place not in quick:
                item.add_marker(pytest.mark.rare)
    if problems:
        raise pytest.UsageError("\n".join(problems))
    rare = [item for item in items if item.get_closest_marker("rare")]
    for item in rare:
        item.add_marker(pytest.mark.slow)
    left_out = {*rare} - {*select(rare)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=[*left_out])


def _values(places: list[tuple[int, ...]]) -> list[set[int]]:
    """The values of each parameter."""
    return [*map(set, zip(*places, strict=True))]


def _places(product: list[pytest.Function]) -> list[tuple[int, ...]]:
    """Of each case, which value of each parameter it has, counted in the order in which they come."""
    columns = zip(*(map(id, item.callspec.params.values()) for item in product), strict=True)
    numbered = ([[*dict.fromkeys(column)].index(value) for value in column] for column in map(tuple, columns))
    return [*zip(*numbered, strict=True)]
