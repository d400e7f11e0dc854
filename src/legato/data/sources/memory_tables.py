"""Tables in memory, written as one parquet file, which training, evaluation and indexing read as any other.

Notable here:
- a value counts as `DataFrame.to_csv` writes it: 1 is "1", True is "True"; lists, objects and bytes stay;
- None and NaN are nulls, which the reader refuses in the columns that it reads, and names the row (`refuse_missing`);
- columns of a `datasets.Dataset` whose numbers stand for classes stay numbers, and the file has the classes' names;
- the file says which argument it was (`ParquetFile.memory_name`), and messages name that in place of the file; and
  from which folder it names files (`memory_folder`);
- nothing is packed, so that a reader's limits on what unpacks (`files.py`) never meet a table that repeats itself.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Any, Final

from legato import memory
from legato.data.sources.files import SPLITS
from legato.data.sources.parquet import MEMORY_FOLDER, MEMORY_NAME
from legato.data.sources.tables import class_names
from legato.errors import DataError, brief, listed
from legato.input_files import path_of
from legato.schema import is_text

LARGEST: Final = 1 << 30  # bytes of a table in memory
SCHEMES: Final = ("builtin:", "toy:", "hub:")  # how names begin that are of no file
FILE_NAME: Final = re.compile(r"\S*/\S*|\S+\.\w{1,10}")  # without a space, with a folder or an ending
FORMS: Final = (
    "a list of texts, tuples or dicts, a dict of columns, a pandas or polars DataFrame, or a datasets.Dataset"
)
SCALARS: Final = (bool, int, float, Decimal, datetime.date, datetime.time, datetime.timedelta)


@dataclass(frozen=True)
class MemoryTable:
    """The columns of a table in memory: texts, or what else parquet holds."""

    name: str  # for messages, such as "train= (DataFrame)"
    columns: dict[str, list[Any]]
    features: Mapping[str, Any] = field(default_factory=dict)  # what the hub's library says of the columns

    def write(self, path: Path) -> None:
        """Write it as a parquet file."""
        import pyarrow
        import pyarrow.parquet

        arrays = {}
        for name, values in self.columns.items():
            kind = pyarrow.string() if all(value is None or type(value) is str for value in values) else None
            try:
                arrays[name] = pyarrow.array(values, kind)
            except (pyarrow.ArrowException, OverflowError, UnicodeError, ValueError, TypeError) as problem:
                raise DataError(
                    f"{self.name}: '{brief(name)}' holds values of several kinds ({brief(problem, 100)}); give each "
                    "row a value of one kind"
                ) from None
        table = pyarrow.table(arrays)
        if table.nbytes > LARGEST:
            raise DataError(
                f"{self.name} has {memory.in_words(table.nbytes)}, more than the {memory.in_words(LARGEST)} that a "
                "table in memory may have; write it to a file (df.to_parquet('train.parquet')) and name that"
            )
        metadata = {MEMORY_NAME: self.name.encode(), MEMORY_FOLDER: os.fsencode(Path.cwd())}
        if self.features:
            metadata[b"huggingface"] = json.dumps({"info": {"features": self.features}}).encode()
        table = table.replace_schema_metadata(metadata)
        pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False)


@contextmanager
def table_files(tables: Mapping[str, MemoryTable]) -> Iterator[dict[str, str]]:
    """The names of files that hold these tables for as long as the block goes on."""
    with tempfile.TemporaryDirectory(prefix="legato-") as folder:
        files = {name: Path(folder) / f"{name}.parquet" for name in tables}
        for name, table in tables.items():
            table.write(files[name])
        yield {name: str(file) for name, file in files.items()}


@contextmanager
def data_files(settings: Mapping[str, Any], tuples: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Settings of data in which files stand for tables in memory, for as long as the block goes on."""
    splits: dict[str, Any] = {split: settings[split] for split in SPLITS if split in settings}
    files, tables = split_data(splits, lambda: tuples, settings.get("root"))
    with table_files(tables) as copies:
        yield {**settings, **files, **copies}


# --- which objects are tables -------------------------------------------------------------------------


def split_data(
    data: Mapping[str, Any], tuples: Callable[[], Sequence[str]], root: str | None = None
) -> tuple[dict[str, str | list[str]], dict[str, MemoryTable]]:
    """The arguments that name files, with the names, and those that are tables in memory; `tuples` as below."""
    files: dict[str, str | list[str]] = {}
    tables: dict[str, MemoryTable] = {}
    for argument, value in data.items():
        names = file_names(value, root)
        if names is not None:
            files[argument] = names
        elif value is not None:
            tables[argument] = memory_table(argument, value, tuples())
    first = next(iter(tables.values()), None)
    for other in tables.values():
        missing = [column for column in first.columns if column not in other.columns] if first else []
        if first and missing:
            raise DataError(
                f"{other.name} has the columns {listed(other.columns)} and lacks '{brief(missing[0])}' of "
                f"{first.name}; give both the same columns"
            )
    return files, tables


def file_names(value: Any, root: str | None = None) -> str | list[str] | None:
    """The name of a file, or several names; None where an object is none, such as a table or a list of texts."""
    if isinstance(value, str | PathLike):
        return str(value)
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(name, str | PathLike) for name in value)
    ):
        return None
    return [str(name) for name in value] if all(_is_file_name(name, root) for name in value) else None


def _is_file_name(name: str | PathLike[str], root: str | None) -> bool:
    if isinstance(name, PathLike) or name.startswith(SCHEMES):
        return True
    if not name.strip() or "\n" in name:
        return False
    if FILE_NAME.fullmatch(name):
        return True
    try:
        return path_of(name, root).exists()
    except (DataError, OSError):
        return False


def is_memory_table(value: Any) -> bool:
    """Whether an object has columns; one column alone is a list of its values."""
    return isinstance(value, Mapping) or any(hasattr(value, name) for name in ("columns", "column_names"))


def memory_table(argument: str, value: Any, tuples: Sequence[str] = ()) -> MemoryTable:
    """The table that an object in memory is; `tuples` are the columns' names where rows are tuples, one text a form.

    >>> memory_table("train", [("a fine film", 1)], ["text label"]).columns
    {'text': ['a fine film'], 'label': ['1']}
    """
    kind = type(value).__name__
    name = f"{argument}= ({kind})"
    features: Mapping[str, Any] = {}
    if isinstance(value, Mapping):
        columns = _mapped_columns(name, value)
    elif hasattr(value, "column_names") and hasattr(value, "features") and hasattr(value, "__len__"):
        columns, features = _dataset_columns(value)
    elif hasattr(value, "iloc") and hasattr(value, "columns"):
        columns = _frame_columns(name, value)
    elif hasattr(value, "iter_rows") and hasattr(value, "columns"):
        columns = {column: value[column].to_list() for column in value.columns}
    elif isinstance(value, list | tuple) or (hasattr(value, "tolist") and getattr(value, "ndim", None)):
        columns = _row_columns(name, value if isinstance(value, list | tuple) else value.tolist(), tuples)
    elif hasattr(value, "to_list"):  # a column of polars
        columns = _row_columns(name, value.to_list(), tuples)
    else:
        raise DataError(f"{argument}= takes names of files or a table in memory, not {kind}: {FORMS}")
    lengths = {column: len(values) for column, values in columns.items()}
    if not lengths or not max(lengths.values()):
        raise DataError(f"{name} has no rows; give one that has")
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"'{brief(column)}' {count:,}" for column, count in lengths.items())
        raise DataError(f"{name}: the columns differ in length ({brief(counts, 120)}); give each row all its values")
    classes = {column: feature for column, feature in features.items() if class_names(feature) is not None}
    return MemoryTable(name, {c: v if c in classes else _cells(name, c, v) for c, v in columns.items()}, classes)


def _mapped_columns(name: str, value: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """A dict of columns."""
    columns = {}
    for column, values in value.items():
        if hasattr(values, "column_names"):
            raise DataError(f"{name} has the splits {listed(value)}; give one of them, such as data['{column}']")
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise DataError(
                f"{name}: '{brief(column)}' is {brief(repr(values), 40)}, and a dict of columns has a list for each; "
                f"the forms are {FORMS}"
            )
        columns[str(column)] = _column_values(values)
    return columns


def _column_values(values: Any) -> list[Any]:
    if hasattr(values, "iloc"):
        return _series_values(values)
    listing = values.tolist() if hasattr(values, "tolist") else values
    return list(listing)


def _dataset_columns(value: Any) -> tuple[dict[str, list[Any]], Mapping[str, Any]]:
    """Those of a `datasets.Dataset`; pictures and sounds as the bytes or names that they are."""
    features: dict[str, Any] = value.features.to_dict()
    plain = value.with_format(None)
    for column, feature in features.items():
        if isinstance(feature, dict) and feature.get("_type") in ("Image", "Audio"):
            plain = plain.cast_column(column, type(value.features[column])(decode=False))
    return {column: list(plain[column]) for column in plain.column_names}, features


def _frame_columns(name: str, frame: Any) -> dict[str, list[Any]]:
    """Those of a pandas DataFrame."""
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise DataError(f"{name} has two columns '{brief(twice)}'; rename one")
    return {column: _series_values(frame.iloc[:, place]) for place, column in enumerate(names)}


def _series_values(series: Any) -> list[Any]:
    """The values of a pandas Series: numbers and dates as its `to_csv` writes them."""
    kind = str(series.dtype)
    if kind in ("object", "str", "category") or kind.startswith("string"):
        return list(series.astype(object))
    texts, gaps = series.astype(str).tolist(), series.isna().tolist()
    return [None if gap else text for text, gap in zip(texts, gaps, strict=True)]


def _row_columns(name: str, rows: Sequence[Any], tuples: Sequence[str]) -> dict[str, list[Any]]:
    """The columns of a list of texts, tuples or dicts."""
    kinds = [_row_kind(row) for row in rows]
    for number, (kind, row) in enumerate(zip(kinds, rows, strict=True), start=1):
        if not kind:
            raise DataError(f"{name}: row {number:,} is {brief(repr(row), 40)}; the forms are {FORMS}")
        if kind != kinds[0]:
            raise DataError(f"{name}: row {number:,} is a {kind}, and row 1 a {kinds[0]}; give rows of one kind")
    if kinds and kinds[0] == "dict":
        names = dict.fromkeys(str(key) for row in rows for key in row)
        return {key: [row.get(key) for row in rows] for key in names}
    values = [tuple(row) if kinds[0] == "tuple" else (row,) for row in rows]
    for number, row in enumerate(values, start=1):
        if len(row) != len(values[0]):
            raise DataError(
                f"{name}: row {number:,} has {_count(len(row))}, and row 1 {len(values[0])}; give each row as many"
            )
    form = next((form.split() for form in tuples if values and len(form.split()) == len(values[0])), None)
    if values and form is None:
        accepted = (
            " or ".join(f"({form.replace(' ', ', ')})" for form in tuples) or "no tuples: give dicts or columns"
        )
        raise DataError(f"{name}: a row has {_count(len(values[0]))}; this task takes {accepted}")
    return dict(zip(form or [], map(list, zip(*values, strict=True)), strict=True))


def _row_kind(row: Any) -> str:
    """A text, a dialogue, a dict, a tuple, or nothing that is a row."""
    if isinstance(row, str):
        return "text"
    if isinstance(row, Mapping):
        return "dict"
    if isinstance(row, list) and row and all(isinstance(part, Mapping) for part in row):
        return "dialogue"
    return "tuple" if isinstance(row, list | tuple) else ""


def _count(values: int) -> str:
    return "1 value" if values == 1 else f"{values} values"


# --- values ----------------------------------------------------------------------------------------------


def _cells(name: str, column: str, values: Sequence[Any]) -> list[Any]:
    def where(number: int) -> str:
        return f"{name}, row {number:,}: '{brief(column)}'"

    return [
        value if type(value) is str and value.isascii() else _cell(value, number, where)
        for number, value in zip(range(1, len(values) + 1), values, strict=True)
    ]


def _cell(value: Any, number: int, where: Callable[[int], str]) -> Any:
    """A value as `to_csv` writes it, None where there is none; lists, objects and bytes as they are."""
    kind = type(value).__name__
    if isinstance(value, str):
        if not is_text(value):
            raise DataError(f"{where(number)} holds half a surrogate pair, which is no text; remove it")
        return str(value)
    if value is None or kind in ("NAType", "NaTType"):
        return None
    if isinstance(value, bytes | Mapping | list | tuple):
        return value
    if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
        return value.tolist()
    bare = value.item() if hasattr(value, "item") else value
    if isinstance(bare, SCALARS):
        return None if bare != bare else str(value)
    raise DataError(f"{where(number)} is {kind}, which no table holds; give a text, a number, or the name of a file")
