"""Pairs of texts that mean the same, or as much the same as a score says.

A row has two texts and perhaps a third column: numbers are scores (how alike the two are), texts are hard negatives
(what the first text is near to, and should not be). Columns are named or guessed, and `note` says what was guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from legato.data.digests import sha256_of
from legato.data.formats.labelled import TAKEN
from legato.data.formats.rows import NumberedRows
from legato.data.formats.strays import is_number
from legato.data.formats.text_pairs import tidy
from legato.data.sources.columns import SCORED
from legato.data.sources.files import FileOptions
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import read_table, tabbed
from legato.data.splits import by_hash
from legato.errors import DataError, brief

TEXTS, NEGATIVE, SCORE = SCORED.roles
_NAME: Final = re.compile(r"\s*[^\W\d]\w*\s*")


@dataclass(frozen=True, kw_only=True)
class ScoredPairs(NumberedRows):
    """Pairs of texts, what is known of how alike they are, and where they stand."""

    first: list[str]
    second: list[str]
    scores: list[float] | None = None
    negatives: list[str] | None = None  # texts that are not like the first

    by_row: ClassVar[tuple[str, ...]] = ("lines", "first", "second", "scores", "negatives")

    def content_hash(self) -> str:
        rows = ["\t".join(group) + "\n" for group in self.groups]
        return sha256_of([*rows, b"" if self.scores is None else np.array(self.scores, dtype="<f8").tobytes()])

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The texts of each row: two, or three where there are negatives."""
        columns = [self.first, self.second, *([self.negatives] if self.negatives is not None else [])]
        return list(zip(*columns, strict=True))


def read_scored_pairs(
    source: Source, files: FileOptions = FileOptions(), *, columns: Sequence[Column] | None = None
) -> ScoredPairs:
    """The pairs of a table: two columns of texts, and perhaps one of scores or of hard negatives.

    >>> read_scored_pairs("sts-dev.csv", columns=[6, 7, 5]).scores[:2]  # doctest: +SKIP
    [5.0, 4.75]
    """
    SCORED.check(columns)
    notes: list[str] = []

    def choose(head: Head) -> Sequence[Column]:
        chosen = _guess(head) if columns is None else columns
        if columns is None and all(isinstance(column, int) for column in chosen):
            rows = head.rows()
            if _looks_like_names(rows):
                notes.append(TAKEN)
                return rows[0]
        return chosen

    table = read_table(source, choose, tabbed(source, files))
    first, second = (_texts(table, column) for column in (0, 1))
    scores = negatives = None
    if len(table.columns) == 3:
        if _holds_scores(table):
            scores = [_number(table, row) for row in range(len(first))]
        else:
            negatives = _texts(table, 2)
    if not first:
        raise DataError(f"{table.source} holds no pairs; give a file that does")
    return ScoredPairs(
        source=table.source,
        first=first,
        second=second,
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
        scores=scores,
        negatives=negatives,
        note=", ".join([_note(table, scores), *notes, *([table.note] if table.note else [])]),
    )


def hold_out_scored_pairs(pairs: ScoredPairs, share: float) -> dict[str, ScoredPairs]:
    """Training and validation pairs; which part a first text is in follows from a hash of it."""
    if len(set(pairs.first)) < 2:
        raise DataError(f"{pairs.source} has one first text only, so nothing can be held out; set data.valid=FILE")
    parts = by_hash(pairs.first, {"valid": share})
    return {part: pairs.select(rows, f"{pairs.source} ({part})") for part, rows in parts.items()}


# --- which columns -------------------------------------------------------------------------------


def _guess(head: Head) -> Sequence[Column]:
    if found := TEXTS.find(head.names):
        return [*found, *(NEGATIVE.find(head.names) or SCORE.find(head.names))]
    if head.separated and len(head.names) in (2, 3):
        return list(range(1, len(head.names) + 1))
    if not head.separated:
        texts, numbers, nothing = head.of_type(str), head.of_type(int, float), head.of_type(type(None))
        if len(texts) == 2 and not numbers and nothing:
            raise DataError(
                f"{head.where}: the first row has nothing in '{brief(nothing[0])}', which may hold scores; complete "
                "or remove it, or name the columns: data.columns=[sentence1,sentence2,score]"
            )
        if len(texts) in (2, 3):
            return [*texts, *numbers[:1]][:3]
    if len(head.names) == 1:
        raise DataError(f"{head.where} has one column; pairs need two texts a row, separated by a tab or a comma")
    raise head.undecided(SCORED.which)


def _looks_like_names(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names columns: words of letters, each another one, above texts of several words."""
    if len(rows) < 3 or len(set(rows[0])) < len(rows[0]) or not all(_NAME.fullmatch(name) for name in rows[0]):
        return False
    texts = [field for row in rows[1:] for field in row if not is_number(field)]
    return sum(len(text.split()) > 1 for text in texts) * 2 > len(texts)


def _note(table: Table, scores: list[float] | None) -> str:
    kinds = ["a text", "the other", "their score" if scores is not None else "what is unlike the first"]
    return ", ".join(f"{name} as {kind}" for name, kind in zip(table.shown, kinds, strict=False))


def _texts(table: Table, column: int) -> list[str]:
    texts = [tidy(text) for text in table.texts(column)]
    for row, text in enumerate(texts):
        if not text:
            raise DataError(f"{table.where(row)}: {table.shown[column]} is empty; complete or remove the row")
    return texts


def _holds_scores(table: Table) -> bool:
    """Whether the third column is one of numbers: by its name, or since most of its values are."""
    if SCORE.knows(table.names[2]):
        return True
    values = table.columns[2]
    return sum(is_number(value) for value in values) * 2 >= len(values)


def _number(table: Table, row: int) -> float:
    value = table.columns[2][row]
    if not is_number(value):
        names = ",".join(table.names[:2])
        header = "" if table.header or row else "; is that a header? then name its columns: data.columns=[a,b,score]"
        raise DataError(
            f"{table.where(row)}: the score is '{brief(value, 40)}', which is no number; correct it, or train on "
            f"pairs without scores: data.columns=[{names}]{header}"
        )
    return float(value)
