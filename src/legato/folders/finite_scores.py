"""Answers and scores that are no numbers: never given as if they were.

A model whose weights are damaged, or whose numbers overflow, still answers: with a class, with tags, with no answer
at all. So whatever a head, an encoder or the search gives is looked at where it comes to the CPU anyway, which costs
a sum; which of the weights is to blame is asked only when something is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from legato.errors import NotFiniteError
from legato.folders.weights import weights_of

Array = np.ndarray[Any, np.dtype[Any]]


def check_finite(values: Tensor | Array, model: Any) -> None:
    """Refuse what `model` gave where one of its numbers is infinite or none; `values` lie on the CPU, mostly."""
    held = values.detach() if isinstance(values, Tensor) else torch.from_numpy(values)
    # One pass, and no table of truths: a sum with a bad number in it is never finite. One without may overflow.
    if not (math.isfinite(float(held.sum())) or bool(torch.isfinite(held).all())):
        raise not_finite(model)


def not_finite(model: Any, where: str = "") -> NotFiniteError:
    """What is wrong with a model whose answers are not finite: its weights, if it is those; `where` says of what."""
    folder = None if model is None else model.folder
    whose = "the model" if folder is None else str(folder)
    name = first_bad_tensor(model)
    if name is not None:
        what = f"its weights are not finite, first those of '{name}'"
    else:
        what = f"its results are not finite{where}, though its weights are: they overflow their number type"
    again = "train it again with a lower train.lr"
    if folder is None:  # it was made here, as in training that diverges: no file is to blame
        return NotFiniteError(f"{whose}: {what}; {again}")
    unlike = "" if name is not None else ", or do not belong to this config.json"
    return NotFiniteError(f"{whose}: {what}{unlike}; fetch the model again, or {again}")


def first_bad_tensor(model: Any) -> str | None:
    """The name of the first weights that are not finite; None where all are."""
    if not isinstance(model, nn.Module):
        return None
    for name, tensor in weights_of(model).items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def finite_scores(
    scores: dict[str, Any], model: Any, say: Callable[[str], None], needed: Collection[str] = ()
) -> dict[str, Any]:
    """The scores with None, which JSON has a word for, in place of what is infinite or undefined; that is said.

    Where the weights are to blame, or one of the `needed` scores is none, there is no score to give.
    """
    bad = [name for name, value in scores.items() if isinstance(value, float) and not math.isfinite(value)]
    if not bad:
        return scores
    if first_bad_tensor(model) is not None or not set(bad).isdisjoint(needed):
        raise not_finite(model, f" ({bad[0]} is {scores[bad[0]]})")
    for name in bad:
        kind = "undefined" if math.isnan(scores[name]) else "infinite"
        say(f"note: {name.replace('_', ' ')} is {kind}, so it is left empty (null)")
    return {**scores, **dict.fromkeys(bad)}
