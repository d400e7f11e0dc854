"""What `predict` reads of a table: its texts alone, whether or not the table has labels, too."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from legato.data.formats.labelled import TEXTS, guess_columns, has_columns, named_by_number
from legato.data.sources.files import load_text, unify_newlines
from legato.data.sources.named_files import source_folder
from legato.data.sources.patterns import source_files
from legato.data.sources.table import Column, Head
from legato.data.sources.tables import kind_of, read_table, tabbed
from legato.data.sources.text_folders import SENTENCES, has_slots, text_files, text_lines
from legato.errors import DataError, brief, listed
from legato.input_files import path_of


@dataclass(frozen=True)
class TableInputs:
    """A text for each row, those of a pair with a tab between them; or what else a task predicts from."""

    texts: list[Any]
    note: str = ""  # which columns were guessed, for the user to check
    names: list[str] | None = None  # what begins the line of each, where each has a name of its own
    unit: str = "row"  # what each is, in messages


def is_table(file: str) -> bool:
    """Whether a file is read by columns, or is several, rather than read line by line."""
    path = path_of(file)
    return kind_of(path) != "text" or path.is_dir() or (glob.has_magic(file) and not path.exists())


@dataclass
class ColumnChoice:
    """Which columns of a table are read: those that somebody names, else those of training where it has them."""

    columns: Sequence[Column] | None
    trained: Sequence[Column] | None
    guess: Callable[[Head], Sequence[Column]]  # where there are neither
    guessed: bool = False  # whether it came to that

    def __call__(self, head: Head) -> Sequence[Column]:
        if self.columns is not None:
            return self.columns
        if self.trained and has_columns(head, self.trained):
            return named_by_number(head, self.trained)
        self.guessed = True
        return self.guess(head)


def read_inputs(
    source: str, trained: Sequence[Column] | None = None, columns: Sequence[Column] | None = None, count: int = 1
) -> TableInputs:
    """The texts of a table: of `columns`; else of those that were `trained` on, where it has them; else guessed.

    `count` is how many texts a row has where the table does not tell. In a folder each text file is a text, and so
    is each line of `seq.in`, or of several files that are no tables.
    """
    folder, names = source_folder(source), source_files(source)
    if folder is not None and not has_slots(folder):
        paths = text_files(folder)
        if not paths:
            raise DataError(f"{folder} holds no text file; those end in .txt")
        return TableInputs([load_text(path) for path in paths], "", [str(path.relative_to(folder)) for path in paths])
    if folder is not None or all(kind_of(path_of(name)) == "text" for name in names):
        files = [folder / SENTENCES] if folder is not None else [path_of(name) for name in names]
        return TableInputs([line for file in files for line in text_lines(file)], unit="line")
    choice = ColumnChoice(columns, trained, lambda head: _guess(head, count))
    table = read_table(source, choice, tabbed(source))
    parts = [[unify_newlines(text) for text in table.texts(place, "--columns")] for place in range(len(table.names))]
    texts = ["\t".join(part.replace("\t", " ") for part in row) for row in zip(*parts, strict=True)]
    note = f"{table.source}: reading {' and '.join(table.shown)} as text" + ("" if table.header else ", no header")
    return TableInputs(texts, note if choice.guessed else "")


def _guess(head: Head, count: int) -> Sequence[Column]:
    """The columns of texts as training guesses them, beside a label; else by their names, or where all are texts."""
    try:
        *texts, _ = guess_columns(head)
        if len(texts) == count:
            return texts
    except DataError:
        pass
    if named := TEXTS.find(head.names, count):
        return named
    if len(head.names) == count:
        return list(range(1, count + 1)) if head.separated else head.names
    first = [brief(name) for name in head.names[:count]]
    in_memory = head.kind == "memory"
    pick = f"predict(table[{first if count > 1 else first[0]!r}])" if in_memory else f"--columns {','.join(first)}"
    raise DataError(
        f"{head.where} has the columns {listed(head.names)}; say which "
        f"{'is the text' if count == 1 else 'are the two texts'}: {pick}"
    )
