"""Data of every kind that says what it cannot mean: each reader refuses it in one line that names file and line."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from legato.data.formats.dialogues import read_dialogues
from legato.data.formats.labelled import read_labelled
from legato.data.formats.labels import Labels, hold_out_rows
from legato.data.formats.questions import QuestionFiles, read_questions
from legato.data.formats.scored_pairs import read_scored_pairs
from legato.data.formats.tagged_text import read_tagged
from legato.data.formats.text import read_text
from legato.data.formats.text_pairs import read_pairs
from legato.data.formats.vector_files import read_vectors
from legato.data.sources.files import load_text
from legato.data.sources.tables import class_names, read_table
from legato.errors import DataError, LegatoError

DEEP: Any = "x"
for _ in range(90):
    DEEP = [DEEP]

ODD = [
    *(None, True, 0, -1, 2**63, 2**64, 10**25, 1.5, 1e308, float("nan"), float("inf")),
    *("", " ", "\0", "a\ud800", "9" * 5000, "--5", "²", "1e999", "nan", "{'a':1}", "[[[[", "\u2028", "x" * 100_000),
    *([], [[]], [None], {}, {"a": 1}, {"text": None}, {"text": ["a"], "answer_start": [10**25]}, ["a", 1], [5], DEEP),
    *({"text": ["dog"], "answer_start": float("-inf")}, {"text": ["dog"], "answer_start": ["x"]}, {"text": {"a": 1}}),
    *([{"role": ["user"], "content": "x"}], [{"role": "assistant", "content": {"a": 1}}], [{"role": {}}]),
    *([{"role": "assistant", "content": [{"type": ["x"]}]}], [{"role": "assistant", "content": [1, "x"]}]),
    [{"role": "assistant", "content": [{"type": "text", "text": 5}]}],
]


def use_labels(path: str) -> None:
    data = read_labelled(path)
    for kind in ("auto", "classes", "multilabel", "regression"):
        with contextlib.suppress(LegatoError):
            labels = Labels.of(data, kind)
            labels.encode(data)
            labels.lone(data)
            hold_out_rows(data, 0.3, kind)


READERS: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "text": ({"text": "a dog runs"}, read_text),
    "pairs": ({"en": "a dog", "de": "ein Hund"}, read_pairs),
    "labels": ({"text": "a dog runs", "label": "good"}, use_labels),
    "tags": ({"words": ["a", "dog"], "tags": ["O", "B-X"]}, read_tagged),
    "questions": (
        {"question": "who?", "context": "a dog runs", "answers": {"text": ["dog"], "answer_start": [2]}},
        lambda path: read_questions(path, QuestionFiles()),
    ),
    "places": (
        {"question": "who?", "context": "a dog runs", "answer": "dog", "start": 2, "title": "t"},
        lambda path: read_questions(path, QuestionFiles(skip_bad=True)),
    ),
    "dialogues": (
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]},
        read_dialogues,
    ),
    "instructions": ({"instruction": "do", "input": "x", "output": "y", "system": "s"}, read_dialogues),
    "scores": ({"sentence1": "a", "sentence2": "b", "score": 1.5}, read_scored_pairs),
    "negatives": ({"sentence1": "a", "sentence2": "b", "negative": "c"}, read_scored_pairs),
}


def tried(read: Callable[[str], Any], path: Path) -> None:
    """It is read, or refused in one short line; nothing else is raised."""
    said = str(path)
    try:
        read(str(path))
    except LegatoError as problem:
        said = str(problem)
    assert str(path.parent) in said
    assert len(said) < 500


@pytest.mark.parametrize("kind", READERS)
def test_no_value_of_a_json_line_breaks_a_reader(kind: str, tmp_path: Path) -> None:
    row, read = READERS[kind]
    for number, odd in enumerate(ODD):
        for key in row:
            lines = [row, {**row, key: odd}, row]
            (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, lines)))
            tried(read, tmp_path / f"{number}.jsonl")


@pytest.mark.parametrize("kind", READERS)
def test_no_field_of_a_csv_breaks_a_reader(kind: str, tmp_path: Path) -> None:
    row, read = READERS[kind]
    for number, odd in enumerate(ODD):
        for key in row:
            lines = [{**row, key: odd}, row, row]
            fields = [[json.dumps(v) if not isinstance(v, str) else v for v in one.values()] for one in lines]
            text = "\n".join("\t".join(part) for part in [list(row), *fields])
            (tmp_path / f"{number}.tsv").write_bytes(text.encode("utf-8", "surrogatepass"))
            tried(read, tmp_path / f"{number}.tsv")


PARQUET = [
    [datetime.date(2020, 1, 1)] * 3,
    [datetime.datetime(2020, 1, 1)] * 3,
    [datetime.timedelta(1)] * 3,
    [decimal.Decimal("1.5")] * 3,
    [decimal.Decimal("12345678901234567890123")] * 3,
    [b"x", b"\xff", None],
    [[b"x"]] * 3,
    pyarrow.array([2**63] * 3, type=pyarrow.uint64()),
    [float("nan"), 1.0, None],
    [None] * 3,
    [[[1.5]]] * 3,
    [{"text": ["dog"], "answer_start": [1.5]}] * 3,
    pyarrow.array(["a", "b", None]).dictionary_encode(),
    pyarrow.array([[("a", 1)]] * 3, type=pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    pyarrow.array([2**62] * 3, type=pyarrow.timestamp("ns")),
    pyarrow.array([2**40] * 3, type=pyarrow.timestamp("s")),
    pyarrow.array([b"\xff\xfe"] * 3).view(pyarrow.string()),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("number", range(len(PARQUET)))
def test_no_column_of_a_parquet_file_breaks_a_reader(kind: str, number: int, tmp_path: Path) -> None:
    row, read = READERS[kind]
    for key in row:
        columns = {name: PARQUET[number] if name == key else [value] * 3 for name, value in row.items()}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        tried(read, tmp_path / "a.parquet")


def test_dates_and_decimals_of_a_parquet_file_are_texts_and_numbers(tmp_path: Path) -> None:
    columns = {"day": [datetime.date(2020, 1, 2)], "price": [decimal.Decimal("1.50")], "count": [decimal.Decimal(3)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    table = read_table(str(tmp_path / "a.parquet"), ["day", "price", "count"])
    assert table.columns == [["2020-01-02"], [1.5], [3]]


def parquet_with(path: Path, features: Any, whole: Any = None) -> str:
    told = json.dumps({"info": {"features": features}} if whole is None else whole).encode()
    table = pyarrow.table({"text": ["a b", "c d"], "label": [0, 1]}).replace_schema_metadata({b"huggingface": told})
    pyarrow.parquet.write_table(table, path)
    return str(path)


@pytest.mark.parametrize(
    ("features", "part"),
    [
        ({"label": {"_type": "ClassLabel", "names": "ab"}}, "'label'"),
        ({"label": {"_type": "ClassLabel", "names": 5}}, "'label'"),
        ({"label": {"_type": "ClassLabel", "names": ["a", 5]}}, "'label'"),
        ([1], "info.features"),
        ({"label": DEEP}, "nested"),
        ({"label": {"n": 10**25}}, "too large a number"),
    ],
)
def test_class_names_that_are_none_are_named(features: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet") as caught:
        read_labelled(parquet_with(tmp_path / "a.parquet", features))
    assert part in str(caught.value)


@pytest.mark.parametrize("whole", [[1], {"info": None}, {"info": {"features": None}}])
def test_metadata_that_is_none_is_named(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet: what it says of its columns"):
        read_labelled(parquet_with(tmp_path / "a.parquet", None, whole))


def test_columns_without_classes_have_none() -> None:
    assert class_names({"_type": "ClassLabel", "names": []}) is None
    assert class_names([{"_type": "Value"}]) is None


# --- SQuAD ------------------------------------------------------------------------------------------


def squad(**changed: Any) -> dict[str, Any]:
    asked = {
        "id": "1",
        "question": "who?",
        "answers": [{"text": "dog", "answer_start": 2}],
        **changed.pop("asked", {}),
    }
    paragraph = {"context": "a dog runs", "qas": [asked], **changed.pop("paragraph", {})}
    return {"data": [{"title": "t", "paragraphs": [paragraph], **changed.pop("article", {})}], **changed}


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (squad(paragraph={"qas": None}), "'qas' should be a list, not null"),
        (squad(paragraph={"qas": {"a": 1}}), "'qas' should be a list"),
        (squad(paragraph={"qas": [5]}), "there is no 'question'"),
        (squad(paragraph={"context": 5}), "'context' should be a text, not 5"),
        (squad(paragraph={"context": None}), "'context' should be a text"),
        (squad(article={"paragraphs": None}), "'paragraphs' should be a list"),
        (squad(article={"paragraphs": "abc"}), "'paragraphs' should be a list"),
        (squad(data=[None]), "there is no 'paragraphs'"),
        (squad(data=5), "is no SQuAD file"),
        (squad(asked={"question": ["who?"]}), "'question' should be a text"),
        (squad(asked={"answers": "abc"}), "'abc' does not stand in the context"),
        (squad(asked={"answers": 5}), "does not stand in the context"),
        (squad(asked={"answers": [5, {"text": "dog"}]}), "should all be objects"),
        (squad(asked={"answers": [{"text": {"a": 1}}]}), "the answer has no 'text'"),
        (squad(asked={"answers": [{"text": "dog", "answer_start": 2.5}]}), "'2.5', which is no number"),
        (squad(asked={"answers": [{"text": "dog", "answer_start": "x"}]}), "begins at 'x'"),
        (squad(asked={"answers": [{"text": "dog", "answer_start": 10**25}]}), "is too large a number"),
        (squad(asked={"answers": [{"text": "dog", "answer_start": 2**62}]}), "is not at character"),
        (squad(asked={"answers": [{"text": "dog", "answer_start": -3}]}), "is not at character -3"),
        (squad(asked={"answers": [{"text": "dog", "answer_start": True}]}), "which is no number"),
        (squad(asked={"answers": [{"text": "dog", "answer_start": [1, True]}]}), "which is no pair of characters"),
        (squad(asked={"question": "\ud800"}), "half a character"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_squad_file_that_is_none_is_one_line(content: Any, part: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"a\.json") as caught:
        read_questions(str(tmp_path / "a.json"), QuestionFiles())
    assert part in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_squad_file_as_published_is_read_as_before(tmp_path: Path) -> None:
    whole = squad(asked={"answers": [{"text": "dog", "answer_start": 2.0}, {"text": "runs", "answer_start": 6}]})
    (tmp_path / "a.json").write_text(json.dumps(whole))
    found = read_questions(str(tmp_path / "a.json"), QuestionFiles()).questions[0]
    assert [answer and answer.text for answer in found.answers] == ["dog", "runs"]


# --- others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (f"3 {10**25}\na 1 2\n", "there can be from 1 to"),
        ("3 0\na 1 2\n", "there can be from 1 to"),
        (f"{'9' * 5000} {'9' * 5000}\na 1 2\n", "there can be from 1 to"),
        ("2 2\nthe nan 1\n", "not finite"),
        ("2 2\nthe 1e999 1\n", "not finite"),
        ("2 2\nthe x 1\n", "'x' is no number"),
        ("2 3\nthe 1 1\n", "where 3 should be"),
    ],
)
def test_vectors_that_are_none_are_one_line(content: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(DataError, match=r"v\.txt, line") as caught:
        read_vectors(tmp_path / "v.txt", ["the"])
    assert part in str(caught.value)


@pytest.mark.parametrize("encoding", ["undefined", "idna", "hex", "punycode", "x" * 5000, "unicode_escape"])
def test_an_encoding_that_is_none_is_one_line(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xc3\xa9 \\ud800 xn--")
    with pytest.raises(DataError, match="encoding") as caught:
        load_text(tmp_path / "a.txt", encoding)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("column", ["²", "9" * 5000, "-1", "0", "1.5", ""])
def test_a_number_of_a_column_that_is_none_is_one_line(column: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a O\nb O\n")
    (tmp_path / "a.conllu").write_text("\t".join(["1", "a", "a", "X", "X", "_", "0", "root", "_", "_"]) + "\n")
    for file in ("a.txt", "a.conllu"):
        with pytest.raises(DataError, match=r"data\.tag") as caught:
            read_tagged(str(tmp_path / file), tag=column)
        assert len(str(caught.value)) < 500


@pytest.mark.slow
def test_long_values_and_many_names_make_no_long_message(tmp_path: Path) -> None:
    long = "x" * 100_000
    (tmp_path / "wide.jsonl").write_text(json.dumps({f"name{n}": 1 for n in range(20_000)}))
    (tmp_path / "long.jsonl").write_text(json.dumps({long: 1, "b": 2}))
    (tmp_path / "many.tsv").write_text("\n".join(f"a text of words {n}\tlabel{n}" for n in range(2000)))
    (tmp_path / "long.tsv").write_text(f"text\tlabel\na b\t{long}\nc d\t1\n")
    for file in ("wide.jsonl", "long.jsonl"):
        for read in (read_text, read_labelled, read_pairs, read_dialogues, read_scored_pairs, read_tagged):
            with pytest.raises(DataError) as caught:
                read(str(tmp_path / file))
            assert len(str(caught.value)) < 500
    data = read_labelled(str(tmp_path / "many.tsv"), columns=[1, 2])
    other = read_labelled(str(tmp_path / "long.tsv"))
    for refused in (lambda: Labels.of(data).encode(other), lambda: Labels.of(other, names=[long, "2"] * 5)):
        with pytest.raises(DataError) as caught:
            refused()
        assert len(str(caught.value)) < 500
