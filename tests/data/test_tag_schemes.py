"""Tag schemes: guessed, converted, repaired; which tag may follow which."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.formats.tag_schemes import (
    Entity,
    Scheme,
    convert,
    count_repairs,
    guess_scheme,
    kind_of,
    labels_of,
    read_spans,
    transitions,
    write_spans,
)

SCHEMES: list[Scheme] = ["iob1", "iob2", "iobes", "bilou"]
TAGS = st.lists(st.sampled_from(["O", *(f"{a}-{b}" for a in "BIES" for b in ("X", "Y"))]), max_size=9)
NAMES = st.lists(st.tuples(st.sampled_from(["X", "Y", "O"]), st.integers(1, 3)), max_size=6)


def spans_of(names: list[tuple[str, int]]) -> tuple[list[Entity], int]:
    """Names side by side; those of kind O are words between them."""
    spans, place = [], 0
    for kind, length in names:
        if kind != "O":
            spans.append(Entity(kind, place, place + length))
        place += length
    return spans, place


@given(NAMES, st.sampled_from(SCHEMES))
def test_what_is_written_is_read_again(names: list[tuple[str, int]], scheme: Scheme) -> None:
    spans, length = spans_of(names)
    assert read_spans(write_spans(spans, length, scheme)) == spans


@pytest.mark.slow
@given(NAMES, st.sampled_from(SCHEMES), st.sampled_from(SCHEMES))
def test_conversion_there_and_back_changes_nothing(names: list[tuple[str, int]], one: Scheme, other: Scheme) -> None:
    spans, length = spans_of(names)
    tags = write_spans(spans, length, one)
    assert convert(convert(tags, other), one) == tags


@given(TAGS, st.sampled_from(["iob2", "iobes", "bilou"]))
def test_what_is_converted_follows_the_rules(tags: list[str], scheme: Scheme) -> None:
    labels = labels_of(["X", "Y"], scheme)
    allowed = transitions(labels, scheme)
    places = [len(labels), *(labels.index(tag) for tag in convert(tags, scheme)), len(labels) + 1]
    assert all(allowed[a, b] for a, b in itertools.pairwise(places))


@given(st.lists(st.sampled_from(labels_of(["X", "Y"], "iobes")), max_size=5))
def test_the_rules_allow_just_the_sequences_that_need_no_repair(tags: list[str]) -> None:
    schemes: list[Scheme] = ["iob2", "iobes"]
    for scheme in schemes:
        labels = labels_of(["X", "Y"], scheme)
        if all(tag in labels for tag in tags):
            allowed = transitions(labels, scheme)
            places = [len(labels), *map(labels.index, tags), len(labels) + 1]
            legal = all(allowed[a, b] for a, b in itertools.pairwise(places))
            assert legal == (count_repairs(tags, scheme) == 0)


@settings(deadline=None)  # the first time the scorer is imported
@given(TAGS)
def test_names_are_those_that_seqeval_finds(tags: list[str]) -> None:
    from seqeval.metrics.sequence_labeling import get_entities

    simple = [tag.replace("E-", "I-").replace("S-", "B-") for tag in tags]
    assert read_spans(simple) == [Entity(kind, first, last + 1) for kind, first, last in get_entities(simple)]


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "iobes", "bilou"])
def test_each_scheme_is_recognised(scheme: Scheme) -> None:
    spans = [Entity("ORG", 0, 1), Entity("LOC", 2, 4), Entity("LOC", 4, 5)]
    assert guess_scheme([write_spans(spans, 6, scheme), ["O", "O"]]) == scheme


def test_plain_tags_are_recognised_and_stand_for_themselves() -> None:
    tags = ["DET", "NOUN", "O-like"]
    assert guess_scheme([tags]) == "plain"
    assert guess_scheme([["O", "O"]]) == "plain"
    assert convert(tags, "plain") == tags
    assert labels_of(tags, "plain") == sorted(tags)
    assert kind_of("DET", "plain") == "DET"
    assert transitions(sorted(tags), "plain")[:3, :3].all()


def test_a_stray_tag_in_iob2_counts_as_repaired() -> None:
    assert count_repairs(["O", "I-PER", "B-LOC", "I-PER"], "iob2") == 2
    assert convert(["O", "I-PER", "B-LOC", "I-PER"], "iob2") == ["O", "B-PER", "B-LOC", "B-PER"]
    assert count_repairs(["I-PER", "I-PER", "B-PER"], "iob1") == 0


def test_labels_hold_every_tag_that_may_come() -> None:
    assert labels_of(["PER", "LOC", "PER"], "iobes")[:5] == ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]
    assert kind_of("S-LOC", "iobes") == "LOC"
    assert kind_of("O", "iobes") == "O"
