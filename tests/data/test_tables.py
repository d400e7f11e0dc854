"""Reading columns: several at once, from every kind of table, and one clear line for what is wrong."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.data.sources.files import FileOptions
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import kind_of, read_table
from legato.errors import DataError

ROWS = [{"text": "good", "label": 1, "pair": {"en": "a", "de": "b"}}, {"text": "bad", "label": 0, "pair": None}]


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


def put_rows(folder: Path, kind: str) -> str:
    if kind == "jsonl":
        return put(folder, "a.jsonl", "\n".join(map(json.dumps, ROWS)))
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "a.parquet")
    return str(folder / "a.parquet")


def complaint(source: str, columns: Sequence[Column], **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_table(source, columns, FileOptions(**settings)).texts(0)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what can be read ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t"), ("a.tsv.gz", "\t")])
def test_columns_come_in_the_order_they_are_asked_for(tmp_path: Path, name: str, mark: str) -> None:
    source = put(tmp_path, name, "n,text,label\n1,x,a\n2,y,b\n".replace(",", mark))
    assert read_table(source, ["label", "text"]).columns == [["a", "b"], ["x", "y"]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_values_keep_their_types_where_a_format_has_types(tmp_path: Path, kind: str) -> None:
    assert read_table(put_rows(tmp_path, kind), ["text", "label"]).columns == [["good", "bad"], [1, 0]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_dot_leads_into_an_object(tmp_path: Path, kind: str) -> None:
    assert read_table(put_rows(tmp_path, kind), ["pair.de", "pair.en"]).columns == [["b", None], ["a", None]]


def test_a_name_with_a_dot_comes_before_an_object(tmp_path: Path) -> None:
    source = put(tmp_path, "a.jsonl", '{"a.b": "whole", "a": {"b": "inside"}}')
    assert read_table(source, ["a.b"]).columns == [["whole"]]


def test_numbers_mean_that_there_is_no_header(tmp_path: Path) -> None:
    table = read_table(put(tmp_path, "a.tsv", "a\tb\tc\nd\te\tf\n"), [3, 1])
    assert (table.columns, table.header) == ([["c", "f"], ["a", "d"]], False)


def test_a_number_beside_a_name_counts_the_columns_under_the_header(tmp_path: Path) -> None:
    assert read_table(put(tmp_path, "a.csv", "x,y\n1,2\n"), ["y", 1]).columns == [["2"], ["1"]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_number_counts_the_columns_of_a_table_with_names(tmp_path: Path, kind: str) -> None:
    assert read_table(put_rows(tmp_path, kind), [1]).columns == [["good", "bad"]]


def test_the_format_may_be_said_where_the_ending_does_not(tmp_path: Path) -> None:
    assert read_table(put(tmp_path, "deu.txt.gz", "a\tb\n"), [2], FileOptions(format="tsv")).columns == [["b"]]


def test_extra_fields_are_fine(tmp_path: Path) -> None:
    assert read_table(put(tmp_path, "a.tsv", "a\tb\nc\td\te\tf\n"), [1, 2]).columns == [["a", "c"], ["b", "d"]]


def test_the_columns_may_be_chosen_by_what_there_is(tmp_path: Path) -> None:
    source = put(tmp_path, "a.csv", "one,two\n1,2\n")

    def last(head: Head) -> list[Column]:
        assert head.kind == "csv"
        return [head.names[-1]]

    assert read_table(source, last).columns == [["2"]]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_who_chooses_may_look_at_the_first_row(tmp_path: Path, kind: str) -> None:
    def texts(head: Head) -> list[Column]:
        return [name for name in head.names if isinstance(head.first()[name], str)]

    assert read_table(put_rows(tmp_path, kind), texts).names == ["text"]


def test_a_row_is_told_by_the_line_it_begins_at(tmp_path: Path) -> None:
    table = read_table(put(tmp_path, "a.csv", 'text\n"two\nlines"\n\nnext\n'), ["text"])
    assert (table.columns, table.lines) == ([["two\nlines", "next"]], [2, 5])


def test_blank_lines_of_json_are_counted(tmp_path: Path) -> None:
    assert read_table(put(tmp_path, "a.jsonl", '\n{"a": 1}\n\n{"a": 2}'), ["a"]).lines == [2, 4]


def test_an_array_of_objects_is_a_table(tmp_path: Path) -> None:
    rows = [{"a": "x\u2028,]", "b": [1]}, {"b": [], "a": "[", "c": None}]
    for number, text in enumerate((json.dumps(rows), "\n " + json.dumps(rows, indent=2) + "\n")):
        (tmp_path / f"{number}.json").write_text(text)
        table = read_table(str(tmp_path / f"{number}.json"), ["a", "b"])
        assert table.columns == [["x\u2028,]", "["], [[1], []]]
        assert table.where(1).endswith("json, row 2")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[]", "is empty"),
        ('[{"a": 1}, 2]', "row 2: not a JSON object; write one per row"),
        ('[{"a": 1}, {"a": ]', "row 2: not JSON"),
        ('[{"a": 1},]', "row 2: not JSON"),
        ('[{"a": 1} {"a": 2}]', "the array ends without ] behind row 1"),
        ('[{"a": 1}', "the array ends without ] behind row 1"),
        ('[{"a": 1}] x', "something stands behind the array"),
        ("[", "row 1: not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_an_array_that_will_not_do_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=re.escape(line)) as refused:
        read_table(str(tmp_path / "a.json"), ["a"])
    assert "\n" not in str(refused.value)


def test_a_row_of_parquet_is_told_by_its_number(tmp_path: Path) -> None:
    table = read_table(put_rows(tmp_path, "parquet"), ["text"])
    assert table.where(1) == f"{tmp_path}/a.parquet, row 2"


@given(st.lists(st.lists(st.text("ab \"'\u2028\x0b漢", min_size=1), min_size=2, max_size=2), min_size=1))
def test_every_character_but_tab_and_newline_survives_a_tsv(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    rows = [*rows, ['a lone "', "shows that nothing is quoted"]]
    source = put(tmp_path_factory.getbasetemp(), "any.tsv", "".join("\t".join(row) + "\n" for row in rows))
    assert read_table(source, [1, 2]).columns == [[row[0] for row in rows], [row[1] for row in rows]]


def test_a_tsv_that_is_quoted_as_a_csv_is_read_so(tmp_path: Path) -> None:
    content = 'text\tlabel\n"he said ""no"" twice"\ta\nplain\tb\n"two\nlines"\tc\n"a\ttab"\td\n'
    table = read_table(put(tmp_path, "a.tsv", content), ["text", "label"])
    assert table.columns == [['he said "no" twice', "plain", "two\nlines", "a\ttab"], ["a", "b", "c", "d"]]
    assert (table.lines, table.note) == ([2, 3, 4, 6], "its quotation marks read as a csv's")


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.text('ab "\t\n', min_size=1), st.text("ab", min_size=1)), min_size=1),
    st.sampled_from(["begin", "end"]),
)
def test_what_a_csv_writer_writes_with_tabs_comes_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], where: str
) -> None:
    sure = ('one "doubled" mark', "x")
    rows = [sure, *rows] if where == "begin" else [*rows, sure]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter="\t", lineterminator="\n").writerows(rows)
    source = put(tmp_path_factory.getbasetemp(), "quoted.tsv", out.getvalue())
    assert [*zip(*read_table(source, [1, 2]).columns, strict=True)] == rows


def test_lines_in_a_quoted_tsv_need_no_doubled_mark(tmp_path: Path) -> None:
    table = read_table(put(tmp_path, "a.tsv", 'text\tlabel\n"two\nlines"\ta\nb\tc\n'), ["text", "label"])
    assert (table.columns, table.lines) == ([["two\nlines", "b"], ["a", "c"]], [2, 4])


@pytest.mark.parametrize(
    "rows",
    [
        ['"a whole field"\t1', "b\t0"],  # nothing in it needs quoting
        ['"he said ""no"""\t1', 'a 5" disk\t0'],
        ['"he said ""no"""\t1', '"open\t0'],
        ['0\t"opens here', '1\tand ends here"'],  # even with quoting, and without it
        ['"opens here\t0', "b\t1", 'c\tand ends here"'],
        ['""quoted""\t1', "b\t0"],
    ],
)
def test_quotation_marks_that_may_be_characters_are_characters(tmp_path: Path, rows: list[str]) -> None:
    table = read_table(put(tmp_path, "a.tsv", "\n".join(rows)), [1, 2])
    assert [*zip(*table.columns, strict=True)] == [tuple(row.split("\t")) for row in rows]
    assert table.note == ""


def test_marks_many_lines_apart_are_characters(tmp_path: Path) -> None:
    """Together they would swallow the rows between them, and with those the one that is broken."""
    rows = "".join(f"text {n}\t{n % 2}\n" for n in range(5000))
    source = put(tmp_path, "a.tsv", f'"open\t0\n{rows}x\t1"\n')
    assert read_table(source, [1, 2]).columns[0][0] == '"open'
    source = put(tmp_path, "b.tsv", f'"open\t0\n{rows}broken\nends here"\t1\n')
    with pytest.raises(DataError, match=r"line 5002\): 1 field, so there is no column 2"):
        read_table(source, [1, 2])


def test_a_csv_parted_by_semicolons_is_read_so(tmp_path: Path) -> None:
    content = 'text;label\ngood, very good;1\n"a; b";0,5\n\n"two\nlines";0\n'
    table = read_table(put(tmp_path, "a.csv", content), ["label", "text"])
    assert table.columns == [["1", "0,5", "0"], ["good, very good", "a; b", "two\nlines"]]
    assert (table.lines, table.note) == ([2, 3, 5], "its columns separated by semicolons")


@pytest.mark.parametrize("content", ["text;x,label\na;b,1\n", "text\na;b\nc;d\n", "a;b\nc\n"])
def test_semicolons_that_do_not_part_every_row_are_characters(tmp_path: Path, content: str) -> None:
    table = read_table(put(tmp_path, "a.csv", content), [1])
    assert table.columns == [[line.split(",")[0] for line in content.splitlines()]]
    assert table.note == ""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.csv", "csv"),
        ("a.TSV.gz", "tsv"),
        ("a.json", "jsonl"),
        ("a.ndjson", "jsonl"),
        ("a.en", "text"),
        ("a", "text"),
    ],
)
def test_a_file_is_what_its_ending_says(name: str, kind: str) -> None:
    assert kind_of(Path(name)) == kind


# --- what is wrong with it -------------------------------------------------------------------------


def test_a_missing_column_gets_a_suggestion(tmp_path: Path) -> None:
    assert "did you mean 'label'?" in complaint(put(tmp_path, "a.csv", "text,label\nx,1\n"), ["lable"])


def test_sentences_in_place_of_a_header_are_listed_briefly(tmp_path: Path) -> None:
    message = complaint(put(tmp_path, "a.tsv", "word " * 100 + "\tb\n"), ["text"])
    assert len(message) < 250
    assert "has no column 'text'" in message


def test_columns_are_counted_from_one(tmp_path: Path) -> None:
    assert "columns are counted from 1" in complaint(put(tmp_path, "a.tsv", "a\tb\n"), [0])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_number_beyond_the_names_lists_them(tmp_path: Path, kind: str) -> None:
    assert "the columns text, label, pair, so there is no column 4" in complaint(put_rows(tmp_path, kind), [4])


def test_a_short_row_is_numbered(tmp_path: Path) -> None:
    message = complaint(put(tmp_path, "a.tsv", "a\tb\n\nc\n"), [1, 2])
    assert f"{tmp_path}/a.tsv, row 3 (line 3): 1 field, so there is no column 2; complete" in message


def test_a_short_row_with_an_open_quotation_mark_says_that_it_holds_nothing_together(tmp_path: Path) -> None:
    source = put(tmp_path, "a.tsv", 'text\tlabel\na "b\tx\n"two\nlines"\ty\n')
    message = complaint(source, ["text", "label"])
    assert "row 2 (line 3): 1 of 2 fields, so there is no 'label'; complete or remove the row; quotation" in message
    assert message.endswith("quotation marks hold no field together in this tsv")
    assert message[-40:] in complaint(source, [1, 2])


def test_a_short_row_under_a_header_names_what_it_lacks(tmp_path: Path) -> None:
    message = complaint(put(tmp_path, "a.csv", "a,b,c\n1,2,3\n1\n"), ["c", "b"])
    assert "row 2 (line 3): 1 of 3 fields, so there is no 'c'" in message


def test_a_first_row_of_one_field_asks_what_parts_the_columns(tmp_path: Path) -> None:
    assert "row 1 (line 1): 1 field, so there is no column 2; are its columns separated by tabs?" in complaint(
        put(tmp_path, "a.tsv", "a,b\nc,d\n"), [1, 2]
    )


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_field_that_an_object_lacks_is_named_with_its_row(tmp_path: Path, kind: str) -> None:
    message = complaint(put_rows(tmp_path, kind), ["pair.dd"])
    assert f"{'line' if kind == 'jsonl' else 'row'} 1: there is no 'pair.dd'; did you mean 'pair.de'?" in message


def test_a_dot_into_what_is_no_object_is_named(tmp_path: Path) -> None:
    assert "line 1: there is no 'text.de'" in complaint(put_rows(tmp_path, "jsonl"), ["text.de"])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_value_that_is_no_text_is_named(tmp_path: Path, kind: str) -> None:
    message = complaint(put_rows(tmp_path, kind), ["label"])
    assert "1: 'label' is int, not text; set data.columns to one that is" in message


@pytest.mark.parametrize(("name", "content"), [("a.csv", "\n\n"), ("a.jsonl", " \n\n")])
def test_a_table_of_blank_lines_is_empty(tmp_path: Path, name: str, content: str) -> None:
    assert f"{tmp_path}/{name} is empty" in complaint(put(tmp_path, name, content), ["a"])


def test_an_object_without_fields_is_named(tmp_path: Path) -> None:
    assert "line 1 has no columns" in complaint(put(tmp_path, "a.jsonl", "{}\n"), ["a"])


def test_an_unknown_format_gets_a_suggestion(tmp_path: Path) -> None:
    assert "did you mean 'jsonl'?" in complaint(put(tmp_path, "a.txt", "x"), [1], format="json")


def test_a_plain_text_is_no_table(tmp_path: Path) -> None:
    assert "is one text without columns; give a table" in complaint(put(tmp_path, "a.txt", "x"), [1])


# --- the hub, of which only our side is here -------------------------------------------------------


class Hub:
    column_names = ("text", "label")
    features = types.SimpleNamespace(to_dict=dict)

    def __getitem__(self, key: Any) -> Any:
        return ROWS[key] if isinstance(key, int) else [row[key] for row in ROWS]

    def __len__(self) -> int:
        return len(ROWS)


def from_the_hub(monkeypatch: pytest.MonkeyPatch, columns: Any) -> Table:
    module = types.ModuleType("datasets")
    module.load_dataset = lambda name, config, split: Hub()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return read_table("owner/name", columns)


def test_columns_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = from_the_hub(monkeypatch, ["label", "text"])
    assert (table.columns, table.where(1)) == ([[1, 0], ["good", "bad"]], "owner/name, row 2")


def test_who_chooses_may_look_at_the_hubs_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_the_hub(monkeypatch, lambda head: [min(head.first())]).names == ["label"]


def test_a_stray_quote_is_looked_for_where_its_row_begins(tmp_path: Path) -> None:
    text = 'text,label\na,1\n"b,1\nc,0\nd "e",1\n'
    said = complaint(put(tmp_path, "a.csv", text), ["text", "label"])
    assert "line 5: " in said
    assert "in the row that begins at line 3; is a quotation mark missing?" in said
