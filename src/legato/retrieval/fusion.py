"""Fusion: several rankings of the same passages as one.

    reciprocal rank fusion:   score(d) = Σ_r  w_r / (k + rank_r(d)),   ranks from 1

G. Cormack, C. Clarke and S. Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning
Methods", SIGIR 2009. Only ranks count, so that scores need not be on one scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

K: Final = 60.0


def reciprocal_rank_fusion(
    rankings: Mapping[str, Sequence[int]], weights: Mapping[str, float] | None = None, k: float = K
) -> list[tuple[int, float]]:
    """What the rankings hold, best first, with its score; of equals what the first ranking has before.

    >>> reciprocal_rank_fusion({"words": [7, 8], "vectors": [8, 9]}, k=1)
    [(8, 0.8333333333333333), (7, 0.5), (9, 0.3333333333333333)]
    """
    scores: dict[int, float] = {}
    for name, ranking in rankings.items():
        weight = 1.0 if weights is None else weights.get(name, 1.0)
        for rank, number in enumerate(ranking, start=1):
            scores[number] = scores.get(number, 0.0) + weight / (k + rank)
    return sorted(scores.items(), key=lambda item: -item[1])
