"""What a model computed of one input, by names, with what stands at each position.

    trace = legato.load("runs/x").trace("A dog runs.")
    trace["lstm.0.forget_gate"].values          # (T, D)
    trace["lstm.0.forget_gate"].axes            # ("position", "unit")
    trace.positions["input"].names              # the tokens
    trace.guesses[3]                            # the likeliest tokens behind the fourth, with their probabilities
    trace.save("traces/dog")                    # trace.safetensors and trace.json

`position` and `seen` are positions of the stream that a part of the model reads (`Captured.stream`), `source` those
of what is looked at, `frame` those of a clip. Names and axes are those of `nn/capture.py`; a recurrent layer's steps
are positions here. A model says which stream each of its parts reads (`SequenceModel.streams`): "input", or "source"
and "target" of what writes; "image" is a picture beside a text, "grid" its patches alone, "query" what looks at them.
`Positions.patches` are the positions that are patches of a picture, which may stand among tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import safetensors.numpy
import torch
from pydantic import Field
from torch import Tensor, nn

from legato.data.digests import sha256_of
from legato.data.positions import INPUT, SOURCE, Kind, Positions, Reading, shown_token
from legato.errors import DataError, LegatoError, brief, reason_of, suggest
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.nn import capture
from legato.schema import TypedDict, read_json, write_json
from legato.tasks.base import member_of

WEIGHTS, TOLD = "trace.safetensors", "trace.json"
GUESSES: Final = 5  # tokens at each position
MOST_NAMES: Final = 12  # in a message
DIGESTED: Final = 32  # numbers of each tensor, by which a model is known again
NUMBER: Final = re.compile(r"(?:^|\.)(\d+)(?=\.)")  # of a layer, in a name
BACKWARD: Final = re.compile(r"(?:^|\.)(?:reverse|backward)\.")  # in the names of what reads from the end

Array = np.ndarray[Any, np.dtype[np.float32]]


class Shaped:
    """A dataclass whose arrays show themselves by their shapes, and what is long by its length."""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in vars(self).items())
        return f"{type(self).__name__}({shown})"


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray | Tensor):
        return f"array{tuple(value.shape)}"
    return f"[{len(value)} items]" if isinstance(value, list | tuple) and len(value) > 8 else brief(repr(value))


@dataclass(frozen=True, repr=False)
class Captured(Shaped):
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

    kind: Kind
    names: list[str]
    grid: Annotated[list[int], Field(min_length=2, max_length=2)] | None
    before: int
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
        self.shown_by: Callable[[Trace], str] | None = None  # what makes HTML of it, for a notebook

    def _repr_html_(self) -> str | None:
        return None if self.shown_by is None else self.shown_by(self)

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
        named = len(self.positions) > 1
        read = ", ".join(f"{places} ({name})" if named else str(places) for name, places in self.positions.items())
        return f"<Trace of {self.model['name']} on {read}: {len(self)} tensors>"

    def positions_of(self, name: str, axis: str) -> Positions | None:
        """What stands along an axis of a tensor; None: nothing that has names."""
        own = self[name].stream
        stream = {"position": own, "seen": own, "source": SOURCE, "frame": INPUT}.get(axis)
        return None if stream is None else self.positions.get(stream)

    def of_frame(self, number: int) -> Trace:
        """Of a clip, the same without the axis `frame`: what was computed of one of them, counted from 0."""
        tensors = {}
        for name, each in self.tensors.items():
            values, axes = each.values, each.axes
            if "frame" in axes:
                values = np.asarray(values.take(number, axis=axes.index("frame")))
                axes = tuple(axis for axis in axes if axis != "frame")
            tensors[name] = Captured(values, axes, each.stream)
        return Trace(self.model, tensors, self.positions, self.guesses, self.written)

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

    def check_model(self, loaded: Loaded) -> None:
        """Raise LegatoError where the trace is another model's."""
        given = _about(loaded)
        known = ("name", "parameters", *(["weights"] if "weights" in self.model else []))  # older traces have none
        if any(self.model.get(entry) != given[entry] for entry in known):
            raise LegatoError(
                f"the trace is of {self.model.get('folder')}, another model than {given['folder']}; trace this one"
            )

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
            name: Positions(each["kind"], tuple(each["names"]), _grid(each["grid"]), each["before"], each["seconds"])
            for name, each in told["positions"].items()
        }
        pairs = zip(told["guesses"], told["shares"], strict=False)
        guesses = [list(zip(tokens, shares, strict=False)) for tokens, shares in pairs]
        return cls(told["model"], tensors, positions, guesses, told["written"])


def trace_of(
    loaded: Loaded,
    given: Any,
    *,
    task: str | None = None,
    written: str | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    only: str | None = None,
) -> Trace:
    """What a model computes of one input: a text, or what else its task reads.

    Of a model that writes, what it writes of the input is read back, or what is `written` instead; of one of several
    tasks, it is asked one `task`. `layers` and `heads` are numbers from 0, `only` a regular expression that names
    match.
    """
    loaded = member_of(loaded, task)
    return traced(loaded, reading_of(loaded, given, written), layers=layers, heads=heads, only=only)


@torch.no_grad()
def traced(
    loaded: Loaded,
    reading: Reading,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    only: str | None = None,
) -> Trace:
    """The same of what was made ready to be read."""
    module, batch = loaded.module.eval(), reading.batch.to(loaded.module.device)
    with capture.record(_keeps(layers, only)) as found:
        output = module(batch)
    check_finite(output.hidden, module)
    _check_chosen(loaded, found, layers, heads)
    tensors = {}
    for name, steps in found.items():
        values, axes = _joined(name, steps, found.axes[name])
        if heads is not None and "head" in axes:
            values = values.index_select(axes.index("head"), torch.tensor(_heads(heads, values, axes, name)))
        tensors[name] = Captured(values.numpy(), axes, stream_of(name, module.streams))
    guesses = []
    if module.has_readout and reading.written is not None:
        guesses = _guesses(loaded, module.readout(output.hidden)[0])
    return Trace(_about(loaded), tensors, reading.positions, guesses, reading.written)


def _about(loaded: Loaded) -> dict[str, str | int]:
    parameters = sum(parameter.numel() for parameter in loaded.module.parameters())
    name, task, weights = loaded.module.config.name, loaded.task, weights_digest(loaded.module)
    return {"name": name, "task": task, "folder": str(loaded.folder), "parameters": parameters, "weights": weights}


@torch.no_grad()
def weights_digest(module: nn.Module) -> str:
    """What tells a model from another of its shape: a hash of some numbers of each tensor, evenly taken.

    It is made at every look, so it reads a few of them, where the digest of an adapter's base reads all.
    """
    named = sorted(module.state_dict().items())
    taken = [each.flatten()[:: max(1, each.numel() // DIGESTED)].float() for _, each in named]
    values = torch.cat(taken).cpu().numpy()
    return sha256_of([*(f"{name} {tuple(each.shape)}\n" for name, each in named), values.tobytes()])[:16]


def _grid(found: list[int] | None) -> tuple[int, int] | None:
    return None if found is None else (found[0], found[1])


def _keeps(layers: Collection[int] | None, only: str | None) -> Any:
    if not isinstance(layers, Collection | None):
        raise LegatoError(f"layers= is a list of numbers, such as [0], not {brief(layers)}")
    try:
        wanted = None if only is None else re.compile(only)
    except (re.error, TypeError) as problem:
        raise LegatoError(f"'{brief(only)}' is no regular expression: {problem}") from None

    def keeps(name: str) -> bool:
        number = _layer(name)
        inside = layers is None or number is None or number in layers
        return inside and (wanted is None or wanted.search(name) is not None)

    return keeps


def _layer(name: str) -> int | None:
    """The number of the layer that captured this; None outside of layers."""
    found = NUMBER.search(name)
    return None if found is None else int(found[1])


def _check_chosen(
    loaded: Loaded, found: capture.Recording, layers: Collection[int] | None, heads: Collection[int] | None
) -> None:
    """Who chooses what is not there is told what is."""
    known = list(found.met)
    numbers = {number for name in known if (number := _layer(name)) is not None}
    if missing := sorted(set(layers or ()) - numbers):
        there = f"the layers {_ranges(numbers)}" if numbers else "no layers that have numbers"
        raise LegatoError(f"{loaded.folder} has {there}, and not {', '.join(map(str, missing[:MOST_NAMES]))}")
    has = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else "")
    if known and not found:
        raise LegatoError(f"{loaded.folder} has nothing of that name, or in these layers; it has {has}")
    if heads is not None and not any("head" in axes for axes in found.axes.values()):
        raise LegatoError(f"{loaded.folder} has no attention there, whose heads could be chosen; it has {has}")


def _ranges(numbers: Collection[int]) -> str:
    """
    >>> _ranges({0, 1, 2, 4})
    '0 to 2, 4'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join(" to ".join(map(str, run)) for run in runs)


def _joined(name: str, steps: list[Tensor], axes: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """What was captured of the batch's one row, the steps of a recurrent layer side by side."""
    rows = [step.select(axes.index("row"), 0).float().cpu() for step in steps]
    left = tuple(axis for axis in axes if axis != "row")
    if "position" in left:
        return torch.cat(rows, dim=left.index("position")), left
    whole = torch.stack(rows)
    return (whole.flip(0) if BACKWARD.search(name) else whole), ("position", *left)


def _heads(heads: Collection[int], values: Tensor, axes: tuple[str, ...], name: str) -> list[int]:
    count = values.shape[axes.index("head")]
    chosen = sorted(heads)
    if not chosen or not 0 <= chosen[0] <= chosen[-1] < count:
        raise LegatoError(f"{name} has the heads 0 to {count - 1}, and not all of {chosen}")
    return chosen


def stream_of(name: str, streams: Mapping[str, str]) -> str:
    """Which stream the part of a model reads that captured this, as `SequenceModel.streams` has them.

    >>> stream_of("encoder.0.hidden", {"encoder": "source", "": "target"})
    'source'
    """
    words = name.split(".")
    beginnings = (".".join(words[:count]) for count in range(len(words), -1, -1))
    return next(streams[beginning] for beginning in beginnings if beginning in streams)


def _guesses(loaded: Loaded, logits: Tensor) -> list[list[tuple[str, float]]]:
    """The likeliest tokens at each position, of logits (T, V)."""
    shares, ids = logits.float().softmax(-1).topk(min(GUESSES, logits.shape[-1]), dim=-1)
    names = loaded.target
    return [
        [(shown_token(names, index), share) for index, share in zip(row, each, strict=True)]
        for row, each in zip(ids.tolist(), shares.tolist(), strict=True)
    ]
