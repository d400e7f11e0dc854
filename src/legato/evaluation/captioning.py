"""How good captions are, against several references each: BLEU, CIDEr-D, and how varied they are.

    bleu_1 … bleu_4    BP · (Π_{k≤n} p_k)^{1/n} of n-grams over the whole corpus, counts clipped by the reference that
                       has most of each, BP by the reference of the closest length (Papineni et al. 2002)
    cider              CIDEr-D (Vedantam et al. 2015, section 5), the mean over pictures of

                           10 / (4 m) Σ_n Σ_j exp(−(l(c) − l(s_j))² / 2σ²) · min(g_n(c), g_n(s_j)) · g_n(s_j)
                                                                             ─────────────────────────────────
                                                                                  ‖g_n(c)‖ ‖g_n(s_j)‖

                       of caption c and its references s_1 … s_m; g_n counts each n-gram times log(N / pictures whose
                       references have it), over the N pictures that are scored; σ = 6
    mean_length        words of a caption; reference_length that of the references
    distinct_words     how many different words all the captions use
    unique_captions    different captions over captions

The words compared are `caption_words`. BLEU is from 0 to 100. CIDEr is 100 × what `pycocoevalcap` gives, as papers
print it: 100 is good, and 1,000 the most there can be. Both equal `pycocoevalcap`'s on the same words; its tokenizer,
a Java program that splits "man's" in two, is not used. What every picture's references have in common weighs nothing
in CIDEr: of a single picture it is 0.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from legato.errors import LegatoError
from legato.evaluation.metrics import DetailTable, metrics

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("bleu_4", "cider", unit="percent", better="up", headline=True, decoded=True, points=True),
    *metrics("bleu_*", unit="percent", better="up", decoded=True, points=True),
    *metrics("unique_captions", unit="fraction", decoded=True),
    *metrics("mean_length", "distinct_words", decoded=True),
    *metrics("reference_length", "captions"),
)
ORDERS: Final = (1, 2, 3, 4)  # of n-grams
SIGMA: Final = 6.0  # words of difference in length at which CIDEr-D still gives exp(-1/2)
WORST: Final = 10  # captions that are shown

Words = list[str]
Ngrams = list[Counter[tuple[str, ...]]]
"""How often each n-gram stands in a caption, for each of `ORDERS`."""


class _BareCharacters(dict[int, int | None]):
    """A table for `str.translate` that leaves out punctuation and symbols of any script."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code))[0] in "PS" else code
        return self[code]


_BARE: Final = _BareCharacters()


def caption_words(text: str) -> Words:
    """The words of a caption that are compared: in lower case, without punctuation, separated by spaces.

    >>> caption_words("A man's T-shirt , and two dogs .")
    ['a', 'mans', 'tshirt', 'and', 'two', 'dogs']
    """
    return text.lower().translate(_BARE).split()


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float | str]:
    """The figures above of a caption for each picture, with the signatures of BLEU and CIDEr.

    >>> scores = caption_scores(["A dog.", "a dog"], [["a dog"], ["a cat"]])
    >>> round(scores["bleu_1"], 4), round(scores["cider"], 4), scores["unique_captions"]
    (75.0, 250.0, 0.5)
    """
    hypotheses, truth = _counted(captions, references)
    each = _cider(hypotheses, truth)
    lengths = [_length(reference) for several in truth for reference in several]
    fewest, most = min(map(len, truth)), max(map(len, truth))
    nrefs = f"nrefs:{fewest}" if fewest == most else f"nrefs:{fewest}-{most}"
    words = f"{nrefs}|case:lower|punctuation:none|tok:spaces"
    return {
        **{f"bleu_{n}": 100 * value for n, value in zip(ORDERS, _bleu(hypotheses, truth), strict=True)},
        "cider": 100 * math.fsum(each) / len(each),
        "mean_length": sum(map(_length, hypotheses)) / len(hypotheses),
        "reference_length": sum(lengths) / len(lengths),
        "distinct_words": len({word for caption in hypotheses for word in caption[0]}),
        "unique_captions": len({tuple(caption_words(caption)) for caption in captions}) / len(captions),
        "bleu_signature": f"{words}|length:closest|smooth:none|as:pycocoevalcap 1.2",
        "cider_signature": f"CIDEr-D|{words}|df:these references|sigma:{SIGMA:g}|scale:100|as:pycocoevalcap 1.2",
    }


def caption_details(
    captions: Sequence[str], references: Sequence[Sequence[str]], places: Sequence[str]
) -> list[DetailTable]:
    """The captions with the lowest CIDEr, beside their references; `places` says where each picture is."""
    each = _cider(*_counted(captions, references))
    worst = sorted(range(len(each)), key=lambda number: (each[number], number))[:WORST]
    rows = [[100 * each[n], captions[n], " / ".join(references[n]), places[n]] for n in worst]
    title = f"worst captions, {len(rows)} of {len(each):,}"
    return [(title, ["cider", "caption", "references", "where"], rows)]


def _counted(captions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[list[Ngrams], list[list[Ngrams]]]:
    if len(captions) != len(references):
        raise LegatoError(
            f"there are {len(captions)} captions and references of {len(references)} pictures; give one for each"
        )
    if not captions:
        raise LegatoError("there are no captions to score; give at least one")
    for number, several in enumerate(references, start=1):
        if not several:
            raise LegatoError(f"picture {number} of {len(references)} has no reference; give each at least one")
    return [*map(_ngrams, captions)], [[*map(_ngrams, several)] for several in references]


def _ngrams(caption: str) -> Ngrams:
    words = caption_words(caption)
    return [Counter(zip(*(words[start:] for start in range(n)), strict=False)) for n in ORDERS]


def _length(caption: Ngrams) -> int:
    return caption[0].total()


def _bleu(hypotheses: list[Ngrams], truth: list[list[Ngrams]]) -> list[float]:
    """BLEU-1 to BLEU-4 as fractions."""
    length = closest = 0
    right, written = [0] * len(ORDERS), [0] * len(ORDERS)
    for caption, references in zip(hypotheses, truth, strict=True):
        length += _length(caption)
        # Of two that are as close, the shorter.
        closest += min((abs(_length(caption) - _length(one)), _length(one)) for one in references)[1]
        for order, counts in enumerate(caption):
            written[order] += counts.total()
            for ngram, count in counts.items():
                right[order] += min(count, max(one[order].get(ngram, 0) for one in references))
    # The two small numbers are pycocoevalcap's: BLEU is next to 0, not undefined, where no n-gram was written.
    tiny, small = 1e-15, 1e-9
    precisions = [(hits + tiny) / (count + small) for hits, count in zip(right, written, strict=True)]
    ratio = (length + tiny) / (closest + small)
    brevity = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    return [brevity * math.prod(precisions[:n]) ** (1 / n) for n in ORDERS]


def _cider(hypotheses: list[Ngrams], truth: list[list[Ngrams]]) -> list[float]:
    """CIDEr-D of each caption, from 0 to 10."""
    pictures = [
        Counter(ngram for references in truth for ngram in set().union(*(one[order] for one in references)))
        for order in range(len(ORDERS))
    ]
    unseen = math.log(len(truth))  # an n-gram of no reference weighs as one of a single picture
    rarity = [{ngram: unseen - math.log(count) for ngram, count in counts.items()} for counts in pictures]

    def vectors(caption: Ngrams) -> list[tuple[dict[tuple[str, ...], float], float]]:
        """g_n and its norm, for each n."""
        weights = [
            {ngram: count * rare.get(ngram, unseen) for ngram, count in counts.items()}
            for counts, rare in zip(caption, rarity, strict=True)
        ]
        return [(vector, math.sqrt(sum(weight * weight for weight in vector.values()))) for vector in weights]

    scores = []
    for caption, references in zip(hypotheses, truth, strict=True):
        written = vectors(caption)
        score = 0.0
        for reference in references:
            cosines = 0.0
            for (vector, norm), (true, true_norm) in zip(written, vectors(reference), strict=True):
                if norm and true_norm:
                    # In the order of the caption, so that no last bit depends on how words are hashed.
                    shared = (
                        min(weight, true[ngram]) * true[ngram] for ngram, weight in vector.items() if ngram in true
                    )
                    cosines += sum(shared) / (norm * true_norm)
            off = _length(caption) - _length(reference)
            score += cosines * math.exp(-(off * off) / (2 * SIGMA * SIGMA))
        scores.append(10 * score / (len(ORDERS) * len(references)))
    return scores
