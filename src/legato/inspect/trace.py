"""What a model computed of one input, by names, with what stands at each position.

    trace = legato.load("runs/x").trace("A dog runs.")
    trace["lstm.0.forget_gate"].values          # (T, D)
    trace["lstm.0.forget_gate"].axes            # ("position", "unit")
    trace.positions["input"].names              # the tokens
    trace.guesses[3]                            # the likeliest tokens behind the fourth, with their probabilities
    trace.save("traces/dog")                    # trace.safetensors and trace.json

`position` and `seen` are positions of the stream that a part of the model reads (`Captured.stream`), `source` those
of the encoder's. Names and axes are those of `nn/capture.py`; a recurrent layer's steps are positions here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import safetensors.numpy
import torch
from pydantic import Field
from torch import Tensor

from legato.data.positions import SOURCE, Positions, shown_token
from legato.errors import DataError, LegatoError, reason_of, suggest
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.nn import capture
from legato.schema import TypedDict, read_json, write_json

WEIGHTS, TOLD = "trace.safetensors", "trace.json"
GUESSES: Final = 5  # tokens at each position
NUMBER: Final = re.compile(r"(?:^|\.)(\d+)(?=\.)")  # of a layer, in a name
REVERSE: Final = ".reverse."  # in the names of what reads from the end

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Captured:
    """One tensor of a trace."""

    values: Array
    axes: tuple[str, ...]
    stream: str  # what its positions are


class CapturedEntry(TypedDict):
    """Of trace.json: a tensor."""

    axes: list[str]
    stream: str


class PositionsEntry(TypedDict):
    """Of trace.json: a stream."""

    kind: Literal["token", "patch", "frame", "query"]
    names: list[str]
    grid: Annotated[list[int], Field(min_length=2, max_length=2)] | None
    seconds: float | None


class TraceEntries(TypedDict):
    """trace.json."""

    model: dict[str, str | int]
    tensors: dict[str, CapturedEntry]
    positions: dict[str, PositionsEntry]
    guesses: list[list[str]]
    shares: list[list[float]]
    written: list[str] | None


class Trace(Mapping[str, Captured]):
    """What a model computed of one input."""

    def __init__(
        self,
        model: Mapping[str, str | int],
        tensors: Mapping[str, Captured],
        positions: Mapping[str, Positions],
        guesses: list[list[tuple[str, float]]],
        written: list[str] | None = None,
    ) -> None:
        self.model, self.tensors, self.positions = dict(model), dict(tensors), dict(positions)
        self.guesses, self.written = guesses, written

    def __getitem__(self, name: str) -> Captured:
        if name not in self.tensors:
            raise LegatoError(f"this trace has no '{name}'; {suggest(name, self.tensors)}")
        return self.tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        read = ", ".join(f"{each.count} {each.kind}s" for each in self.positions.values())
        return f"<Trace of {self.model['name']} on {read}: {len(self)} tensors>"

    def positions_of(self, name: str, axis: str) -> Positions | None:
        """What stands along an axis of a tensor; None: nothing that has names."""
        if axis not in ("position", "seen", "source"):
            return None
        return self.positions.get(SOURCE if axis == "source" else self[name].stream)

    def save(self, folder: str | Path) -> None:
        place = Path(folder)
        values = {name: np.ascontiguousarray(each.values) for name, each in self.tensors.items()}
        told = {
            "model": self.model,
            "tensors": {name: {"axes": each.axes, "stream": each.stream} for name, each in self.tensors.items()},
            "positions": {name: asdict(each) for name, each in self.positions.items()},
            "guesses": [[token for token, _ in each] for each in self.guesses],
            "shares": [[share for _, share in each] for each in self.guesses],
            "written": self.written,
        }
        try:
            place.mkdir(parents=True, exist_ok=True)
            safetensors.numpy.save_file(values, place / WEIGHTS)
            write_json(place / TOLD, told)
        except (OSError, safetensors.SafetensorError) as problem:
            raise DataError(f"the trace cannot be saved to {place}: {reason_of(problem) or problem}") from None

    @classmethod
    def load(cls, folder: str | Path) -> Trace:
        place = Path(folder)
        told = read_json(place / TOLD, TraceEntries)
        try:
            values = safetensors.numpy.load_file(place / WEIGHTS)
        except (OSError, safetensors.SafetensorError) as problem:
            raise DataError(f"{place / WEIGHTS} is no file of a trace: {problem}") from None
        if set(values) != set(told["tensors"]):
            raise DataError(f"{place}: {WEIGHTS} and {TOLD} are of two traces")
        tensors = {
            name: Captured(values[name], tuple(each["axes"]), each["stream"])
            for name, each in told["tensors"].items()
        }
        positions = {
            name: Positions(each["kind"], tuple(each["names"]), _grid(each["grid"]), each["seconds"])
            for name, each in told["positions"].items()
        }
        pairs = zip(told["guesses"], told["shares"], strict=False)
        guesses = [list(zip(tokens, shares, strict=False)) for tokens, shares in pairs]
        return cls(told["model"], tensors, positions, guesses, told["written"])


@torch.no_grad()
def trace_of(
    loaded: Loaded,
    given: Any,
    *,
    written: str | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    only: str | None = None,
) -> Trace:
    """What a model computes of one input: a text, or what else its task reads.

    Of a model that writes, what it writes of the input is read back, or what is `written` instead. `layers` and
    `heads` are numbers from 0, `only` a regular expression that names match.
    """
    reading = reading_of(loaded, given, written)
    module, batch = loaded.module.eval(), reading.batch.to(loaded.module.device)
    with capture.record(_keeps(layers, only)) as found:
        output = module(batch)
    check_finite(output.hidden, module)
    tensors = {}
    for name, steps in found.items():
        values, axes = _joined(name, steps, found.axes[name])
        if heads is not None and "head" in axes:
            values = values.index_select(axes.index("head"), torch.tensor(_heads(heads, values, axes, name)))
        tensors[name] = Captured(values.numpy(), axes, _stream(name, reading.positions))
    guesses = []
    if module.has_readout and reading.written is not None:
        guesses = _guesses(loaded, module.readout(output.hidden)[0])
    about: dict[str, str | int] = {"name": module.config.name, "task": loaded.task, "folder": str(loaded.folder)}
    about["parameters"] = sum(parameter.numel() for parameter in module.parameters())
    return Trace(about, tensors, reading.positions, guesses, reading.written)


def _grid(found: list[int] | None) -> tuple[int, int] | None:
    return None if found is None else (found[0], found[1])


def _keeps(layers: Collection[int] | None, only: str | None) -> Any:
    try:
        wanted = None if only is None else re.compile(only)
    except re.error as problem:
        raise LegatoError(f"'{only}' is no regular expression: {problem}") from None

    def keeps(name: str) -> bool:
        number = NUMBER.search(name)
        inside = layers is None or number is None or int(number[1]) in layers
        return inside and (wanted is None or wanted.search(name) is not None)

    return keeps


def _joined(name: str, steps: list[Tensor], axes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """What was captured of the batch's one row, the steps of a recurrent layer side by side."""
    rows = [step.select(axes.index("row"), 0).float().cpu() for step in steps]
    left = tuple(axis for axis in axes if axis != "row")
    if "position" in left:
        return torch.cat(rows, dim=left.index("position")), left
    whole = torch.stack(rows)
    return (whole.flip(0) if REVERSE in name else whole), ("position", *left)


def _heads(heads: Collection[int], values: Tensor, axes: tuple[str, ...], name: str) -> list[int]:
    count = values.shape[axes.index("head")]
    chosen = sorted(heads)
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < count:
        raise LegatoError(f"{name} has the heads 0 to {count - 1}, and not all of {chosen}")
    return chosen


def _stream(name: str, positions: Mapping[str, Positions]) -> str:
    """Which of the streams the part of a model reads that captured this."""
    if SOURCE in positions and name.startswith("encoder"):
        return SOURCE
    return next(stream for stream in positions if stream != SOURCE)


def _guesses(loaded: Loaded, logits: Tensor) -> list[list[tuple[str, float]]]:
    """The likeliest tokens at each position, of logits (T, V)."""
    shares, ids = logits.float().softmax(-1).topk(min(GUESSES, logits.shape[-1]), dim=-1)
    names = loaded.target
    return [
        [(shown_token(names, index), share) for index, share in zip(row, each, strict=True)]
        for row, each in zip(ids.tolist(), shares.tolist(), strict=True)
    ]
