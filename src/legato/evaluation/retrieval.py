"""How well pictures find their captions, and captions their pictures, by vectors in one space.

text_recall_K     of pictures: how many have one of their captions among the K nearest of all captions
image_recall_K    of captions: how many have their picture among the K nearest of all pictures
recall            the mean of both for K of 1, 5 and 10
text_rank         the median over pictures of the rank, from 1, of the nearest of their captions; image_rank over
                  captions

A picture may have several captions, as in Flickr8k and COCO, where these are the published figures (R@K; Karpathy &
Fei-Fei 2015). Others that are as near as the right one come before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from legato.errors import DataError
from legato.evaluation.embedding import unit
from legato.evaluation.metrics import DetailTable, metrics

Array = np.ndarray[Any, np.dtype[Any]]
DEPTHS: Final = (1, 5, 10)
METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("recall", "text_recall_1", "image_recall_1", unit="fraction", better="up", headline=True),
    *metrics("text_recall_*", "image_recall_*", unit="fraction", better="up"),
    *metrics("text_rank", "image_rank", better="down"),
    *metrics("pictures", "captions"),
)
WORST: Final = 10  # pictures that are shown
CHUNK = 1024  # rows of the matrix of cosines at a time


def ranks_of_captions(images: Array, texts: Array, picture_of: Sequence[int] | Array) -> Array:
    """For each picture (N, E) the rank, from 1, of the nearest of its captions among all (M, E).

    `picture_of` (M,) says which picture a caption describes. Of pictures that have none there is no rank: (≤ N,).
    """
    owner = _owners(picture_of, len(images), len(texts))
    described = np.unique(owner)
    images, texts = unit(images), unit(texts)
    ranks = np.empty(len(described), dtype=np.int64)
    for start in range(0, len(described), CHUNK):
        rows = described[start : start + CHUNK]
        scores = images[rows] @ texts.T  # (n, M)
        own = owner[None] == rows[:, None]
        nearest = np.where(own, scores, -np.inf).max(1)
        ranks[start : start + CHUNK] = 1 + ((scores >= nearest[:, None]) & ~own).sum(1)
    return ranks


def ranks_of_pictures(images: Array, texts: Array, picture_of: Sequence[int] | Array) -> Array:
    """For each caption (M, E) the rank, from 1, of its picture among all (N, E): (M,)."""
    owner = _owners(picture_of, len(images), len(texts))
    images, texts = unit(images), unit(texts)
    ranks = np.empty(len(texts), dtype=np.int64)
    for start in range(0, len(texts), CHUNK):
        part = owner[start : start + CHUNK]
        scores = texts[start : start + CHUNK] @ images.T  # (n, N)
        rows = np.arange(len(part))
        others = scores >= scores[rows, part][:, None]
        others[rows, part] = False
        ranks[start : start + CHUNK] = 1 + others.sum(1)
    return ranks


def recalls(images: Array, texts: Array, picture_of: Sequence[int] | Array) -> dict[str, float]:
    """Recall at 1, 5 and 10, and the median rank, both ways, of vectors of pictures (N, E) and of captions (M, E)."""
    ranks = {
        "text": ranks_of_captions(images, texts, picture_of),
        "image": ranks_of_pictures(images, texts, picture_of),
    }
    scores = {f"{kind}_recall_{k}": float((found <= k).mean()) for kind, found in ranks.items() for k in DEPTHS}
    whole = {"recall": float(np.mean(list(scores.values()))), **scores}
    return whole | {f"{kind}_rank": float(np.median(found)) for kind, found in ranks.items()}


def retrieval_details(
    images: Array, texts: Array, picture_of: Sequence[int] | Array, names: Sequence[str], captions: Sequence[str]
) -> list[DetailTable]:
    """The pictures whose captions are furthest down, with the nearest of their own and the nearest of all.

    `names` (N,) are the pictures', `captions` (M,) the texts.
    """
    owner = _owners(picture_of, len(images), len(texts))
    ranks = dict(zip(np.unique(owner).tolist(), ranks_of_captions(images, texts, owner).tolist(), strict=True))
    rows: list[list[Any]] = []
    for picture in sorted(ranks, key=lambda number: (-ranks[number], number))[:WORST]:
        scores = unit(texts) @ unit(images[picture])  # (M,)
        own = int(np.where(owner == picture, scores, -np.inf).argmax())
        rows.append([names[picture], ranks[picture], captions[own], captions[int(scores.argmax())]])
    title = f"worst pictures, {len(rows)} of {len(ranks):,}"
    return [(title, ["picture", "rank", "its nearest caption", "the nearest of all"], rows)]


def _owners(picture_of: Sequence[int] | Array, pictures: int, captions: int) -> Array:
    owner = np.asarray(picture_of, dtype=np.int64)
    if not captions or len(owner) != captions:
        raise DataError(f"{len(owner)} captions say which picture they describe, but there are {captions}")
    wrong = owner[(owner < 0) | (owner >= pictures)]
    if len(wrong):
        raise DataError(f"a caption describes picture {wrong[0]}, but pictures are numbered 0 to {pictures - 1}")
    return owner
