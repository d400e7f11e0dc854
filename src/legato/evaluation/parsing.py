"""Labelled brackets: how many constituents of a parse are right.

A tree is read as the multiset of its (label, first word, last word). Over a whole corpus

    precision = right brackets / predicted brackets        recall = right brackets / gold brackets
    f1 = 2 · precision · recall / (precision + recall)

and `complete` is the share of sentences whose brackets are all right and all there; each in percent. The rules
are those by which the field counts, EVALB's (Sekine and Collins) with Collins's parameters:

- a word's part of speech is no bracket, nor is the wrapper of a whole tree (TOP, ROOT, S1 or no label);
- function tags and empty elements (-NONE-) do not count;
- punctuation (gold part of speech , . : `` or '') is taken out of the sentence before brackets are read, and
  constituents that held nothing else go with it;
- ADVP and PRT are one label;
- a constituent that occurs twice over the same words counts twice;
- a parse over another number of words than the gold tree has is an error: the sentence is skipped, and counted.

Sentences of every length count. Parts of speech are not measured, so parses need not have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from legato.data.formats.trees import EMPTY, WRAPPERS, Close, Open, Tree, Word, bare_label, walk
from legato.errors import LegatoError
from legato.evaluation.metrics import metrics

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("f1", unit="percent", better="up", headline=True, decoded=True),
    *metrics("precision", "recall", "complete", unit="percent", better="up", decoded=True),
    *metrics("well_formed", unit="percent", better="up"),
    *metrics("sentences", "skipped", "too_long"),
)
PUNCTUATION: Final = frozenset({",", ".", ":", "``", "''"})
UNCOUNTED: Final = frozenset({*WRAPPERS, EMPTY, *PUNCTUATION})
SAME_LABEL: Final = {"PRT": "ADVP"}
BRACKET_SIGNATURE: Final = (
    "metric:labelled-brackets|average:corpus|rules:evalb-collins|root:no|punctuation:no|equal:ADVP=PRT|length:all|v:1"
)

Bracket = tuple[str, int, int]


def bracket_scores(gold: Sequence[Tree], predicted: Sequence[Tree]) -> dict[str, float]:
    """Precision, recall, f1 and complete matches of parses, by the rules above.

    Keys: `precision`, `recall`, `f1`, `complete`, from 0 to 100; `sentences`, those that were scored;
    `skipped`, those whose numbers of words differ. Where there are no brackets to divide by, a score is 0.

    >>> from legato.data.formats.trees import unflatten
    >>> tree = unflatten("(S (NP dogs )NP (VP bark )VP )S".split())
    >>> bracket_scores([tree], [tree])["f1"]
    100.0
    """
    if len(gold) != len(predicted):
        raise LegatoError(f"there are {len(gold)} gold trees and {len(predicted)} predicted ones; give as many")
    if not gold:
        raise LegatoError("there are no trees to score; give at least one")
    right = in_gold = in_predicted = complete = skipped = 0
    for true, guess in zip(gold, predicted, strict=True):
        said = [leaf for leaf in true.leaves if leaf.pos != EMPTY]
        if len(said) != sum(leaf.pos != EMPTY for leaf in guess.leaves):
            skipped += 1
            continue
        punctuation = {place for place, leaf in enumerate(said) if leaf.pos in PUNCTUATION}
        wanted, found = brackets(true, punctuation), brackets(guess, punctuation)
        right += (wanted & found).total()
        in_gold += wanted.total()
        in_predicted += found.total()
        complete += wanted == found
    sentences = len(gold) - skipped
    return {
        "precision": _percent(right, in_predicted),
        "recall": _percent(right, in_gold),
        # 2PR / (P + R), with what cancels left out.
        "f1": _percent(2 * right, in_predicted + in_gold),
        "complete": _percent(complete, sentences),
        "sentences": float(sentences),
        "skipped": float(skipped),
    }


def brackets(tree: Tree, punctuation: Collection[int] = ()) -> Counter[Bracket]:
    """How often each (label, start, end) occurs; positions are between words, punctuation left out."""
    found: Counter[Bracket] = Counter()
    starts: list[int] = []
    place = kept = 0  # words before this point; those of them that are no punctuation
    for step in walk(tree):
        match step:
            case Open():
                starts.append(kept)
            case Word(_, pos):
                if pos != EMPTY:
                    kept += place not in punctuation
                    place += 1
            case Close(label):
                label, start = bare_label(label), starts.pop()
                if kept > start and label not in UNCOUNTED:
                    found[SAME_LABEL.get(label, label), start, kept] += 1
    return found


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
