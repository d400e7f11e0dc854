"""Scores of tagged words: seqeval's figures, tables by kind, confusions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.formats.tag_schemes import convert, labels_of, read_spans
from legato.evaluation.tagging import confusion_table, score_table, signature, tagging_scores

TAGS = st.sampled_from(labels_of(["X", "Y"], "iob2"))
PAIRS = st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=8), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(PAIRS)
def test_names_are_counted_as_sets_of_spans(pairs: list[list[tuple[str, str]]]) -> None:
    gold = [convert([a for a, _ in row], "iob2") for row in pairs]
    guessed = [[b for _, b in row] for row in pairs]
    ours = {(n, span) for n, row in enumerate(gold) for span in read_spans(row)}
    theirs = {(n, span) for n, row in enumerate(guessed) for span in read_spans(row)}
    scores = tagging_scores(gold, guessed, "iob2")
    right = len(ours & theirs)
    assert scores["precision"] == pytest.approx(100 * right / max(len(theirs), 1))
    assert scores["recall"] == pytest.approx(100 * right / max(len(ours), 1))
    assert scores["names"] == len(ours)


@settings(deadline=None, max_examples=20)
@given(PAIRS)
def test_the_scheme_does_not_change_the_score(pairs: list[list[tuple[str, str]]]) -> None:
    gold, guessed = [[convert([p[side] for p in row], "iob2") for row in pairs] for side in (0, 1)]
    right, made = ([convert(tags, "iobes") for tags in side] for side in (gold, guessed))
    assert tagging_scores(gold, guessed, "iob2")["f1"] == tagging_scores(right, made, "iobes")["f1"]


def test_no_names_at_all_score_nothing() -> None:
    assert tagging_scores([["O"]], [["O"]], "iob2")["f1"] == 0
    assert score_table([["O"]], [["O"]], "iob2")[2] == []


def test_plain_tags_have_an_accuracy_and_scores_by_tag() -> None:
    gold, guessed = [["DET", "NOUN", "NOUN"]], [["DET", "NOUN", "VERB"]]
    scores = tagging_scores(gold, guessed, "plain")
    assert scores == {"accuracy": pytest.approx(2 / 3), "words": 3}
    rows = {row[0]: row[1:] for row in score_table(gold, guessed, "plain")[2]}
    assert rows["NOUN"] == [100, 50, pytest.approx(200 / 3), 2]
    assert rows["VERB"] == [0, 0, 0, 0]
    assert "seqeval" not in signature("plain")


def test_kinds_have_their_scores() -> None:
    gold, guessed = [["B-PER", "I-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC", "O"]]
    _, columns, rows = score_table(gold, guessed, "iob2")
    assert columns[0] == "kind"
    assert rows == [["LOC", 0, 0, 0, 1], ["PER", 100, 100, 100, 1]]
    assert signature("iob2").startswith("seqeval:")


def test_confusions_are_a_table_of_words_by_kind() -> None:
    _, columns, rows = confusion_table([["B-PER", "I-PER", "O"]], [["B-PER", "B-LOC", "O"]], "iob2")
    assert columns == ["", "O", "LOC", "PER"]
    assert rows == [["O", 1, 0, 0], ["LOC", 0, 0, 0], ["PER", 0, 1, 1]]


def test_of_many_tags_the_most_frequent_confusions_are_listed() -> None:
    gold = [[f"T{n}" for n in range(30)] * 2]
    guessed = [["T0", "T0", *gold[0][2:]]]
    guessed[0][31] = "T0"
    _, columns, rows = confusion_table(gold, guessed, "plain")
    assert columns == ["is", "taken for", "words"]
    assert rows == [["T1", "T0", 2]]


def test_a_tag_that_is_none_of_a_name_is_wrong_and_ends_one() -> None:
    gold, guessed = [["B-LOC", "X", "I-LOC"]], [["B-LOC", "O", "B-LOC"]]
    scores = tagging_scores(gold, guessed, "iob2")
    assert (scores["f1"], scores["names"]) == (100.0, 2)
    assert scores["accuracy"] == pytest.approx(1 / 3)
    assert score_table(gold, guessed, "iob2")[2] == [["LOC", 100.0, 100.0, 100.0, 2]]
