"""How well answers match: SQuAD's exact match and F1, and when to say that there is no answer.

    F1 = 2 P R / (P + R),   P = words shared / words answered,   R = words shared / words of the right answer

Both are taken over normalised texts (lower case; no punctuation, no articles, single spaces) and against the right
answer that fits best, in percent (Rajpurkar et al. 2016). The right answer to an unanswerable question is the empty
one, and everything else is wrong there; where one annotator found an answer and another none, there is one, and
silence is wrong (Rajpurkar et al. 2018: their scorer drops empty answers beside others).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from legato.evaluation.metrics import metrics

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("f1", "exact_match", unit="percent", better="up", headline=True),
    *metrics("answerable_*", "unanswerable_exact_match", unit="percent", better="up"),
    *metrics("threshold"),
)
SPAN_SIGNATURE: Final = "squad|case:lower|punctuation:none|articles:none|answers:best|version:2.0"

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """What of an answer is compared.

    >>> normalised("The  Battle, of Jena!")
    'battle of jena'
    """
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(answer: str, right: str) -> float:
    """1 where the two are the same, normalised."""
    return float(normalised(answer) == normalised(right))


def word_f1(answer: str, right: str) -> float:
    """F1 of the words of the two, each counted as often as it stands there.

    >>> round(word_f1("in the year 1806", "1806"), 2)
    0.5
    """
    given, wanted = normalised(answer).split(), normalised(right).split()
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))


def best_scores(answer: str, rights: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 against the right answer that fits best; those of which nothing is left do not count."""
    kept = [right for right in rights if normalised(right)] or [""]
    return max(exact_match(answer, right) for right in kept), max(word_f1(answer, right) for right in kept)


def span_scores(answers: Sequence[str], rights: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 in percent over all questions; apart where some have an answer and some have none.

    `rights` are the right answers to each question, `[""]` for one that cannot be answered.
    """
    pairs = np.array([best_scores(answer, right) for answer, right in zip(answers, rights, strict=True)])
    answerable = np.array([any(right) for right in rights])
    scores = {"exact_match": 100 * float(pairs[:, 0].mean()), "f1": 100 * float(pairs[:, 1].mean())}
    if not answerable.all() and answerable.any():
        scores |= {
            "answerable_exact_match": 100 * float(pairs[answerable, 0].mean()),
            "answerable_f1": 100 * float(pairs[answerable, 1].mean()),
            "unanswerable_exact_match": 100 * float(pairs[~answerable, 0].mean()),
        }
    return scores


def best_threshold(margins: Sequence[float], answering: Sequence[float], silence: Sequence[float]) -> float:
    """The threshold t above which it is best to say that there is no answer: no answer where margin > t.

    `margins` are the score of no answer less that of the best one, `answering` and `silence` what either earns.
    Half-way between two neighbouring margins; the one nearest to 0 where several are as good.
    """
    margin = np.asarray(margins, dtype=np.float64)
    order = np.argsort(margin, kind="stable")
    ordered = margin[order]
    gained = (np.asarray(answering, dtype=np.float64) - np.asarray(silence, dtype=np.float64))[order]
    totals = np.concatenate([[0.0], np.cumsum(gained)])  # by how many of the smallest margins are answered
    borders = np.concatenate([[ordered[0] - 1], (ordered[1:] + ordered[:-1]) / 2, [ordered[-1] + 1]])
    parted = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])  # equal margins cannot be told apart
    good = np.flatnonzero(parted & (totals >= totals[parted].max() - 1e-9))
    return float(borders[good[np.abs(borders[good]).argmin()]])
