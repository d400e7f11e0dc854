"""Columns of csv, tsv, jsonl and parquet files and of datasets on the hub, several at once.

Notable here:
- everything but parquet is read with the standard library alone, so that an error can name its line
  and a small table costs no import of `datasets`;
- tsv has no quoting (a lone `"` is a character, as corpora use it), csv has, and strictly; but a tsv is read with
  quoting where all its quotation marks are plainly that, and a csv by semicolons where they part it evenly, and
  `Table.note` says so;
- a column is a name, or a number from 1. A csv or tsv whose columns are all numbers has no header;
- `translation.de` is the field `de` of the objects in the column `translation`, as the hub keeps pairs;
- which columns are read may depend on what there is: give a function of the `Head`;
- JSON is an object on each line, or one array of objects;
- several files, in a list or named by a pattern, are one table after another: the columns of the first;
- a `.csv` or `.txt` whose lines have tabs is a tsv (`tabbed`), as STS-B's and MRPC's are;
- numbers that stand for classes, on the hub and in its parquet files, come with the classes' names (`Table.classes`),
  of which those say: features = {"label": {"names": ["not_equivalent", "equivalent"], "_type": "ClassLabel"}, …}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from legato.data.sources.files import FileOptions, load_bytes, load_text, no_file, resolve_path
from legato.data.sources.hub_access import offline_where_unreachable
from legato.data.sources.parquet import ParquetFile
from legato.data.sources.patterns import Source, source_files, source_name
from legato.data.sources.separated import FIRST_ROWS, read_separated
from legato.data.sources.table import Choose, Column, Head, Table, enter_value, pick_columns, plain_value, top_name
from legato.data.text.libraries import clear_of_panics
from legato.errors import DataError, LegatoError, brief, suggest
from legato.input_files import near_path
from legato.registry import require_extra
from legato.schema import MAX_DIGITS, OPEN, TypedDict, fit, parse_json, with_config

KINDS: Final = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
FORMATS: Final = ("auto", "csv", "tsv", "jsonl", "parquet")
# A missing file with one of these endings is a missing file; the hub is not asked for it.
FILE_SUFFIXES: Final = (*KINDS, ".txt", ".text", ".gz", ".md", ".tokens", ".raw", ".yaml", ".zip")
HUB_NAME: Final = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>[\w.-]+))?")
HUB_SPLITS: Final = {"valid": ("validation", "valid", "dev")}

PEEK: Final = 20  # lines that tell whether tabs part the columns


def read_table(source: Source, columns: Sequence[Column] | Choose, files: FileOptions = FileOptions()) -> Table:
    """The `columns` of a file, of several, or of a dataset on the hub.

    Values are as they stand: text in a csv or tsv, anything elsewhere.

    >>> table = read_table("reviews.csv", ["text", "label"])  # doctest: +SKIP
    >>> table.columns[1][0], table.where(0)  # doctest: +SKIP
    ('1', 'reviews.csv, line 2')
    """
    choose = columns if callable(columns) else lambda head: columns
    first, *others = source_files(source, files.root)
    table = _read_one(first, choose, files)
    if not others:
        return table
    same: list[Column] = list(table.names) if table.header else [int(name) for name in table.names]
    tables = [table, *(_read_one(name, lambda head: same, files) for name in others)]
    for other in tables:
        if other.classes != table.classes:
            raise DataError(f"{other.source}: its numbers stand for other classes than those of {table.source}")
    values = [[value for part in parts for value in part] for parts in zip(*(t.columns for t in tables), strict=True)]
    return replace(
        table,
        source=source_name(source),
        columns=values,
        lines=[line for part in tables for line in part.lines],
        row_files=[part.source for part in tables for _ in part.lines],
    )


def _read_one(source: str, choose: Choose, files: FileOptions) -> Table:
    path = locate(source, files.root)
    if path is None:
        return _read_hub(source, choose, files)
    kind = kind_of(path, files.format)
    if kind == "parquet":
        return _read_parquet(path, load_bytes(path), choose, files.binary)
    text = load_text(path, files.encoding, files.max_line)
    if kind == "csv" or kind == "tsv":
        return read_separated(path, text, choose, kind)
    if kind == "jsonl":
        return _read_json(path, text, choose)
    raise DataError(
        f"{path} is one text without columns; give a table, or if it is one, set data.format to one of "
        f"{', '.join(FORMATS[1:])}"
    )


# --- which file ----------------------------------------------------------------------------------


def locate(source: str, root: str | None = None) -> Path | None:
    """The file that `source` names; None where it names a dataset on the hub instead.

    A name that could be either is taken for a file's that was mistyped where its folder is there, or a file that is
    nearly called so; `hub:` before it says that the hub's is meant.
    """
    if source.startswith("hub:"):
        return None
    path = resolve_path(source, root)
    if path.exists():
        return path
    if HUB_NAME.fullmatch(source) is None or source.lower().endswith(FILE_SUFFIXES):
        raise no_file(path)
    near = near_path(path)
    if near is not None:
        raise DataError(f"there is no file {path}; did you mean '{near}'? (a hub dataset: hub:{source})")
    if "/" in source and path.parent.is_dir():
        raise DataError(
            f"there is no file {path}, though its folder is there; check the name (a hub dataset: hub:{source})"
        )
    return None


def kind_of(path: Path, format: str = "auto") -> str:
    """csv, tsv, jsonl or parquet, as `format` says or else the ending; "text" for any other."""
    if format not in FORMATS:
        raise DataError(f"there is no format '{format}' of data; {suggest(format, FORMATS)}")
    if format != "auto":
        return format
    return KINDS.get(Path(path.name.lower().removesuffix(".gz")).suffix, "text")


def tabbed(source: Source, files: FileOptions = FileOptions()) -> FileOptions:
    """The same; of a .csv, or a file whose ending says nothing, as tsv where each of its first lines has a tab."""
    path = locate(source_files(source, files.root)[0], files.root)
    if path is None or files.format != "auto" or kind_of(path) not in ("csv", "text"):
        return files
    lines = [line for line in load_text(path, files.encoding, 0).split("\n", PEEK)[:PEEK] if line.strip()]
    return replace(files, format="tsv") if lines and all("\t" in line for line in lines) else files


# --- json and parquet ------------------------------------------------------------------------------


def _read_json(path: Path, text: str, choose: Choose) -> Table:
    """An object on each line, or one array of them."""
    names: list[str] | None = None
    columns: list[list[Any]] = []
    lines = []
    whole = text.lstrip().startswith("[")
    unit = "row" if whole else "line"
    for number, row in _array_rows(path, text) if whole else _line_rows(path, text):
        where = f"{path}, {unit} {number:,}"
        if not isinstance(row, dict):
            raise DataError(f'{where}: not a JSON object; write one per {unit}, such as {{"text": "…"}}')
        if names is None:
            names = pick_columns(Head(where, "jsonl", list(row), row.copy), choose)
            columns = [[] for _ in names]
        lines.append(number)
        for name, column in zip(names, columns, strict=True):
            top = name if name in row else top_name(name, row)
            if top not in row:
                raise DataError(f"{where}: there is no '{brief(name)}'; {suggest(name, row)}")
            value = row[top] if name == top else enter_value(row[top], name, top, where)
            column.append(value if type(value) is str and value.isascii() else plain_value(value, where, name))
    if names is None:
        raise DataError(f"{path} is empty; give a file that holds text")
    return Table(str(path), names, columns, lines, unit, True)


def _line_rows(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    # Not splitlines: U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number:,}"
            yield number, parse_line(line, where)


def _array_rows(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    place, number = _behind_space(text, text.index("[") + 1), 0
    while number or text[place : place + 1] != "]":
        number += 1
        advice = "write an array of objects, or one object per line"
        row, place = _parsed(partial(_DECODER.raw_decode, text, place), f"{path}, row {number:,}", advice)
        yield number, row
        place = _behind_space(text, place)
        if text[place : place + 1] == "]":
            break
        if text[place : place + 1] != ",":
            raise DataError(f"{path}: the array ends without ] behind row {number:,}; {advice}")
        place = _behind_space(text, place + 1)
    if text[place + 1 :].strip():
        raise DataError(f"{path}: something stands behind the array; write one array, or one object per line")


def _behind_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _whole_number(digits: str) -> int | float:
    # Python's own limit on digits is a setting of the process; what is beyond any use is refused where it is read.
    return int(digits) if len(digits) <= MAX_DIGITS else float("-inf" if digits.startswith("-") else "inf")


_DECODER: Final = json.JSONDecoder(parse_int=_whole_number)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def parse_line(line: str, where: str) -> Any:
    """What a line of JSON holds; an integer of more digits than any that is used reads as infinite."""
    return _parsed(partial(_DECODER.decode, line), where, "write one object per line")


def _parsed(decode: Callable[[], Any], where: str, advice: str) -> Any:
    """What is decoded, as it stands; its values are made plain where they are read."""
    try:
        return decode()
    except RecursionError:
        raise DataError(
            f"{where}: not JSON that can be read, since it is nested too deeply; make it flatter"
        ) from None
    except ValueError as problem:
        raise DataError(f"{where}: not JSON ({problem}); {advice}") from None


def _read_parquet(path: Path, data: bytes, choose: Choose, binary: int) -> Table:
    with clear_of_panics(f"{path} is not a parquet file, or is damaged; copy it again"):
        file = ParquetFile(path, data)
        features = _parquet_features(file.metadata, str(path))
        name = file.memory_name
        kind = "memory" if name is not None and file.has_texts_alone else "parquet"
        rows = (lambda: [file.names, *file.first_rows(FIRST_ROWS)]) if kind == "memory" else list
        head = Head(name or str(path), kind, file.names, file.first, rows)
        table = _numbered_rows(head, choose, file.read, features, binary)
        if name is not None:
            table.refuse_missing()
        return replace(table, memory_folder=file.memory_folder)


def _numbered_rows(
    head: Head,
    choose: Choose,
    read: Callable[[list[str]], dict[str, list[Any]]],
    features: Mapping[str, Any],
    binary: int,
) -> Table:
    """A table of rows that stand on no line; `features` are what the hub's library says of the columns.

    The first `binary` of the columns may hold bytes.
    """
    source, names = head.where, pick_columns(head, choose)
    tops = [top_name(name, head.names) for name in names]
    values = read(tops)
    columns = [
        _plain_rows(source, name, top, values[top], binary=place < binary)
        for place, (name, top) in enumerate(zip(names, tops, strict=True))
    ]
    known = {top: class_names(features.get(top), f"{source}: '{brief(top)}'") for top in tops}
    classes = [known[top] if name == top else None for name, top in zip(names, tops, strict=True)]
    return Table(source, names, columns, list(range(1, len(columns[0]) + 1)), "row", True, classes)


def _plain_rows(source: str, name: str, top: str, column: list[Any], *, binary: bool) -> list[Any]:
    found = []
    for number, value in enumerate(column, start=1):
        if name != top:
            value = enter_value(value, name, top, f"{source}, row {number}")
        known = (type(value) is str and value.isascii()) or (binary and _holds_bytes(value))
        found.append(value if known else plain_value(value, f"{source}, row {number}", name))
    return found


def _holds_bytes(value: Any) -> bool:
    """Whether a value is bytes, or an object with them, as the hub's library keeps pictures and sounds."""
    return isinstance(value, bytes) or (isinstance(value, dict) and isinstance(value.get("bytes"), bytes))


# --- the hub -------------------------------------------------------------------------------------


def _read_hub(source: str, choose: Choose, files: FileOptions) -> Table:
    """The rows of a hub dataset; without `hub:` in front the name could also have meant a file."""
    name = source.removeprefix("hub:")
    found = HUB_NAME.fullmatch(name)
    if found is None:
        raise DataError(f"'{name}' is not a name on the hub; write owner/name or owner/name:config")
    file = f"there is no file {resolve_path(source, files.root)}, and " if name == source else ""
    try:
        rows = _load_dataset(found["name"], found["config"], HUB_SPLITS.get(files.split, (files.split,)))
    except LegatoError as problem:
        raise DataError(f"{file}the hub's dataset '{name}' cannot be read: {problem}") from None
    except Exception as problem:  # the hub's libraries raise of every kind
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise DataError(
            f"{file}the hub did not give a dataset '{name}' ({reason}); check the name and the connection"
        ) from None
    with clear_of_panics(f"the rows of '{name}' from the hub cannot be read; fetch the dataset again"):
        head = Head(name, "hub", list(rows.column_names), lambda: rows[0] if len(rows) else {})
        features = rows.features.to_dict()
        return _numbered_rows(
            head, choose, lambda tops: {top: list(rows[top]) for top in tops}, features, files.binary
        )


def _load_dataset(name: str, config: str | None, splits: Sequence[str]) -> Any:
    """The first of `splits` that the dataset has: what we call `valid` has several names there."""
    datasets = require_extra("datasets", "datasets")
    with offline_where_unreachable():
        for split in splits:
            try:
                rows = datasets.load_dataset(name, config, split=split)
            except ValueError as problem:
                if "split" not in str(problem) or split == splits[-1]:
                    raise
            else:
                break
    for column, feature in rows.features.to_dict().items():
        if isinstance(feature, dict) and feature.get("_type") == "Image":  # as bytes: decoded when they are needed
            rows = rows.cast_column(column, datasets.Image(decode=False))
    return rows


# --- names of classes ---------------------------------------------------------------------------------


@with_config(OPEN)
class Info(TypedDict, total=False):
    """What the hub's library keeps of a dataset, as far as it is read here."""

    features: dict[str, Any]


@with_config(OPEN)
class Metadata(TypedDict, total=False):
    info: Info


def class_names(feature: Any, where: str = "the classes") -> list[str] | None:
    """The names that a column's numbers stand for, or those of the lists in it; None where they are numbers.

    >>> class_names({"feature": {"names": ["O", "B-LOC"], "_type": "ClassLabel"}, "_type": "List"})
    ['O', 'B-LOC']
    """
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif not isinstance(feature, dict):
            return None
        elif feature.get("_type") == "ClassLabel" and feature.get("names"):
            return fit(feature["names"], list[str], f"{where}: the names of its classes", error=DataError)
        else:
            feature = feature.get("feature")


def _parquet_features(metadata: Mapping[bytes, bytes] | None, where: str) -> Mapping[str, Any]:
    """What the hub's library says of the columns in the parquet files that it writes."""
    held = (metadata or {}).get(b"huggingface")
    if held is None:
        return {}
    where = f"{where}: what it says of its columns (huggingface)"
    return parse_json(held, Metadata, where, error=DataError).get("info", {}).get("features", {})
