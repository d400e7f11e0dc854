"""Reading text: every kind of source, and one clear line for everything that can be wrong with it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from legato.data.formats.text import Text, hold_out, read_text
from legato.data.sources.files import FileOptions, resolve_path
from legato.errors import DataError


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


def complaint(source: str, column: str | None = None, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_text(source, FileOptions(**settings), column=column)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- what can be read ------------------------------------------------------------------------------


def test_a_plain_file_is_one_document(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.txt", "one\ntwo\n")).documents == ["one\ntwo\n"]


def test_an_unknown_suffix_is_plain_text(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "wiki.train.tokens", "a b")).documents == ["a b"]


def test_a_gzip_reads_like_what_it_holds(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.txt.gz", "héllo\n")).documents == ["héllo\n"]
    assert read_text(put(tmp_path, "a.jsonl.gz", '{"text": "x"}\n')).documents == ["x"]


def test_windows_and_old_mac_newlines_become_newlines(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.txt", b"a\r\nb\rc\n")).documents == ["a\nb\nc\n"]


def test_newlines_inside_a_column_are_unified_too(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.jsonl", json.dumps({"text": "a\r\nb"}))).documents == ["a\nb"]


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.txt", b"\xef\xbb\xbfabc")).documents == ["abc"]


def test_a_byte_order_mark_does_not_hide_a_column(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.csv", b"\xef\xbb\xbftext,n\nabc,1\n")).documents == ["abc"]


def test_another_encoding_can_be_asked_for(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.txt", b"caf\xe9"), FileOptions(encoding="latin-1")).documents == ["café"]
    assert read_text(put(tmp_path, "b.txt", "café".encode("utf-16")), FileOptions(encoding="utf-16")).documents == [
        "café"
    ]


def test_a_csv_column_gives_a_document_per_row(tmp_path: Path) -> None:
    source = put(tmp_path, "a.csv", 'id,body\n1,"a, ""b""\nc"\n2,d\n')
    assert read_text(source, column="body").documents == ['a, "b"\nc', "d"]


def test_a_csv_field_may_be_long(tmp_path: Path) -> None:
    source = put(tmp_path, "a.csv", "text\n" + "x" * 200_000 + "\n")
    assert len(read_text(source).documents[0]) == 200_000


def test_a_quotation_mark_in_a_tsv_is_a_character(tmp_path: Path) -> None:
    source = put(tmp_path, "a.tsv", 'label\ttext\n1\t"a\n0\tb\n')
    assert read_text(source).documents == ['"a', "b"]


def test_the_only_column_needs_no_name(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.jsonl", '{"body": "x"}\n\n{"body": "y"}\n')).documents == ["x", "y"]


def test_a_parquet_column_is_read(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "n": [1, 2]}), tmp_path / "a.parquet")
    assert read_text(str(tmp_path / "a.parquet")).documents == ["a", "b"]


def test_the_builtin_corpus_has_three_different_parts() -> None:
    parts = {read_text("builtin:stdlib", FileOptions(split=split)).sha256 for split in ("train", "valid", "test")}
    assert len(parts) == 3


def test_a_relative_name_lies_under_the_root(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "here")
    assert read_text("a.txt", FileOptions(root=str(tmp_path))).documents == ["here"]
    assert resolve_path("/x/a.txt", "/root") == Path("/x/a.txt")


def test_plain_tables_are_read_without_heavy_imports(tmp_path: Path) -> None:
    sources = [
        put(tmp_path, "a.txt", "x"),
        put(tmp_path, "a.csv", "text\nx\n"),
        put(tmp_path, "a.tsv", "text\nx\n"),
        put(tmp_path, "a.jsonl", '{"text": "x"}'),
    ]
    script = (
        "import sys; from legato.data.formats.text import read_text\n"
        f"for source in {sources!r}: read_text(source)\n"
        "print([name for name in ('datasets', 'pandas', 'pyarrow', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- what is counted -------------------------------------------------------------------------------


def test_bytes_are_counted_in_utf8() -> None:
    assert Text("x", ["é", "a"], "").bytes == 3


def test_newlines_count_as_words() -> None:
    assert Text("x", [" a b \n c \n", "d"], "").words == 6


def test_the_hash_depends_on_where_documents_end(tmp_path: Path) -> None:
    one = read_text(put(tmp_path, "a.csv", "text\nab\nc\n"))
    two = read_text(put(tmp_path, "b.csv", "text\na\nbc\n"))
    assert one.sha256 != two.sha256


def test_the_hash_does_not_depend_on_the_name(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.txt", "x")).sha256 == read_text(put(tmp_path, "b.txt", "x")).sha256


# --- what is wrong with it -------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = complaint("missing.txt", root=str(tmp_path))
    assert f"there is no file {tmp_path}/missing.txt" in message


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "is a folder" in complaint(str(tmp_path))


@pytest.mark.parametrize("content", ["", " \n\t\n", "\ufeff"])
def test_an_empty_file_is_refused(tmp_path: Path, content: str) -> None:
    assert "is empty" in complaint(put(tmp_path, "a.txt", content))


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    assert "is empty" in complaint(put(tmp_path, "a.csv", "text\n"))


def test_a_binary_file_is_named_with_its_offset(tmp_path: Path) -> None:
    assert "zero byte at offset 4" in complaint(put(tmp_path, "a.txt", b"\x7fELF\0\1"))


def test_utf16_is_recognised_by_its_mark(tmp_path: Path) -> None:
    assert "data.encoding=utf-16" in complaint(put(tmp_path, "a.txt", "hello".encode("utf-16")))


def test_a_wrong_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    message = complaint(put(tmp_path, "a.txt", b"one\ntwo\ncaf\xe9\n"))
    assert "line 3" in message
    assert "offset 11" in message
    assert "data.encoding=latin-1" in message


@pytest.mark.parametrize("encoding", ["utf-nine", "hex"])
def test_an_encoding_that_is_none_is_named(tmp_path: Path, encoding: str) -> None:
    assert f"'{encoding}'" in complaint(put(tmp_path, "a.txt", "x"), encoding=encoding)


def test_a_line_beyond_the_limit_is_named_with_its_length(tmp_path: Path) -> None:
    source = put(tmp_path, "a.txt", "ab\n" * 10 + "x" * 101 + "\nab\n")
    message = complaint(source, max_line=100)
    assert "line 11: 101 characters" in message
    assert "data.max_line=0" in message


def test_a_last_line_beyond_the_limit_is_found(tmp_path: Path) -> None:
    assert "line 2: 101 characters" in complaint(put(tmp_path, "a.txt", "a\n" + "x" * 101), max_line=100)


def test_a_line_at_the_limit_is_accepted(tmp_path: Path) -> None:
    text = ("x" * 100 + "\n") * 3 + "y" * 100
    assert read_text(put(tmp_path, "a.txt", text), FileOptions(max_line=100)).documents == [text]


def test_no_limit_accepts_any_line(tmp_path: Path) -> None:
    assert read_text(put(tmp_path, "a.txt", "x" * 101), FileOptions(max_line=0)).bytes == 101


def test_a_line_of_a_hundred_megabytes_is_refused(tmp_path: Path) -> None:
    source = put(tmp_path, "a.txt", b"x" * 100_000_000)
    assert "line 1: 100000000 characters" in complaint(source)


def test_a_truncated_gzip_is_named(tmp_path: Path) -> None:
    source = put(tmp_path, "a.txt.gz", "some text" * 100)
    Path(source).write_bytes(Path(source).read_bytes()[:-12])
    assert "is truncated" in complaint(source)


def test_what_is_no_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_text("plain")
    assert "is not a gzip file" in complaint(str(path))


def test_a_damaged_gzip_is_named(tmp_path: Path) -> None:
    source = put(tmp_path, "a.txt.gz", bytes(range(1, 200)))
    data = bytearray(Path(source).read_bytes())
    data[40] ^= 0xFF
    Path(source).write_bytes(data)
    assert "damaged" in complaint(source)


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise PermissionError(13, "Permission denied")

    source = put(tmp_path, "a.txt", "x")
    monkeypatch.setattr(os, "open", refuse)
    assert f"{source} may not be read" in complaint(source)


def test_a_file_that_fails_while_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    source = put(tmp_path, "a.txt", "x")
    monkeypatch.setattr(os, "open", fail)
    assert "Input/output error" in complaint(source)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_row_without_the_column_is_numbered(tmp_path: Path, name: str) -> None:
    comma = "," if name == "a.csv" else "\t"
    source = put(tmp_path, name, f"n{comma}text\n1{comma}a\n2\n")
    assert "row 2 (line 3): 1 of 2 fields" in complaint(source)


def test_an_open_quotation_in_a_csv_is_named(tmp_path: Path) -> None:
    assert "quotation mark" in complaint(put(tmp_path, "a.csv", 'text\na\n"b\nc\n'))


def test_columns_are_listed_when_none_is_the_text(tmp_path: Path) -> None:
    assert "the columns first, second" in complaint(put(tmp_path, "a.csv", "first,second\n1,2\n"))


def test_a_misspelt_column_gets_a_suggestion(tmp_path: Path) -> None:
    source = put(tmp_path, "a.csv", "review,label\nx,1\n")
    assert "did you mean 'review'?" in complaint(source, column="reveiw")


def test_a_bad_json_line_is_numbered(tmp_path: Path) -> None:
    assert "line 2: not JSON" in complaint(put(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": \n'))


def test_a_json_line_that_is_no_object_is_numbered(tmp_path: Path) -> None:
    assert "line 1: not a JSON object" in complaint(put(tmp_path, "a.json", '"a"\n'))
    assert "row 1: not a JSON object" in complaint(put(tmp_path, "b.json", '["a"]\n'))


def test_a_json_line_without_the_column_is_numbered(tmp_path: Path) -> None:
    assert "line 2: there is no 'text'" in complaint(put(tmp_path, "a.jsonl", '{"text": "a"}\n{"txt": "b"}'))


def test_a_json_value_that_is_no_text_is_named(tmp_path: Path) -> None:
    assert "line 1: 'text' is int, not text" in complaint(put(tmp_path, "a.jsonl", '{"text": 3}'))


def test_half_a_surrogate_pair_is_named(tmp_path: Path) -> None:
    assert "surrogate" in complaint(put(tmp_path, "a.jsonl", '{"text": "a\\ud800"}'))


def test_a_parquet_that_is_none_is_named(tmp_path: Path) -> None:
    assert "is not a parquet file" in complaint(put(tmp_path, "a.parquet", "text"))


def test_an_unknown_builtin_gets_a_suggestion() -> None:
    assert "did you mean 'builtin:stdlib'?" in complaint("builtin:stdlb")


# --- the hub, of which only our side is here -------------------------------------------------------


class Rows:
    column_names = ("text", "label")
    features = types.SimpleNamespace(to_dict=dict)

    def __getitem__(self, column: str) -> list[str]:
        return ["from", "the hub"]


def stand_in(monkeypatch: pytest.MonkeyPatch, splits: tuple[str, ...]) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, split: str) -> Rows:
        calls.append((name, config, split))
        if not splits:
            raise ConnectionError("no route\nto host")
        if split not in splits:
            raise ValueError(f"Unknown split {split!r}")
        return Rows()

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_a_name_that_is_no_file_is_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stand_in(monkeypatch, ("train",))
    assert read_text("owner/name:small").documents == ["from", "the hub"]
    assert calls == [("owner/name", "small", "train")]


def test_the_hub_may_name_its_validation_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stand_in(monkeypatch, ("dev",))
    read_text("hub:name", FileOptions(split="valid"))
    assert [split for _, _, split in calls] == ["validation", "valid", "dev"]


def test_a_hub_that_does_not_answer_is_said_beside_the_missing_file(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, ())
    message = complaint("owner/name", root="/nowhere")
    assert "there is no file /nowhere/owner/name" in message
    assert "the hub did not give a dataset 'owner/name' (no route)" in message


def test_a_missing_text_file_is_not_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stand_in(monkeypatch, ("train",))
    complaint("data/train.txt")
    assert calls == []


def test_a_name_that_cannot_be_on_the_hub_is_refused() -> None:
    assert "not a name on the hub" in complaint("hub:a b/c")


# --- holding out -----------------------------------------------------------------------------------


def parts_of(text: Text, share: float) -> tuple[Text, Text]:
    parts = hold_out(text, share)
    return parts["train"], parts["valid"]


def text_of(*documents: str) -> Text:
    return Text("a.txt", list(documents), "")


def test_the_end_of_a_document_is_held_out() -> None:
    kept, held = parts_of(text_of("0123456789"), 0.2)
    assert (kept.documents, held.documents) == (["01234567"], ["89"])


def test_the_last_rows_are_held_out_whole() -> None:
    kept, held = parts_of(text_of(*"abcdefghij"), 0.3)
    assert (kept.documents, held.documents) == (list("abcdefg"), list("hij"))


@given(
    documents=st.lists(st.text("ab \n", min_size=1, max_size=30), min_size=1, max_size=20),
    share=st.floats(0.01, 0.99),
)
def test_holding_out_loses_nothing(documents: list[str], share: float) -> None:
    assume(len("".join(documents)) > 1)
    kept, held = parts_of(text_of(*documents), share)
    assert "".join(kept.documents + held.documents) == "".join(documents)


@given(count=st.integers(2, 30), share=st.floats(0.001, 0.999))
def test_of_several_rows_each_part_gets_at_least_one(count: int, share: float) -> None:
    kept, held = parts_of(text_of(*["row"] * count), share)
    assert kept.documents
    assert held.documents


@given(size=st.integers(2, 200), share=st.floats(0.001, 0.999))
def test_of_one_document_each_part_gets_a_character(size: int, share: float) -> None:
    kept, held = parts_of(text_of("x" * size), share)
    assert kept.documents[0]
    assert held.documents[0]


def test_of_a_single_character_nothing_can_be_held_out() -> None:
    with pytest.raises(DataError, match=r"a\.txt has one character, too few to hold any out; give data\.valid"):
        hold_out(text_of("x"), 0.1)


def test_the_parts_say_what_they_are_part_of() -> None:
    kept, held = parts_of(text_of("0123456789"), 0.1)
    assert (kept.source, held.source) == ("the first 90% of a.txt", "the last 10% of a.txt")


def test_the_parts_have_hashes_of_their_own() -> None:
    whole = read_text("builtin:stdlib", FileOptions(split="valid"))
    assert len({whole.sha256, *(part.sha256 for part in parts_of(whole, 0.5))}) == 3
