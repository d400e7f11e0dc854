"""How well questions about pictures are answered.

    accuracy    the share of questions whose answer is right; where several things are to be named, separated by
                commas, they must be the same ones, in any order (DAQUAR)
    wups_90     near answers count, too (Malinowski and Fritz 2014): the mean over questions of
    wups_0
                    min(Π_{a ∈ A} max_{t ∈ T} μ(a, t),  Π_{t ∈ T} max_{a ∈ A} μ(a, t))

                of the answers A and the true ones T. μ is the similarity of Wu and Palmer (1994) of two nouns in
                WordNet, 2 · depth(common ancestor) / (depth(a) + depth(t)) of the two meanings that are most alike;
                below the threshold, .9 or 0, it counts a tenth. Equal words have 1; those that WordNet lacks have 0
                else.

All are shares, from 0 to 1. Answers are compared in lower case, without punctuation and articles (`answer_set`). WUPS
is left out where WordNet is not installed: it is NLTK's, `pip install nltk` and `python -m nltk.downloader wordnet`.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from legato.errors import LegatoError
from legato.evaluation.captioning import caption_words
from legato.evaluation.metrics import DetailTable, metrics

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("accuracy", unit="fraction", better="up", headline=True),
    *metrics("wups_90", "wups_0", "accuracy_*", unit="fraction", better="up"),
    *metrics("questions"),
)
ANSWER_SIGNATURE: Final = "case:lower|punctuation:none|articles:none|several:set of what commas separate"
WUPS_SIGNATURE: Final = "similarity:Wu-Palmer of nouns in WordNet|meanings:most alike|below threshold:x0.1"
WORST: Final = 20  # confusions that are shown
BELOW: Final = 0.1  # what a similarity below the threshold is multiplied by
THRESHOLDS: Final = {"wups_90": 0.9, "wups_0": 0.0}

Similarity = Callable[[str, str], float]
"""How alike two answers are, from 0 to 1."""


def answer_set(text: str) -> frozenset[str]:
    """What an answer names: what commas separate, in lower case, without punctuation and articles.

    >>> sorted(answer_set("The Night_stand, two books."))
    ['night stand', 'two books']
    """
    parts = (caption_words(part.replace("_", " ")) for part in text.split(","))
    # "a" alone is a letter, not an article.
    bare = ([word for word in words if word not in ("a", "an", "the")] or words for words in parts)
    return frozenset(" ".join(words) for words in bare if words)


def wups(answers: frozenset[str], truth: frozenset[str], threshold: float, similarity: Similarity) -> float:
    """WUPS of one question's answers."""
    if not answers or not truth:
        return float(answers == truth)

    @cache
    def alike(answer: str, true: str) -> float:
        value = 1.0 if answer == true else similarity(answer, true)
        return value if value >= threshold else BELOW * value

    return min(
        math.prod(max(alike(answer, true) for true in truth) for answer in answers),
        math.prod(max(alike(answer, true) for answer in answers) for true in truth),
    )


def answer_scores(
    answers: Sequence[str], truth: Sequence[str], similarity: Similarity | None = None
) -> dict[str, float | str]:
    """`accuracy` of an answer to each question, with a signature; with a similarity (`wordnet_similarity()`), WUPS.

    >>> answer_scores(["The table", "two"], ["table", "3"])["accuracy"]
    0.5
    """
    if len(answers) != len(truth):
        raise LegatoError(f"there are {len(answers)} answers and {len(truth)} right ones; give one for each")
    if not answers:
        raise LegatoError("there are no answers to score; give at least one")
    pairs = [(answer_set(answer), answer_set(true)) for answer, true in zip(answers, truth, strict=True)]
    scores: dict[str, float | str] = {"accuracy": sum(answer == true for answer, true in pairs) / len(pairs)}
    if similarity is not None:
        for name, threshold in THRESHOLDS.items():
            scores[name] = sum(wups(*pair, threshold, similarity) for pair in pairs) / len(pairs)
        scores["wups_signature"] = f"{ANSWER_SIGNATURE}|{WUPS_SIGNATURE}"
    return {**scores, "accuracy_signature": ANSWER_SIGNATURE}


def answer_details(answers: Sequence[str], truth: Sequence[str]) -> list[DetailTable]:
    """What was most often answered where something else was right."""
    counts: Counter[tuple[str, str]] = Counter()
    for answer, true in zip(answers, truth, strict=True):
        said, right = answer_set(answer), answer_set(true)
        if said != right:
            counts[", ".join(sorted(right)), ", ".join(sorted(said))] += 1
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:WORST]
    rows: list[list[Any]] = [[right, said, count] for (right, said), count in order]
    title = f"most frequent confusions, {len(rows)} of {len(counts):,}"
    return [(title, ["true", "answered", "questions"], rows)]


def surest_errors(
    answers: Sequence[str],
    truth: Sequence[str],
    shares: Sequence[float],
    questions: Sequence[str],
    pictures: Sequence[str],
    places: Sequence[str],
) -> DetailTable:
    """The wrong answers that had the largest `shares` (probabilities); `places` says where each question stands."""
    wrong = [row for row, pair in enumerate(zip(answers, truth, strict=True)) if len(set(map(answer_set, pair))) > 1]
    worst = sorted(wrong, key=lambda row: (-shares[row], row))[:WORST]
    rows: list[list[Any]] = [
        [truth[row], answers[row], shares[row], questions[row], pictures[row], places[row]] for row in worst
    ]
    title = f"worst errors, {len(rows)} of {len(wrong):,}"
    return title, ["true", "answered", "probability", "question", "picture", "where"], rows


@cache
def wordnet_similarity() -> Similarity | None:
    """Wu and Palmer's similarity of two nouns by NLTK's WordNet; None where that is not installed."""
    try:
        wordnet = importlib.import_module("nltk.corpus").wordnet
        wordnet.ensure_loaded()
    except (ImportError, LookupError):  # no NLTK; NLTK without WordNet's files
        return None

    @cache
    def meanings(noun: str) -> list[Any]:
        return wordnet.synsets(noun.replace(" ", "_"), pos="n")

    @cache
    def similarity(answer: str, true: str) -> float:
        pairs = ((one, other) for one in meanings(answer) for other in meanings(true))
        return max((one.wup_similarity(other) or 0.0 for one, other in pairs), default=0.0)

    return similarity
