"""Pairs that are held out: no source on both sides, in any order, for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.formats.text_pairs import hold_out_pairs
from legato.errors import DataError
from tiny_pair_files import both, pairs_of

ROWS = st.lists(st.tuples(st.sampled_from("abcdefghijkl"), st.sampled_from("abcuvwxyz")), min_size=1, max_size=40)


@given(rows=ROWS, valid=st.floats(0.01, 0.6), test=st.sampled_from([0.0, 0.2, 0.39]))
@settings(deadline=None)
def test_holding_out_never_splits_a_source_and_loses_nothing(
    rows: list[tuple[str, str]], valid: float, test: float
) -> None:
    pairs = pairs_of(*rows)
    if len(set(pairs.sources)) < 3:
        return
    parts = hold_out_pairs(pairs, valid, test)
    assert list(parts) == (["train", "valid", "test"] if test else ["train", "valid"])
    assert all(len(part) for part in parts.values())
    assert sorted(line for part in parts.values() for line in part.lines) == pairs.lines
    sides = [set(part.sources) for part in parts.values()]
    assert sum(map(len, sides)) == len(set.union(*sides))


@given(rows=ROWS, shuffled=st.randoms(use_true_random=False))
@settings(deadline=None)
def test_holding_out_does_not_depend_on_the_order(rows: list[tuple[str, str]], shuffled: Any) -> None:
    other = list(rows)
    shuffled.shuffle(other)
    for tags in (None, ["de"] * len(rows)):
        if len({source for source, _ in rows}) < 4:
            return
        try:
            here = hold_out_pairs(pairs_of(*rows, tags=tags), 0.3)
        except DataError:
            return
        there = hold_out_pairs(pairs_of(*other, tags=tags), 0.3)
        assert sorted(both(here["valid"])) == sorted(both(there["valid"]))


@given(rows=ROWS)
@settings(deadline=None)
def test_a_pair_and_its_reverse_are_held_out_together(rows: list[tuple[str, str]]) -> None:
    turned = [(target, source) for source, target in rows]
    tags = ["de"] * len(rows) + ["en"] * len(rows)
    try:
        parts = hold_out_pairs(pairs_of(*rows, *turned, tags=tags), 0.4)
    except DataError:  # all of them translations of one another
        return
    held = set(both(parts["valid"]))
    assert held == {(target, source) for source, target in held}
    assert not held & set(both(parts["train"]))


def test_about_the_share_asked_for_is_held_out() -> None:
    parts = hold_out_pairs(pairs_of(*[(f"sentence {i}", "x") for i in range(4000)]), 0.1, 0.05)
    assert len(parts["valid"]) == pytest.approx(400, abs=60)
    assert len(parts["test"]) == pytest.approx(200, abs=45)


def test_several_directions_hold_out_about_the_share_too() -> None:
    rows = [(f"en {i}", f"de {i}") for i in range(2000)]
    turned = [(target, source) for source, target in rows]
    pairs = pairs_of(*rows, *turned, tags=["de"] * 2000 + ["en"] * 2000)
    assert len(hold_out_pairs(pairs, 0.1)["valid"]) == pytest.approx(400, abs=80)


def test_more_pairs_move_no_pair_from_one_part_to_another() -> None:
    rows = [(f"sentence {i}", "x") for i in range(500)]
    few, many = (hold_out_pairs(pairs_of(*rows[:count]), 0.2) for count in (250, 500))
    assert set(few["valid"].sources) < set(many["valid"].sources)
    assert set(few["train"].sources) < set(many["train"].sources)


def test_what_is_held_out_is_the_same_for_ever() -> None:
    # Written down: a test set must not change with the version of anything.
    parts = hold_out_pairs(pairs_of(*[(word, "x") for word in ("one", "two", "three", "four", "five")]), 0.3, 0.2)
    assert {name: part.sources for name, part in parts.items()} == {
        "train": ["three"],
        "valid": ["two", "four", "five"],
        "test": ["one"],
    }


def test_a_few_sources_still_give_every_part_one() -> None:
    parts = hold_out_pairs(pairs_of(("a", "x"), ("b", "x"), ("c", "x")), 0.001, 0.001)
    assert sorted(len(part) for part in parts.values()) == [1, 1, 1]


def test_too_few_sources_to_hold_out_are_refused() -> None:
    with pytest.raises(DataError, match=r"a\.tsv has 1 different source, too few to hold out valid"):
        hold_out_pairs(pairs_of(("a", "x"), ("a", "y")), 0.1)


def test_the_parts_say_what_they_are_part_of() -> None:
    parts = hold_out_pairs(pairs_of(("a", "x"), ("b", "x")), 0.1)
    assert [part.source for part in parts.values()] == ["a.tsv (train)", "a.tsv (valid)"]
