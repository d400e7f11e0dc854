"""What the labels of texts mean: one class each, several at once, or a number.

kind         a label                                   what a model learns from
classes      a name, or a whole number                 its place among the names
multilabel   a list of names, or with ; between them   1 for each name that is there, 0 for the others
regression   a number                                  the number itself
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from legato.data.digests import chance
from legato.data.formats.labelled import Labelled
from legato.data.formats.strays import few, is_missing, is_number, told_missing
from legato.data.splits import by_hash
from legato.errors import DataError, brief, listed

WHOLE: Final = re.compile(r"-?\d{1,300}")  # a whole number, in any script
FEW: Final = 12  # names that a message lists
UNSEEN: Final = -1  # the place of a class that was not learned
NOT_LEARNED: Final = "(not learned)"  # how such a class is shown


@dataclass(frozen=True)
class Labels:
    """The kind of labels, and the names of the classes in the order of a model's outputs.

    >>> Labels("classes", ["no", "yes"]).outputs
    2
    """

    kind: str
    names: list[str] = field(default_factory=list)
    separator: str = ";"
    numbered: bool = False  # whether the data has numbers, from 0, in place of the names

    @property
    def outputs(self) -> int:
        return 1 if self.kind == "regression" else len(self.names)

    @classmethod
    def of(
        cls, data: Labelled, kind: str = "auto", names: Sequence[str] | None = None, separator: str = ";"
    ) -> Labels:
        """The labels of training data. `names` gives their order, or names to numbers from 0."""
        kind = _kind_of(data) if kind == "auto" else kind
        if kind == "regression":
            if names:
                raise DataError("data.labels names classes, and these labels are numbers; leave it out")
            return cls(kind)
        asked = cls(kind, list(names or []), separator)
        found: dict[str, int] = {}  # each name, and the first row that has it
        for row in range(len(data)):
            for name in asked.spelt(data, row):
                found.setdefault(name, row)
        if kind == "classes" and len(found) < 2:
            folders = data.columns == ["folder"]
            other = "a folder for another class" if folders else "another class, or correct data.columns"
            raise DataError(
                f"{data.source} has one class alone, '{brief(next(iter(found)))}', so there is nothing to tell "
                f"apart; add {other}"
            )
        if not found:
            raise DataError(f"{data.source} has no label at all; is data.columns the labels'?")
        if names is None and data.classes is not None:  # in their own order, with those that have no example
            return cls(kind, data.classes, separator, _is_numbered(data, found, data.classes))
        if names is None:  # by number where all are whole numbers, else by the alphabet
            whole = all(WHOLE.fullmatch(name) for name in found)
            return cls(kind, sorted(found, key=(lambda name: (int(name), name)) if whole else None), separator)
        return cls(kind, list(names), separator, _is_numbered(data, found, list(names)))

    def spelt(self, data: Labelled, row: int) -> list[str]:
        """The names in a row's label: one, or any number where a text may have several."""
        label = data.labels[row]
        if self.kind == "multilabel":
            parts = label.split(self.separator) if isinstance(label, str) else label
            if parts is None:
                return []
            every = parts if isinstance(parts, list) else [parts]
            if any(isinstance(part, list | dict) for part in every):
                raise DataError(
                    f"{data.where(row)}: the labels should be names, not {brief(label)}; is it data.columns?"
                )
            return [name for part in every if (name := self._named(data, row, part))]
        if isinstance(label, dict):
            raise DataError(
                f"{data.where(row)}: the label is an object; name its field: data.columns=[text,label.FIELD]"
            )
        if isinstance(label, list):
            raise DataError(f"{data.where(row)}: the label is a list; set data.kind=multilabel if texts have several")
        name = self._named(data, row, label)
        if not name:
            raise DataError(f"{data.where(row)}: there is no label; write one, or remove the {data.unit}")
        return [name]

    def _named(self, data: Labelled, row: int, label: Any) -> str:
        """A label's name; one that is missing is no name, unless somebody has named it."""
        if is_missing(label, data.numeric) and str(label).strip() not in self.names:
            other = "" if label is None else "; if it is a class, name all of them: data.labels=[…]"
            raise DataError(f"{data.where(row)}: {told_missing(label)}; write one, or remove the {data.unit}{other}")
        return _name(label)

    def encode(self, data: Labelled, *, unseen: str = "refuse") -> list[Any]:
        """What each row is learned from or scored by: a place, a list of 0 and 1, or a number.

        With `unseen` "wrong", a label that was not learned is UNSEEN, which no answer is; where a text may have
        several, one more place at the end of its list says that there are such. Where none was learned, it is the
        wrong file, or the wrong column.
        """
        if self.kind == "regression":
            return [_number(data, row) for row in range(len(data))]
        places = self._places()
        every = [self.spelt(data, row) for row in range(len(data))]
        if not any(name in places for names in every for name in names):
            unseen = "refuse"
        found: list[Any] = []
        for row, names in enumerate(every):
            strange = next((name for name in names if name not in places), None)
            if strange is not None and unseen == "refuse":
                raise DataError(
                    f"{data.where(row)}: the label '{brief(strange)}' is not among those learned, which are "
                    f"{self.listed()}; correct it, or add examples of it to data.train"
                )
            if self.kind == "classes":
                found.append(places.get(names[0], UNSEEN))
                continue
            numbers = {places[name] for name in names if name in places}
            last = [] if unseen == "refuse" else [float(strange is not None)]
            found.append([*(float(n in numbers) for n in range(self.outputs)), *last])
        return found

    def _places(self) -> dict[str, int]:
        places = {name: place for place, name in enumerate(self.names)}
        return places | {str(place): place for place in range(len(self.names))} if self.numbered else places

    def unseen_note(self, data: Labelled, where: str) -> str | None:
        """A line about labels that the model does not know; None where there are none."""
        if self.kind == "regression":
            return None
        places = self._places()
        unseen = [[name for name in self.spelt(data, row) if name not in places] for row in range(len(data))]
        return note_of_unseen(f"{where} has labels", unseen, "rows")

    def shown(self, wanted: Any) -> str:
        """What a row is learned from, as a person reads it.

        >>> Labels("multilabel", ["a", "b", "c"]).shown([1.0, 0.0, 1.0])
        'a;c'
        """
        if self.kind == "regression":
            return f"{wanted:g}"
        if self.kind == "classes":
            return NOT_LEARNED if wanted == UNSEEN else self.names[wanted]
        return self.separator.join(name for name, there in zip(self.names, wanted, strict=False) if there)

    def listed(self) -> str:
        """The names, for a message."""
        return listed(self.names, FEW, quote="'")

    def lone(self, data: Labelled) -> list[tuple[str, str]]:
        """Classes with a single example, and where that stands."""
        if self.kind == "regression":
            return []
        names = [(name, row) for row in range(len(data)) for name in self.spelt(data, row)]
        counts = Counter(name for name, _ in names)
        return [(self._shown(name), data.where(row)) for name, row in names if counts[name] == 1]

    def _shown(self, name: str) -> str:
        return self.names[int(name)] if self.numbered and name not in self.names else name


def note_of_unseen(has: str, unseen: Sequence[Sequence[str]], units: str) -> str | None:
    """A line that names and counts the `unseen` labels of each row or word; None where none has any.

    >>> note_of_unseen("data.test has tags", [[], ["ORG"]], "words")
    "data.test has tags unknown to the model, in 1 of 2 words: 'ORG' (1); they count as wrong"
    """
    counts = Counter(name for names in unseen for name in names)
    if not counts:
        return None
    named = listed([f"'{brief(name)}' ({count:,})" for name, count in counts.most_common()], FEW)
    share = f"{sum(map(bool, unseen)):,} of {len(unseen):,} {units}"
    return f"{has} unknown to the model, in {share}: {named}; they count as wrong"


def _name(value: Any) -> str:
    """A label as text; a whole number that is kept as 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _kind_of(data: Labelled) -> str:
    """Numbers with fractions are a scale; whatever else there is, is classes. A slip decides nothing."""
    whole: list[int] = []  # rows
    parts: list[int] = []  # rows whose number has a fraction
    others: list[int] = []
    for row, label in enumerate(data.labels):
        spelt = str(label).strip().lower().lstrip("+-")
        if isinstance(label, bool) or not (is_number(label) or spelt in ("nan", "inf")):  # which cannot be learned
            others.append(row)
        elif is_number(label):
            (whole if float(label).is_integer() else parts).append(row)
    if others:
        if parts and few(len(others), len(parts) + len(whole)) and data.labels[others[0]] not in (None, ""):
            _refuse_stray(data, others, "no number", len(data) - len(others), "numbers, some with fractions")
        return "classes"
    if parts and few(len(parts), len(whole)) and 2 * len({float(data.labels[row]) for row in whole}) <= len(whole):
        _refuse_stray(data, parts, "no whole number", len(whole), "whole numbers that come again, as classes do")
    return "regression" if parts else "classes"


def _refuse_stray(data: Labelled, rows: list[int], what: str, others: int, they: str) -> None:
    more = f", nor are {len(rows) - 1:,} more" if len(rows) > 1 else ""
    raise DataError(
        f"{data.where(rows[0])}: the label '{brief(data.labels[rows[0]])}' is {what}{more}, and the other {others:,} "
        f"are {they}, so it is not clear what they mean; correct it, or set data.kind=classes or data.kind=regression"
    )


def _is_numbered(data: Labelled, found: dict[str, int], names: list[str]) -> bool:
    """Whether data.labels names numbers from 0; refuses names that are neither the data's nor fit its numbers."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"data.labels names '{brief(twice)}' twice; name it once")
    if data.classes is not None and len(names) != len(data.classes):
        known = Labels("classes", data.classes).listed()
        raise DataError(f"data.labels has {len(names)} names for {len(data.classes)} classes, {known}; leave it out")
    beyond = [name for name in found if name.startswith("-") or not WHOLE.fullmatch(name) or int(name) >= len(names)]
    if data.classes is not None and beyond:  # the hub has -1 where labels are kept secret
        raise DataError(
            f"{data.where(found[beyond[0]])}: the label {brief(beyond[0])} stands for no class; remove the row"
        )
    unknown = [name for name in found if name not in names]
    if data.classes is None and not unknown:
        return False
    if not beyond:
        return True
    where = data.where(found[unknown[0]])
    raise DataError(f"{where}: the label '{brief(unknown[0])}' is not in data.labels=[{listed(names)}]; add it")


def _number(data: Labelled, row: int) -> float:
    label = data.labels[row]
    if isinstance(label, bool) or not is_number(label):
        told = "there is no label" if label in (None, "") else f"the label '{brief(label)}' is not a number"
        raise DataError(f"{data.where(row)}: {told}, as data.kind=regression needs; is data.columns the label's?")
    return float(label)


# --- holding out -----------------------------------------------------------------------------------


def hold_out_rows(
    data: Labelled, share: float, kind: str = "auto", separator: str = ";", names: Sequence[str] | None = None
) -> dict[str, Labelled]:
    """The rows without a `share` of them, and that share, chosen by a hash of the text: never one text in both.

    Each class keeps the text of its that would come last, so that nothing is asked that was not taught.
    """
    kind = _kind_of(data) if kind == "auto" else kind
    order = {text: (chance(text), text) for text in data.texts}
    last: dict[str, str] = {}  # the text of each class that comes last
    for row in range(len(data)) if kind != "regression" else ():
        for name in Labels(kind, list(names or []), separator).spelt(data, row):
            last[name] = max(last.get(name, data.texts[row]), data.texts[row], key=order.__getitem__)
    kept = set(last.values())
    if len(last) == len(data) > 2:
        raise DataError(
            f"{data.source}: each of its {len(data):,} rows has a label of its own, so '{brief(data.columns[-1])}' "
            "is no label to learn; set data.columns=[TEXT,LABEL], or give data.valid where each class has one example"
        )
    if len(kept) == len(order) or len(order) < 2:
        raise DataError(
            f"{data.source}: none of its {len(order):,} different texts can be held out for validation, since each "
            "is needed to learn a class; give data.valid"
        )
    # Something is left to learn from.
    parts = by_hash(data.texts, {"valid": share}, kept, left=0 if kept else 1)
    return {part: data.select(rows) for part, rows in parts.items()}
