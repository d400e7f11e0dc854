"""Texts with labels, or pairs of texts with labels: what a classifier learns from.

Notable here:
- `[text, label]` or `[first, second, label]` are columns of a table, the label last; names, or numbers from 1;
- where no columns are named they are guessed, by the names that corpora use, by elimination, and in a file without a
  header by what stands in the columns; `note` says what was guessed, or a warning where no name told the label;
- numbers that stand for classes on the hub have names there, in an order (`classes`);
- a folder may hold a folder of text files for each class, or `seq.in` and `label`, a line for each sentence;
- what the labels mean is not asked here: see `labels.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.rows import NumberedRows
from legato.data.formats.strays import NO_LABEL, are_numbers, is_number
from legato.data.formats.text_pairs import tidy
from legato.data.sources.columns import LABELLED, plain
from legato.data.sources.files import FileOptions, unify_newlines
from legato.data.sources.named_files import source_folder
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import read_table, tabbed
from legato.data.sources.text_folders import class_texts, has_slots, slot_lines
from legato.errors import DataError, brief, warn

TEXTS, LABEL = LABELLED.roles
NUMBERING: Final = re.compile(
    r"(#?\d* ?id|idx|index|.*_id|guid|uid|uuid|no|nr|pair ?id|unnamed: \d+|)", re.IGNORECASE
)
TAKEN: Final = "taking the first line for a header"
SWAPPED: Final = 8  # rows from which on two columns tell that they are swapped
SHORT: Final = 40  # characters that a label has at most, for a guess


@dataclass(frozen=True, kw_only=True)
class Labelled(NumberedRows):
    """Texts, perhaps a second text for each, and what stands in the column of labels."""

    texts: list[str]
    seconds: list[str] | None = None  # of pairs
    labels: list[Any]  # as they stand: text in a csv or tsv, anything elsewhere
    columns: list[Column]  # that were read
    classes: list[str] | None = None  # names of the numbers that `labels` are, where the data knows them

    by_row: ClassVar[tuple[str, ...]] = ("lines", "texts", "seconds", "labels")

    def content_hash(self) -> str:
        labels = [repr(label) for label in self.labels]
        return sha256_of(sized_columns((self.texts, self.seconds or [], labels), self.where))

    @cached_property
    def numeric(self) -> bool:
        """Whether all labels that are there are numbers."""
        return are_numbers(self.labels)

    def joined(self) -> list[str]:
        """Each row as one text: the parts of a pair with a tab between."""
        if self.seconds is None:
            return self.texts
        return [f"{first}\t{second}" for first, second in zip(self.texts, self.seconds, strict=True)]


def read_labelled(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    columns: Sequence[Column] | None = None,
    like: Sequence[Column] | None = None,
) -> Labelled:
    """The rows of a table, of several, of a folder, or of a dataset on the hub.

    Without `columns` they are those of `like` where the table has them (what training read, say), else guessed.

    >>> read_labelled("dev.tsv").note  # doctest: +SKIP
    "reading 'sentence' as text and 'label' as label"
    """
    LABELLED.check(columns)
    if (folder := source_folder(source, files.root)) is not None:
        return _slots(folder, files) if has_slots(folder) else _class_folders(folder, files)
    as_table = tabbed(source, files)
    notes = [] if as_table == files else ["read as tsv"]
    chosen: list[Column] = []
    guessed = taken = False

    def choose(head: Head) -> list[Column]:
        nonlocal guessed, taken
        wanted = like if columns is None and like is not None and has_columns(head, like) else columns
        if wanted is not None:
            chosen[:] = named_by_number(head, wanted)
            taken = chosen != list(wanted)
        else:
            chosen[:], guessed = guess_columns(head), True
        return chosen

    table = read_table(source, choose, as_table)
    if len(set(table.names)) < len(table.names):
        twice = next(name for name in table.names if table.names.count(name) > 1)
        raise DataError(f"data.columns names '{brief(twice)}' twice; texts and labels are different columns")
    if not table.lines:
        raise DataError(f"{table.source} is empty: it holds no rows; give a file that does")
    notes += [table.note] if table.note else []
    notes += [TAKEN] if taken else []
    if guessed and table.header and LABEL.knows(table.names[-1]):
        notes.append(told_columns(table))
    elif guessed:  # by what stands there alone, which quiet runs say, too
        warn(f"{table.source}: {told_columns(table)}; if that is wrong, set data.columns=[TEXT,LABEL]")
    texts, *more = ([tidy(unify_newlines(text)) for text in table.texts(place)] for place in range(len(chosen) - 1))
    for row, parts in enumerate(zip(texts, *more, strict=True)):
        if not all(parts):
            name = "text" if not more else "second text" if parts[0] else "first text"
            raise DataError(f"{table.where(row)}: the {name} is empty; write one, or remove the {table.unit}")
    if not more:
        _refuse_swapped(table, texts, chosen)
    return Labelled(
        source=table.source,
        texts=texts,
        seconds=more[0] if more else None,
        labels=[value.strip() if isinstance(value, str) else value for value in table.columns[-1]],
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
        columns=list(chosen),
        note=", ".join(notes),
        classes=table.classes[-1] if table.classes else None,
    )


def _refuse_swapped(table: Table, texts: Sequence[str], columns: Sequence[Column]) -> None:
    """Refuse a column of labels that holds long, different texts beside one of texts that holds a few short names."""
    labels = [label for label in table.columns[-1] if isinstance(label, str)]
    if len(texts) >= SWAPPED and len(labels) == len(texts) and _is_label(texts) and _is_text(labels):
        first, second = table.shown
        raise DataError(
            f"{table.source}: {second} as label holds {len(set(labels)):,} different texts, and {first} as text "
            f"{len(set(texts)):,} short ones, so they are swapped; set data.columns=[{columns[1]},{columns[0]}]"
        )


def _class_folders(folder: Path, files: FileOptions) -> Labelled:
    """A folder of text files for each class."""
    rows = [(str(path), 1, text, label) for path, text, label in class_texts(folder, files)]
    return _from_folder(folder, rows, f"{len({label for *_, label in rows})} classes, a folder each")


def _slots(folder: Path, files: FileOptions) -> Labelled:
    """A folder with a sentence on each line of `seq.in`, and its class on that of `label`."""
    lines = enumerate(zip(*slot_lines(folder, "label", files), strict=True), start=1)
    return _from_folder(folder, [(str(folder / "seq.in"), number, *line) for number, line in lines])


def _from_folder(folder: Path, rows: list[tuple[str, int, str, str]], note: str = "") -> Labelled:
    """Rows of a file, a line in it, a text and its label."""
    for file, line, text, _ in rows:
        if not text.strip():
            raise DataError(f"{file}, line {line:,} is empty; write a text there, or remove it")
    files, lines, texts, labels = map(list, zip(*rows, strict=True))
    return Labelled(
        source=str(folder),
        texts=[tidy(text) for text in texts],
        labels=[label.strip() for label in labels],
        lines=lines,
        row_files=files,
        columns=["text", "label"],
        note=note,
    )


def told_columns(table: Table) -> str:
    """What was guessed, as a person wants to read it."""
    *texts, label = table.shown
    what = "text" if len(texts) == 1 else "texts"
    told = f"reading {' and '.join(texts)} as {what} and {label} as label"
    return told if table.header else f"{told}, no header"


# --- which columns ---------------------------------------------------------------------------------


def has_columns(head: Head, columns: Sequence[Column]) -> bool:
    """Whether a table has these columns: names that stand in it, or numbers where it shows no names."""
    if all(isinstance(column, int) for column in columns):
        return head.separated and _by_name(head.names) is None
    return all(isinstance(column, int) or column.split(".")[0] in head.names for column in columns)


def named_by_number(head: Head, columns: Sequence[Column]) -> list[Column]:
    """The columns as they were given; numbers become names where the first line is a header."""
    numbers = [column for column in columns if isinstance(column, int)]
    if not head.separated or len(numbers) < len(columns):
        return list(columns)
    fields = [head.names[n - 1] for n in numbers if 0 < n <= len(head.names)]
    if not len(fields) == len(columns) == len(set(fields)):
        return list(columns)
    if not all(TEXTS.knows(field) or LABEL.knows(field) for field in fields) and not _is_headed(head.rows(), numbers):
        return list(columns)
    # A name that stands twice means the first of the two.
    return [name if head.names.count(name) == 1 else n for name, n in zip(fields, numbers, strict=True)]


def _is_headed(rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> bool:
    """Whether the first row names these columns, of texts and last of the label; where in doubt it does not."""
    body = [row for row in rows[1:] if len(row) >= max(numbers)]
    if len(body) < 2:
        return False
    columns = [[row[place] for row in body] for place in range(max(numbers))]
    *texts, label = (number - 1 for number in numbers)
    if not _is_header(rows[0], columns, label, texts):
        return False
    labels = columns[label]
    if all(is_number(value) for value in labels):
        return True
    return len(set(labels)) > 1 and _is_label(labels) and any(_is_text(columns[place]) for place in texts)


def _by_name(names: Sequence[str]) -> list[Column] | None:
    """The columns whose names tell what they hold; None where the names do not say it all."""
    texts, label = TEXTS.find(names), LABEL.find(names)
    if texts and label:
        return [*texts, *label]
    others = [name for name in names if name not in (*texts, *label) and NUMBERING.fullmatch(plain(name)) is None]
    if len(others) != 1 or not (texts or label):
        return None
    return [*texts, *others, *label]  # what is left is the one that is missing


def guess_columns(head: Head, which: str = LABELLED.which) -> list[Column]:
    """The columns of text, or of two texts, and of the label; `which` they are, an error asks."""
    found = _by_name(head.names) or (_by_content(head.rows()) if head.separated else _by_type(head))
    if found is None or _is_text_column(head, found[-1]):
        if len(head.names) == 1:
            parted = {"csv": ", where commas separate them", "tsv": ", where tabs separate them"}.get(head.kind, "")
            raise DataError(f"{head.where} has one column{parted}; give a label beside each text, in a second one")
        raise head.undecided(which)
    return found


def _is_text_column(head: Head, label: Column) -> bool:
    """Whether what is taken for the label, by no name of one, holds texts that differ: then there is no label."""
    if not head.separated or not isinstance(label, str) or LABEL.knows(label):
        return False
    place = head.names.index(label)
    values = [row[place] for row in head.rows()[1:] if len(row) > place]
    return _is_text(values) and not _is_label(values)


def _by_type(head: Head) -> list[Column] | None:
    """Of a table with typed values: the one long text, and the one that is none."""
    row = head.first()
    named = _by_name([name for name in head.names if not isinstance(row.get(name), dict)])
    if named is not None:
        return named
    texts = head.of_type(str)
    others = [name for name in head.of_type(int, float, list) if NUMBERING.fullmatch(plain(name)) is None]
    if 1 <= len(texts) <= 2 and len(others) == 1:
        return [*texts, others[0]]
    return None


def _by_content(rows: Sequence[Sequence[str]]) -> list[Column] | None:
    """Of rows without telling names: texts are long and differ, labels are short and come again."""
    width = min(map(len, rows), default=0)
    body = rows[1:] if len(rows) > 2 else rows  # the first one may be a header
    columns = [[row[place] for row in body] for place in range(width)]
    texts = [place for place, values in enumerate(columns) if _is_text(values)]
    labels = [place for place, values in enumerate(columns) if place not in texts and _is_label(values)]
    if len(labels) > 1:  # a number says more than a name: CoLA has source, label, mark, sentence
        numbers = [place for place in labels if all(is_number(value) for value in columns[place])]
        labels = numbers if len(numbers) == 1 else labels
    if len(texts) not in (1, 2) or len(labels) != 1:
        return None
    places = [*texts, labels[0]]
    if len(rows) > 2 and _is_header(rows[0], columns, labels[0], texts):
        return [rows[0][place] for place in places]
    return [place + 1 for place in places]


def _is_text(values: Sequence[str]) -> bool:
    words = sum(len(value.split()) for value in values) / max(len(values), 1)
    return words > 2 and len(set(values)) > len(values) / 2


def _is_label(values: Sequence[str]) -> bool:
    if any(len(value) > SHORT for value in values) or not any(values):
        return False
    numbers = all(is_number(value) for value in values)
    repeats = len(set(values)) <= max(2, len(values) / 2)
    return repeats or (numbers and any("." in value for value in values))


def _is_header(first: Sequence[str], columns: list[list[str]], label: int, texts: Sequence[int]) -> bool:
    """Whether the first row names the columns: its label is none, and its texts are names."""
    name = plain(first[label])
    if len(set(first)) < len(first) or first[label] in columns[label] or not name or name in NO_LABEL:
        return False
    if all(is_number(value) for value in columns[label]):
        return not is_number(name)
    return all(len(first[place].split()) == 1 for place in texts)
