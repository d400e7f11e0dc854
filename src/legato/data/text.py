"""Text from files, the built-in corpus and the hub.

Notable here:
- a plain file is one document; a column of csv, tsv, jsonl or parquet gives one document per row;
- everything but parquet is read with the standard library alone, so that an error can name its line
  and a plain text costs no import of `datasets`;
- tsv has no quoting (a lone `"` is a character, as corpora use it), csv has, and strictly;
- `\\r\\n` and `\\r` become `\\n` and a byte-order mark is dropped: the model never sees either.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from legato.data.corpora import CORPORA
from legato.errors import DataError, suggest

MAX_LINE = 10_000_000
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
# A missing file with one of these endings is a missing file; the hub is not asked for it.
FILE_SUFFIXES = (*TABLES, ".txt", ".text", ".gz", ".md", ".tokens", ".raw", ".yaml", ".zip")
HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>[\w.-]+))?")
HUB_SPLITS = {"valid": ("validation", "valid", "dev")}


@dataclass(frozen=True)
class Text:
    """Documents, where they came from, and the hash that names their content."""

    source: str
    documents: list[str]
    sha256: str

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes over all documents."""
        return sum(len(document.encode("utf-8")) for document in self.documents)

    @cached_property
    def words(self) -> int:
        """Words between white space, and newlines: what published word perplexities count."""
        return sum(len(document.split()) + document.count("\n") for document in self.documents)


def hold_out(text: Text, share: float) -> tuple[Text, Text]:
    """The text without its last `share`, and that share: of the rows, or of a single document's characters."""
    rows = text.documents if len(text.documents) > 1 else text.documents[0]
    cut = max(1, min(len(rows) - 1, round(len(rows) * (1 - share))))
    parts = [part if isinstance(part, list) else [part] for part in (rows[:cut], rows[cut:])]
    names = f"the first {1 - share:.0%} of {text.source}", f"the last {share:.0%} of {text.source}"
    kept, held = (Text(name, part, _content_hash(name, part)) for name, part in zip(names, parts, strict=True))
    return kept, held


def resolve_path(source: str, root: str | None = None) -> Path:
    """The path that `source` names; a relative one lies under `root` when there is a root."""
    path = Path(source).expanduser()
    return Path(root).expanduser() / path if root else path


def read_text(
    source: str,
    *,
    root: str | None = None,
    column: str | None = None,
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
    split: str = "train",
) -> Text:
    """The documents of a file, of `builtin:stdlib`, or of a dataset on the hub.

    `split` picks the part of a source that has parts; a file is always whole. `max_line` refuses a
    line of more characters than that, which is usually a file of another kind; 0 accepts any.

    >>> read_text("builtin:stdlib", split="valid").words > 1000
    True
    """
    if source.startswith("builtin:"):
        documents = _read_builtin(source, split)
    elif source.startswith("hub:"):
        documents = _read_hub(source.removeprefix("hub:"), column, split, missing=None)
    else:
        path = resolve_path(source, root)
        if path.exists():
            documents = _read_file(path, column, encoding, max_line)
        elif _names_a_dataset(source):
            documents = _read_hub(source, column, split, missing=path)
        else:
            raise DataError(f"there is no file {path}; check the path, or set data.root to the folder it is in")
    documents = [_unify_newlines(document) for document in documents if document]
    if all(document.isspace() for document in documents):
        raise DataError(f"{source} is empty: it holds no text; give a file that does")
    return Text(source, documents, _content_hash(source, documents))


def _unify_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _content_hash(source: str, documents: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for number, document in enumerate(documents, start=1):
        try:
            data = document.encode("utf-8")
        except UnicodeEncodeError as problem:
            raise DataError(
                f"{source}: document {number} holds half a surrogate pair at character {problem.start}, "
                "which is no text; remove it"
            ) from None
        # The length in front keeps ["ab", "c"] and ["a", "bc"] apart.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


# --- files ---------------------------------------------------------------------------------------


def _read_file(path: Path, column: str | None, encoding: str, max_line: int) -> list[str]:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    data = _read_bytes(path)
    if suffixes and suffixes[-1] == ".gz":
        data = _decompress(path, data)
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    if not data:
        raise DataError(f"{path} is empty; give a file that holds text")
    if kind == ".parquet":
        return _parquet_column(path, data, column)
    text = _unify_newlines(_decode(path, data, encoding))
    _check_lines(path, text, max_line)
    if kind == ".csv" or kind == ".tsv":
        return list(_table_column(path, text, column, tabs=kind == ".tsv"))
    if kind in TABLES:
        return list(_json_column(path, text, column))
    return [text]


def _read_bytes(path: Path) -> bytes:
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it")
    try:
        return path.read_bytes()
    except PermissionError:
        raise DataError(f"{path} may not be read by this user; change its permissions") from None
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}") from None


def _decompress(path: Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError:
        raise DataError(f"{path} is truncated: its gzip stream does not end; copy the file again") from None
    except (gzip.BadGzipFile, zlib.error) as problem:
        raise DataError(f"{path} is not a gzip file, or is damaged ({problem}); copy it again or rename it") from None


def _decode(path: Path, data: bytes, encoding: str) -> str:
    try:
        codec = codecs.lookup(encoding).name
    except LookupError:
        raise DataError(
            f"there is no encoding '{encoding}'; set data.encoding to utf-8, latin-1, utf-16, …"
        ) from None
    # Wide encodings hold zero bytes by nature; in any other a zero byte means that this is no text.
    if not codec.startswith(("utf-16", "utf-32")):
        zero = data.find(b"\0")
        if zero >= 0:
            wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            advice = "it looks like UTF-16: set data.encoding=utf-16" if wide else "give a text file"
            raise DataError(f"{path} is binary: there is a zero byte at offset {zero}; {advice}")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise DataError(
            f"{path}, line {line}: the byte at offset {problem.start} is not {encoding}; "
            "set data.encoding to what the file is in, such as data.encoding=latin-1"
        ) from None
    except LookupError:  # a codec that is none of text, such as 'hex'
        raise DataError(f"'{encoding}' is not an encoding of text; set data.encoding=utf-8") from None
    return text.removeprefix("\ufeff")


def _check_lines(path: Path, text: str, max_line: int) -> None:
    """Refuse a line of more than `max_line` characters, in a few looks however long the text is."""
    start = 0
    while max_line and len(text) - start > max_line:
        newline = text.rfind("\n", start, start + max_line + 1)
        if newline < 0:
            line = text.count("\n", 0, start) + 1
            end = text.find("\n", start)
            length = (len(text) if end < 0 else end) - start
            raise DataError(
                f"{path}, line {line}: {length} characters in one line, more than {max_line}; "
                "set data.max_line=0 to accept it"
            )
        start = newline + 1


# --- columns -------------------------------------------------------------------------------------


def _choose_column(where: str, columns: Sequence[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted in columns:
            return wanted
        raise DataError(f"{where} has no column '{wanted}'; {suggest(wanted, columns)}")
    if "text" in columns:
        return "text"
    if len(columns) == 1:
        return columns[0]
    raise DataError(f"{where} has the columns {', '.join(columns)}; say which is the text: data.column={columns[0]}")


def _table_column(path: Path, text: str, wanted: str | None, *, tabs: bool) -> Iterator[str]:
    # The limit is the csv module's own and global; a document may well be longer than its 128 kB.
    limit = csv.field_size_limit(2**31 - 1)
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
        column = _choose_column(str(path), header, wanted)
        place = header.index(column)
        for number, row in enumerate(reader, start=1):
            if not row:
                continue
            if len(row) <= place:
                raise DataError(
                    f"{path}, row {number} (line {reader.line_num}): {len(row)} of {len(header)} fields, "
                    f"so there is no '{column}'; complete or remove the row"
                )
            yield row[place]
    except csv.Error as problem:
        raise DataError(f"{path}, line {reader.line_num}: {problem}; is a quotation mark missing?") from None
    finally:
        csv.field_size_limit(limit)


def _json_column(path: Path, text: str, wanted: str | None) -> Iterator[str]:
    column: str | None = None
    # Not splitlines: U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise DataError(f"{path}, line {number}: not JSON ({problem}); write one object per line") from None
        if not isinstance(row, dict):
            raise DataError(f'{path}, line {number}: not a JSON object; write one per line, such as {{"text": "…"}}')
        if column is None:
            column = _choose_column(f"{path}, line {number}", list(row), wanted)
        if column not in row:
            raise DataError(f"{path}, line {number}: there is no '{column}'; {suggest(column, row)}")
        yield _as_text(row[column], f"{path}, line {number}", column)


def _as_text(value: Any, where: str, column: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: '{column}' is {type(value).__name__}, not text; set data.column to one that is")
    return value


def _parquet_column(path: Path, data: bytes, wanted: str | None) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data))
        column = _choose_column(str(path), table.schema_arrow.names, wanted)
        values = table.read(columns=[column]).column(column).to_pylist()
    except (pyarrow.ArrowException, OSError) as problem:
        raise DataError(f"{path} is not a parquet file, or is damaged ({problem}); copy it again") from None
    return [_as_text(value, f"{path}, row {number}", column) for number, value in enumerate(values, start=1)]


# --- what is no file -----------------------------------------------------------------------------


def _read_builtin(source: str, split: str) -> list[str]:
    name = source.removeprefix("builtin:")
    if name not in CORPORA:
        known = [f"builtin:{corpus}" for corpus in CORPORA]
        raise DataError(f"there is no built-in text '{source}'; {suggest(source, known)}")
    return CORPORA[name](split)


def _names_a_dataset(source: str) -> bool:
    return HUB_NAME.fullmatch(source) is not None and not source.lower().endswith(FILE_SUFFIXES)


def _read_hub(source: str, column: str | None, split: str, *, missing: Path | None) -> list[str]:
    """The rows of a hub dataset; `missing` is the file that `source` could also have meant."""
    found = HUB_NAME.fullmatch(source)
    if found is None:
        raise DataError(f"'{source}' is not a name on the hub; write owner/name or owner/name:config")
    try:
        rows = _load_dataset(found["name"], found["config"], HUB_SPLITS.get(split, (split,)))
    except Exception as problem:  # the hub's libraries raise of every kind
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        file = f"there is no file {missing}, and " if missing else ""
        raise DataError(
            f"{file}the hub did not give a dataset '{source}' ({reason}); check the name and the connection"
        ) from None
    chosen = _choose_column(source, list(rows.column_names), column)
    return [_as_text(value, f"{source}, row {number}", chosen) for number, value in enumerate(rows[chosen], start=1)]


def _load_dataset(name: str, config: str | None, splits: Sequence[str]) -> Any:
    """The first of `splits` that the dataset has: what we call `valid` has several names there."""
    import datasets

    for split in splits[:-1]:
        try:
            return datasets.load_dataset(name, config, split=split)
        except ValueError as problem:
            if "split" not in str(problem):
                raise
    return datasets.load_dataset(name, config, split=splits[-1])
