"""Checkpoints: everything that a run needs to go on to the same bits.

A checkpoint is a folder of safetensors and JSON, `checkpoints/step-N`, complete with a manifest of
checksums. It is written beside and renamed, so it is there whole or not at all; a damaged one is
recognised by its checksums and the one before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor, nn

from legato.errors import CheckpointError, FolderError, brief
from legato.folders.atomic import replacing
from legato.folders.links import refuse_link
from legato.folders.weights import load_tensors, put_weights, save_tensors, weights_of
from legato.schema import OPEN, TypedDict, read_json, to_json, with_config
from legato.training.checkpoint_files import (
    FILES,
    MANIFEST,
    TENSORS,
    is_checkpoint,
    list_checkpoints,
    remove_checkpoint,
    step_of,
)


@with_config(OPEN)
class AnyProgress(TypedDict):
    """What every progress.json has; the rest is the loop's."""

    step: Annotated[int, Field(ge=0)]
    stream: Any


@dataclass
class Progress:
    """What a run remembers besides tensors; it goes into the checkpoint as it is."""

    seconds: float = 0.0
    training: float = 0.0  # of those seconds, the ones spent on steps
    tokens: int = 0  # taken in
    reported: int = 0  # of those tokens, the ones in a report already
    best: float | None = None
    best_step: int = 0
    best_loss: float | None = None  # of the best one, which decides between equals
    scores: list[float | None] = field(default_factory=list)  # of every validation; None: it was not finite
    bad: int = 0  # validations since the last gain
    finished: str = ""  # why, once it is
    metrics: dict[str, Any] = field(default_factory=dict)  # of the last validation


class ScheduleEntries(TypedDict):
    cut: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    bad: Annotated[int, Field(ge=0)]


@with_config(OPEN)
class KeptProgress(TypedDict):
    """What the loop puts into a checkpoint's progress.json."""

    progress: dict[str, Any]
    schedule: ScheduleEntries
    average_updates: Annotated[int, Field(ge=0)] | None


@dataclass
class Checkpoint:
    """A run at one moment."""

    step: int  # updates made
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    average: dict[str, Tensor] = field(default_factory=dict)
    stream: Any = None  # the state carried between segments: nested tuples and lists of tensors
    random: dict[str, Tensor] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)  # schedule, best score, counters: plain JSON


def save_checkpoint(checkpoint: Checkpoint, folder: Path, keep: int) -> Path:
    """Write `checkpoint` under `folder` and drop all but the newest `keep`."""
    refuse_link(folder)
    place = folder / f"step-{checkpoint.step}"
    tensors, shape = flatten(checkpoint.stream)
    with replacing(place) as fresh:
        for name in TENSORS:
            save_tensors(vars(checkpoint)[name], fresh / f"{name}.safetensors")
        # Cloned, because a state may hold one tensor twice and the file format refuses that.
        save_tensors({str(i): t.clone() for i, t in enumerate(tensors)}, fresh / "stream.safetensors")
        progress = {"step": checkpoint.step, "stream": shape, **checkpoint.progress}
        (fresh / "progress.json").write_text(to_json(progress, indent=1))
        sums = {name: _digest(fresh / name) for name in FILES}
        (fresh / MANIFEST).write_text(to_json(sums, indent=1))
    # A later one can only be a damaged one that the run went back from: it must not push out a good one.
    made = [path for path in list_checkpoints(folder) if step_of(path) <= checkpoint.step and is_checkpoint(path)]
    for old in made[:-keep]:
        remove_checkpoint(old)
    return place


def trainable_state(module: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model: all of it or, where something is frozen, what is not, and the buffers."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in weights_of(module).items() if name not in frozen}


def load_trainable(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Put back what `trainable_state` gave; what is frozen stays as it is."""
    known = set(trainable_state(module))
    frozen = {name: tensor for name, tensor in weights_of(module).items() if name not in known}
    put_weights(module, {**frozen, **tensors}, where)


def load_checkpoint(place: Path) -> Checkpoint:
    """Read a checkpoint after checking every byte; raises CheckpointError where it is damaged."""
    for name in (MANIFEST, *FILES):
        if not (place / name).is_file():
            raise CheckpointError(f"{place} is damaged: {name} is missing")
    try:
        sums = read_json(place / MANIFEST, dict[str, str])
        for name in FILES:
            if _digest(place / name) != sums.get(name):
                raise CheckpointError(f"{place / name} is damaged: its checksum is wrong")
        progress: dict[str, Any] = {**read_json(place / "progress.json", AnyProgress, loose=True)}
        if progress["step"] != step_of(place):
            raise CheckpointError(f"{place} is damaged: its progress.json is of step {progress['step']}")
        tensors = load_tensors(place / "stream.safetensors")
        return Checkpoint(
            step=progress["step"],
            stream=unflatten([tensors[str(i)] for i in range(len(tensors))], progress.pop("stream")),
            progress=progress,
            **{name: load_tensors(place / f"{name}.safetensors") for name in TENSORS},
        )
    except CheckpointError:
        raise
    except (FolderError, ValueError, KeyError, OSError) as problem:
        raise CheckpointError(f"{place} is damaged: {problem}") from None


def newest_good(folder: Path, say: Any) -> Checkpoint:
    """The newest checkpoint that is whole; each damaged one is reported through `say`."""
    places = list_checkpoints(folder)
    if not places:
        raise CheckpointError(f"{folder.parent} has no checkpoint to go on from; start a new run with another out=…")
    for place in reversed(places):
        try:
            return load_checkpoint(place)
        except CheckpointError as problem:
            say(f"{problem}" + ("" if place == places[0] else "; using the one before"))
    raise CheckpointError(f"every checkpoint in {folder} is damaged; start a new run with another out=…")


def flatten(state: Any) -> tuple[list[Tensor], Any]:
    """Nested lists and tuples of tensors as a flat list and a JSON description of the nesting."""
    tensors: list[Tensor] = []

    def walk(part: Any) -> Any:
        if part is None:
            return None
        if isinstance(part, Tensor):
            tensors.append(part)
            return len(tensors) - 1
        kind = "tuple" if isinstance(part, tuple) else "list"
        return {kind: [walk(inner) for inner in part]}

    shape = walk(state)
    return tensors, shape


def unflatten(tensors: list[Tensor], shape: Any) -> Any:
    """What `flatten` had; a ValueError where `shape` is no such description."""
    if shape is None:
        return None
    if isinstance(shape, int) and 0 <= shape < len(tensors):
        return tensors[shape]
    kinds = list(shape.items()) if isinstance(shape, dict) else []
    if len(kinds) != 1 or kinds[0][0] not in ("tuple", "list") or not isinstance(kinds[0][1], list):
        raise ValueError(f"the state of its stream is no nesting of {len(tensors)} tensors: {brief(shape)}")
    kind, parts = kinds[0]
    inner = [unflatten(tensors, part) for part in parts]
    return tuple(inner) if kind == "tuple" else inner


def with_each(change: Callable[[Tensor], Tensor], state: Any) -> Any:
    """A nested state with each of its tensors changed.

    Nothing holds the old ones afterwards: a step whose gradients were kept alive cannot be recorded as a CUDA graph.
    """
    if isinstance(state, list | tuple):
        return type(state)(with_each(change, part) for part in state)
    return change(state) if isinstance(state, Tensor) else state


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
