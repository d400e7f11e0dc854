"""What the heads of attention do, measured on one input: how wide they look, how far, and by which rule.

    entropy     −Σ_j α_ij ln α_ij, the mean over queries i: 0 where a head looks at one place, ln T where everywhere
    distance    Σ_j α_ij |i − j|, in positions
    previous    α_{i,i-1}: a head that looks at what came just before
    first       α_{i,0}: a sink, where a head looks that looks for nothing
    itself      α_{i,i}
    induction   α_ij where j comes after an earlier place with the token of i: what followed it the last time
                (Olsson et al. 2022); nothing where no token comes twice

Each a mean over the queries of which it can be said. Of cross-attention, which looks at another sequence, entropy is
all. `alignment_error_rate` compares what a head, or a model, aligns with what people did (Och & Ney 2003).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from legato.inspect.trace import Trace

Array = np.ndarray[Any, np.dtype[np.float32]]
Link = tuple[int, int]


@dataclass(frozen=True)
class HeadMeasures:
    """One head of one layer."""

    name: str  # of the tensor of weights
    head: int
    entropy: float
    distance: float | None = None
    previous: float | None = None
    first: float | None = None
    itself: float | None = None
    induction: float | None = None


def head_measures(trace: Trace) -> list[HeadMeasures]:
    """Those of every head that a trace has weights of.

    >>> sorted(head_measures(model.trace("…")), key=lambda head: -head.previous)[0]     # doctest: +SKIP
    """
    made = []
    for name, captured in trace.items():
        if not name.endswith("weights") or "position" not in captured.axes:
            continue
        axes, weights = captured.axes, captured.values
        weights = np.moveaxis(weights, axes.index("head"), 0) if "head" in axes else weights[None]  # (H, …, T, S)
        places = trace.positions_of(name, "position")
        tokens = places.names if places is not None and places.kind == "token" else ()
        own = axes[-1] == "seen"
        made += [_measured(name, head, each, tokens, own=own) for head, each in enumerate(weights)]
    return made


def _measured(name: str, head: int, weights: Array, tokens: Sequence[str], *, own: bool) -> HeadMeasures:
    """Of weights (T, S), or (N, T, S) of the N frames of a clip."""
    logs = np.log(np.where(weights > 0, weights, 1))
    entropy = float(-(weights * logs).sum(-1).mean())
    if not own:
        return HeadMeasures(name, head, entropy)
    count = weights.shape[-1]
    places = np.arange(count)
    distance = float((weights * np.abs(places[:, None] - places)).sum(-1).mean())
    later = places[1:]
    followed = followers(tokens)
    return HeadMeasures(
        name,
        head,
        entropy,
        distance,
        previous=float(weights[..., later, later - 1].mean()) if count > 1 else None,
        first=float(weights[..., later, 0].mean()) if count > 1 else None,
        itself=float(weights[..., places, places].mean()),
        induction=float(np.mean([weights[..., i, js].sum() for i, js in followed.items()])) if followed else None,
    )


def followers(tokens: Sequence[str]) -> dict[int, list[int]]:
    """Of each place whose token came before, the places that followed it then.

    >>> followers(["a", "b", "c", "a"])
    {3: [1]}
    """
    found: dict[int, list[int]] = {}
    for place, token in enumerate(tokens):
        earlier = [other + 1 for other in range(place) if tokens[other] == token and other + 1 < place]
        if earlier:
            found[place] = earlier
    return found


def alignment_error_rate(found: Collection[Link], sure: Collection[Link], possible: Collection[Link] = ()) -> float:
    """1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), where P holds S: 0 is what people did.

    >>> round(alignment_error_rate([(0, 0), (1, 2)], sure=[(0, 0)], possible=[(1, 1)]), 3)
    0.333
    """
    links, certain = set(found), set(sure)
    allowed = certain | set(possible)
    total = len(links) + len(certain)
    return 1 - (len(links & certain) + len(links & allowed)) / total if total else 0.0
