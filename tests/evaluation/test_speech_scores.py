"""Word and character error rates, as written and plain, beside those counted by hand."""

from __future__ import annotations

import pytest

from legato.errors import LegatoError
from legato.evaluation.speech import speech_details, speech_scores


def test_errors_are_counted_over_all_words() -> None:
    scores = speech_scores(["Go to  bed", "yes", ""], ["Go to sleep", "yes please", "no"])
    assert scores["wer"] == pytest.approx(100 * 3 / 6)
    assert scores["substituted"] == pytest.approx(100 / 6)
    assert scores["left_out"] == pytest.approx(200 / 6)
    assert (scores["added"], scores["words"]) == (0, 6)
    assert scores["cer"] == pytest.approx(100 * (4 + 7 + 2) / (11 + 10 + 2))
    assert "case:as written" in scores["wer_signature"]


def test_plain_has_neither_case_nor_punctuation() -> None:
    scores = speech_scores(["go, to sleep"], ["Go to sleep!"])
    assert scores["wer"] == pytest.approx(200 / 3)
    assert scores["wer_plain"] == 0
    assert scores["wer_plain_signature"].startswith("case:lower|punctuation:none")
    assert speech_scores(["a"], ["?"])["wer_plain"] == 0  # a reference that says nothing


def test_the_worst_come_first() -> None:
    ((title, columns, rows),) = speech_details(["a b", "c", "d e f"], ["a b", "x", "x y z"], ["one", "two", "three"])
    assert (title, columns[0]) == ("the worst transcripts", "wrong words")
    assert [row[:2] for row in rows] == [[3, "three"], [1, "two"]]
    assert speech_details(["a"], ["a"], ["one"]) == []


def test_there_is_one_for_each() -> None:
    with pytest.raises(LegatoError, match="1 transcripts and 2 references"):
        speech_scores(["a"], ["a", "b"])
