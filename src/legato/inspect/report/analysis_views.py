"""What the views of analyses are given: the logit lens, codes of positions, gradients through time, layers.

Each function puts its arrays into a report and returns the JSON of one view, or None where the model has nothing of
the kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from legato.data.positions import PLURALS, Positions, Reading
from legato.errors import LegatoError
from legato.inspect.gradients import Gradients, gradient_through_time
from legato.inspect.heads import head_measures
from legato.inspect.lens import lens_of
from legato.inspect.positions import GridWaves, dot_products, has_grid_waves, picture_size, waves_of_grid
from legato.inspect.probes import Probes
from legato.inspect.readings import reading_of
from legato.inspect.report.page import Report
from legato.inspect.trace import Captured, Trace
from legato.models.encoder import EncoderModel
from legato.models.vit import PatchEmbedding
from legato.models.whisper import FrameEncoder
from legato.nn.conformer import RelativeAttention, relative_sinusoids
from legato.nn.pooling import ScalarMix
from legato.nn.positions import Learned, Rotary, Sinusoidal
from legato.nn.recurrent import LSTMCell

MOST_LOGITS: Final = 1 << 27  # that a lens computes: seconds
MOST_NUMBERS: Final = 1 << 18  # bytes of a table of positions that a report holds
MOST_POSITIONS: Final = 512  # of a table; it has products of all pairs
MOST_GRIDS: Final = 14  # patches of a side whose likeness to all others is drawn
REACH: Final = 64  # distances of a relative code, each way

Array = np.ndarray[Any, np.dtype[Any]]
View = dict[str, Any]
Found = TypeVar("Found")


def _if_any(analyse: Callable[[], Found]) -> Found | None:
    """What an analysis finds; None where it says that the model has nothing of the kind.

    That is a plain LegatoError. Its kinds (of data, of folders, of numbers that are not finite) say something else.
    """
    try:
        return analyse()
    except LegatoError as problem:
        if type(problem) is not LegatoError:
            raise
        return None


def _numbers(report: Report, values: Array) -> int:
    """Keep whole numbers up to 2²⁴ as they are: three bytes of each, the highest first, (3, …)."""
    whole = np.asarray(values, dtype=np.int64)
    return report.whole(np.stack([whole >> 16, whole >> 8 & 255, whole & 255]), 0.0, 255.0)


# --- the logit lens -----------------------------------------------------------------------------------


def lens_view(
    report: Report, model: Any, given: Any, written: str | None = None, *, reading: Reading | None = None
) -> View | None:
    """What each layer would say at each position, of as many as are quickly computed.

    `reading` is what `given` was made, where that is at hand.
    """
    read = reading_of(model.loaded, given, written) if reading is None else reading
    lens = _if_any(partial(lens_of, model.loaded, read, MOST_LOGITS))
    if lens is None:
        return None
    tokens = sorted({token for row in lens.top for place in row for token in place})
    numbers = {token: number for number, token in enumerate(tokens)}
    top = [[[numbers[token] for token in place] for place in row] for row in lens.top]
    return {
        "names": list(lens.positions.names),
        "count": list(read.positions.values())[-1].count,
        "tokens": tokens,
        "top": _numbers(report, np.array(top)),
        "shares": report.halves(lens.top_shares),
        "entropies": report.halves(lens.entropies),
        "distances": report.halves(lens.distances),
        "agreement": report.halves(lens.agreement),
        "ranks": None if lens.ranks is None else _numbers(report, lens.ranks),
    }


# --- codes of positions -------------------------------------------------------------------------------


def positions_view(report: Report, model: Any, size: tuple[int, int] | None = None) -> View | None:
    """Every code of positions that a model has: tables, turns, likeness of patches, scores of distances.

    `size` is the height and width of the picture that is read; left out: of what pictures are brought to.
    """
    module: nn.Module = model.loaded.module
    codes: list[View] = []
    relative: list[tuple[str, RelativeAttention]] = []
    unused = {each.positions: each.before for each in module.modules() if isinstance(each, EncoderModel)}
    for name, part in module.named_modules():
        if isinstance(part, Sinusoidal):
            codes.append(_waves(report, name, "sinusoidal", part.table))
        elif isinstance(part, FrameEncoder):
            codes.append(_waves(report, f"{name}.positions", "sinusoidal", part.positions))
        elif isinstance(part, Rotary):
            half = part.cos.shape[1] // 2
            codes.append(_waves(report, name, "rotary", torch.cat([part.sin[:, :half], part.cos[:, :half]], dim=1)))
        elif isinstance(part, Learned):
            codes.append(_learned(report, name, part.weight[unused.get(part, 0) :]))
        elif isinstance(part, PatchEmbedding):
            codes.append(_patches(report, name, part.learned()))
        elif has_grid_waves(part):
            found = waves_of_grid(part, size or picture_size(model.loaded, part))
            codes.append(_grid(report, f"{name}.grid".removeprefix("."), found))
        elif isinstance(part, RelativeAttention):
            relative.append((name, part))
    if relative:
        codes.append(_relative(report, relative))
    return {"codes": codes} if codes else None


def _array(tensor: Tensor) -> Array:
    return tensor.detach().double().cpu().numpy()


def _waves(report: Report, name: str, kind: str, table: Tensor) -> View:
    """A table of sines, then cosines, of one angle per step for each pair: (T, D)."""
    count = int(np.clip(MOST_NUMBERS // 2 // table.shape[1], 1, min(MOST_POSITIONS, len(table))))
    found = _array(table[:count])
    return {
        "name": name,
        "kind": kind,
        "length": len(table),
        "table": report.halves(found),
        "rates": report.halves(np.log10(rates_of(found))),  # they go over more powers of ten than halves have
    }


def rates_of(table: Array) -> Array:
    """The angle from one position to the next, of each pair of a sine and a cosine of (T, D): (D/2,).

    >>> from legato.inspect.positions import sinusoidal_table
    >>> rates_of(sinusoidal_table(200, 4)).round(6).tolist()
    [1.0, 0.01]
    """
    half = table.shape[1] // 2
    angles = np.arctan2(table[:, :half], table[:, -half:])
    steps = np.angle(np.exp(1j * np.diff(angles, axis=0)))  # of all positions, as each is rounded
    found: Array = steps.mean(0) if len(steps) else np.ones(half)
    return found.clip(1e-12)


def _learned(report: Report, name: str, table: Tensor) -> View:
    count = int(np.clip(MOST_NUMBERS // table.shape[1], 1, min(MOST_POSITIONS, len(table))))
    found = _array(table[:count])
    return {
        "name": name,
        "kind": "learned",
        "length": len(table),
        "table": report.signed(found, float(np.quantile(np.abs(found), 0.999))),
        "cosines": report.signed(np.triu(dot_products(found, cosine=True)), 1.0),  # the other half says the same
        "norms": report.halves(np.linalg.norm(found, axis=1)),
    }


def _patches(report: Report, name: str, table: Tensor) -> View:
    """Of learned positions (rows, columns, D): how like each is to all others, of as many as can be drawn."""
    rows, columns = table.shape[:2]
    found = _array(table).reshape(rows * columns, -1)
    drawn = _drawn(rows, columns)
    places = np.add.outer(np.array(drawn["rows"]) * columns, drawn["columns"]).ravel()
    cosines = dot_products(found, cosine=True)[places]  # (n, N)
    return {"name": name, "kind": "patches", **drawn, "cosines": report.signed(cosines, 1.0)}


def _drawn(rows: int, columns: int) -> View:
    """A grid, and which of its rows and columns are drawn."""
    picked = [np.arange(side)[(step := -(-side // MOST_GRIDS)) // 2 :: step].tolist() for side in (rows, columns)]
    return {"grid": [rows, columns], "rows": picked[0], "columns": picked[1]}


def _grid(report: Report, name: str, waves: GridWaves) -> View:
    """Waves along both sides of a picture's grid; how alike two places are is the mean of both sides' cosines."""
    across, down = report.halves(waves.columns), report.halves(waves.rows)
    return {
        "name": name,
        "kind": "grid",
        **_drawn(len(waves.rows), len(waves.columns)),
        "across": across,
        "down": down,
    }


@torch.no_grad()
def _relative(report: Report, layers: list[tuple[str, RelativeAttention]]) -> View:
    """What a distance adds to a score, whatever is asked: v · W_r R(i − j) / √K, of each head (Dai et al. 2019)."""
    scores = []
    for _, layer in layers:
        waves = relative_sinusoids(REACH, layer.distance.weight.shape[1], layer.distance_bias.device)
        far = layer.distance(waves.to(layer.distance_bias.dtype)).unflatten(1, (layer.heads, layer.head_width))
        scores.append(torch.einsum("thk,hk->ht", far, layer.distance_bias) / math.sqrt(layer.head_width))
    return {
        "name": "distances",
        "kind": "relative",
        "reach": REACH - 1,
        "layers": [name for name, _ in layers],
        "scores": report.halves(np.stack([_array(each) for each in scores])),  # (L, H, 2 reach + 1), i − j falling
    }


# --- gradients ----------------------------------------------------------------------------------------


def gradient_view(report: Report, models: Mapping[str, Any], given: Any) -> View | None:
    """How far the gradient of the last token's loss reaches back, of each of some models on one input.

    An LSTM has another line for its cell, which is the state that it keeps things in.
    """
    lines, left = [], []
    for name, model in models.items():
        found = _if_any(partial(gradient_through_time, model, given))
        if found is None:
            left.append(name)
            continue
        lines.append(_line(report, name, found))
        if any(isinstance(part, LSTMCell) for part in model.loaded.module.modules()):
            lines.append(_line(report, f"{name}, cell", gradient_through_time(model, given, of="cell")))
    return {"lines": lines, "left": left} if lines else None


def _line(report: Report, name: str, found: Gradients) -> View:
    """Norms from position 0 on, as powers of ten, of which they go over more than halves have; 0 is no such power.

    The bound is the last of them times `factor` for each step back.
    """
    some = (found.norms > 0) & np.isfinite(found.norms)
    powers = np.full(len(some), np.nan)
    powers[some] = np.log10(found.norms[some])
    bound = found.bound
    return {
        "name": name,
        "states": found.name,
        "tokens": list(found.tokens),
        "wanted": found.wanted,
        "loss": found.loss,
        "norms": report.halves(powers, gaps=True),
        "factor": None if bound is None or len(bound) < 2 or not some[-1] else float(bound[-2] / bound[-1]),
    }


# --- layers -------------------------------------------------------------------------------------------


def layers_view(
    report: Report, trace: Trace, probes: Mapping[str, Probes] | None = None, model: Any = None
) -> View | None:
    """How states change from layer to layer, how far heads look, what probes find, which layers a head mixes.

    `probes` are of some tasks, by their names; `model` is asked for the weights of mixes that it has learned.
    """
    if model is not None:
        trace.check_model(model.loaded)
    far = _distances(report, trace)
    prefixes = [name.removesuffix("embedded") for name in trace if name.endswith("embedded")]
    stacks = [_stack(report, trace, prefix, far) for prefix in prefixes]
    found = {
        "stacks": [each for each in stacks if each is not None],
        "probes": [_probes(report, task, each) for task, each in (probes or {}).items()],
        "mixes": [] if model is None else _mixes(report, model.loaded.module),
    }
    return found if any(found.values()) else None


def _stack(report: Report, trace: Trace, prefix: str, far: Mapping[str, list[float]]) -> View | None:
    """A stack whose blocks write into one stream, of which a trace has all states; `far` is how far heads look."""
    names = [f"{prefix}embedded"]
    while (name := f"{prefix}{len(names) - 1}.hidden") in trace:
        names.append(name)
    if len(names) == 1:
        return None
    states = np.stack([_flat(trace[name]) for name in names])  # (L + 1, T, D)
    stream = trace[names[0]].stream
    return {
        "name": prefix.removesuffix("."),
        "stream": stream,
        "cosines": report.signed(layer_cosines(states), 1.0),
        "norms": report.halves(np.linalg.norm(states, axis=-1)),
        "distance": _distance(report, far, prefix, len(names) - 1, trace.positions.get(stream)),
    }


def _flat(captured: Captured) -> Array:
    """States (T, D); of a clip those of all its frames."""
    return captured.values.reshape(-1, captured.values.shape[-1])


def layer_cosines(states: Array) -> Array:
    """cos(h_k, h_l), the mean over positions, of states (L, T, D): (L, L).

    >>> layer_cosines(np.array([[[1.0, 0.0]], [[1.0, 1.0]]])).round(3).tolist()
    [[1.0, 0.707], [0.707, 1.0]]
    """
    unit = states / np.linalg.norm(states, axis=-1, keepdims=True).clip(1e-12)
    found: Array = np.einsum("ktd,ltd->kl", unit, unit, optimize=True) / states.shape[1]
    return found


def _distances(report: Report, trace: Trace) -> dict[str, list[float]]:
    """How far each head looks, by names of weights: in positions, or on the grid where what it reads are patches."""
    attention = report.views.get("attention")  # which has measured them
    measures = [asdict(each) for each in head_measures(trace)] if attention is None else attention["measures"]
    found: dict[str, list[float]] = {}
    for each in measures:
        if each["distance"] is not None:
            found.setdefault(each["name"], []).append(each["distance"])
    for name in found:
        places = trace.positions.get(trace[name].stream)
        if places is not None and _on_grid(places):
            found[name] = grid_distances(trace[name], places).tolist()
    return found


def _on_grid(places: Positions) -> bool:
    return places.kind == "patch" and places.grid is not None


def _distance(
    report: Report, far: Mapping[str, list[float]], prefix: str, count: int, places: Positions | None
) -> View | None:
    names = [f"{prefix}{layer}.attention.weights" for layer in range(count)]
    if not all(name in far for name in names):
        return None
    unit = "positions" if places is None else PLURALS["patch" if _on_grid(places) else places.kind]
    seconds = None if places is None else places.seconds
    return {
        "unit": unit,
        "seconds": seconds,
        "heads": report.halves(np.array([far[name] for name in names])),
    }  # (L, H)


def grid_distances(captured: Captured, places: Positions) -> Array:
    """Σ_j α_ij |i − j| on the grid of a picture, in patches, the mean over patches i, of each head: (H,).

    Weights on what is no patch are left out, and the others made to sum to 1 (inspect/pictures.py has it in pixels).
    """
    assert places.grid is not None
    weights = np.moveaxis(captured.values, captured.axes.index("head"), 0)  # (H, …, T, T)
    inside = slice(places.patches.start, places.patches.stop)
    weights = weights[..., inside, inside]
    weights = weights / weights.sum(-1, keepdims=True).clip(1e-12)
    at = np.stack(np.unravel_index(np.arange(len(places.patches)), places.grid), axis=1).astype(np.float64)  # (N, 2)
    apart = np.linalg.norm(at[:, None] - at, axis=-1)
    found: Array = (weights * apart).sum(-1).reshape(len(weights), -1).mean(-1)
    return found


def _probes(report: Report, task: str, found: Probes) -> View:
    return {
        "task": task,
        "labels": len(found.labels),
        "examples": list(found.examples),
        "baseline": found.baseline,
        "accuracy": report.halves(found.accuracy),
        "control": report.halves(found.control),
        "weights": None if found.weights is None else report.halves(found.weights),
        "centre": found.centre_of_gravity,
        "expected": found.expected_layer,
    }


def _mixes(report: Report, module: nn.Module) -> list[View]:
    return [
        {"name": name, "weights": report.halves(_array(part.weights.softmax(0))), "scale": float(part.scale.detach())}
        for name, part in module.named_modules()
        if isinstance(part, ScalarMix)
    ]
