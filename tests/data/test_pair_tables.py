"""Pairs of texts in tables: which columns they are in, and what is wrong with them."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.text_pairs import read_pairs
from legato.data.sources.files import FileOptions
from tiny_pair_files import both, complaint, put


def test_a_tsv_without_header_is_its_first_two_columns(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.tsv", "Go.\tGeh.\tCC-BY\nHi.\tHallo!\tCC-BY\n"))
    assert both(pairs) == [("Go.", "Geh."), ("Hi.", "Hallo!")]
    assert (pairs.note, pairs.lines) == ("columns 1 and 2, no header", [1, 2])


@pytest.mark.parametrize(
    "header",
    [
        ("source", "target"),
        ("src", "tgt"),
        ("src", "trg"),
        ("Text", "Summary"),
        ("input", "output"),
        ("document", "summary"),
        ("article", "highlights"),
        ("wrong", "right"),
        ("en", "de"),
        ("EN", "DE"),
        ("eng", "deu"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_header_of_well_known_names_is_a_header(tmp_path: Path, name: str, header: tuple[str, str]) -> None:
    mark = "," if name == "a.csv" else "\t"
    pairs = read_pairs(put(tmp_path, name, mark.join(("id", *header)) + f"\n7{mark}a{mark}b\n"))
    assert both(pairs) == [("a", "b")]
    assert pairs.note == f"columns {header[0]} and {header[1]}"
    assert pairs.place(0) == "line 2"


@pytest.mark.parametrize("row", ["It\tEs", "No\tNein", "So\tAm", "en\tnichts", "go\tgeh"])
def test_short_words_are_no_header(tmp_path: Path, row: str) -> None:
    assert read_pairs(put(tmp_path, "a.tsv", row + "\nx\ty\n")).note == "columns 1 and 2, no header"


def test_well_known_names_tell_which_is_the_source(tmp_path: Path) -> None:
    assert both(read_pairs(put(tmp_path, "a.csv", "target,source\nb,a\n"))) == [("a", "b")]


def test_named_columns_are_taken_as_named(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.csv", "en,de,fr\na,b,c\n"), columns=["fr", "en"])
    assert both(pairs) == [("c", "a")]
    assert pairs.note == ""


def test_numbered_columns_have_no_header(tmp_path: Path) -> None:
    assert both(read_pairs(put(tmp_path, "a.tsv", "1\ten\tde\n"), columns=[3, 2])) == [("de", "en")]


def test_a_plain_ending_with_tabs_is_a_tsv_and_says_so(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "deu.txt.gz", "Go.\tGeh.\n"))
    assert both(pairs) == [("Go.", "Geh.")]
    assert pairs.note == "read as tsv, columns 1 and 2, no header"


def test_a_csv_parted_by_semicolons_says_so(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.csv", "en;de\nGo.;Geh.\n"))
    assert (both(pairs), pairs.note) == ([("Go.", "Geh.")], "its columns separated by semicolons, columns en and de")


def test_the_format_may_be_said(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "deu.txt", "Go.\tGeh.\n"), FileOptions(format="tsv"))
    assert (both(pairs), pairs.note) == ([("Go.", "Geh.")], "columns 1 and 2, no header")


def test_one_text_without_tabs_is_no_pairs(tmp_path: Path) -> None:
    assert "give two aligned files" in complaint(put(tmp_path, "a.txt", "one\ntwo\n"))


def rows_of(*rows: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, rows))


def test_two_text_columns_of_json_are_a_pair(tmp_path: Path) -> None:
    pairs = read_pairs(put(tmp_path, "a.jsonl", rows_of({"n": 1, "question": "a", "answer": "b"})))
    assert both(pairs) == [("a", "b")]
    assert pairs.note == "columns question and answer"


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_translation_object_is_a_pair(tmp_path: Path, kind: str) -> None:
    rows = [{"id": "1", "translation": {"de": "Hund", "en": "dog"}}]
    source = put(tmp_path, "a.jsonl", rows_of(*rows))
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        source = str(tmp_path / "a.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), source)
    pairs = read_pairs(source)
    assert both(pairs) == [("Hund", "dog")]
    assert pairs.note == "columns translation.de and translation.en"


def test_a_translation_can_be_turned_round(tmp_path: Path) -> None:
    source = put(tmp_path, "a.jsonl", rows_of({"translation": {"de": "Hund", "en": "dog"}}))
    assert both(read_pairs(source, columns=["translation.en", "translation.de"])) == [("dog", "Hund")]


def test_parquet_counts_rows(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"en": ["a", None], "de": ["b", "c"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pairs = read_pairs(str(tmp_path / "a.parquet"))
    assert both(pairs) == [("a", "b"), ("", "c")]
    assert pairs.place(1) == "row 2"


def test_pairs_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows(list[Any]):
        column_names = ("translation",)
        features = types.SimpleNamespace(to_dict=dict)

        def __getitem__(self, key: Any) -> Any:
            row = {"translation": {"en": "dog", "fr": "chien"}}
            return row if isinstance(key, int) else [row[key]]

    calls = []

    def load_dataset(name: str, config: str, split: str) -> Rows:
        calls.append((name, config, split))
        return Rows([0])

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    pairs = read_pairs("owner/opus:en-fr", FileOptions(split="test"))
    assert (both(pairs), calls) == ([("dog", "chien")], [("owner/opus", "en-fr", "test")])


@pytest.mark.parametrize(
    ("name", "content", "listed"),
    [
        ("a.jsonl", '{"a": "1", "b": "2", "c": "3"}', "a, b, c"),
        ("a.jsonl", '{"a": "1"}', "a"),
        ("a.tsv", "en\tde\tfr\n1\t2\t3\n", "en, de, fr"),
    ],
)
def test_columns_that_cannot_be_guessed_are_listed(tmp_path: Path, name: str, content: str, listed: str) -> None:
    assert f"has the columns {listed}; say which two" in complaint(put(tmp_path, name, content))


def test_a_row_of_one_column_is_numbered(tmp_path: Path) -> None:
    source = put(tmp_path, "a.tsv", "a\tb\nc d\ne\tf\n")
    assert f"{source}, row 2 (line 2): 1 field, so there is no column 2" in complaint(source)


def test_a_value_that_is_no_text_is_named(tmp_path: Path) -> None:
    source = put(tmp_path, "a.jsonl", rows_of({"en": "a", "de": "b"}, {"en": "a", "de": 3}))
    assert f"{source}, line 2: 'de' is int, not text" in complaint(source)


def test_half_a_surrogate_pair_is_named_with_its_line(tmp_path: Path) -> None:
    source = put(tmp_path, "a.jsonl", '{"en": "a", "de": "b"}\n{"en": "a", "de": "b\\ud800"}')
    assert f"{source}, line 2: half a surrogate pair at character 1" in complaint(source)


def test_a_table_without_rows_holds_no_pairs(tmp_path: Path) -> None:
    assert "holds no pairs" in complaint(put(tmp_path, "a.csv", "en,de\n"))


@pytest.mark.parametrize("columns", [["en"], ["en", "de", "fr"], []])
def test_a_pair_has_two_columns(tmp_path: Path, columns: list[str]) -> None:
    assert f"data.columns names {len(columns)} of them" in complaint(put(tmp_path, "a.csv", "en\n"), columns=columns)
