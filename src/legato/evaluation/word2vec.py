"""How good the vectors of words are: their neighbours, analogies, and the likeness that people see.

analogies       "king is to man as … is to woman": the share of questions whose nearest word to b - a + c is d
                (Mikolov et al. 2013; a file of `a b c d` lines, with `: section` lines between)
similarity      Spearman's rank correlation of cosines with people's scores (a file of `word word score` lines)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.sources.files import load_text
from legato.errors import DataError
from legato.evaluation.metrics import metrics

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("analogy_accuracy", unit="fraction", better="up", headline=True),
    *metrics("similarity_spearman", unit="fraction", better="up", headline=True, points=True),
    *metrics("analogies_known", "similarities_known", unit="fraction"),
)
BLOCK = 512  # questions looked up at once

Find = Callable[[str], int | None]
"""The number of a word, if it has one."""


def nearest(
    vectors: Tensor, wanted: Tensor, count: int, left_out: Iterable[int] = ()
) -> tuple[list[list[int]], list[list[float]]]:
    """For each of `wanted` (N, D) the numbers and cosines of the `count` rows of `vectors` (V, D) nearest to it."""
    cosines = F.normalize(wanted.float(), dim=-1) @ F.normalize(vectors.float(), dim=-1).t()  # (N, V)
    cosines[:, list(left_out)] = -torch.inf
    values, found = cosines.topk(min(count, cosines.shape[1]), dim=-1)
    return found.tolist(), values.tolist()


def analogy_scores(vectors: Tensor, find: Find, path: Path, left_out: Iterable[int] = ()) -> dict[str, float]:
    """Accuracy over the questions all of whose words are known, and the share of those that are."""
    asked, questions = 0, []
    for number, line in enumerate(load_text(path).split("\n"), start=1):
        words = line.split()
        if not words or words[0] == ":":
            continue
        if len(words) != 4:
            raise DataError(
                f"{path}, line {number}: {len(words)} words; an analogy has four, as 'man king woman queen'"
            )
        asked += 1
        known = [find(word) for word in words]
        if None not in known:
            questions.append(known)
    if not questions:
        raise DataError(f"{path} has {asked:,} analogies, and the model knows the words of none")
    right, unit, hidden = 0, F.normalize(vectors.float(), dim=-1), list(left_out)
    for start in range(0, len(questions), BLOCK):
        a, b, c, d = torch.tensor(questions[start : start + BLOCK], device=vectors.device).unbind(1)
        cosines = F.normalize(unit[b] - unit[a] + unit[c], dim=-1) @ unit.t()  # (N, V)
        cosines[:, hidden] = -torch.inf
        for given in (a, b, c):  # the words of the question are no answers
            cosines.scatter_(1, given.unsqueeze(1), -torch.inf)
        right += int((cosines.argmax(1) == d).sum())
    return {"analogy_accuracy": right / len(questions), "analogies_known": len(questions) / asked}


def similarity_scores(vectors: Tensor, find: Find, path: Path) -> dict[str, float]:
    """Spearman's correlation over the pairs whose words are known, and the share of those that are."""
    from scipy.stats import spearmanr

    asked, pairs, scores = 0, [], []
    for number, line in enumerate(load_text(path).split("\n"), start=1):
        words = line.replace(",", " ").split()
        if not words or line.startswith("#"):
            continue
        try:
            first, second, score = words[0], words[1], float(words[2])
        except (IndexError, ValueError):
            if number == 1:
                continue  # names of columns
            raise DataError(f"{path}, line {number}: not two words and a score; found '{line[:60]}'") from None
        if not math.isfinite(score):
            raise DataError(f"{path}, line {number}: the score {score} is no number; correct it, or remove the line")
        asked += 1
        known = [find(word) for word in (first, second)]
        if None not in known:
            pairs.append(known)
            scores.append(score)
    if len(pairs) < 2:
        raise DataError(f"{path} has {asked:,} pairs, and the model knows the words of {len(pairs)}")
    left, right = F.normalize(vectors.float(), dim=-1)[torch.tensor(pairs, device=vectors.device)].unbind(1)
    return {
        "similarity_spearman": float(spearmanr((left * right).sum(-1).tolist(), scores).statistic),
        "similarities_known": len(pairs) / asked,
    }
