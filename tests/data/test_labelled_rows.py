"""Texts with labels: which columns are read, what the labels mean, and what is said of bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.config import validate
from legato.data.formats.labelled import Labelled, read_labelled
from legato.data.formats.labels import Labels, hold_out_rows
from legato.errors import DataError
from legato.evaluation.classification import classification_scores
from legato.folders.about import check_about
from legato.tasks.classification.task import ClassificationData

REVIEWS = [
    ("a gem of a film", "1"),
    ("dull and very long", "0"),
    ("simply a lovely story", "1"),
    ("no wit at all", "0"),
]


def table(path: Path, *rows: tuple[str, ...], by: str = "\t") -> str:
    path.write_text("".join(by.join(row) + "\n" for row in rows))
    return str(path)


def labelled(labels: list[Any], texts: list[str] | None = None) -> Labelled:
    texts = texts or [f"text {n}" for n in range(len(labels))]
    return Labelled(
        source="rows", texts=texts, labels=labels, lines=list(range(1, len(labels) + 1)), columns=["text", "label"]
    )


# ── columns ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (("sentence", "label"), "reading 'sentence' as text and 'label' as label"),
        (("text", "gold_label"), "reading 'text' as text and 'gold_label' as label"),
        (("Review", "Stars"), "reading 'Review' as text and 'Stars' as label"),
        (("what people wrote", "label"), "reading 'what people wrote' as text and 'label' as label"),
    ],
)
def test_columns_are_known_by_their_names_and_by_elimination(
    header: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    data = read_labelled(table(tmp_path / "a.tsv", header, *REVIEWS))
    assert data.note == said
    assert data.columns == list(header)
    assert list(zip(data.texts, data.labels, strict=True)) == REVIEWS
    assert data.where(1) == f"{tmp_path / 'a.tsv'}, line 3"


def test_a_label_that_no_name_tells_is_warned_of(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"reading 'text' as text and 'mood' as label; if .* set data.columns="):
        data = read_labelled(table(tmp_path / "a.tsv", ("text", "mood"), *REVIEWS))
    assert (data.columns, data.note) == (["text", "mood"], "")


def test_the_label_may_come_first_and_other_columns_are_left_alone(tmp_path: Path) -> None:
    rows = [(label, str(n), text) for n, (text, label) in enumerate(REVIEWS)]
    data = read_labelled(table(tmp_path / "a.tsv", ("label", "idx", "sentence"), *rows))
    assert data.texts == [text for text, _ in REVIEWS]


def test_two_texts_make_a_pair(tmp_path: Path) -> None:
    rows = [("1", "10", "11", '"a', "b"), ("0", "12", "13", "c", 'd"')]
    source = table(tmp_path / "a.txt", ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), *rows)
    data = read_labelled(source)
    assert data.note == "read as tsv, reading '#1 String' and '#2 String' as texts and 'Quality' as label"
    assert (data.texts, data.seconds, data.labels) == (['"a', "c"], ["b", 'd"'], ["1", "0"])
    assert data.joined() == ['"a\tb', 'c\td"']


def test_our_own_words_for_a_pair_are_known(tmp_path: Path) -> None:
    data = read_labelled(table(tmp_path / "a.tsv", ("first", "second", "label"), ("a", "b", "1"), ("c", "d", "0")))
    assert (data.texts, data.seconds, data.labels) == (["a", "c"], ["b", "d"], ["1", "0"])


def test_a_file_without_a_header_is_told_by_what_stands_in_it(tmp_path: Path) -> None:
    cola = [("gj04", label, "" if label == "1" else "*", text) for text, label in REVIEWS]
    with pytest.warns(UserWarning, match="reading column 4 as text and column 2 as label, no header; if"):
        data = read_labelled(table(tmp_path / "cola.tsv", *cola))
    assert len(data) == len(REVIEWS)


def test_lines_may_be_longer_than_the_first(tmp_path: Path) -> None:
    rows = [
        ("g", "f", "2012", "00", "5.00", "a man", "a person"),
        ("g", "f", "2012", "01", "2.75", "a", "b", "c", "d"),
    ]
    data = read_labelled(table(tmp_path / "sts.csv", *rows), columns=[6, 7, 5])
    assert data.note == "read as tsv"
    assert data.labels == ["5.00", "2.75"]
    assert data.seconds == ["a person", "b"]


@pytest.mark.filterwarnings("ignore:.*reading 'remark' as text")
def test_an_unusual_header_is_one(tmp_path: Path) -> None:
    data = read_labelled(table(tmp_path / "a.tsv", ("remark", "mood"), *REVIEWS))
    assert data.columns == ["remark", "mood"]
    assert len(data) == len(REVIEWS)


def test_numbers_before_a_plain_header_still_skip_it(tmp_path: Path) -> None:
    data = read_labelled(table(tmp_path / "a.tsv", ("sentence", "label"), *REVIEWS), columns=[1, 2])
    assert len(data) == len(REVIEWS)


@pytest.mark.parametrize("labels", ["abab", "1010", ["0.5", "2", "3", "4"]])
@pytest.mark.parametrize("by", [",", "\t", ";"])
def test_numbers_before_an_unusual_header_skip_it_and_it_is_said(labels: list[str], by: str, tmp_path: Path) -> None:
    rows = [(text, label) for (text, _), label in zip(REVIEWS, labels, strict=True)]
    source = table(tmp_path / ("a.tsv" if by == "\t" else "a.csv"), ("kommentar", "klasse"), *rows, by=by)
    data = read_labelled(source, columns=[1, 2])
    assert list(zip(data.texts, data.labels, strict=True)) == rows
    assert data.columns == ["kommentar", "klasse"]
    more = "its columns separated by semicolons, " if by == ";" else ""
    assert data.note == f"{more}taking the first line for a header"
    assert read_labelled(source, like=[1, 2]).labels == list(labels)


@pytest.mark.parametrize(
    "first",
    [
        ("a gem of a film", "c"),  # a text
        ("gem", "a"),  # a label that comes again
        ("gem", "nan"),
        ("gem", ""),
    ],
)
def test_numbers_keep_a_first_row_that_names_nothing(first: tuple[str, str], tmp_path: Path) -> None:
    numbers = first[1] in ("nan", "")
    rows = [first, *((text, label if numbers else "ba"[int(label)]) for text, label in REVIEWS)]
    data = read_labelled(table(tmp_path / "a.tsv", *rows), columns=[1, 2])
    assert list(zip(data.texts, data.labels, strict=True)) == rows
    assert data.note == ""


def test_numbers_choose_among_columns_of_one_name(tmp_path: Path) -> None:
    rows = [("x", text, label) for text, label in REVIEWS]
    data = read_labelled(table(tmp_path / "a.tsv", ("text", "text", "label"), *rows), columns=[2, 3])
    assert data.texts == [text for text, _ in REVIEWS]


def test_a_quoted_tsv_says_so(tmp_path: Path) -> None:
    rows = [(f'"""{text}"""', label) for text, label in REVIEWS]
    data = read_labelled(table(tmp_path / "a.tsv", ("text", "label"), *rows))
    assert data.texts[0] == '"a gem of a film"'
    assert data.note == "its quotation marks read as a csv's, reading 'text' as text and 'label' as label"


def test_a_second_table_is_read_like_the_first_where_it_can_be(tmp_path: Path) -> None:
    source = table(tmp_path / "a.tsv", ("text", "label", "title"), *[(t, y, "one two three") for t, y in REVIEWS])
    assert read_labelled(source, like=["title", "label"]).texts[0] == "one two three"
    assert read_labelled(source, like=["body", "label"]).texts[0] == REVIEWS[0][0]
    assert read_labelled(source, like=[1, 3]).labels[0] == "1"


def test_jsonl_and_parquet_are_read_alike(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [{"id": n, "words": text, "label": int(label)} for n, (text, label) in enumerate(REVIEWS)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    one, other = (read_labelled(str(tmp_path / name)) for name in ("a.jsonl", "a.parquet"))
    assert one.labels == other.labels == [1, 0, 1, 0]
    assert one.sha256 == other.sha256
    assert one.note == "reading 'words' as text and 'label' as label"


@pytest.mark.parametrize(
    ("name", "content", "more", "said"),
    [
        ("a.tsv", "text\tlabel\ngood\t1\n \t0\n", {}, "a.tsv, line 3: the text is empty"),
        ("a.tsv", "sentence1\tsentence2\tlabel\na\t\t1\n", {}, "a.tsv, line 2: the second text is empty"),
        ("a.csv", 'text,label\n"good,1\nbad,0\n', {}, "is a quotation mark missing?"),
        ("a.csv", 'text,label\ngood,1\n"bad" one,0\n', {}, "a.csv, line 3"),
        ("a.tsv", "text\tlabel\n", {}, "it holds no rows"),
        ("a.tsv", "a\tb\tc\nd\te\tf\n", {}, "say which are text and label: data.columns=[TEXT,LABEL]"),
        ("a.tsv", "text\ngood\n", {}, "has one column, where tabs separate them"),
        ("a.tsv", "text\tlabel\ngood\t1\n", {"columns": ["text"]}, "data.columns names 1 of them"),
        ("a.tsv", "text\tlabel\ngood\t1\n", {"columns": ["txt", "label"]}, "did you mean 'text'?"),
        ("a.tsv", "good\t1\nbad\n", {"columns": [1, 2]}, "there is no column 2"),
        ("a.txt", "just a text\n", {}, "is one text without columns"),
        ("a.jsonl", '{"text": "good", "label": 1}\n{"text": 5, "label": 0}\n', {}, "line 2: 'text' is int, not text"),
    ],
)
def test_bad_tables_are_refused_in_one_line(
    name: str, content: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as problem:
        read_labelled(str(tmp_path / name), **more)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


# ── what labels mean ──────────────────────────────────────────────────────────────────────────────


def test_whole_numbers_and_names_are_classes_and_fractions_a_scale() -> None:
    assert Labels.of(labelled(["10", "2", "2"])) == Labels("classes", ["2", "10"])
    assert Labels.of(labelled([1.0, 0.0])).names == ["0", "1"]
    assert Labels.of(labelled(["good", "bad"])).names == ["bad", "good"]
    assert Labels.of(labelled([True, False])).names == ["False", "True"]
    assert Labels.of(labelled(["5.000", "4.75"])).kind == "regression"
    assert Labels.of(labelled(["5", "4"]), "regression").encode(labelled(["3"])) == [3.0]


def test_labels_may_be_put_in_order_or_named() -> None:
    ordered = Labels.of(labelled(["good", "bad"]), names=["good", "fair", "bad"])
    assert ordered.encode(labelled(["bad", "good"])) == [2, 0]
    named = Labels.of(labelled(["1", "0"]), names=["negative", "positive"])
    assert named.names == ["negative", "positive"]
    assert named.encode(labelled(["1", 0, "positive"])) == [1, 0, 1]


def test_a_text_may_have_several_labels() -> None:
    labels = Labels.of(labelled(["a; b", "", ["b"], None]), "multilabel")
    assert labels.names == ["a", "b"]
    assert labels.encode(labelled(["b", "a;b", ""])) == [[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("train", "kind", "names", "said"),
    [
        (["x", "x"], "auto", None, "rows has one class alone, 'x'"),
        (["1", ""], "auto", None, "rows, line 2: there is no label"),
        (["1", None], "auto", None, "rows, line 2: there is no label"),
        ([["a"], ["b"]], "auto", None, "rows, line 1: the label is a list; set data.kind=multilabel"),
        (["", ""], "multilabel", None, "rows has no label at all"),
        (["a", "b"], "auto", ["a"], "rows, line 2: the label 'b' is not in data.labels=[a]"),
        (["a", "b"], "auto", ["a", "b", "a"], "data.labels names 'a' twice"),
        (["1.5", "2.5"], "auto", ["a"], "data.labels names classes"),
    ],
)
def test_labels_that_mean_nothing_are_refused(train: list[Any], kind: str, names: Any, said: str) -> None:
    with pytest.raises(DataError) as problem:
        Labels.of(labelled(train), kind, names)
    assert said in str(problem.value)


def test_a_label_that_was_not_learned_is_named_with_its_place_and_those_known() -> None:
    labels = Labels.of(labelled(["good", "bad"]))
    with pytest.raises(
        DataError, match="rows, line 2: the label 'fair' is not among those learned, which are 'bad', "
    ):
        labels.encode(labelled(["good", "fair"]))
    with pytest.raises(DataError, match="rows, line 2: the label 'high' is not a number"):
        Labels("regression").encode(labelled(["1.5", "high"]))


def test_classes_with_one_example_are_known() -> None:
    data = labelled(["a", "b", "a", "c"])
    assert Labels.of(data).lone(data) == [("b", "rows, line 2"), ("c", "rows, line 4")]
    numbered = labelled(["0", "0", "1"])
    assert Labels.of(numbered, names=["no", "yes"]).lone(numbered) == [("yes", "rows, line 3")]


# ── holding out ───────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("01")), min_size=4, max_size=40))
def test_no_text_is_on_both_sides_and_every_label_is_taught(rows: list[tuple[str, str]]) -> None:
    texts, labels = [list(column) for column in zip(*rows, strict=True)]
    data = labelled(labels, texts)
    try:
        kept, held = hold_out_rows(data, 0.3).values()
    except DataError:
        assert len(set(texts)) <= 2
        return
    assert held.texts
    assert kept.texts
    assert not set(kept.texts) & set(held.texts)
    assert len(kept) + len(held) == len(data)
    assert set(held.labels) <= set(kept.labels)


def test_what_is_held_out_does_not_depend_on_the_order() -> None:
    data = labelled(["0", "1"] * 25, [f"text number {n}" for n in range(50)])
    turned = data.select(list(range(49, -1, -1)))
    one, other = (hold_out_rows(rows, 0.2)["valid"].texts for rows in (data, turned))
    assert sorted(one) == sorted(other)
    assert 3 < len(one) < 20


def test_rows_of_a_scale_are_held_out_though_each_value_comes_once() -> None:
    data = labelled([f"{n}.5" for n in range(30)])
    kept, held = hold_out_rows(data, 0.2).values()
    assert len(kept) + len(held) == 30
    assert held.labels


def test_several_labels_of_which_one_was_not_learned_are_never_all_right() -> None:
    labels = Labels("multilabel", ["a", "b"])
    data = labelled(["a", "a;c", "b;c", "b"])
    wanted = labels.encode(data, unseen="wrong")
    assert wanted == [[1, 0, 0], [1, 0, 1], [0, 1, 1], [0, 1, 0]]
    scores = classification_scores(labels, np.array([[1, 0], [1, 0], [0, 1], [0, 1]]), wanted)
    assert scores["exact"] == 0.5
    assert scores["micro_f1"] == pytest.approx(2 * 4 / (4 + 6))
    assert scores["macro_f1"] == 1.0


def test_the_older_name_of_multilabel_is_still_read() -> None:
    assert validate(ClassificationData, {"kind": "several"}, "data").kind == "multilabel"
    assert check_about({"task": "classification", "kind": "several"}, Path("config.json"))["kind"] == "multilabel"
