"""A missing label is no class, and a slip does not decide what all other labels are: the row is named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.labelled import Labelled, read_labelled
from legato.data.formats.labels import Labels, hold_out_rows
from legato.data.formats.questions import QuestionFiles, read_questions
from legato.data.formats.scored_pairs import read_scored_pairs
from legato.errors import DataError
from legato.tasks.classification.prompting import read_shots


def labelled(labels: list[Any]) -> Labelled:
    texts = [f"text {row}" for row in range(len(labels))]
    return Labelled(
        source="rows", texts=texts, labels=labels, lines=list(range(1, len(labels) + 1)), columns=["text", "label"]
    )


def table(path: Path, labels: list[Any], text: str = "a text of some words") -> str:
    """A file of the kind that its name says."""
    rows = [(f"{text} {number}", label) for number, label in enumerate(labels)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": said, "label": label}) + "\n" for said, label in rows))
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        columns = {"text": [said for said, _ in rows], "label": labels}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        by = "," if path.suffix == ".csv" else "\t"
        told = (f"{said}{by}{'' if label is None else label}\n" for said, label in rows)
        path.write_text(f"text{by}label\n" + "".join(told))
    return str(path)


# ── missing labels ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("a.csv", ["1", "0", None, "1", "0"]),
        ("a.csv", ["1", "0", "nan", "1", "0"]),
        ("a.tsv", ["1.0", "0.0", "NaN", "1.0", "0.0"]),
        ("a.tsv", ["1", "0", "n/a", "1", "0"]),
        ("a.tsv", ["1", "0", "inf", "1", "0"]),
        ("a.tsv", ["good", "bad", None, "good", "bad"]),
        ("a.jsonl", [1, 0, math.nan, 1, 0]),
        ("a.jsonl", [1, 0, None, 1, 0]),
        ("a.jsonl", ["good", "bad", math.nan, "good", "bad"]),
        ("a.jsonl", ["good", "bad", None, "good", "bad"]),
        ("a.parquet", [1.0, 0.0, math.nan, 1.0, 0.0]),
        ("a.parquet", [1, 0, None, 1, 0]),
        ("a.parquet", ["good", "bad", None, "good", "bad"]),
    ],
)
@pytest.mark.parametrize("kind", ["auto", "classes"])
def test_a_missing_label_is_refused_by_its_row(name: str, labels: list[Any], kind: str, tmp_path: Path) -> None:
    data = read_labelled(table(tmp_path / name, labels))
    where = {"a.csv": "line 4", "a.tsv": "line 4", "a.jsonl": "line 3", "a.parquet": "row 3"}[name]
    told = rf"{name}, {where}: (there is no label|'.*' stands for a label that is missing); write one, or remove the"
    for read in (lambda: Labels.of(data, kind), lambda: hold_out_rows(data, 0.3, kind)):
        with pytest.raises(DataError, match=told):
            read()
    with pytest.raises(DataError, match=told):  # and so where a model is scored
        Labels("classes", ["0", "1", "0.0", "1.0", "good", "bad"]).encode(data)


@pytest.mark.parametrize("label", [math.nan, math.inf, [1.0, math.nan], ["a", None]])
def test_a_missing_label_among_several_is_refused(label: Any) -> None:
    with pytest.raises(DataError, match=r"rows, line 2: (there is no label|'(nan|inf)' stands for a label)"):
        Labels.of(labelled([["a"], label, ["b"]]), "multilabel")


def test_nan_among_numbers_that_several_texts_have_is_missing() -> None:
    with pytest.raises(DataError, match="rows, line 2: 'nan' stands for a label that is missing"):
        Labels.of(labelled(["1;2", "nan", "2"]), "multilabel")


def test_a_class_among_words_may_be_called_nan_and_one_among_numbers_if_it_is_named() -> None:
    assert Labels.of(labelled(["nan", "rice", "nan", "rice"])).names == ["nan", "rice"]
    named = Labels.of(labelled(["1", "nan", "1", "nan"]), names=["1", "nan"])
    assert named.encode(labelled(["nan", "1"])) == [1, 0]
    kept, held = hold_out_rows(labelled(["1", "nan"] * 9), 0.3, names=["1", "nan"]).values()
    assert len(kept) + len(held) == 18


@pytest.mark.parametrize("label", [None, math.nan, "", "nan"])
def test_a_missing_number_is_refused_in_regression(label: Any) -> None:
    data = labelled([0.5, 1.5, label, 2.5])
    with pytest.raises(DataError, match=r"rows, line 3: (there is no label|the label 'nan' is not a number)"):
        Labels("regression").encode(data)
    with pytest.raises(DataError, match="rows, line 3: "):
        Labels.of(data).encode(data)


@pytest.mark.filterwarnings("ignore:.*reading")
@pytest.mark.parametrize(
    ("name", "labels"), [("a.jsonl", ["good", math.nan, "bad"]), ("a.tsv", ["1", "nan", "0"]), ("a.jsonl", [1, None])]
)
def test_a_missing_label_is_no_shot(name: str, labels: list[Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{name}, line \d: an example needs a text and a label, and"):
        read_shots(table(tmp_path / name, labels))


@pytest.mark.parametrize("score", ["NaN", "null", "Infinity"])
def test_a_missing_score_is_refused_by_its_row(score: str, tmp_path: Path) -> None:
    rows = [f'{{"sentence1": "a b", "sentence2": "c d", "score": {told}}}\n' for told in ("1", "2", score)]
    (tmp_path / "a.jsonl").write_text("".join(rows))
    with pytest.raises(DataError, match=r"a\.jsonl, line 3: "):
        read_scored_pairs(str(tmp_path / "a.jsonl"))


def test_a_score_that_the_first_row_lacks_is_not_left_out_in_silence(tmp_path: Path) -> None:
    rows = [f'{{"a": "one text", "b": "another", "likeness": {told}}}\n' for told in ("null", "2", "3")]
    (tmp_path / "a.jsonl").write_text("".join(rows))
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: the first row has nothing in 'likeness'"):
        read_scored_pairs(str(tmp_path / "a.jsonl"))


@pytest.mark.parametrize(
    ("answer", "place"), [("NaN", "null"), ('"nan"', "null"), ('"rain"', "NaN"), ('"rain"', "Infinity")]
)
def test_an_answer_that_is_missing_is_refused_by_its_row(answer: str, place: str, tmp_path: Path) -> None:
    row = '{"question": "What?", "context": "the finance of rain", "answer": %s, "answer_start": %s}\n'
    (tmp_path / "a.jsonl").write_text(row % ('"rain"', "15") + row.replace("What", "Which") % (answer, place))
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: "):
        read_questions(str(tmp_path / "a.jsonl"), QuestionFiles())


# ── slips ─────────────────────────────────────────────────────────────────────────────────────────


def test_one_fraction_does_not_make_a_scale_of_classes(tmp_path: Path) -> None:
    labels = ["0", "1"] * 30
    labels[17] = "0.5"
    data = read_labelled(table(tmp_path / "a.tsv", labels))
    told = r"a\.tsv, line 19: the label '0\.5' is no whole number, and the other 59 are whole numbers that come again"
    for read in (lambda: Labels.of(data), lambda: hold_out_rows(data, 0.1)):
        with pytest.raises(DataError, match=told + ".*data.kind=classes or data.kind=regression"):
            read()
    assert Labels.of(data, "regression").kind == "regression"
    assert Labels.of(data, "classes").names == ["0", "0.5", "1"]


def test_one_word_does_not_make_classes_of_a_scale(tmp_path: Path) -> None:
    labels = [f"{number / 10}" for number in range(60)]
    labels[5] = "4,5"
    data = read_labelled(table(tmp_path / "a.tsv", labels))
    with pytest.raises(
        DataError, match=r"a\.tsv, line 7: the label '4,5' is no number, and the other 59 are numbers"
    ):
        Labels.of(data)
    assert len(Labels.of(data, "classes").names) == 60


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["0", "1"] * 30, "classes"),
        (["0", "1", "1", "0.5", "0"], "regression"),  # too few rows to tell a slip from a scale
        ([str(number) for number in range(50)] + ["0.5"], "regression"),  # numbers that do not come again
        (["5.0", "4.75", "3.5", "1.0"] * 20, "regression"),
        (["1", "2", "x"] * 20, "classes"),
        ([True, False] * 20, "classes"),
    ],
)
def test_labels_that_agree_are_read_as_before(labels: list[Any], kind: str) -> None:
    assert Labels.of(labelled(labels)).kind == kind
