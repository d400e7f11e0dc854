"""Rows, whatever is in them: columns of one length, where each row stands, and the hash that names their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a file, of a table or of a dataset on the hub."""

    source: str  # the file or dataset, for messages
    unit: str = "line"  # what a row stands on: a "line" or a "row"
    sha256: str = ""  # left out: what `content_hash` says

    by_row: ClassVar[tuple[str, ...]]  # the fields that have a value for each row, or are None
    places: ClassVar[tuple[str, ...]] = ()  # those that say where a row stands, of every format

    def __post_init__(self) -> None:
        if not self.sha256:
            object.__setattr__(self, "sha256", self.content_hash())

    def content_hash(self) -> str:
        """The hash of all that is learned from, byte for byte the same for ever: a run that resumes compares it."""
        raise NotImplementedError

    def select(self, rows: Sequence[int], source: str | None = None) -> Self:
        """Only these rows, in this order."""
        columns = {name: vars(self)[name] for name in (*self.by_row, *self.places)}
        those: dict[str, Any] = {name: column and [column[row] for row in rows] for name, column in columns.items()}
        return replace(self, source=source or self.source, sha256="", **those)


@dataclass(frozen=True, kw_only=True)
class NumberedRows(Rows):
    """Rows that stand on one line each, or begin there."""

    lines: list[int]  # where each row stands, counted from 1
    note: str = ""  # what was guessed in reading, for the user to check
    row_files: list[str] | None = None  # the file of each row, where there are several

    places: ClassVar[tuple[str, ...]] = ("row_files",)

    def __len__(self) -> int:
        return len(self.lines)

    def place(self, row: int) -> str:
        """Where a row stands in its source, for messages: `line 17`."""
        return f"{self.unit} {self.lines[row]:,}"

    def where(self, row: int) -> str:
        """Where a row stands, for messages: `train.tsv, line 17`."""
        return f"{self.row_files[row] if self.row_files else self.source}, {self.place(row)}"
