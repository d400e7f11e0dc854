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
- a `.csv` or `.txt` whose lines have tabs is a tsv (`format_of`), as STS-B's and MRPC's are;
- numbers that stand for classes, on the hub and in its parquet files, come with the classes' names (`Table.classes`).
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from legato.data.class_names import class_names, hub_features, parquet_features
from legato.data.files import MAX_LINE, load_bytes, load_text, no_file, resolve_path
from legato.data.libraries import clear_of_panics
from legato.data.parquet import ParquetFile, read_parquet
from legato.data.plain_values import parse_line, plain_value
from legato.errors import DataError, brief, listed, suggest

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
FIRST_ROWS: Final = 300  # that a guess looks at
QUOTED: Final = re.compile(r'"[^"]*+(?:""[^"]*+)*+"(?![^\t\n])')  # a whole field of a tsv, quoted as in a csv

MANY_LINES: Final = 200  # of one row of a csv: more are rows that a lone quotation mark has swallowed

Column = str | int


@dataclass(frozen=True)
class Head:
    """What a table shows before it is read: enough to choose columns by."""

    where: str  # for messages
    kind: str  # csv, tsv, jsonl, parquet or hub
    names: list[str]  # of a csv or tsv the first row's fields, be they names or not
    first: Callable[[], Mapping[str, Any]]  # the first row by name; of a csv or tsv there is none
    rows: Callable[[], list[list[str]]] = list  # of a csv or tsv the first rows, a header among them


Choose = Callable[[Head], Sequence[Column]]


@dataclass(frozen=True)
class Table:
    """The columns that were asked for, and where each row stands."""

    source: str  # the file or dataset, for messages
    names: list[str]  # of the columns; numbers where there is no header
    columns: list[list[Any]]
    lines: list[int]  # the line that each row begins at, or its number
    unit: str  # which of the two: "line" or "row"
    header: bool  # whether the columns have names
    classes: list[list[str] | None] = field(default_factory=list)  # of each column whose numbers, from 0, have names
    note: str = ""  # how a csv or tsv was read, where that is not the usual way

    def where(self, row: int) -> str:
        return f"{self.source}, {self.unit} {self.lines[row]}"

    def texts(self, column: int, setting: str = "data.columns") -> list[str]:
        """A column all of whose values are text; `setting` is where a user chooses another one."""
        values = self.columns[column]
        for row, value in enumerate(values):
            if not isinstance(value, str):
                if value is None:
                    raise DataError(
                        f"{self.where(row)}: '{brief(self.names[column])}' is missing; complete or remove the row"
                    )
                kind = type(value).__name__
                name = brief(self.names[column])
                raise DataError(f"{self.where(row)}: '{name}' is {kind}, not text; set {setting} to one that is")
        return values


def read_table(
    source: str,
    columns: Sequence[Column] | Choose,
    *,
    root: str | None = None,
    format: str = "auto",
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
    split: str = "train",
) -> Table:
    """The `columns` of a file, or of a dataset on the hub.

    `format` says what a file is whose ending does not; `split` picks the part of a dataset, and a file
    is always whole. Values are as they stand: text in a csv or tsv, anything elsewhere.

    >>> table = read_table("reviews.csv", ["text", "label"])  # doctest: +SKIP
    >>> table.columns[1][0], table.where(0)  # doctest: +SKIP
    ('1', 'reviews.csv, line 2')
    """
    choose = columns if callable(columns) else lambda head: columns
    path = locate(source, root)
    if path is None:
        return _read_hub(source, choose, split, root)
    kind = kind_of(path, format)
    if kind == "parquet":
        return _read_parquet(path, load_bytes(path), choose)
    text = load_text(path, encoding, max_line)
    if kind == "csv" or kind == "tsv":
        return _read_separated(path, text, choose, kind)
    if kind == "jsonl":
        return _read_json(path, text, choose)
    raise DataError(
        f"{path} is one text without columns; give a table, or if it is one, set data.format to one of "
        f"{', '.join(FORMATS[1:])}"
    )


# --- which file ----------------------------------------------------------------------------------


def locate(source: str, root: str | None = None) -> Path | None:
    """The file that `source` names; None where it names a dataset on the hub instead."""
    if source.startswith("hub:"):
        return None
    path = resolve_path(source, root)
    if path.exists():
        return path
    if HUB_NAME.fullmatch(source) is not None and not source.lower().endswith(FILE_SUFFIXES):
        return None
    raise no_file(path)


def kind_of(path: Path, format: str = "auto") -> str:
    """csv, tsv, jsonl or parquet, as `format` says or else the ending; "text" for any other."""
    if format not in FORMATS:
        raise DataError(f"there is no format '{format}' of data; {suggest(format, FORMATS)}")
    if format != "auto":
        return format
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return KINDS.get(suffixes[-1], "text") if suffixes else "text"


def format_of(source: str, root: str | None = None, format: str = "auto", encoding: str = "utf-8") -> str:
    """`format`; of a .csv, or a file whose ending says nothing, "tsv" where each of its first lines has a tab."""
    path = locate(source, root)
    if path is None or format != "auto" or kind_of(path) not in ("csv", "text"):
        return format
    lines = [line for line in load_text(path, encoding, 0).split("\n", PEEK)[:PEEK] if line.strip()]
    return "tsv" if lines and all("\t" in line for line in lines) else format


# --- columns -------------------------------------------------------------------------------------


def _pick(head: Head, choose: Choose) -> list[str]:
    if not head.names:
        raise DataError(f"{head.where} has no columns; give a table that has")
    return _resolve(head.where, head.names, choose(head))


def _resolve(where: str, names: Sequence[str], columns: Sequence[Column], *, objects: bool = True) -> list[str]:
    """The names that `columns` mean; where there are `objects`, a dot leads into one."""
    found = []
    for column in columns:
        if isinstance(column, int):
            _check_number(column)
            if column > len(names):
                raise DataError(f"{where} has the columns {list_names(names)}, so there is no column {column}")
            found.append(names[column - 1])
        elif column in names or (objects and _top(column, names) in names):
            found.append(column)
        else:
            raise DataError(f"{where} has no column '{brief(column)}'; {suggest(column, names)}")
    return found


def _check_number(column: int) -> None:
    if column < 1:
        raise DataError(f"there is no column {column}: columns are counted from 1")


def list_names(names: Iterable[str]) -> str:
    """Names for a message: what a file without a header has in place of them may be whole sentences."""
    return listed(names)


def _top(column: str, names: Container[str]) -> str:
    return column if column in names else column.split(".")[0]


def _enter(value: Any, column: str, top: str, where: str) -> Any:
    """What `column` names inside `value`, which is the one of the column `top`."""
    if column == top:
        return value
    for key in column[len(top) + 1 :].split("."):
        if value is None:
            return None
        if not isinstance(value, dict) or key not in value:
            there = [f"{top}.{key}" for key in list(value)[:1000]] if isinstance(value, dict) else [top]
            raise DataError(f"{where}: there is no '{brief(column)}'; {suggest(column, there)}")
        value = value[key]
    return value


# --- csv and tsv -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """How the fields of a csv or tsv are written."""

    mark: str  # what parts them
    quoted: bool
    note: str = ""

    @property
    def parted(self) -> str:
        return {"\t": "tabs", ";": "semicolons"}.get(self.mark, "commas")

    def reader(self, text: str, *, strict: bool = True) -> Any:
        lines = io.StringIO(text, newline="")
        if not self.quoted:
            return csv.reader(lines, delimiter=self.mark, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.mark, strict=strict)

    def even(self, text: str) -> bool:
        """Whether each row has as many fields as the first."""
        try:
            return len({len(row) for row in self.reader(text) if row}) == 1
        except csv.Error:
            return False


@contextlib.contextmanager
def _long_fields() -> Iterator[None]:
    # The limit is the csv module's own and global; a document may well be longer than its 128 kB.
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _form(text: str, kind: str) -> _Form:
    if kind == "tsv":
        return _quoted_tsv(text) or _Form("\t", False)
    head = text.lstrip("\n").partition("\n")[0]
    semicolons = _Form(";", True, "its columns parted by semicolons")
    return semicolons if ";" in head and "," not in head and semicolons.even(text) else _Form(",", True)


def _quoted_tsv(text: str) -> _Form | None:
    """The form of a tsv that is quoted as a csv is; None where its quotation marks are characters.

    Each must belong to a field that is quoted as a whole, and one such field must need it. Doubled marks need it
    plainly; a tab or a newline does where the rows are even with quoting, and without it are not.
    """
    place = text.find('"')
    doubled = spans = False
    while place >= 0:
        found = QUOTED.match(text, place) if place == 0 or text[place - 1] in "\t\n" else None
        if found is None:
            return None
        field = found[0]
        across = "\t" in field or "\n" in field
        if across and field.count("\n") >= MANY_LINES:
            return None
        spans |= across
        doubled |= not across and '""' in field[1:-1]
        place = text.find('"', found.end())
    quoted = _Form("\t", True, "its quotation marks read as a csv's")
    if doubled or (spans and quoted.even(text) and not _Form("\t", False).even(text)):
        return quoted
    return None


def _start(text: str, form: _Form) -> list[list[str]]:
    """The first rows, a header among them where there is one."""
    try:
        return list(itertools.islice((row for row in form.reader(text, strict=False) if row), FIRST_ROWS))
    except csv.Error:
        return []  # whoever reads all of it says what is wrong, and where


def _read_separated(path: Path, text: str, choose: Choose, kind: str) -> Table:
    with _long_fields():
        form = _form(text, kind)
        reader = form.reader(text)
        begins = [1]  # the line of the row that is read

        def chosen(names: list[str]) -> Sequence[Column]:
            return choose(Head(str(path), kind, names, dict, lambda: _start(text, form)))

        try:
            return _separated_rows(path, _with_lines(reader, begins), chosen, form)
        except csv.Error as problem:
            # A mark that opens and does not close swallows lines until another comes; it stands where the row begins.
            row = f" in the row that begins at line {begins[0]}" if begins[0] < reader.line_num else ""
            raise DataError(f"{path}, line {reader.line_num}: {problem}{row}; is a quotation mark missing?") from None


def _with_lines(reader: Any, begins: list[int]) -> Iterator[tuple[int, list[str]]]:
    """Each row with the line it begins at, which `begins` holds: one that is quoted may go on over several."""
    for row in reader:
        if reader.line_num - begins[0] >= MANY_LINES:
            raise csv.Error(f"a field goes on for {reader.line_num - begins[0] + 1:,} lines")
        yield begins[0], row
        begins[0] = reader.line_num + 1


def _separated_rows(
    path: Path, rows: Iterator[tuple[int, list[str]]], choose: Callable[[list[str]], Sequence[Column]], form: _Form
) -> Table:
    top = next((row for row in rows if row[1]), None)
    if top is None:
        raise DataError(f"{path} is empty; give a file that holds text")
    fields = top[1]
    chosen = choose(fields)
    header = any(isinstance(column, str) for column in chosen)
    if header:
        names = _resolve(str(path), fields, chosen, objects=False)
        places = [c - 1 if isinstance(c, int) else fields.index(c) for c in chosen]
    else:
        rows = itertools.chain([top], rows)
        names = [str(column) for column in chosen]
        for column in chosen:
            _check_number(int(column))
        places = [int(column) - 1 for column in chosen]
    values: list[list[Any]] = [[] for _ in places]
    lines = []
    last = max(places)
    for number, (line, row) in enumerate(rows, start=1):
        if not row:
            continue
        if len(row) <= last:
            where = f"{path}, row {number} (line {line})"
            odd = not form.quoted and sum(value.count('"') for value in row) % 2
            quotes = "; quotation marks hold no field together in this tsv" if odd else ""
            if header:
                missing = fields[next(place for place in places if place >= len(row))]
                raise DataError(
                    f"{where}: {len(row)} of {len(fields)} fields, so there is no '{brief(missing)}'; "
                    f"complete or remove the row{quotes}"
                )
            count = "1 field" if len(row) == 1 else f"{len(row)} fields"
            advice = f"are its columns parted by {form.parted}?" if number == 1 else "complete or remove the row"
            raise DataError(f"{where}: {count}, so there is no column {last + 1}; {advice}{quotes}")
        if header and form.mark == "," and len(row) > len(fields):
            raise DataError(
                f"{path}, row {number} (line {line}): {len(row)} fields under {len(fields)} columns; "
                "put what holds commas between quotation marks"
            )
        lines.append(line)
        for those, place in zip(values, places, strict=True):
            those.append(row[place])
    return Table(str(path), names, values, lines, "line", header, note=form.note)


# --- json and parquet ------------------------------------------------------------------------------


def _read_json(path: Path, text: str, choose: Choose) -> Table:
    names: list[str] | None = None
    columns: list[list[Any]] = []
    lines = []
    # Not splitlines: U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        row = parse_line(line, where)
        if not isinstance(row, dict):
            raise DataError(f'{where}: not a JSON object; write one per line, such as {{"text": "…"}}')
        if names is None:
            names = _pick(Head(where, "jsonl", list(row), row.copy), choose)
            columns = [[] for _ in names]
        lines.append(number)
        for name, column in zip(names, columns, strict=True):
            top = name if name in row else _top(name, row)
            if top not in row:
                raise DataError(f"{where}: there is no '{brief(name)}'; {suggest(name, row)}")
            value = row[top] if name == top else _enter(row[top], name, top, where)
            column.append(value if type(value) is str and value.isascii() else plain_value(value, where, name))
    if names is None:
        raise DataError(f"{path} is empty; give a file that holds text")
    return Table(str(path), names, columns, lines, "line", True)


def _read_parquet(path: Path, data: bytes, choose: Choose) -> Table:
    chosen: list[str] = []

    def columns(file: ParquetFile) -> list[str]:
        chosen[:] = _pick(Head(str(path), "parquet", file.names, file.first), choose)
        return [_top(name, file.names) for name in chosen]

    file, values = read_parquet(path, data, columns)
    tops = [_top(name, file.names) for name in chosen]
    features = parquet_features(file.metadata, str(path))
    return _numbered_rows(str(path), chosen, tops, [values[top] for top in tops], features)


def _numbered_rows(
    source: str, names: list[str], tops: list[str], values: list[list[Any]], features: Mapping[str, Any]
) -> Table:
    """A table of rows that stand on no line; `features` are what the hub's library says of the columns."""
    columns = [_plain_rows(source, name, top, column) for name, top, column in zip(names, tops, values, strict=True)]
    known = {top: class_names(features.get(top), f"{source}: '{brief(top)}'") for top in tops}
    classes = [known[top] if name == top else None for name, top in zip(names, tops, strict=True)]
    return Table(source, names, columns, list(range(1, len(values[0]) + 1)), "row", True, classes)


def _plain_rows(source: str, name: str, top: str, column: list[Any]) -> list[Any]:
    found = []
    for number, value in enumerate(column, start=1):
        if name != top:
            value = _enter(value, name, top, f"{source}, row {number}")
        known = type(value) is str and value.isascii()
        found.append(value if known else plain_value(value, f"{source}, row {number}", name))
    return found


# --- the hub -------------------------------------------------------------------------------------


def _read_hub(source: str, choose: Choose, split: str, root: str | None) -> Table:
    """The rows of a hub dataset; without `hub:` in front the name could also have meant a file."""
    name = source.removeprefix("hub:")
    found = HUB_NAME.fullmatch(name)
    if found is None:
        raise DataError(f"'{name}' is not a name on the hub; write owner/name or owner/name:config")
    try:
        rows = _load_dataset(found["name"], found["config"], HUB_SPLITS.get(split, (split,)))
    except Exception as problem:  # the hub's libraries raise of every kind
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        file = f"there is no file {resolve_path(source, root)}, and " if name == source else ""
        raise DataError(
            f"{file}the hub did not give a dataset '{name}' ({reason}); check the name and the connection"
        ) from None
    broken = f"the rows of '{name}' from the hub cannot be read; fetch the dataset again"

    def first() -> Mapping[str, Any]:
        with clear_of_panics(broken):
            return rows[0] if len(rows) else {}

    names = list(rows.column_names)
    chosen = _pick(Head(name, "hub", names, first), choose)
    tops = [_top(column, names) for column in chosen]
    with clear_of_panics(broken):
        values = [list(rows[top]) for top in tops]
    return _numbered_rows(name, chosen, tops, values, hub_features(rows))


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
