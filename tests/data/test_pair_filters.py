"""Pairs that are left out, and what is told of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from legato.data.formats.text_pairs import FilterReport, clean, filter_lengths
from legato.errors import DataError
from tiny_pair_files import both, pairs_of


def test_pairs_with_an_empty_side_are_left_out_and_told() -> None:
    pairs = pairs_of(("a", "b"), ("", "c"), ("d", " \t"), ("", ""), ("e", "f"))
    kept, report = clean(pairs)
    assert both(kept) == [("a", "b"), ("e", "f")]
    assert kept.lines == [1, 5]
    assert str(report) == (
        "left out 3 of 5 pairs: 2 empty on one side (first: line 2), 1 empty on both sides (line 4)"
    )


def test_nothing_left_out_is_told_too() -> None:
    assert str(clean(pairs_of(("a", "b"), ("c", "d")))[1]) == "kept all 2 pairs"


def test_clean_pairs_are_the_same_pairs() -> None:
    pairs = pairs_of(("a", "b"))
    assert clean(pairs)[0] is pairs


def test_cleaning_keeps_tags_beside_their_pairs() -> None:
    assert clean(pairs_of(("", "b"), ("c", "d"), tags=["de", "fr"]))[0].tags == ["fr"]


def test_pairs_of_which_none_is_left_are_refused() -> None:
    with pytest.raises(DataError, match=r"a\.tsv: no pair is left: left out 1 of 1 pairs: 1 empty on one side"):
        clean(pairs_of(("", "b")))


def test_long_and_lopsided_pairs_are_left_out_and_told() -> None:
    sources = [[0] * n for n in (5, 9, 3, 4, 2, 0)]
    targets = [[0] * n for n in (5, 1, 12, 30, 20, 4)]
    kept, report = filter_lengths(sources, targets, 25, 3.5, pairs_of(*[("a", "b")] * 6))
    assert kept == [0, 1]  # nine to one is lopsided, but short
    assert str(report) == (
        "left out 4 of 6 pairs: 1 without tokens on one side (line 6), 1 longer than 25 tokens (line 4), "
        "2 more than 3.5 times longer on one side (first: line 3)"
    )


def test_without_pairs_a_length_report_counts() -> None:
    assert "longer than 2 tokens (pair 2)" in str(filter_lengths([[1], [1, 2, 3]], [[1], [1]], 2)[1])


def test_without_limits_only_empty_ids_are_left_out() -> None:
    assert filter_lengths([[0] * 1000, []], [[0], [0]])[0] == [0]


def test_two_reports_read_as_one() -> None:
    pairs, first = clean(pairs_of(("", "b"), ("c", "d"), ("e", "f")))
    second = filter_lengths([[1], [1, 2, 3]], [[1], [1]], 2, None, pairs)[1]
    assert str(first + second) == (
        "left out 2 of 3 pairs: 1 empty on one side (line 1), 1 longer than 2 tokens (line 3)"
    )


def test_large_numbers_in_a_report_have_commas() -> None:
    pairs = replace(pairs_of(*[("a", "b")] * 3), lines=[1000, 2000, 3000])
    report = filter_lengths([[1], [1, 1], [1, 1]], [[1]] * 3, 1, None, pairs)[1]
    assert (
        str(FilterReport(29000, report.left_out, report.reasons))
        == "left out 2 of 29,000 pairs: 2 longer than 1 tokens (first: line 2,000)"
    )
