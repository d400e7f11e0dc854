"""Rows of csv and tsv files: how their fields are written, and where a row begins."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from legato.data.sources.table import Choose, Column, Head, Table, check_number, resolve_columns
from legato.errors import DataError, brief

FIRST_ROWS: Final = 300  # that a guess looks at
QUOTED: Final = re.compile(r'"[^"]*+(?:""[^"]*+)*+"(?![^\t\n])')  # a whole field of a tsv, quoted as in a csv
MANY_LINES: Final = 200  # of one row of a csv: more are rows that a lone quotation mark has swallowed


@dataclass(frozen=True)
class _Form:
    """How the fields of a csv or tsv are written."""

    delimiter: str  # what parts them
    quoted: bool
    note: str = ""

    def reader(self, text: str, *, strict: bool = True) -> Any:
        lines = io.StringIO(text, newline="")
        if not self.quoted:
            return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.delimiter, strict=strict)

    def even(self, text: str) -> bool:
        """Whether each row has as many fields as the first."""
        try:
            return len({len(row) for row in self.reader(text) if row}) == 1
        except csv.Error:
            return False


def _form(text: str, kind: str) -> _Form:
    if kind == "tsv":
        return _quoted_tsv(text) or _Form("\t", False)
    head = text.lstrip("\n").partition("\n")[0]
    semicolons = _Form(";", True, "its columns separated by semicolons")
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


def read_separated(path: Path, text: str, choose: Choose, kind: str) -> Table:
    limit = csv.field_size_limit(2**31 - 1)  # global, and 128 kB by itself: a document may well be longer
    try:
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
    finally:
        csv.field_size_limit(limit)


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
        names = resolve_columns(str(path), fields, chosen, objects=False)
        places = [c - 1 if isinstance(c, int) else fields.index(c) for c in chosen]
    else:
        rows = itertools.chain([top], rows)
        names = [str(column) for column in chosen]
        for column in chosen:
            check_number(int(column))
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
            marks = {"\t": "tabs", ";": "semicolons"}.get(form.delimiter, "commas")
            advice = f"are its columns separated by {marks}?" if number == 1 else "complete or remove the row"
            raise DataError(f"{where}: {count}, so there is no column {last + 1}; {advice}{quotes}")
        if header and form.delimiter == "," and len(row) > len(fields):
            raise DataError(
                f"{path}, row {number} (line {line}): {len(row)} fields under {len(fields)} columns; "
                "put what holds commas between quotation marks"
            )
        lines.append(line)
        for those, place in zip(values, places, strict=True):
            those.append(row[place])
    return Table(str(path), names, values, lines, "line", header, note=form.note)
