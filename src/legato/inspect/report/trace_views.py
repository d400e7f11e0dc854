"""What each view of the studio is given: the part of a trace, or of a model, that it draws.

Each function puts its arrays into a report and returns the JSON of one view, or None where the model has nothing of
the kind.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from legato.folders.loaded import Loaded
from legato.inspect.heads import head_measures
from legato.inspect.report.page import Report
from legato.inspect.text_features import FEATURES
from legato.inspect.trace import Trace
from legato.inspect.units import at_tokens

THUMB: Final = 24  # rows and columns of a small picture of a matrix
MOST_CELLS: Final = 6 << 20  # numbers of gates and cells that a report holds …
MOST_STATES: Final = 3 << 19  # … and of other states
MOST_HEADS: Final = 300_000  # numbers of queries, keys and values
POWER: Final = 2.0  # weights of attention are many small ones: bytes are spread by their roots
GATES: Final = ("gate", "update", "reset")

Array = np.ndarray[Any, np.dtype[np.float32]]
View = dict[str, Any]


# --- attention ----------------------------------------------------------------------------------------


def attention_view(report: Report, trace: Trace) -> View | None:
    """Every head's weights, a small picture of each, and what it does."""
    layers = []
    for name, captured in trace.items():
        if not name.endswith("weights") or captured.axes[-1] not in ("seen", "source"):
            continue
        weights = captured.values if "head" in captured.axes else captured.values[None]  # (H, T, S)
        keys = "source" if captured.axes[-1] == "source" else captured.stream
        layers.append(
            {
                "name": name,
                "stream": captured.stream,
                "keys": keys,
                "heads": len(weights),
                "weights": report.whole(weights, 0.0, 1.0, POWER),
                "thumbs": report.whole(block_means(weights, THUMB), 0.0, None, POWER),
            }
        )
    return {"layers": layers, "measures": [asdict(each) for each in head_measures(trace)]} if layers else None


def alignment_view(attention: View | None) -> View | None:
    """The layers that look at what an encoder read."""
    layers = [layer for layer in (attention or {"layers": []})["layers"] if layer["keys"] == "source"]
    return {"layers": layers} if layers else None


def block_means(weights: Array, most: int) -> Array:
    """(…, T, S) → (…, ≤ most, ≤ most), each the mean of a block.

    >>> block_means(np.arange(4, dtype=np.float32).reshape(1, 2, 2), 1).tolist()
    [[[1.5]]]
    """
    for axis in (-2, -1):
        count = weights.shape[axis]
        if count > most:
            starts = (np.arange(most) * count) // most
            sizes = np.diff(np.append(starts, count))
            sums = np.add.reduceat(weights, starts, axis=axis)
            weights = (sums / (sizes[:, None] if axis == -2 else sizes)).astype(np.float32)
    return weights


def head_view(report: Report, trace: Trace, attention: View | None) -> View | None:
    """Queries, keys and values of the heads that do most of something, as many as fit."""
    if attention is None:
        return None
    chosen, room = [], MOST_HEADS
    for name, head in _notable(attention):
        part = name.removesuffix("weights")
        found = [trace.tensors.get(part + kind) for kind in ("queries", "keys", "values")]
        if any(each is None or head >= len(each.values) for each in found):
            continue
        arrays = [each.values[head] for each in found if each is not None]  # (T, K) each
        room -= sum(each.size for each in arrays)
        if room < 0:
            break
        queries, keys, values = (report.halves(each) for each in arrays)
        chosen.append({"name": name, "head": head, "queries": queries, "keys": keys, "values": values})
    return {"heads": chosen}


def _notable(attention: View) -> list[tuple[str, int]]:
    """Those first that lead in a measure, then the first head of each layer, then all."""
    measures = attention["measures"]
    leading = []
    for key in ("induction", "previous", "first", "itself", "distance", "entropy"):
        known = [each for each in measures if each[key] is not None]
        leading += sorted(known, key=itemgetter(key), reverse=True)[:2]
    first = [each for each in measures if each["head"] == 0]
    named = [(each["name"], each["head"]) for each in (*leading, *first, *measures)]
    return list(dict.fromkeys(named))


# --- units --------------------------------------------------------------------------------------------


def cells_view(report: Report, trace: Trace) -> View | None:
    """Units at each position: gates and cells of what recurs first, then states, as many as fit."""
    names = [name for name, each in trace.items() if each.axes == ("position", "unit")]
    names.sort(key=lambda name: ("units" in name, not _recurs(name)))  # stable: layers in their order
    tensors, left, room = [], [], {True: MOST_CELLS, False: MOST_STATES}
    for name in names:
        values = trace[name].values
        if values.size > room[_recurs(name)]:
            left.append(name)
            continue
        room[_recurs(name)] -= values.size
        gate = any(word in name.rsplit(".", 1)[-1] for word in GATES)
        # A gate is a share; anything else a share of its unit's largest, which may be a hundred times another's.
        most = np.where((largest := np.abs(values).max(0)) > 0, largest, 1.0)
        tensors.append(
            {
                "name": name,
                "stream": trace[name].stream,
                "units": values.shape[1],
                "values": report.whole(values, 0.0, 1.0) if gate else report.signed(values / most, 1.0),
                "scales": None if gate else report.halves(most),
            }
        )
    if not names:
        return None
    return {"tensors": tensors, "left": left, "features": _features(report, trace)}


def _recurs(name: str) -> bool:
    own = name.rsplit(".", 1)[-1]
    return own in ("cell", "candidate") or any(word in own for word in GATES)


def _features(report: Report, trace: Trace) -> dict[str, Any]:
    """Properties of the text at the end of each token, of each stream of tokens: those that change."""
    made = {}
    for stream, places in trace.positions.items():
        if places.kind != "token":
            continue
        text, ends = "".join(places.names), list(accumulate(map(len, places.names)))
        known = {name: at_tokens(text, ends, feature) for name, feature in FEATURES.items()}
        found = {name: values for name, values in known.items() if values.std() > 0}
        if found:
            made[stream] = {"names": list(found), "values": report.halves(np.stack(list(found.values())))}
    return made


# --- the model itself ---------------------------------------------------------------------------------


class Costs(TorchDispatchMode):
    """Operations and outputs of each part while a model runs, by the part's name.

    What a part does counts for all that it is a part of, whoever called it: a readout is asked for from outside of
    the model, keys of what is looked at are made before the layer that looks.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.shapes: dict[str, list[int]] = {}
        self.operations: dict[str, int] = {}
        self._inside: list[str] = []
        self._hooks: list[Any] = []

    def __enter__(self) -> Costs:
        for name, part in self.module.named_modules():
            self._hooks.append(part.register_forward_pre_hook(lambda _, __, name=name: self._inside.append(name)))
            self._hooks.append(part.register_forward_hook(lambda _, __, out, name=name: self._left(name, out)))
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        for hook in self._hooks:
            hook.remove()

    def _left(self, name: str, out: Any) -> None:
        self._inside.pop()
        if isinstance(out, torch.Tensor):
            self.shapes[name] = list(out.shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func.overloadpacket)
        if func.name() == "mkldnn::_linear_pointwise":  # of weights that were packed for a CPU; no registry has it
            found = 2 * args[0].numel() * out.shape[-1]
        else:
            found = 0 if count is None else int(count(*args, **(kwargs or {}), out_val=out))
        for name in self._running() if found else ():
            self.operations[name] = self.operations.get(name, 0) + found
        return out

    def _running(self) -> set[str]:
        """The parts that run, and those that they are parts of; the whole is always one of them."""
        return {"", *(above for name in self._inside for above in accumulate(name.split("."), "{}.{}".format))}


def map_view(loaded: Loaded, costs: Costs | None = None) -> View:
    """The real modules: classes, shapes and numbers of parameters, and what each costs."""
    operations = {} if costs is None else costs.operations
    shapes = {} if costs is None else costs.shapes
    seen: set[int] = set()

    def node(name: str, path: str, part: nn.Module) -> View:
        children = [
            node(each, f"{path}.{each}".removeprefix("."), child)
            for each, child in part.named_children()
            if any(True for _ in child.parameters())
        ]
        own = []
        for each, parameter in part.named_parameters(recurse=False):
            own.append({"name": each, "shape": list(parameter.shape), "shared": id(parameter) in seen})
            seen.add(id(parameter))
        return {
            "name": name,
            "kind": type(part).__name__,
            "parameters": sum(parameter.numel() for parameter in part.parameters()),
            "own": own,
            "output": shapes.get(path),
            "operations": operations.get(path),
            "children": children,
        }

    return {"root": node(str(loaded.module.config.name), "", loaded.module)}
