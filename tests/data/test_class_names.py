"""Numbers that stand for classes on the hub, and files that tabs tell to be a tsv."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from legato.data.formats.labelled import read_labelled
from legato.data.formats.labels import Labels
from legato.data.formats.tagged_text import read_tagged
from legato.data.sources import tables
from legato.data.sources.files import FileOptions
from legato.data.sources.tables import tabbed
from legato.errors import DataError

MRPC = {"_type": "ClassLabel", "names": ["not_equivalent", "equivalent"]}  # not in the alphabet's order


def parquet(path: Path, columns: dict[str, Any], features: dict[str, Any]) -> str:
    """A file as the hub's library writes it."""
    told = json.dumps({"info": {"features": features}}).encode()
    table = pyarrow.table(columns).replace_schema_metadata({b"huggingface": told})
    pyarrow.parquet.write_table(table, path)
    return str(path)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    columns = {"sentence1": ["a b", "c d", "e f"], "sentence2": ["b", "d", "f"], "label": [1, 0, 1]}
    return parquet(tmp_path / "train.parquet", columns, {"label": MRPC})


def test_classes_of_a_parquet_file_have_their_names_in_their_order(pairs: str) -> None:
    data = read_labelled(pairs)
    labels = Labels.of(data)
    assert labels.names == ["not_equivalent", "equivalent"]
    assert labels.encode(data) == [1, 0, 1]
    assert data.select([1, 2]).classes == labels.names


def test_a_file_of_names_or_numbers_fits_the_classes_of_the_hub(pairs: str, tmp_path: Path) -> None:
    labels = Labels.of(read_labelled(pairs))
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tlabel\na b\tb\tequivalent\nc d\td\t0\n")
    assert labels.encode(read_labelled(str(tmp_path / "dev.tsv"))) == [1, 0]


def test_classes_may_be_called_something_else(pairs: str) -> None:
    assert Labels.of(read_labelled(pairs), names=["no", "yes"]).encode(read_labelled(pairs)) == [1, 0, 1]
    with pytest.raises(DataError, match=r"data\.labels has 3 names for 2 classes, 'not_equivalent', 'equivalent'"):
        Labels.of(read_labelled(pairs), names=["a", "b", "c"])


def test_names_that_look_like_other_numbers_do_not_mislead(tmp_path: Path) -> None:
    stars = {"label": {"_type": "ClassLabel", "names": ["1", "2", "3"]}}
    data = read_labelled(parquet(tmp_path / "a.parquet", {"text": ["a b", "c d"], "label": [1, 2]}, stars))
    labels = Labels.of(data)
    assert [labels.shown(wanted) for wanted in labels.encode(data)] == ["2", "3"]


def test_a_label_that_is_kept_secret_is_named(tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", {"text": ["a b", "c d"], "label": [0, -1]}, {"label": MRPC})
    with pytest.raises(DataError, match=r"a\.parquet, row 2: the label -1 stands for no class"):
        Labels.of(read_labelled(file))


@pytest.mark.parametrize("kind", ["Sequence", "List"])
def test_tags_of_the_hub_have_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    import datasets

    rows = datasets.Dataset.from_dict(
        {"tokens": [["EU", "rejects"], ["Bern"]], "ner_tags": [[1, 0], [2]]},
        features=datasets.Features(
            tokens=getattr(datasets, kind)(datasets.Value("string")),
            ner_tags=getattr(datasets, kind)(datasets.ClassLabel(names=["O", "B-ORG", "B-LOC"])),
        ),
    )
    monkeypatch.setattr(tables, "_load_dataset", lambda *_: rows)
    assert [sentence.tags for sentence in read_tagged("hub:some/names").sentences] == [["B-ORG", "O"], ["B-LOC"]]
    rows.to_parquet(tmp_path / "a.parquet")
    found = read_tagged(str(tmp_path / "a.parquet"))
    assert [sentence.tags for sentence in found.sentences] == [["B-ORG", "O"], ["B-LOC"]]


@pytest.mark.parametrize(
    ("name", "text", "format"),
    [
        ("a.csv", "a\tb\t5.0\nc\td\t1.0\n", "tsv"),
        ("a.csv", "text,label\na,1\n", "auto"),
        ("a.csv", 'text,label\n"a\tb",1\n', "auto"),
        ("a.txt", "Well, this, that, and more\t1\n\nNo\t0\n", "tsv"),
        ("a.txt", "a text\nand\ta tab\n", "auto"),
        ("a.tsv", "text,label\n", "auto"),
    ],
)
def test_tabs_in_every_line_tell_a_tsv(tmp_path: Path, name: str, text: str, format: str) -> None:
    (tmp_path / name).write_text(text)
    assert tabbed(name, FileOptions(root=str(tmp_path))).format == format
    assert tabbed(name, FileOptions(root=str(tmp_path), format="csv")).format == "csv"
