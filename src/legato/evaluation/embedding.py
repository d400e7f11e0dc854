"""How well vectors tell which texts are alike.

spearman, pearson     of the cosines and the scores that people gave (STS)
accuracy, mrr         of pairs without scores: is a text's partner the nearest of all partners, and 1 / its rank
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from legato.evaluation.metrics import metrics

Array = np.ndarray[Any, np.dtype[Any]]
METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("spearman", "pearson", unit="fraction", better="up", headline=True, points=True),
    *metrics("accuracy", unit="fraction", better="up", headline=True),
    *metrics("mrr", unit="fraction", better="up", headline=True, points=True),
)
CHUNK = 1024  # rows of the matrix of cosines at a time
QUERIES = 64


def unit(vectors: Array) -> Array:
    """Each vector at length one; one of zeros stays."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def cosines(left: Array, right: Array) -> Array:
    """The cosine of each pair of rows, (N, D) and (N, D) to (N,)."""
    return (unit(left) * unit(right)).sum(-1)


def correlations(found: Sequence[float] | Array, scores: Sequence[float] | Array) -> dict[str, float]:
    """Spearman's and Pearson's correlation; 0 where one side does not vary, so that there is none."""
    from scipy.stats import pearsonr, spearmanr

    if len(found) < 2 or np.ptp(found) == 0 or np.ptp(scores) == 0:
        return {"spearman": 0.0, "pearson": 0.0}
    both = {"spearman": spearmanr(found, scores).statistic, "pearson": pearsonr(found, scores).statistic}
    return {name: float(value) if np.isfinite(value) else 0.0 for name, value in both.items()}


def retrieval(left: Array, right: Array, names: Sequence[str]) -> dict[str, float]:
    """How high each row's partner stands among all of `right` (N, D); `names` tell which of those are one text.

    A text that stands there twice is one answer; others with the same cosine as the partner come before it.
    """
    left, right = unit(left), unit(right)
    number: dict[str, int] = {}
    kinds = np.array([number.setdefault(name, len(number)) for name in names])
    ranks = np.zeros(len(left))
    for start in range(0, len(left), CHUNK):
        part = slice(start, start + CHUNK)
        scores = left[part] @ right.T  # (n, N)
        own = scores[np.arange(len(scores)), np.arange(start, start + len(scores))]
        other = kinds[part, None] != kinds[None]
        ranks[part] = 1 + ((scores >= own[:, None]) & other).sum(1)
    return {"accuracy": float((ranks == 1).mean()), "mrr": float((1 / ranks).mean())}


def nearest(queries: Array, lines: Array, count: int) -> tuple[Array, Array]:
    """The `count` rows of `lines` with the largest products for each query: their numbers and products, best first.

    Vectors (Q, D) and (N, D) of length one have cosines as their products. Of equals the earlier line comes first.
    """
    count = min(count, len(lines))
    numbers = np.empty((len(queries), count), dtype=np.int64)
    found = np.empty((len(queries), count), dtype=np.float32)
    for start in range(0, len(queries), QUERIES):
        scores = queries[start : start + QUERIES] @ lines.T  # (n, N)
        least = np.partition(scores, len(lines) - count, axis=1)[
            :, len(lines) - count
        ]  # (n,), the worst that is kept
        for row, line in enumerate(scores, start=start):
            good = np.flatnonzero(line >= least[row - start])  # in order, and as many more as are equal to the worst
            best = good[np.argsort(-line[good], kind="stable")[:count]]
            numbers[row], found[row] = best, line[best]
    return numbers, found


def furthest(found: Array, scores: Sequence[float], count: int) -> list[int]:
    """The rows whose ranks by cosine and by score differ most."""
    from scipy.stats import rankdata

    apart = np.abs(rankdata(found) - rankdata(scores))
    return [int(row) for row in np.argsort(-apart, kind="stable")[:count]]
