"""Pairs of texts that mean the same, or as much the same as a score says.

A row has two texts and perhaps a third column: numbers are scores (how alike the two are), texts are hard negatives
(what the first text is near to, and should not be). Columns are named or guessed, and `note` says what was guessed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from legato.data.formats.labelled import TAKEN
from legato.data.formats.text_pairs import tidy
from legato.data.sources.files import MAX_LINE
from legato.data.sources.table import Column, Head, Table, list_names
from legato.data.sources.tables import format_of, read_table
from legato.errors import DataError, brief

# Names that are a header where both stand in the first row.
PAIR_NAMES: Final = (
    ("sentence1", "sentence2"),
    ("sentence_1", "sentence_2"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("question1", "question2"),
    ("#1 string", "#2 string"),
    ("anchor", "positive"),
    ("query", "positive"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "answer"),
    ("question", "answer"),
    ("premise", "hypothesis"),
    ("source", "target"),
    ("first", "second"),
)
SCORE_NAMES: Final = ("score", "similarity", "similarity_score", "relatedness_score", "label", "quality")
NEGATIVE_NAMES: Final = ("negative", "hard_negative", "negative_1")
_NAME: Final = re.compile(r"\s*[^\W\d]\w*\s*")


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of texts, what is known of how alike they are, and where they stand."""

    source: str
    first: list[str]
    second: list[str]
    lines: list[int]
    unit: str  # what `lines` counts: "line" or "row"
    sha256: str
    scores: list[float] | None = None
    negatives: list[str] | None = None  # texts that are not like the first
    note: str = ""  # which columns were read, for the user to check

    def __len__(self) -> int:
        return len(self.first)

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The texts of each row: two, or three where there are negatives."""
        columns = [self.first, self.second, *([self.negatives] if self.negatives is not None else [])]
        return list(zip(*columns, strict=True))

    def select(self, indices: Sequence[int], name: str) -> ScoredPairs:
        """Only these rows, in this order."""

        def those(column: list[Any] | None) -> list[Any] | None:
            return None if column is None else [column[index] for index in indices]

        part = replace(
            self,
            source=name,
            first=those(self.first) or [],
            second=those(self.second) or [],
            lines=those(self.lines) or [],
            scores=those(self.scores),
            negatives=those(self.negatives),
        )
        return replace(part, sha256=_hash(part))


def read_scored_pairs(
    source: str,
    *,
    root: str | None = None,
    columns: Sequence[Column] | None = None,
    format: str = "auto",
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
    split: str = "train",
) -> ScoredPairs:
    """The pairs of a table: two columns of texts, and perhaps one of scores or of hard negatives.

    >>> read_scored_pairs("sts-dev.csv", columns=[6, 7, 5]).scores[:2]  # doctest: +SKIP
    [5.0, 4.75]
    """
    if columns is not None and not 2 <= len(columns) <= 3:
        raise DataError(
            f"data.columns names {len(columns)} of them; name two texts, and perhaps a score or a negative: "
            "data.columns=[sentence1,sentence2,score]"
        )
    chosen: list[Column] = []
    notes: list[str] = []

    def choose(head: Head) -> Sequence[Column]:
        if columns is not None:
            chosen[:] = columns
            return chosen
        chosen[:] = _guess(head)
        if head.kind in ("csv", "tsv") and all(isinstance(column, int) for column in chosen):
            rows = head.rows()
            if _looks_like_names(rows):
                chosen[:] = rows[0]
                notes.append(TAKEN)
        return chosen

    kind = format_of(source, root, format, encoding)
    table = read_table(source, choose, root=root, format=kind, encoding=encoding, max_line=max_line, split=split)
    first, second = (_texts(table, column) for column in (0, 1))
    scores = negatives = None
    if len(table.columns) == 3:
        if _holds_scores(table):
            scores = [_number(table, row) for row in range(len(first))]
        else:
            negatives = _texts(table, 2)
    if not first:
        raise DataError(f"{table.source} holds no pairs; give a file that does")
    note = ", ".join([_note(table, scores), *notes, *([table.note] if table.note else [])])
    found = ScoredPairs(table.source, first, second, table.lines, table.unit, "", scores, negatives, note)
    return replace(found, sha256=_hash(found))


def hold_out_scored_pairs(pairs: ScoredPairs, share: float) -> tuple[ScoredPairs, ScoredPairs]:
    """Training and validation pairs; which part a first text is in follows from a hash of it."""
    chances = {text: _chance(text) for text in dict.fromkeys(pairs.first)}
    if len(chances) < 2:
        raise DataError(f"{pairs.source} has one first text only, so nothing can be held out; set data.valid=FILE")
    ordered = sorted(chances.values())
    below = sum(chance < share for chance in ordered)
    limit = ordered[min(max(below, 1), len(ordered) - 1)]
    held = [chances[text] < limit for text in pairs.first]
    parts = ([i for i, out in enumerate(held) if out is kind] for kind in (False, True))
    kept, valid = (
        pairs.select(rows, f"{pairs.source} ({name})") for rows, name in zip(parts, ("train", "valid"), strict=True)
    )
    return kept, valid


def _chance(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:6], "big") / 2**48


def _hash(pairs: ScoredPairs) -> str:
    digest = hashlib.sha256()
    for group in pairs.groups:
        digest.update("\t".join(group).encode("utf-8", "surrogatepass") + b"\n")
    if pairs.scores is not None:
        digest.update(np.array(pairs.scores, dtype="<f8").tobytes())
    return digest.hexdigest()


# --- which columns -------------------------------------------------------------------------------


def _guess(head: Head) -> Sequence[Column]:
    known = {name.strip().lower(): name for name in head.names}
    for left, right in PAIR_NAMES:
        if left in known and right in known:
            third = next((known[name] for name in (*NEGATIVE_NAMES, *SCORE_NAMES) if name in known), None)
            return [known[left], known[right], *([] if third is None else [third])]
    if head.kind in ("csv", "tsv") and len(head.names) in (2, 3):
        return list(range(1, len(head.names) + 1))
    if head.kind not in ("csv", "tsv"):
        row = head.first()
        texts = [name for name in head.names if isinstance(row.get(name), str)]
        numbers = [name for name in head.names if isinstance(row.get(name), int | float)]
        nothing = [name for name in head.names if row.get(name) is None]
        if len(texts) == 2 and not numbers and nothing:
            raise DataError(
                f"{head.where}: the first row has nothing in '{brief(nothing[0])}', which may hold scores; complete "
                "or remove it, or name the columns: data.columns=[sentence1,sentence2,score]"
            )
        if len(texts) in (2, 3):
            return [*texts, *numbers[:1]][:3]
    if len(head.names) == 1:
        raise DataError(f"{head.where} has one column; pairs need two texts a row, parted by a tab or a comma")
    raise DataError(
        f"{head.where} has the columns {list_names(head.names)}; say which two are texts, and which is their score "
        "or a negative, if any: data.columns=[sentence1,sentence2,score]"
    )


def _looks_like_names(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names columns: words of letters, each another one, above texts of several words."""
    if len(rows) < 3 or len(set(rows[0])) < len(rows[0]) or not all(_NAME.fullmatch(name) for name in rows[0]):
        return False
    texts = [field for row in rows[1:] for field in row if _as_number(field) is None]
    return sum(len(text.split()) > 1 for text in texts) * 2 > len(texts)


def _note(table: Table, scores: list[float] | None) -> str:
    kinds = ["a text", "the other", "their score" if scores is not None else "what is unlike the first"]
    named = [f"'{brief(name)}'" if table.header else f"column {name}" for name in table.names]
    return ", ".join(f"{name} as {kind}" for name, kind in zip(named, kinds, strict=False))


def _texts(table: Table, column: int) -> list[str]:
    texts = [tidy(text) for text in table.texts(column)]
    for row, text in enumerate(texts):
        if not text:
            name = f"'{table.names[column]}'" if table.header else f"column {table.names[column]}"
            raise DataError(f"{table.where(row)}: {name} is empty; complete or remove the row")
    return texts


def _holds_scores(table: Table) -> bool:
    """Whether the third column is one of numbers: by its name, or since most of its values are."""
    if table.names[2].strip().lower() in SCORE_NAMES:
        return True
    values = table.columns[2]
    return sum(_as_number(value) is not None for value in values) * 2 >= len(values)


def _as_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _number(table: Table, row: int) -> float:
    value = table.columns[2][row]
    number = _as_number(value)
    if number is None:
        names = ",".join(table.names[:2])
        header = "" if table.header or row else "; is that a header? then name its columns: data.columns=[a,b,score]"
        raise DataError(
            f"{table.where(row)}: the score is '{brief(value, 40)}', which is no number; correct it, or train on "
            f"pairs without scores: data.columns=[{names}]{header}"
        )
    return number
