"""How well a model talks about pictures: what it writes in place of each dialogue's last answer, and the loss of all.

    loss, perplexity        of a token of the answers
    bleu_1 … 4, cider       of descriptions (captioning.py): dialogues with several references, or a long one
    accuracy, wups_…        of answers to questions (vqa.py): dialogues with one reference, and that a short one

An answer is short where it has at most five words, or several such with commas between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from legato.evaluation.captioning import METRICS as CAPTION_METRICS
from legato.evaluation.captioning import caption_details, caption_scores, caption_words
from legato.evaluation.metrics import DetailTable, metrics
from legato.evaluation.vqa import METRICS as ANSWER_METRICS
from legato.evaluation.vqa import answer_details, answer_scores, wordnet_similarity

METRICS: Final = (
    *metrics("loss", "perplexity", better="down", headline=True),
    *(metric for metric in CAPTION_METRICS if metric.name not in ("loss", "captions")),
    *(replace(metric, decoded=True) for metric in ANSWER_METRICS if metric.name not in ("loss", "questions")),
    *metrics("tokens", "descriptions", "questions"),
)
SHORT: Final = 5  # words of an answer, or of each part of one


def is_short(answer: str) -> bool:
    """Whether it can be right or wrong, word by word.

    >>> is_short("night_stand, two books"), is_short("A dog runs on the beach.")
    (True, False)
    """
    return all(len(caption_words(part.replace("_", " "))) <= SHORT for part in answer.split(","))


def by_kind(references: Sequence[Sequence[str]]) -> tuple[list[int], list[int]]:
    """The numbers of the dialogues that end with a description, and of those that end with a short answer."""
    short = {row for row, several in enumerate(references) if len(several) == 1 and is_short(several[0])}
    return [row for row in range(len(references)) if row not in short], sorted(short)


def dialogue_scores(written: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The figures above, but for the loss, of what was written in place of each last answer.

    >>> scores = dialogue_scores(["A red dog.", "Two"], [["a dog", "a red dog"], ["two"]])
    >>> round(scores["bleu_1"]), scores["accuracy"], scores["descriptions"], scores["questions"]
    (100, 1.0, 1, 1)
    """
    described, asked = by_kind(references)
    found: dict[str, Any] = {}
    if described:
        found |= caption_scores([written[row] for row in described], [references[row] for row in described])
    if asked:
        truth = [references[row][0] for row in asked]
        found |= answer_scores([written[row] for row in asked], truth, wordnet_similarity())
    return {**found, "descriptions": len(described), "questions": len(asked)}


def dialogue_details(
    written: Sequence[str], references: Sequence[Sequence[str]], places: Sequence[str]
) -> list[DetailTable]:
    """The worst descriptions and the most frequent confusions; `places` says where each dialogue is."""
    described, asked = by_kind(references)
    found: list[DetailTable] = []
    if described:
        truth = [references[row] for row in described]
        found += caption_details([written[row] for row in described], truth, [places[row] for row in described])
    if asked:
        found += answer_details([written[row] for row in asked], [references[row][0] for row in asked])
    return found
