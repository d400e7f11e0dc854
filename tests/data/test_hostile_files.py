"""Files that never end, or become far more than they are: refused in one line, before memory is full."""

from __future__ import annotations

import glob
import gzip
import io
import os
import socket
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legato import input_files, memory
from legato.cli.lines import Lines
from legato.data.formats.text import read_text
from legato.data.formats.trees import read_trees
from legato.data.formats.vector_files import read_vectors
from legato.data.sources import files
from legato.data.sources.files import FileOptions
from legato.data.sources.patterns import matches, matching_files
from legato.data.sources.tables import read_table
from legato.data.text.tokenizers import Tokenizer
from legato.errors import DataError

ZEROS = b"a" * (1 << 25)
TREE = b"(S (NP (DT the) (NN cat)) (VP (VBD sat)))\n"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SMALL", 1 << 20)


def refused(work: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


READERS: dict[str, Callable[[str], Any]] = {
    "text": read_text,
    "trees": read_trees,
    "table": lambda path: read_table(path, ["text"], FileOptions(format="csv")),
    "parquet": lambda path: read_table(path, ["text"], FileOptions(format="parquet")),
    "vectors": lambda path: read_vectors(Path(path), ["a"]),
    "lines": lambda path: list(Lines(path).blocks(4)),
}


# --- what never ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_that_nobody_writes_to_is_not_waited_for(reader: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    assert f"{tmp_path / 'data'} is a pipe" in refused(lambda: READERS[reader](str(tmp_path / "data")))


@pytest.mark.parametrize("suffix", [".gz", ".zip"])
def test_nor_is_a_pipe_of_something_packed(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"data{suffix}")
    assert "is a pipe" in refused(lambda: read_trees(str(tmp_path / f"data{suffix}")))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no such device")
@pytest.mark.parametrize("reader", READERS)
def test_a_device_that_never_ends_is_not_read(reader: str) -> None:
    assert "/dev/zero is a device" in refused(lambda: READERS[reader]("/dev/zero"))


@pytest.mark.parametrize("reader", READERS)
def test_a_socket_is_no_file(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its name must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("data")
        refused(lambda: READERS[reader]("data"))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no such device")
def test_a_tokenizer_is_no_device() -> None:
    refused(lambda: Tokenizer.load(Path("/dev/zero")))


def test_a_line_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("legato.cli.lines.LONGEST", 1000)
    (tmp_path / "a.txt").write_bytes(b"short\n" + b"x" * 5000)
    given: list[str] = []

    def read() -> None:
        for block in Lines(str(tmp_path / "a.txt")).blocks(8):
            given.extend(block)

    assert "line 2: more than 1,000 bytes in one line" in refused(read)
    assert given == ["short"]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_line_of_vectors_that_never_ends_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("legato.data.formats.vector_files.LONGEST", 1000)
    content = b"word 0.5\n" + b"x" * 5000
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert "line 2: more than 1,000 bytes in one line" in refused(lambda: read_vectors(tmp_path / name, ["word"]))


def test_no_more_memory_is_asked_for_than_a_file_has_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []

    class Asked(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().read(size)

    (tmp_path / "a.json").write_bytes(b"{}")
    monkeypatch.setattr(input_files, "open_file", lambda path, error: Asked(io.FileIO(path)))
    assert input_files.read_bytes(tmp_path / "a.json", 1 << 28) == b"{}"
    assert asked == [3]


@pytest.mark.parametrize("reader", ["text", "trees", "table", "parquet"])
def test_a_file_larger_than_memory_is_not_read(reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "data").open("wb") as file:
        file.truncate(1 << 40)  # it takes nothing on disk
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    assert "takes 1.1 TB of memory, and 1 GB is available" in refused(lambda: READERS[reader](str(tmp_path / "data")))


# --- what becomes far more than it is ---------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["text", "table", "trees", "vectors"])
def test_a_gzip_of_one_letter_is_refused(reader: str, tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(ZEROS))
    said = refused(lambda: READERS[reader](str(tmp_path / "a.gz")))
    assert "when it is unpacked, which no text does" in said or "bytes in one line" in said


@pytest.mark.slow
def test_a_gzip_of_lines_of_vectors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"word 0.5 0.5\n" * (1 << 21)))
    assert "becomes more than" in refused(lambda: read_vectors(tmp_path / "a.gz", ["word"]))


def test_a_zip_of_one_letter_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.mrg", ZEROS)
    assert "which no text does" in refused(lambda: read_trees(str(tmp_path / "a.zip")))


def test_a_zip_is_refused_before_anything_in_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.mrg", TREE)
        archive.writestr("b.mrg", ZEROS)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    assert "which no text does" in refused(lambda: read_trees(str(tmp_path / "a.zip")))


def _peak(work: Callable[[], Any]) -> int:
    """Bytes that are held at most while something is done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_gzip_is_refused_without_holding_what_it_becomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HELD", 1 << 22)
    path = tmp_path / "a.gz"
    with path.open("wb") as file:  # texts of a ratio just above what is allowed
        for _ in range(32):
            file.write(gzip.compress(b"a" * (1 << 20)) + gzip.compress(os.urandom(3700)))
    limit = (1 << 20) + files.RATIO * path.stat().st_size
    assert (1 << 24) < limit < 32 * (1 << 20)
    assert _peak(lambda: refused(lambda: read_text(str(path)))) < limit // 2


def test_a_gzip_is_given_up_on_long_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HELD", 1 << 20)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a" * (1 << 24)) + os.urandom(1 << 20))  # which is never reached
    assert "becomes more than" in refused(lambda: read_text(str(tmp_path / "a.gz")))


def test_a_large_text_is_counted_and_then_unpacked_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "HELD", 1000)
    monkeypatch.setattr(files, "BLOCK", 300)
    text = "".join(f"line {number} of a text that is like no other\n" for number in range(5000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text[:9].encode()) + gzip.compress(text[9:].encode()) + b"\0\0")
    assert read_text(str(tmp_path / "a.txt.gz")).documents == [text]


def test_a_zip_of_many_small_ones_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(40):
            archive.writestr(f"{number}.mrg", TREE * (1 << 14))
    assert "which no text does" in refused(lambda: read_trees(str(tmp_path / "a.zip")))


def test_what_memory_does_not_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(os.urandom(1 << 16)))
    monkeypatch.setattr(memory, "available", lambda: 1 << 17)
    read = files.gunzip(tmp_path / "a.gz", (tmp_path / "a.gz").open("rb"), 1 << 16)
    assert len(read) == 1 << 16
    monkeypatch.setattr(memory, "available", lambda: 1 << 15)
    refused(lambda: files.gunzip(tmp_path / "a.gz", (tmp_path / "a.gz").open("rb"), 1 << 16))


def test_ordinary_texts_are_unpacked_as_before(tmp_path: Path) -> None:
    text = "".join(f"line {number} of a text that is like no other\n" for number in range(5000))
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text[:9].encode()) + gzip.compress(text[9:].encode()) + b"\0\0")
    assert read_text(str(tmp_path / "a.txt.gz")).documents == [text]


def parquet(path: Path, encoding: str | None = None, leaf: str = "text", **columns: Any) -> str:
    import pyarrow
    import pyarrow.parquet

    packed = io.BytesIO()
    how: dict[str, Any] = {} if encoding is None else {"use_dictionary": False, "column_encoding": {leaf: encoding}}
    how |= {} if encoding is None else {"compression": "zstd", "write_statistics": False}
    pyarrow.parquet.write_table(pyarrow.table(columns), packed, store_schema=False, **how)
    path.write_bytes(packed.getvalue())
    return str(path)


@pytest.mark.parametrize("rows", [None, 500], ids=["alone", "in messages"])
def test_a_parquet_file_whose_one_text_is_named_often_is_refused(rows: int | None, tmp_path: Path) -> None:
    import numpy
    import pyarrow

    texts = pyarrow.DictionaryArray.from_arrays(numpy.zeros(20_000, dtype=numpy.int32), ["x" * 500_000])
    column: Any = texts
    if rows is not None:
        messages = pyarrow.StructArray.from_arrays([texts], ["content"])
        column = pyarrow.ListArray.from_arrays(numpy.arange(0, 20_001, 20_000 // rows, dtype=numpy.int32), messages)
    path = parquet(tmp_path / "a.parquet", text=column)
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    assert "which no text does" in refused(lambda: read_table(path, ["text"]))


@pytest.mark.slow
def test_a_parquet_file_of_very_many_rows_of_nothing_is_refused(tmp_path: Path) -> None:
    import pyarrow

    zeros = pyarrow.array(bytearray(1 << 25), type=pyarrow.uint8())
    path = parquet(tmp_path / "a.parquet", n=zeros)
    assert "which no text does" in refused(lambda: read_table(path, ["n"]))


def test_an_ordinary_parquet_file_is_read_as_before(tmp_path: Path) -> None:
    import pyarrow

    columns: dict[str, Any] = {
        "text": ["a", None, "b", "a", ""],
        "label": [1, 2, None, 1, 0],
        "messages": [[{"role": "user", "content": "x"}], [], None, [{"role": None, "content": "y"}], []],
        "tags": [["O", "B"], [], None, ["O", None], ["O"]],
        "nested": [
            {"en": "a", "de": {"x": ["b"]}},
            None,
            {"en": None, "de": None},
            {"en": "c", "de": {"x": []}},
            None,
        ],
        "kind": pyarrow.array(["u", "v", None, "u", "u"]).dictionary_encode(),
        "large": pyarrow.array(["u", "v", None, "u", "u"], type=pyarrow.large_string()),
    }
    path = parquet(tmp_path / "a.parquet", **columns)
    table = read_table(path, list(columns))
    expected = [column if isinstance(column, list) else column.to_pylist() for column in columns.values()]
    assert table.columns == expected


DELTA = ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"]


@pytest.mark.parametrize("encoding", DELTA)
@pytest.mark.parametrize("rows", [1 << 16, 2], ids=["at once", "by and by"])
def test_texts_that_are_written_as_differences_are_read(
    encoding: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.data.sources.parquet.ROWS", rows)
    texts = ["a text", "a text that goes on", None, "", "another é"]
    path = parquet(tmp_path / "a.parquet", encoding, text=texts, label=[1, 2, 3, 4, None])
    assert read_table(path, ["text", "label"]).columns == [texts, [1, 2, 3, 4, None]]
    tags = [["O", "B"], [], None, ["O", None], ["O"]]
    path = parquet(tmp_path / "b.parquet", encoding, "text.list.element", text=tags)
    assert read_table(path, ["text"]).columns == [tags]


@pytest.mark.slow
def test_a_long_text_that_differences_repeat_is_refused_while_it_is_read(tmp_path: Path) -> None:
    import pyarrow

    path = parquet(tmp_path / "a.parquet", "DELTA_BYTE_ARRAY", text=["x" * 100_000] * 6000)
    assert (tmp_path / "a.parquet").stat().st_size < 1000
    before = pyarrow.total_allocated_bytes()
    assert "which no text does" in refused(lambda: read_table(path, ["text"]))
    assert pyarrow.total_allocated_bytes() - before < 1 << 28


# --- patterns ------------------------------------------------------------------------------------------


def test_a_pattern_of_many_stars_is_matched_at_once() -> None:
    parts = ["a"] * 60
    assert not matches(parts, ["**", "a"] * 25 + ["b"])
    assert matches(parts, ["**", "a"] * 25)
    assert matches(parts, ["**"] * 50)


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("a/b.mrg", "**/*.mrg", True),
        ("b.mrg", "**/*.mrg", True),
        ("a/b.mrg", "*.mrg", False),
        ("a/b/c", "a/**", True),
        ("a", "a/**", True),
        ("a/b/c", "**/b", False),
        ("", "**", True),
        ("a/b/a/c", "**/a/c", True),
    ],
)
def test_stars_stand_for_what_they_did(name: str, pattern: str, expected: bool) -> None:
    assert matches(name.split("/"), pattern.split("/")) is expected


def nested(folder: Path, depth: int) -> Path:
    """The innermost of folders within each other, with a tree in it."""
    innermost = folder.joinpath(*["a"] * depth)
    innermost.mkdir(parents=True)
    (innermost / "x.txt").write_bytes(TREE)
    return innermost


@pytest.mark.parametrize("pattern", ["**/" * 14 + "*.txt", "**/*/" * 6 + "*.txt", "**/a/**/" * 5 + "*.txt"])
def test_a_pattern_of_many_stars_for_files_lists_each_folder_a_few_times(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nested(tmp_path, 18)
    assert len(read_trees(str(tmp_path / pattern)).trees) == 1
    listed: list[str] = []
    real_scan, real_list = os.scandir, os.listdir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(str(path)) or real_scan(path))
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(str(path)) or real_list(path))
    read_trees(str(tmp_path / pattern))
    assert 18 <= len(listed) <= 40


@pytest.mark.parametrize(
    "pattern",
    [
        *("*", "*.txt", "**", "**/*", "**/*.txt", "a/*", "a/**", "*/a/*.txt", "a/[xy].txt", "**/a/**/x.txt", ".h/*"),
        *("**/.*", "*/link/*", "?/*", "[!a]/**", "none/*"),
    ],
)
def test_a_pattern_finds_the_files_that_the_standard_library_finds(pattern: str, tmp_path: Path) -> None:
    for name in ("x.txt", "a/x.txt", "a/a/x.txt", "a/b/y.txt", "b/x.txt", "b/.x.txt", ".h/x.txt", "a/.h/z.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(TREE)
    (tmp_path / "elsewhere.d").mkdir()
    (tmp_path / "elsewhere.d" / "l.txt").write_bytes(TREE)
    (tmp_path / "b" / "link").symlink_to(tmp_path / "elsewhere.d")
    expected = {Path(found) for found in glob.glob(str(tmp_path / pattern), recursive=True) if Path(found).is_file()}
    found = {file.resolve() for file in matching_files(tmp_path / pattern)}
    assert found == {file.resolve() for file in expected}


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    folder = nested(tmp_path, 2)
    for name in ("one", "two", "three"):
        (folder / name).symlink_to(tmp_path)
    assert {file.resolve() for file in matching_files(tmp_path / "**" / "*.txt")} == {folder / "x.txt"}
