"""Tables in memory: each form reads as the csv of the same rows, and what is none is refused with what is."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from legato.data.formats.captions import CAPTIONS
from legato.data.formats.dialogues import read_dialogues
from legato.data.formats.labelled import Labelled, read_labelled
from legato.data.formats.labels import hold_out_rows
from legato.data.formats.tagged_text import read_tagged
from legato.data.sources import memory_tables
from legato.data.sources.files import FileOptions
from legato.data.sources.memory_tables import file_names, memory_table, split_data, table_files
from legato.data.sources.named_files import read_naming_table
from legato.errors import DataError, LegatoError

ROWS = [("a good film", 1), ("a bad, bad film", 0), ('she said "fine"', 1), ("two\nlines", 0)]
FRAME = pd.DataFrame(ROWS, columns=["text", "label"])
TUPLES = ("text label", "sentence1 sentence2 label")


def labelled(value: Any) -> Labelled:
    with table_files({"train": memory_table("train", value, TUPLES)}) as files:
        return read_labelled(files["train"])


class PolarsFrame:
    """What polars has of a DataFrame."""

    columns = ("text", "label")

    def iter_rows(self) -> Iterator[Any]:
        return iter(ROWS)

    def __getitem__(self, name: str) -> Any:
        return type("Series", (), {"to_list": lambda _: FRAME[name].tolist()})()


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        [list(row) for row in ROWS],
        FRAME.to_dict("records"),
        FRAME.to_dict("list"),
        {"text": FRAME["text"], "label": np.array([1, 0, 1, 0])},
        FRAME,
        FRAME.assign(seen=pd.Timestamp("2020-01-01"), other=[1, None, 2, 3]),
        FRAME.astype({"label": "category"}),
        PolarsFrame(),
        datasets.Dataset.from_list(FRAME.to_dict("records")),
    ],
)
def test_a_table_in_memory_reads_as_the_csv_of_its_rows(value: Any, tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "train.csv", index=False)
    file, table = read_labelled(str(tmp_path / "train.csv")), labelled(value)
    assert (table.texts, table.labels, table.sha256) == (file.texts, file.labels, file.sha256)


def test_values_count_as_to_csv_writes_them(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "double": [0.1, 1e-5, 1.0],
            "single": np.array([0.1, 1e-5, 1.0], dtype="float32"),
            "flag": [True, False, True],
            "day": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]),
            "mixed": [1, "a", datetime.date(2020, 1, 1)],
        }
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    texts = pd.read_csv(tmp_path / "a.csv", dtype=str).to_dict("list")
    assert memory_table("train", frame).columns == texts


def test_numbers_of_a_dataset_keep_the_names_of_their_classes() -> None:
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["neg", "pos"]))
    rows = labelled(datasets.Dataset.from_list(FRAME.to_dict("records"), features=features))
    assert (rows.labels, rows.classes) == ([1, 0, 1, 0], ["neg", "pos"])


def test_lists_in_cells_stay_lists() -> None:
    tables = {
        "tags": memory_table("tags", [(["EU", "rejects"], ["B-ORG", "O"])], ["words tags"]),
        "chat": memory_table(
            "chat", [[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]], ["messages"]
        ),
    }
    with table_files(tables) as files:
        assert read_tagged(files["tags"]).sentences[0].tags == ["B-ORG", "O"]
        assert read_dialogues(files["chat"]).rows[0][1]["content"] == "Yes?"


def test_a_missing_value_is_refused_with_its_row_and_column() -> None:
    for gap in (None, float("nan"), pd.NA, np.float32("nan")):
        with pytest.raises(DataError, match=r"^train= \(list\), row 2: 'label' is missing \(None or NaN\); complete"):
            labelled([("a", "x"), ("b", gap)])
    with pytest.raises(DataError, match=r"^train= \(list\), row 2: 'label' is missing"):
        labelled([{"text": "a", "label": 1}, {"text": "b"}])


def test_two_columns_of_texts_without_a_label_are_refused() -> None:
    texts = [f"a film of {number} long parts" for number in range(6)]
    with pytest.raises(DataError, match=r"has the columns text, other; say which are text and label"):
        labelled(pd.DataFrame({"text": texts, "other": [f"{text} again" for text in texts]}))
    rows = labelled(list(zip(texts, texts[::-1], strict=True)))
    with pytest.raises(DataError, match=r"each of its 6 rows has a label of its own, so 'label' is no"):
        hold_out_rows(rows, 0.1)


def test_other_columns_for_validation_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"valid= \(DataFrame\) has the columns text, gold and lacks 'label' of train="
    ):
        split_data({"train": FRAME, "valid": FRAME.rename(columns={"label": "gold"})}, lambda: TUPLES)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([("a", 1), ("b",)], r"row 2 has 1 value, and row 1 2; give each row as many"),
        ([("a", 1), {"text": "b"}], r"row 2 is a dict, and row 1 a tuple; give rows of one kind"),
        (["a b", "c d"], r"a row has 1 value; this task takes \(text, label\) or \(sentence1, sentence2, label\)"),
        ([1, 2], r"row 1 is 1; the forms are a list of texts, tuples or dicts"),
        ([], r"train= \(list\) has no rows"),
        (5, r"train= takes names of files or a table in memory, not int: a list of texts"),
        (iter(ROWS), r"not list_iterator: a list of texts"),
        ({"text": ["a"], "label": []}, r"the columns differ in length \('text' 1, 'label' 0\)"),
        ({"steps": 3}, r"'steps' is 3, and a dict of columns has a list for each"),
        ({"text": [["a"], "b"], "label": [1, 2]}, r"'text' holds values of several kinds"),
        ({"text": ["a", object()], "label": [1, 2]}, r"row 2: 'text' is object, which no table holds"),
        ({"text": ["a\ud800"], "label": [1]}, r"row 1: 'text' holds half a surrogate pair"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), r"has two columns 'a'; rename one"),
        (
            datasets.DatasetDict(train=datasets.Dataset.from_dict({"a": [1]})),
            r"has the splits train; give one of them",
        ),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(value: Any, message: str) -> None:
    with pytest.raises(LegatoError, match=message):
        labelled(value)


def test_a_table_names_files_from_the_folder_that_it_was_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    memory_table("train", {"image": ["a.png"], "text": ["a dog"]}).write(tmp_path / "t.parquet")
    monkeypatch.chdir("/")
    _, place, _ = read_naming_table(str(tmp_path / "t.parquet"), FileOptions(), CAPTIONS, None)
    assert place is not None
    assert place.parent == tmp_path


def test_a_table_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_tables, "LARGEST", 10)
    with pytest.raises(
        DataError, match=r"more than the 10 bytes that a table in memory may have; write it to a file"
    ):
        labelled(FRAME)


def test_names_of_files_are_told_from_texts(tmp_path: Path) -> None:
    (tmp_path / "a b").write_text("x")
    assert file_names(["train.csv", "b.csv"]) == ["train.csv", "b.csv"]
    assert file_names(["test.en", "test.de"]) == ["test.en", "test.de"]
    assert file_names(["你好。", "Hello."]) is None
    assert file_names([tmp_path / "a b"]) == file_names([str(tmp_path / "a b")]) == [str(tmp_path / "a b")]
    assert file_names(["a b"], root=str(tmp_path)) == ["a b"]
    assert file_names(["How are you?", "Read the file.txt"]) is None
    assert file_names(["emma", "olivia"]) is None
    assert file_names(["a film of many words", "N/A"]) is None
    assert file_names(FRAME) is None
