"""Answers about pictures: which are the same, and how near the others are by a similarity given by hand."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from legato.errors import LegatoError
from legato.evaluation.vqa import (
    ANSWER_SIGNATURE,
    answer_details,
    answer_scores,
    answer_set,
    wordnet_similarity,
    wups,
)

NEAR = {("sofa", "chair"): 0.92, ("lamp", "chair"): 0.6, ("sofa", "table"): 0.8, ("lamp", "table"): 0.5}


def similarity(answer: str, true: str) -> float:
    assert answer != true  # equal words need no WordNet
    return NEAR.get((answer, true), NEAR.get((true, answer), 0.0))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Table", {"table"}),
        ("a table.", {"table"}),
        ("night_stand", {"night stand"}),
        ("Red,  the blue ,red", {"red", "blue"}),
        ("A", {"a"}),  # a letter to choose
        ("the a", {"the a"}),
        (" ,.", set()),
        ("ein Tisch", {"ein tisch"}),
    ],
)
def test_what_an_answer_names(text: str, names: set[str]):
    assert answer_set(text) == names


def test_answers_are_right_where_the_same_things_are_named():
    answers = ["the Table", "blue, red", "red", "red, blue, green", ""]
    truth = ["table", "red, blue", "red, blue", "red, blue", "red"]
    found = answer_scores(answers, truth)
    assert found == {"accuracy": 2 / 5, "accuracy_signature": ANSWER_SIGNATURE}


@pytest.mark.parametrize(
    ("answers", "truth", "strict", "plain"),
    [
        ("chair", "chair", 1.0, 1.0),
        ("sofa", "chair", 0.92, 0.92),
        ("lamp", "chair", 0.06, 0.6),  # below .9: a tenth
        ("cow", "chair", 0.0, 0.0),
        # Each answer has its best: 1 and .92; the true one has 1. The least of the two products.
        ("chair, sofa", "chair", 0.92, 0.92),
        # Answers: max(.92, .8), max(.6, .5); true ones: max(.92, .6), max(.8, .5).
        ("sofa, lamp", "chair, table", min(0.92 * 0.06, 0.92 * 0.08), min(0.92 * 0.6, 0.92 * 0.8)),
        ("chair", "chair, table", 0.0, 0.0),  # a table is like nothing that was answered
        ("sofa", "chair, table", 0.92 * 0.08, 0.92 * 0.8),
        ("", "chair", 0.0, 0.0),
    ],
)
def test_near_answers_worked_by_hand(answers: str, truth: str, strict: float, plain: float):
    both = answer_set(answers), answer_set(truth)
    assert wups(*both, 0.9, similarity) == pytest.approx(strict)
    assert wups(*both, 0.0, similarity) == pytest.approx(plain)


def test_near_answers_are_averaged_over_questions():
    found = answer_scores(["chair", "lamp"], ["chair", "chair"], similarity)
    assert found["accuracy"] == 0.5
    assert found["wups_90"] == pytest.approx((1 + 0.06) / 2)
    assert found["wups_0"] == pytest.approx((1 + 0.6) / 2)
    assert "Wu-Palmer" in str(found["wups_signature"])


def test_a_similarity_on_the_threshold_counts_whole():
    assert wups(frozenset({"a"}), frozenset({"b"}), 0.9, lambda *_: 0.9) == 0.9


class Meaning:
    def __init__(self, alike: dict[str, float | None], name: str) -> None:
        self.alike, self.name = alike, name

    def wup_similarity(self, other: Meaning) -> float | None:
        return self.alike.get(other.name)


def test_nouns_are_as_alike_as_their_two_nearest_meanings(monkeypatch: pytest.MonkeyPatch):
    bank = [Meaning({"seat": 0.8, "money": None}, "bench"), Meaning({"seat": 0.2, "money": 0.6}, "institute")]
    nouns = {"bank": bank, "night_stand": [Meaning({}, "seat")], "cash": [Meaning({}, "money")]}

    def synsets(noun: str, pos: str) -> list[Meaning]:
        assert pos == "n"
        return nouns.get(noun, [])

    corpus = ModuleType("nltk.corpus")
    corpus.wordnet = SimpleNamespace(ensure_loaded=lambda: None, synsets=synsets)
    monkeypatch.setitem(sys.modules, "nltk", ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", corpus)
    wordnet_similarity.cache_clear()
    try:
        alike = wordnet_similarity()
        assert alike is not None
        assert alike("bank", "night stand") == 0.8
        assert alike("bank", "cash") == 0.6
        assert alike("bank", "nothing known") == 0.0
    finally:
        wordnet_similarity.cache_clear()


@pytest.mark.parametrize("lacks", ["nltk", "wordnet"])
def test_without_wordnet_there_is_no_similarity_and_no_error(lacks: str, monkeypatch: pytest.MonkeyPatch):
    def missing() -> None:
        raise LookupError("Resource wordnet not found")

    corpus = ModuleType("nltk.corpus")
    corpus.wordnet = SimpleNamespace(ensure_loaded=missing)
    monkeypatch.setitem(sys.modules, "nltk", None if lacks == "nltk" else ModuleType("nltk"))
    monkeypatch.setitem(sys.modules, "nltk.corpus", None if lacks == "nltk" else corpus)
    wordnet_similarity.cache_clear()
    try:
        assert wordnet_similarity() is None
        assert set(answer_scores(["a"], ["b"], wordnet_similarity())) == {"accuracy", "accuracy_signature"}
    finally:
        wordnet_similarity.cache_clear()


def test_the_table_counts_what_was_taken_for_what():
    answers, truth = ["table", "Table", "red", "2", "chair"], ["chair", "a chair", "blue, red", "2", "table"]
    ((title, columns, rows),) = answer_details(answers, truth)
    assert (title, columns) == ("most frequent confusions, 3 of 3", ["true", "answered", "questions"])
    assert rows == [["chair", "table", 2], ["blue, red", "red", 1], ["table", "chair", 1]]


def test_answers_that_do_not_fit_the_questions_are_an_error():
    with pytest.raises(LegatoError, match="there are 1 answers and 2 right ones"):
        answer_scores(["a"], ["a", "b"])
    with pytest.raises(LegatoError, match="there are no answers to score"):
        answer_scores([], [])
