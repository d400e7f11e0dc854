"""BM25: how well the words of a question fit a passage.

    score(q, d) = Σ_{t in q} idf(t) · tf / (tf + k1 (1 - b + b |d| / avg |d|))
    idf(t) = ln(1 + (N - n_t + ½) / (n_t + ½))

S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; idf as in Lucene.
k1 and b are the best of five usual pairs on the training and the development queries of NFCorpus.

Notable here: both stores keep the same postings, the numbers of the passages that hold a term and how often, and the
same function scores them, so that words count alike in both. Postings come in segments, one for each commit; passages
that have left the index stay in a segment until it is merged, and are known by having no length.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from legato.retrieval.stemmer import stem

K1: Final = 2.0
B: Final = 0.75
MAX_TERM: Final = 64  # characters that tell a term from others; what is longer is no word
MAX_COUNT: Final = 65_535
_STOP_WORDS: Final = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
    "this to was will with"
)
STOP_WORDS: Final = frozenset(_STOP_WORDS.split())

IntArray = np.ndarray[Any, np.dtype[np.int64]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]
Posting = tuple[IntArray, IntArray]
"""The numbers of the passages that hold a term, ascending, and how often each does."""


@lru_cache(maxsize=1)
def _word_pattern() -> re.Pattern[str]:
    """Runs of letters and digits with the marks on them; of scripts without spaces, each character.

    Marks (vowel signs of Indic scripts, accents) are no letters to Python's `\\w`, and part words there.
    """
    ranges: list[list[int]] = []
    for code in range(0x300, 0x20000):
        if unicodedata.category(chr(code))[0] == "M":
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    marks = "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)
    single = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
    return re.compile(rf"[{single}]|(?:(?![{single}])[^\W_])(?:(?![{single}])[^\W_]|[{marks}])*(?:'[st]\b)?")


_ASCII_WORD: Final = re.compile(r"[a-z0-9]+(?:'s\b)?")


def terms_of(text: str) -> list[str]:
    """The terms of a text in order: words in lower case without stop words and endings.

    >>> terms_of("The dogs' barking isn't heard in Zürich.")
    ['dog', 'bark', 'isn', 'heard', 'zürich']
    """
    lower = text.lower()
    if text.isascii():
        words = _ASCII_WORD.findall(lower)
    else:
        lower = unicodedata.normalize("NFKC", lower).replace("’", "'")
        words = _word_pattern().findall(lower)
    return [term for word in words if (term := _term(word))]


@lru_cache(maxsize=1 << 18)
def _term(word: str) -> str:
    word = word.removesuffix("'s").removesuffix("'t")[:MAX_TERM]
    return "" if word in STOP_WORDS else stem(word)  # a single letter stays: vitamin D


class PostingsBuilder:
    """Gathers the postings of passages, in ascending order of their numbers."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[array[int], array[int]]] = {}
        self.size = 0

    def add(self, number: int, terms: Sequence[str]) -> None:
        for term, count in Counter(terms).items():
            held = self._held.get(term)
            if held is None:
                held = self._held[term] = (array("q"), array("q"))
            held[0].append(number)
            held[1].append(min(count, MAX_COUNT))
            self.size += 1

    def postings(self) -> dict[str, Posting]:
        return {
            term: (np.frombuffer(ids, dtype=np.int64), np.frombuffer(counts, dtype=np.int64))
            for term, (ids, counts) in sorted(self._held.items())
        }


def merge_postings(segments: Iterable[Mapping[str, Posting]], lengths: IntArray) -> dict[str, Posting]:
    """Several segments as one, without the passages that have left; `lengths` as in `BM25`."""
    parts: dict[str, list[Posting]] = {}
    for segment in segments:
        for term, posting in segment.items():
            parts.setdefault(term, []).append(posting)
    merged = {}
    for term, some in parts.items():
        ids, counts = joined(some, lengths)
        if len(ids):
            merged[term] = (ids, counts)
    return merged


def joined(parts: Sequence[Posting], lengths: IntArray) -> Posting:
    """The parts of a term's postings in one, of the passages that are there."""
    ids = np.concatenate([part[0] for part in parts])
    counts = np.concatenate([part[1] for part in parts])
    known = ids < len(lengths)
    ids, counts = ids[known], counts[known]
    there = lengths[ids] > 0
    ids, counts = ids[there], counts[there]
    if len(parts) > 1:
        order = np.argsort(ids, kind="stable")
        ids, counts = ids[order], counts[order]
    return ids, counts


class BM25:
    """Scores passages by words; `lengths` are those of all passages by their numbers, 0 where there is none."""

    def __init__(self, lengths: IntArray, k1: float = K1, b: float = B) -> None:
        self.lengths, self.k1 = lengths, k1
        self.count = int((lengths > 0).sum())
        mean = float(lengths.sum()) / max(self.count, 1)
        self.norms = k1 * (1 - b + b * lengths / max(mean, 1e-9))

    def scores(self, question: Mapping[str, int], postings: Mapping[str, Sequence[Posting]]) -> FloatArray:
        """The score of each passage by its number, (N,), for the terms of a question and how often it has them."""
        scores = np.zeros(len(self.lengths))
        for term, weight in question.items():
            if not postings.get(term):
                continue
            ids, counts = joined(postings[term], self.lengths)
            if len(ids):
                idf = np.log1p((self.count - len(ids) + 0.5) / (len(ids) + 0.5))
                scores[ids] += weight * idf * counts / (counts + self.norms[ids])
        return scores


def best_of(scores: FloatArray, count: int, allowed: IntArray | None = None) -> list[tuple[int, float]]:
    """The passages with the highest scores above zero, best first; of equals the one that came first."""
    if allowed is not None:
        kept = np.zeros_like(scores)
        inside = allowed[allowed < len(scores)]
        kept[inside] = scores[inside]
        scores = kept
    above = np.flatnonzero(scores)
    if len(above) > count:
        least = np.partition(scores[above], len(above) - count)[len(above) - count]
        above = above[scores[above] >= least]
    order = above[np.lexsort((above, -scores[above]))][:count]
    return [(int(number), float(scores[number])) for number in order]
