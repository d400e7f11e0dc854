"""Texts with labels, or pairs of texts with labels: what a classifier learns from.

Notable here:
- `[text, label]` or `[first, second, label]` are columns of a table, the label last; names, or numbers from 1;
- where no columns are named they are guessed, by the names that corpora use, by elimination, and in a file without a
  header by what stands in the columns; `note` says what was guessed;
- numbers that stand for classes on the hub have names there, in an order (`classes`);
- what the labels mean is not asked here: see `labels.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from legato.data.formats.strays import NO_LABEL, are_numbers, is_number
from legato.data.formats.text_pairs import tidy
from legato.data.sources.files import MAX_LINE, unify_newlines
from legato.data.sources.table import Column, Head, Table, list_names
from legato.data.sources.tables import format_of, read_table
from legato.errors import DataError, brief

# In lower case. Of several that a table has, the first one here counts.
LABEL_NAMES: Final = (
    *("label", "labels", "gold_label", "class", "category", "sentiment", "score", "similarity_score", "similarity"),
    *("rating", "stars", "quality", "is_duplicate", "intent", "emotion", "topic", "target", "polarity", "y"),
)
PAIR_NAMES: Final = (
    *(("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b")),
    *(("text1", "text2"), ("text_1", "text_2"), ("text_a", "text_b"), ("premise", "hypothesis")),
    *(("question1", "question2"), ("#1 string", "#2 string"), ("question", "sentence"), ("question", "passage")),
    *(("question", "context"), ("question", "answer"), ("query", "document"), ("query", "passage")),
    ("first", "second"),
)
TEXT_NAMES: Final = (
    *("text", "sentence", "review", "content", "comment", "tweet", "message", "document", "body", "utterance"),
    *("question", "query", "title", "headline", "article", "description", "sms", "post"),
)
NUMBERING: Final = re.compile(
    r"(#?\d* ?id|idx|index|.*_id|guid|uid|uuid|no|nr|pair ?id|unnamed: \d+|)", re.IGNORECASE
)
SETTING: Final = "data.columns=[TEXT,LABEL], or for pairs [FIRST,SECOND,LABEL]"
TAKEN: Final = "taking the first line for a header"
SHORT: Final = 40  # characters that a label has at most, for a guess


@dataclass(frozen=True)
class Labelled:
    """Texts, perhaps a second text for each, and what stands in the column of labels."""

    source: str
    texts: list[str]
    seconds: list[str] | None  # of pairs
    labels: list[Any]  # as they stand: text in a csv or tsv, anything elsewhere
    lines: list[int]  # where each row stands, counted from 1
    unit: str  # what `lines` counts: "line" or "row"
    columns: list[Column]  # that were read
    sha256: str = ""
    note: str = ""  # what was guessed in reading, for the user to check
    classes: list[str] | None = None  # names of the numbers that `labels` are, where the data knows them

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def numeric(self) -> bool:
        """Whether all labels that are there are numbers."""
        return are_numbers(self.labels)

    def where(self, row: int) -> str:
        """Where a row stands, for messages: `train.tsv, line 17`."""
        return f"{self.source}, {self.unit} {self.lines[row]:,}"

    def joined(self) -> list[str]:
        """Each row as one text: the parts of a pair with a tab between."""
        if self.seconds is None:
            return self.texts
        return [f"{first}\t{second}" for first, second in zip(self.texts, self.seconds, strict=True)]

    def all_texts(self) -> list[str]:
        """Every text, be it the first or second of its row."""
        return [*self.texts, *(self.seconds or [])]

    def select(self, rows: Sequence[int], source: str | None = None) -> Labelled:
        """Only these rows, in this order."""
        return _made(
            replace(
                self,
                source=source or self.source,
                texts=[self.texts[row] for row in rows],
                seconds=None if self.seconds is None else [self.seconds[row] for row in rows],
                labels=[self.labels[row] for row in rows],
                lines=[self.lines[row] for row in rows],
            )
        )


def read_labelled(
    source: str,
    *,
    columns: Sequence[Column] | None = None,
    like: Sequence[Column] | None = None,
    root: str | None = None,
    format: str = "auto",
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
    split: str = "train",
) -> Labelled:
    """The rows of a table or of a dataset on the hub.

    Without `columns` they are those of `like` where the table has them (what training read, say), else guessed.

    >>> read_labelled("dev.tsv").note  # doctest: +SKIP
    "reading 'sentence' as text and 'label' as label"
    """
    if columns is not None and len(columns) not in (2, 3):
        raise DataError(
            f"data.columns names {len(columns)} of them; name two, [TEXT,LABEL], or three, [FIRST,SECOND,LABEL]"
        )
    told, format = format, format_of(source, root, format, encoding)
    notes = [] if format == told else ["read as tsv"]
    chosen: list[Column] = []
    guessed = taken = False

    def choose(head: Head) -> list[Column]:
        nonlocal guessed, taken
        wanted = like if columns is None and like is not None and _has(head, like) else columns
        if wanted is not None:
            chosen[:] = named_by_number(head, wanted)
            taken = chosen != list(wanted)
        else:
            chosen[:], guessed = guess_columns(head, head.rows()), True
        return chosen

    table = read_table(source, choose, root=root, format=format, encoding=encoding, max_line=max_line, split=split)
    if len(set(table.names)) < len(table.names):
        twice = next(name for name in table.names if table.names.count(name) > 1)
        raise DataError(f"data.columns names '{brief(twice)}' twice; texts and labels are different columns")
    if not table.lines:
        raise DataError(f"{table.source} is empty: it holds no rows; give a file that does")
    notes += [table.note] if table.note else []
    notes += [TAKEN] if taken else []
    notes += [told_columns(table)] if guessed else []
    texts, *more = ([*map(tidy, _texts(table, column))] for column in range(len(chosen) - 1))
    made = Labelled(
        table.source,
        texts,
        more[0] if more else None,
        _labels(table),
        table.lines,
        table.unit,
        list(chosen),
        note=", ".join(notes),
        classes=table.classes[-1] if table.classes else None,
    )
    _refuse_empty(made)
    return _made(made)


def told_columns(table: Table) -> str:
    """What was guessed, as a person wants to read it."""
    named = [f"'{brief(name)}'" if table.header else f"column {name}" for name in table.names]
    *texts, label = named
    what = "text" if len(texts) == 1 else "texts"
    told = f"reading {' and '.join(texts)} as {what} and {label} as label"
    return told if table.header else f"{told}, no header"


def _texts(table: Table, column: int) -> list[str]:
    return [unify_newlines(text) for text in table.texts(column)]


def _labels(table: Table) -> list[Any]:
    return [value.strip() if isinstance(value, str) else value for value in table.columns[-1]]


def _refuse_empty(data: Labelled) -> None:
    sides = [(data.texts, "text" if data.seconds is None else "first text")]
    sides += [] if data.seconds is None else [(data.seconds, "second text")]
    for row in range(len(data)):
        for texts, name in sides:
            if not texts[row]:
                raise DataError(f"{data.where(row)}: the {name} is empty; write one, or remove the {data.unit}")


def _made(data: Labelled) -> Labelled:
    digest = hashlib.sha256()
    for column in (data.texts, data.seconds or [], [repr(label) for label in data.labels]):
        # The counts and lengths in front keep columns and texts apart, wherever one ends.
        digest.update(len(column).to_bytes(8, "little"))
        for row, text in enumerate(column):
            try:
                raw = text.encode("utf-8")
            except UnicodeEncodeError as problem:
                raise DataError(
                    f"{data.where(row)}: half a surrogate pair at character {problem.start}, which is no text; "
                    "remove it"
                ) from None
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return replace(data, sha256=digest.hexdigest())


# --- which columns ---------------------------------------------------------------------------------


def _has(head: Head, columns: Sequence[Column]) -> bool:
    """Whether a table has these columns: names that stand in it, or numbers where it shows no names."""
    if all(isinstance(column, int) for column in columns):
        return head.kind in ("csv", "tsv") and _by_name(head.names) is None
    return all(isinstance(column, int) or column.split(".")[0] in head.names for column in columns)


def named_by_number(head: Head, columns: Sequence[Column]) -> list[Column]:
    """The columns as they were given; numbers become names where the first line is a header."""
    numbers = [column for column in columns if isinstance(column, int)]
    if head.kind not in ("csv", "tsv") or len(numbers) < len(columns):
        return list(columns)
    fields = [head.names[n - 1] for n in numbers if 0 < n <= len(head.names)]
    known = {*LABEL_NAMES, *TEXT_NAMES, *itertools.chain(*PAIR_NAMES)}
    if not len(fields) == len(columns) == len(set(fields)):
        return list(columns)
    if not all(_plain(field) in known for field in fields) and not _is_headed(head.rows(), numbers):
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


def _plain(name: str) -> str:
    return name.strip().lower()


def _by_name(names: Sequence[str]) -> list[Column] | None:
    """The columns whose names tell what they hold; None where the names do not say it all."""
    known = {_plain(name): name for name in reversed(names)}
    label = next((known[name] for name in LABEL_NAMES if name in known), None)
    pair = next(([known[a], known[b]] for a, b in PAIR_NAMES if a in known and b in known), None)
    text = next((known[name] for name in TEXT_NAMES if name in known), None)
    texts = pair or ([] if text is None else [text])
    if label is not None and texts:
        return [*texts, label]
    others = [name for name in names if name not in (*texts, label) and NUMBERING.fullmatch(_plain(name)) is None]
    if len(others) != 1:
        return None
    if texts:  # what is left is the label
        return [*texts, others[0]]
    return [others[0], label] if label is not None else None


def guess_columns(head: Head, rows: Sequence[Sequence[str]], setting: str = SETTING) -> list[Column]:
    """The columns of text, or of two texts, and of the label; `rows` are the first ones of a csv or tsv.

    `setting` says, in an error, how to name them.
    """
    found = _by_name(head.names)
    if found is not None:
        return found
    separated = head.kind in ("csv", "tsv")
    found = _by_content(rows) if separated else _by_type(head)
    if found is None:
        parted = {"csv": ", where commas part them", "tsv": ", where tabs part them"}.get(head.kind, "")
        count = f"one column{parted}" if len(head.names) == 1 else f"the columns {list_names(head.names)}"
        raise DataError(
            f"{head.where} has {count}; say which are text and label: {setting}, by name, or by number from 1"
        )
    return found


def _by_type(head: Head) -> list[Column] | None:
    """Of a table with typed values: the one long text, and the one that is none."""
    row = head.first()
    named = _by_name([name for name in head.names if not isinstance(row.get(name), dict)])
    if named is not None:
        return named
    texts = [name for name in head.names if isinstance(row.get(name), str)]
    others = [
        name
        for name in head.names
        if isinstance(row.get(name), int | float | list) and NUMBERING.fullmatch(_plain(name)) is None
    ]
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
    name = _plain(first[label])
    if len(set(first)) < len(first) or first[label] in columns[label] or not name or name in NO_LABEL:
        return False
    if all(is_number(value) for value in columns[label]):
        return not is_number(name)
    return all(len(first[place].split()) == 1 for place in texts)
