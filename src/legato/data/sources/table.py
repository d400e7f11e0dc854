"""A table of texts and values, which of its columns somebody means, and its values as plain ones.

Those are text, numbers, true, false, nothing, and lists and objects of them. Whatever a jsonl line, a parquet file or
a dataset on the hub holds in a column that is read passes `plain_value`, so that no reader behind it meets a date, a
decimal number, bytes, half a character or a number beyond 64 bits. Dates and times are the texts that stand for them.
NaN stays: what it means is the reader's to say.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from legato.errors import DataError, brief, listed, suggest
from legato.schema import LARGEST, MAX_DEPTH, MAX_KEY, is_text

Column = str | int


@dataclass(frozen=True)
class Head:
    """What a table shows before it is read: enough to choose columns by."""

    where: str  # for messages
    kind: str  # csv, tsv, jsonl, parquet or hub; memory: a table in memory that holds texts alone
    names: list[str]  # of a csv or tsv the first row's fields, be they names or not
    first: Callable[[], Mapping[str, Any]]  # the first row by name; of a csv or tsv there is none
    rows: Callable[[], list[list[str]]] = list  # where all is text, the first rows, a header among them

    @property
    def separated(self) -> bool:
        """Whether all of its values are text, as those of a csv or tsv are."""
        return self.kind in ("csv", "tsv", "memory")

    def of_type(self, *kinds: type) -> list[str]:
        """The columns whose first value is of one of these kinds; of a csv or tsv there is none."""
        row = self.first()
        return [name for name in self.names if isinstance(row.get(name), kinds)]

    def undecided(self, which: str, columns: str | None = None) -> DataError:
        """An error where nothing tells what is what; `which` goes on behind "say which", to a setting."""
        return DataError(f"{self.where} has {columns or f'the columns {listed(self.names)}'}; say which {which}")


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
    row_files: list[str] | None = None  # the file of each row, where there are several
    memory_folder: Path | None = None  # of a table in memory, beside which no file lies: where it named files from

    @property
    def shown(self) -> list[str]:
        """The columns as messages call them: by name, or `column 2`."""
        return [f"'{brief(name)}'" if self.header else f"column {name}" for name in self.names]

    def where(self, row: int) -> str:
        return f"{self.row_files[row] if self.row_files else self.source}, {self.unit} {self.lines[row]:,}"

    def refuse_missing(self) -> None:
        """Refuse a row without a value, as a table in memory may have it."""
        for name, values in zip(self.names, self.columns, strict=True):
            for row, value in enumerate(values):
                if value is None:
                    raise DataError(
                        f"{self.where(row)}: '{brief(name)}' is missing (None or NaN); complete or remove the row"
                    )

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


def pick_columns(head: Head, choose: Choose) -> list[str]:
    if not head.names:
        raise DataError(f"{head.where} has no columns; give a table that has")
    return resolve_columns(head.where, head.names, choose(head))


def resolve_columns(
    where: str, names: Sequence[str], columns: Sequence[Column], *, objects: bool = True
) -> list[str]:
    """The names that `columns` mean; where there are `objects`, a dot leads into one."""
    found = []
    for column in columns:
        if isinstance(column, int):
            check_number(column)
            if column > len(names):
                raise DataError(f"{where} has the columns {listed(names)}, so there is no column {column}")
            found.append(names[column - 1])
        elif column in names or (objects and top_name(column, names) in names):
            found.append(column)
        else:
            raise DataError(f"{where} has no column '{brief(column)}'; {suggest(column, names)}")
    return found


def check_number(column: int) -> None:
    if column < 1:
        raise DataError(f"there is no column {column}: columns are counted from 1")


def top_name(column: str, names: Container[str]) -> str:
    return column if column in names else column.split(".")[0]


def enter_value(value: Any, column: str, top: str, where: str) -> Any:
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


# --- plain values -------------------------------------------------------------------------------------


SIMPLE: Final = (bool, float, type(None))


def plain_value(value: Any, where: str, column: str, depth: int = 0) -> Any:
    """`value` made plain, or a DataError that says where it stands and in which column."""
    kind = type(value)
    if kind is str:
        if value.isascii() or is_text(value):
            return value
        place = next(place for place, letter in enumerate(value) if "\ud800" <= letter <= "\udfff")
        raise DataError(
            f"{where}: half a surrogate pair at character {place} of '{brief(column)}', which is no text; remove it"
        )
    if kind in SIMPLE:
        return value
    if isinstance(value, int):
        if not -LARGEST <= value <= LARGEST:
            raise DataError(f"{where}: '{brief(column)}' holds {brief(value)}, which is too large a number")
        return value
    if depth >= MAX_DEPTH:
        raise DataError(f"{where}: '{brief(column)}' is nested more than {MAX_DEPTH} deep")
    if isinstance(value, list | tuple):
        return [plain_value(part, where, column, depth + 1) for part in value]
    if isinstance(value, dict):
        return {_key(key, where, column): plain_value(part, where, column, depth + 1) for key, part in value.items()}
    if isinstance(value, Decimal):
        whole = value.is_finite() and abs(value) < LARGEST and value == value.to_integral_value()
        return int(value) if whole else float(value)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    if isinstance(value, str | float):  # of a library's own kind
        return plain_value(str(value) if isinstance(value, str) else float(value), where, column, depth)
    raise DataError(
        f"{where}: '{brief(column)}' is {kind.__name__}, which is neither text nor a number; save it as one of those"
    )


def _key(key: Any, where: str, column: str) -> str:
    if not isinstance(key, str) or len(key) > MAX_KEY or not is_text(key):
        raise DataError(f"{where}: '{brief(column)}' has an entry whose name is no name: {brief(key)}")
    return key
