"""How well words are tagged.

    precision, recall, f1    of whole names: kind, first and last word must all be right (CoNLL-2003; by seqeval)
    accuracy                 share of the words with the right tag

All are in percent but accuracy, which is a share. Tags of any scheme are compared in iob2, into which reading them
forgivingly (data/formats/tag_schemes.py) turns them; seqeval's default reading of iob2 is the same as conlleval's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from legato.data.formats.tag_schemes import OUTSIDE, Scheme, convert, kind_of, read_spans
from legato.evaluation.metrics import DetailTable, metrics

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("f1", unit="percent", better="up", headline=True),
    *metrics("accuracy", unit="fraction", better="up", headline=True),
    *metrics("precision", "recall", unit="percent", better="up"),
    *metrics("words", "names"),
)
WIDEST: Final = 20  # kinds that a table of confusions may have; beyond that, only the most frequent ones are listed
MOST: Final = 20  # of those, and of the worst errors

Tags = Sequence[Sequence[str]]


def signature(scheme: Scheme) -> str:
    """What the figures depend on, to be stated with them."""
    if scheme == "plain":
        return "accuracy of words"
    return f"seqeval:{version('seqeval')}|mode:default|scheme:iob2|average:micro"


def tagging_scores(gold: Tags, guessed: Tags, scheme: Scheme) -> dict[str, Any]:
    """The figures of tagged sentences beside what they should be."""
    right = sum(a == b for one, other in zip(gold, guessed, strict=True) for a, b in zip(one, other, strict=True))
    words = sum(map(len, gold))
    scores: dict[str, Any] = {"accuracy": right / max(words, 1), "words": words}
    if scheme == "plain":
        return scores
    precision, recall, f1, names = _by_seqeval(gold, guessed, "micro")
    figures = {"f1": 100 * float(f1), "precision": 100 * float(precision), "recall": 100 * float(recall)}
    return {**figures, **scores, "names": int(names)}


def _by_seqeval(gold: Tags, guessed: Tags, average: str | None) -> Any:
    """Precision, recall, f1 and how many there are; by kind, in their order, without an average."""
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    sides = [[convert(tags, "iob2") for tags in side] for side in (gold, guessed)]
    if not any(tag != OUTSIDE for side in sides for tags in side for tag in tags):
        return (0.0, 0.0, 0.0, 0) if average else ([], [], [], [])
    found = precision_recall_fscore_support(*sides, average=average, zero_division=0)
    support = sum(tag.startswith("B-") for tags in sides[0] for tag in tags) if average else found[3]
    return (*found[:3], support)


def score_table(gold: Tags, guessed: Tags, scheme: Scheme) -> DetailTable:
    """Precision, recall and f1 of each kind of name, or of each tag."""
    columns = ["kind" if scheme != "plain" else "tag", "precision", "recall", "f1", "in the data"]
    rows: list[list[Any]] = []
    if scheme != "plain":
        kinds = sorted({span.kind for side in (gold, guessed) for tags in side for span in read_spans(tags)})
        for kind, p, r, f, count in zip(kinds, *_by_seqeval(gold, guessed, None), strict=True):
            rows.append([kind, 100 * float(p), 100 * float(r), 100 * float(f), int(count)])
        return "scores by kind", columns, rows
    pairs = _pairs(gold, guessed, scheme)
    wanted, made = Counter[str](), Counter[str]()
    for (one, other), count in pairs.items():
        wanted[one] += count
        made[other] += count
    for tag in sorted(set(wanted) | set(made), key=lambda tag: (-wanted[tag], tag)):
        right = pairs[tag, tag]
        p, r = right / max(made[tag], 1), right / max(wanted[tag], 1)
        rows.append([tag, 100 * p, 100 * r, 200 * p * r / (p + r) if right else 0.0, wanted[tag]])
    return "scores by tag", columns, rows


def _pairs(gold: Tags, guessed: Tags, scheme: Scheme) -> Counter[tuple[str, str]]:
    """How often a word of one kind was taken for another."""
    return Counter(
        (kind_of(a, scheme), kind_of(b, scheme))
        for one, other in zip(gold, guessed, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def confusion_table(gold: Tags, guessed: Tags, scheme: Scheme) -> DetailTable:
    """Words by what they are (rows) and what they were taken for (columns); where there are many, the worst pairs."""
    pairs = _pairs(gold, guessed, scheme)
    kinds = sorted({kind for pair in pairs for kind in pair}, key=lambda kind: (kind != OUTSIDE, kind))
    if len(kinds) <= WIDEST:
        rows: list[list[Any]] = [[kind, *(pairs[kind, other] for other in kinds)] for kind in kinds]
        return "words by what they are (rows) and were taken for (columns)", ["", *kinds], rows
    wrong = [(count, pair) for pair, count in pairs.items() if pair[0] != pair[1]]
    wrong.sort(key=lambda entry: (-entry[0], entry[1]))
    rows = [[one, other, count] for count, (one, other) in wrong[:MOST]]
    return "the most frequent confusions", ["is", "taken for", "words"], rows
