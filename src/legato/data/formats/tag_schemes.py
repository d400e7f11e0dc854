"""How tags say where a name begins and ends, and from one way to another.

              EU     rejects  German  New    York   London
    iob1      I-ORG  O        I-MISC  I-LOC  I-LOC  B-LOC      B- only where two of a kind touch
    iob2      B-ORG  O        B-MISC  B-LOC  I-LOC  B-LOC      every name begins with B- ("BIO")
    iobes     S-ORG  O        S-MISC  B-LOC  E-LOC  S-LOC      and says where it ends, or that it is one word
    bilou     U-ORG  O        U-MISC  B-LOC  L-LOC  U-LOC      the same in other letters
    plain     tags that stand for themselves, such as parts of speech

What is read is forgiving, as the CoNLL-2003 scorer is: a tag that cannot follow the one before it begins a name. What
is written is always in order, so reading and writing again repairs a sequence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[np.bool_]]
Scheme = Literal["iob1", "iob2", "iobes", "bilou", "plain"]

OUTSIDE: Final = "O"
_TAG: Final = re.compile(r"O|[BIESLU]-.+", re.DOTALL)
_SAME: Final = {"L": "E", "U": "S"}  # bilou's letters in iobes


class Entity(NamedTuple):
    """A name: what it is of, its first word, and the word behind its last."""

    kind: str
    start: int
    end: int


def guess_scheme(sentences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that tags are most likely written in.

    Between iob1 and iob2 the one that fewer tags speak against: an I- that begins a name is none of iob2's, a B- with
    nothing of its kind before it none of iob1's.

    >>> guess_scheme([["I-ORG", "O", "I-MISC"]]), guess_scheme([["NOUN", "VERB"]])
    ('iob1', 'plain')
    """
    letters: set[str] = set()
    against = {"iob1": 0, "iob2": 0}
    for tags in sentences:
        before = ""
        for tag in tags:
            if not _TAG.fullmatch(tag):
                return "plain"
            letters.add(tag[0])
            kind = tag[2:]
            if tag[0] == "I" and kind != before:
                against["iob2"] += 1
            elif tag[0] == "B" and kind != before:
                against["iob1"] += 1
            before = kind
    if letters & {"E", "S"}:
        return "iobes"
    if letters & {"L", "U"}:
        return "bilou"
    if not letters & {"B", "I"}:
        return "plain"
    return "iob1" if against["iob1"] < against["iob2"] else "iob2"


def scheme_of_labels(labels: Iterable[str]) -> dict[str, Any]:
    """What a list of labels alone says of a tagger's scheme, as a model's folder says it.

    With the same labels a name may begin with I- (iob1) or not (iob2): a list cannot tell, so every tag may follow
    every other there.

    >>> scheme_of_labels(["O", "B-PER", "I-PER"])
    {'scheme': 'iob2', 'valid_transitions': False}
    """
    scheme = guess_scheme([label] for label in labels)
    return {"scheme": scheme, "valid_transitions": scheme not in ("iob1", "iob2")}


def is_entity_tag(tag: str) -> bool:
    """Whether a tag is one of a name, in any scheme.

    >>> is_entity_tag("B-PER"), is_entity_tag("O"), is_entity_tag("B_PER")
    (True, False, False)
    """
    return tag != OUTSIDE and _TAG.fullmatch(tag) is not None


def read_spans(tags: Sequence[str]) -> list[Entity]:
    """The names in a sequence of tags of any of the schemes but plain.

    >>> read_spans(["I-LOC", "I-LOC", "B-LOC", "O"])
    [Entity(kind='LOC', start=0, end=2), Entity(kind='LOC', start=2, end=3)]
    """
    spans: list[Entity] = []
    kind, start = "", -1  # of the name that is open
    for place, tag in enumerate(tags):
        letter, now = _SAME.get(tag[:1], tag[:1]), tag[2:]
        letter = letter if tag[1:2] == "-" and letter in "BIES" else OUTSIDE  # what is no tag for names is in none
        begins = letter in "BS" or (letter in "IE" and (start < 0 or now != kind))
        if start >= 0 and (begins or letter == OUTSIDE):
            spans.append(Entity(kind, start, place))
            start = -1
        if begins:
            kind, start = now, place
        if letter in "ES" and start >= 0:
            spans.append(Entity(kind, start, place + 1))
            start = -1
    if start >= 0:
        spans.append(Entity(kind, start, len(tags)))
    return spans


def write_spans(spans: Iterable[Entity], length: int, scheme: Scheme) -> list[str]:
    """The tags of names that do not overlap.

    >>> write_spans([Entity("LOC", 0, 2), Entity("LOC", 2, 3)], 4, "iobes")
    ['B-LOC', 'E-LOC', 'S-LOC', 'O']
    """
    tags = [OUTSIDE] * length
    before = Entity("", -1, -1)
    for span in spans:
        tags[span.start : span.end] = [f"I-{span.kind}"] * (span.end - span.start)
        if scheme != "iob1" or (before.end == span.start and before.kind == span.kind):
            tags[span.start] = f"B-{span.kind}"
        if scheme in ("iobes", "bilou"):
            last, single = ("E", "S") if scheme == "iobes" else ("L", "U")
            tags[span.end - 1] = f"{last if span.end - span.start > 1 else single}-{span.kind}"
        before = span
    return tags


def convert(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """The same names in another scheme; in the one that they are in, repaired. Plain tags stay."""
    return list(tags) if scheme == "plain" else write_spans(read_spans(tags), len(tags), scheme)


def count_repairs(tags: Sequence[str], scheme: Scheme) -> int:
    """How many tags a sequence has that cannot stand where they are. In iob1 all can."""
    if scheme in ("plain", "iob1"):
        return 0
    return sum(a != b for a, b in zip(tags, convert(tags, scheme), strict=True))


def kind_of(tag: str, scheme: Scheme) -> str:
    """What a tag is of: the name's kind, or the tag itself."""
    return tag if scheme == "plain" or tag[1:2] != "-" else tag[2:]


def labels_of(kinds: Iterable[str], scheme: Scheme) -> list[str]:
    """Every tag that there can be for names of these kinds, in order; plain tags are their own.

    >>> labels_of(["PER", "LOC"], "iob2")
    ['O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER']
    """
    if scheme == "plain":
        return sorted(set(kinds))
    letters = {"iob1": "BI", "iob2": "BI", "iobes": "BIES", "bilou": "BILU"}[scheme]
    return [OUTSIDE, *(f"{letter}-{kind}" for kind in sorted(set(kinds) - {OUTSIDE}) for letter in letters)]


def transitions(labels: Sequence[str], scheme: Scheme) -> Array:
    """Which tag (column) may follow which (row), (C + 2, C + 2); the last two are the start and the end."""
    count = len(labels)
    allowed = np.ones((count + 2, count + 2), dtype=bool)
    allowed[:, count] = allowed[count + 1, :] = False  # nothing before the start, nothing behind the end
    if scheme in ("plain", "iob1"):
        return allowed
    places = [*labels, "", ""]  # the start and the end are outside of names
    for row, before in enumerate(places[:-1]):
        for column, after in enumerate(places):
            if column == count:
                continue
            goes_on = after[:1] in ("I", "E", "L")  # it needs a name of its kind that is open
            opened = before[:1] in ("B", "I") and (not goes_on or before[2:] == after[2:])
            if goes_on:
                allowed[row, column] = opened
            elif scheme in ("iobes", "bilou") and before[:1] in ("B", "I"):
                allowed[row, column] = False  # a name that is open must end first
    return allowed
