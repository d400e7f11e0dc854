"""What lengths do to a translator: its score by the source's length, and what a wider beam makes of its outputs.

    score by length     BLEU and chrF of the pairs whose source has so many words; a model without attention falls
                        off where sentences are long (Cho et al. 2014; Bahdanau et al. 2015)
    width of the beam   a better search finds likelier outputs, which need not be better ones (Koehn & Knowles 2017);
                        they may be shorter, or repeat themselves

    ratio      words written / words of the references, in BLEU's tokens
    repeated   1 − Σ distinct 4-grams / Σ 4-grams, in each output by itself

Texts go the way of `legato predict`, so limits, penalties and tags are those that a user meets. BLEU of few sentences
is rough: look at the counts.

>>> pairs = list(zip(sources, references))                                           # doctest: +SKIP
>>> for found in scores_by_length(legato.load("runs/t"), pairs, [10, 20, 30]):       # doctest: +SKIP
...     print(found.name, found.count, found.bleu)
>>> [(found.beams, found.bleu, found.ratio) for found in beam_sweep(model, pairs, [1, 4, 16])]      # doctest: +SKIP
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from legato.errors import DataError, LegatoError
from legato.evaluation.translation import translation_scores
from legato.tasks.predictions import Answer

EDGES: Final = (5, 10, 15, 20, 30, 40, 60)  # words: the longest source of each bucket; what is longer is the last
WIDTHS: Final = (1, 2, 4, 8, 16)
FEW: Final = 8  # pairs
ORDER: Final = 4  # of the n-grams that may repeat

Pair = tuple[str, str]


@dataclass(frozen=True)
class LengthBucket:
    """The pairs whose sources have so many words."""

    shortest: int
    longest: int | None  # None: any more
    count: int
    words: float  # the mean of the sources
    bleu: float
    chrf: float
    ratio: float

    @property
    def name(self) -> str:
        return f"{self.shortest}+" if self.longest is None else f"{self.shortest}–{self.longest}"


@dataclass(frozen=True)
class BeamScores:
    """What one width of the beam gives."""

    beams: int
    bleu: float
    chrf: float
    ratio: float  # of lengths
    repeated: float
    logprob: float  # of the outputs, the mean over sentences, in nats
    score: float  # what the search ranks by, the same mean: log-probability by length, as the model's penalty says
    finished: float  # the share that ended by itself
    unread: int  # sources that are empty, or longer than the model reads: nothing is written of them, and counts so
    seconds: float  # for all pairs


def words_of(text: str) -> int:
    """How long a source is, for who does not say otherwise: in words between white space."""
    return len(text.split())


def scores_by_length(
    model: Any,
    pairs: Sequence[Pair],
    edges: Sequence[int] = EDGES,
    *,
    beams: int | None = None,
    to: str | None = None,
    length: Callable[[str], int] = words_of,
) -> list[LengthBucket]:
    """Scores of a model that `legato.load` gave, for each bucket that has a pair, the shortest first.

    `edges` are the longest source of each bucket but the last, which has all beyond. `beams` left out are the
    model's own; `to` is the language, of a model of many.
    """
    if not edges or edges[0] < 1 or any(second <= first for first, second in pairwise(edges)):
        raise LegatoError(f"the edges {list(edges)} do not increase from 1 on; give lengths such as [10, 20, 30]")
    _check(model, pairs)
    answers = _translated(model, pairs, beams, to)
    _read(model, answers)
    written = [answer.text for answer in answers]
    found = []
    lengths = [max(length(source), 1) for source, _ in pairs]
    for shortest, longest in zip([1, *(edge + 1 for edge in edges)], [*edges, None], strict=True):
        inside = [n for n, count in enumerate(lengths) if shortest <= count and (longest is None or count <= longest)]
        if inside:
            scores = _scores([written[n] for n in inside], [pairs[n][1] for n in inside])
            mean = sum(lengths[n] for n in inside) / len(inside)
            found.append(LengthBucket(shortest, longest, len(inside), mean, *scores))
    return found


def beam_sweep(
    model: Any,
    pairs: Sequence[Pair],
    widths: Sequence[int] = WIDTHS,
    *,
    to: str | None = None,
    length_penalty: float | None = None,
) -> list[BeamScores]:
    """The same pairs with each width of the beam; 1 is greedy. `length_penalty` left out is the model's own."""
    if not widths:
        raise LegatoError("no widths of the beam; give some, such as [1, 4, 16]")
    _check(model, pairs)
    _translated(model, pairs[:FEW], widths[0], to)  # what is prepared once is in nobody's seconds
    found = []
    for beams in widths:
        begin = time.perf_counter()
        answers = _translated(model, pairs, beams, to, length_penalty)
        seconds = time.perf_counter() - begin
        written = [answer.text for answer in answers]
        read = _read(model, answers)
        found.append(
            BeamScores(
                beams,
                *_scores(written, [reference for _, reference in pairs]),
                repeated_ngrams(written),
                sum(answer.more["logprob"] for answer in read) / len(read),
                sum(answer.score for answer in read) / len(read),
                sum(bool(answer.more.get("finished", True)) for answer in read) / len(read),
                len(answers) - len(read),
                seconds,
            )
        )
    return found


def repeated_ngrams(texts: Sequence[str], order: int = ORDER) -> float:
    """The share of n-grams of words that their text has had before; 0 where no text has one.

    >>> repeated_ngrams(["a b a b a b"], order=2)
    0.6
    """
    grams = [
        list(zip(*(words[n:] for n in range(order)), strict=False)) for words in (text.split() for text in texts)
    ]
    total = sum(map(len, grams))
    return 1 - sum(len(set(each)) for each in grams) / total if total else 0.0


def _check(model: Any, pairs: Sequence[Pair]) -> None:
    loaded = model.loaded
    if not loaded.module.is_encoder_decoder or loaded.processors.others:
        raise LegatoError(f"{loaded.folder} writes no text of another; give a model that translates")
    if not pairs:
        raise DataError("there are no pairs to translate; give a source and its reference at least")


def _translated(
    model: Any, pairs: Sequence[Pair], beams: int | None, to: str | None, length_penalty: float | None = None
) -> list[Answer]:
    """What the model writes of each source; nothing, where it cannot read it."""
    options = {"beams": beams, "to": to, "length_penalty": length_penalty}
    given = {name: value for name, value in options.items() if value is not None}
    found = model.predictions([source for source, _ in pairs], **given)
    return [each.answers[0] if each.answers else Answer("", 0.0, {"problem": each.problem}) for each in found]


def _read(model: Any, answers: list[Answer]) -> list[Answer]:
    """Those of sources that were read."""
    read = [answer for answer in answers if "logprob" in answer.more]
    if not read:
        why = answers[0].more.get("problem", "they are empty")
        raise DataError(f"{model.loaded.folder} writes nothing of these sources, the first since {why}")
    return read


def _scores(written: list[str], references: list[str]) -> tuple[float, float, float]:
    """BLEU, chrF and the ratio of lengths."""
    scores = translation_scores(written, references)
    return float(scores["bleu"]), float(scores["chrf"]), float(scores["hypothesis_ratio"])
