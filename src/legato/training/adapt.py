"""How much of a model is trained, `adapt=`: all of it, or almost nothing.

full      every weight
head      the task's head alone; the body gives features
lora      two thin matrices beside some of the frozen ones (lora.py; Hu et al. 2021), and the head; what is frozen
          may have 8 or 4 bits (QLoRA; Dettmers et al. 2023)
bitfit    the biases (Ben Zaken et al. 2022), and the head

What is frozen has no gradient, no place in the optimiser or a checkpoint, and none in the run's folders: they hold
what was trained, and name the base that the rest comes from (folders/adapters/).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import nn

from legato.config import Section
from legato.errors import ConfigError, listed
from legato.folders.adapters.saving import AdapterInfo, MergedAdapters, digest_of
from legato.folders.finding import find_model
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel, count_parameters
from legato.models.model_with_head import BODY, ModelWithHead, body_of
from legato.models.published.family import form_of
from legato.models.published.matrices import Matrix, matrices_of
from legato.nn.adapters.lora import LowRank, Part
from legato.nn.linear import Linear
from legato.nn.quantized import Narrow, is_quantized
from legato.nn.readout import Readout
from legato.training.devices import autocast

ALL = "all-linear"


class AdaptConfig(Section):
    """How much is trained."""

    name: Literal["full", "head", "lora", "bitfit"] = Field(
        "full", description="full: everything; head: the task's head; lora, bitfit: very little of the body, too"
    )
    rank: int = Field(8, ge=1, le=1 << 17, description="lora: rows of A and columns of B")
    alpha: float = Field(16.0, gt=0, description="lora: B A is multiplied by alpha / rank")
    rslora: bool = Field(False, description="lora: multiply by alpha / √rank instead, which suits large ranks")
    dropout: float = Field(0.0, ge=0, lt=1, description="lora: on what A reads")
    targets: tuple[str, ...] | None = Field(
        None, description="lora: ends of the matrices' names, or all-linear; left out: attention's query and value"
    )

    @field_validator("targets", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Base:
    """What an adapted model was before."""

    place: str  # its folder, or its name on the hub
    digest: str  # of its weights
    names: frozenset[str]  # of its tensors
    below: MergedAdapters | None = None  # what it is made of, where it is itself an adapter
    quantize: str | None = None  # how narrow it was made

    @classmethod
    def of(cls, place: str, loaded: Loaded, quantize: str | None = None) -> Base:
        found = str(find_model(place)) if Path(place).exists() else place
        module = loaded.module
        names = frozenset(body_of(module).state_dict())
        digest = body_of(module).original or loaded.digest or digest_of(module)
        return cls(found, digest, names, module.merged, quantize)


def adapt(
    model: SequenceModel, config: AdaptConfig, base: Base, warn: Callable[[str], None] = lambda text: None
) -> None:
    """Freeze `model` but for what `config` says is trained, and for heads that the base did not have.

    Adapters beside those of an adapter are saved as one with them, for the whole model that those are for.
    """
    if config.name == "full":
        return
    parameters = dict(model.named_parameters())
    heads = head_parameters(model) | {name for name in parameters if name.removeprefix(BODY) not in base.names}
    targets: tuple[str, ...] = ()
    for parameter in parameters.values():
        parameter.requires_grad_(False)
    if config.name == "lora":
        if not matrices_of(model):
            others = ["head"] * bool(heads) + ["bitfit"] * bool(_biases(parameters) - heads)
            raise ConfigError(
                "adapt=lora puts adapters into a Transformer's matrices, those of attention and feed-forward, and "
                f"model={model.config.name} has none; use adapt={', '.join(others)}{' or ' * bool(others)}full"
            )
        if base.below is not None and is_quantized(model):
            raise ConfigError(
                f"adapt=lora cannot go on from {base.place}, an adapter beside quantised weights: lengthen its run, "
                "with resume=RUN, or begin with the model that it adapts"
            )
        targets = _add_low_rank(model, config)
    biases = _biases(parameters) - heads if config.name == "bitfit" else set()
    if config.name == "bitfit" and not biases:
        told = f"adapt=bitfit: this {model.config.name} has no biases"
        if not heads:
            raise ConfigError(f"{told}, and the task has no head, so nothing is left to train; use adapt=lora")
        warn(f"{told}; only the task's head is trained")
    if config.name == "head" and not heads:
        raise ConfigError("adapt=head trains the task's head alone, and this task has none; use adapt=lora")
    for name in heads | biases:
        parameters[name].requires_grad_(True)
    place, digest = base.place, base.digest
    if base.below is not None and config.name == "lora":
        place, digest = base.below.root, base.below.digest
    model.adapter = AdapterInfo(
        **config.model_dump(exclude={"targets"}),
        base=place,
        digest=digest,
        targets=targets,
        quantize=base.quantize,
        below=base.below,
    )


@torch.no_grad()
def store_frozen(model: SequenceModel, device: torch.device, precision: str) -> None:
    """Keep frozen matrices in the precision that products read them in: autocast would copy them at every step."""
    with autocast(device, precision):
        if not torch.is_autocast_enabled(device.type):
            return
        kind = torch.get_autocast_dtype(device.type)
    for layer in model.modules():
        # A readout may share its rows with the embedding, which is read as it is; what is narrow stays so.
        if not isinstance(layer, Linear) or isinstance(layer, Readout | Narrow):
            continue
        if not layer.weight.requires_grad:
            layer.weight.data = layer.weight.data.to(kind)


def trainable_line(model: SequenceModel) -> str:
    """What a run says of how much it trains, and on what; adapters count on both sides."""
    trainable, total = count_parameters(model, trainable=True), count_parameters(model)
    line = f"trainable: {trainable:,} of {total:,} parameters ({100 * trainable / max(total, 1):.3g}%)"
    made = model.adapter
    if made is None or made.below is None:
        return line
    if made.name == "lora":
        return f"{line}; this goes on from an adapter, and both are saved as one for {made.base}"
    return f"{line}; this goes on from the adapter {made.base}, which is not saved with it: keep that"


def head_parameters(model: nn.Module) -> set[str]:
    """What lies between a body and the task's answer; of a model of parts without a head, what joins them."""
    if not isinstance(model, ModelWithHead):
        joint = model.joint if isinstance(model, SequenceModel) else None
        return {name for name, _ in model.named_parameters() if name.partition(".")[0] == joint}
    return {name for name, _ in model.named_parameters() if not name.startswith(BODY)}


def _biases(parameters: dict[str, nn.Parameter]) -> set[str]:
    return {name for name in parameters if name.rpartition(".")[2].startswith("bias")}


def _add_low_rank(model: SequenceModel, config: AdaptConfig) -> tuple[str, ...]:
    """Adapters beside the chosen matrices; how these were named."""
    known = matrices_of(model)
    if config.targets is None:
        known = {
            name: matrix
            for name, matrix in known.items()
            if matrix.path.removeprefix(BODY).startswith(body_of(model).lora_part)
        }
    targets = _default_targets(model, known) if config.targets is None else config.targets
    chosen = _chosen(known, targets, model)
    for name, matrix in chosen.items():
        if config.rank > min(matrix.shape):
            raise ConfigError(
                f"adapt.rank={config.rank} is larger than '{name}' can have: it is a matrix of "
                f"{matrix.shape[0]} × {matrix.shape[1]}, so at most {min(matrix.shape)}"
            )
    layers: dict[str, list[tuple[str, Matrix]]] = {}
    for name, matrix in chosen.items():
        layers.setdefault(matrix.path, []).append((name, matrix))
    for group in layers.values():
        layer = group[0][1].layer
        parts = [Part(name, matrix.start, matrix.end) for name, matrix in group]
        low = LowRank(
            layer.in_features,
            layer.out_features,
            parts,
            config.rank,
            config.alpha / (math.sqrt(config.rank) if config.rslora else config.rank),
            config.dropout,
        )
        layer.low_rank = low.to(model.device).train(layer.training)
    return tuple(targets)


def _default_targets(model: SequenceModel, known: dict[str, Matrix]) -> tuple[str, ...]:
    """What attention asks with and what it hands on, as the published form calls them, or we do."""
    body = body_of(model)
    form = form_of(body)
    targets = (form.lora_targets if form is not None else ()) or body.lora_targets
    return targets if all(any(_ends(name, target) for name in known) for target in targets) else ()


def _chosen(known: dict[str, Matrix], targets: Iterable[str], model: SequenceModel) -> dict[str, Matrix]:
    """The matrices whose names end in one of `targets`."""
    name = model.config.name
    there = listed(sorted({_short(path) for path in known}))
    if ALL in targets:  # of the blocks, which are numbered; what reads them is no part of the body
        numbered = {path: matrix for path, matrix in known.items() if any(map(str.isdigit, path.split(".")))}
        return numbered or known
    for target in targets:
        if not any(_ends(path, target) for path in known):
            raise ConfigError(f"adapt.targets: nothing in this {name} is called '{target}'; there is {there}")
    chosen = {path: matrix for path, matrix in known.items() if any(_ends(path, target) for target in targets)}
    if not chosen:
        raise ConfigError(f"adapt=lora: say which matrices of this {name} with adapt.targets=[…]; there is {there}")
    return chosen


def _ends(path: str, target: str) -> bool:
    return path == target or path.endswith(f".{target}")


def _short(path: str) -> str:
    """The part of a name that all layers share: what follows the last number, unless it ends in one.

    >>> _short("bert.encoder.layer.3.attention.self.query")
    'attention.self.query'
    >>> _short("forwards.projections.0")
    'projections.0'
    """
    parts = path.split(".")
    last = max((index for index, part in enumerate(parts) if not part.isdigit()), default=0)
    numbers = [index for index in range(last) if parts[index].isdigit()]
    ends = last if last < len(parts) - 1 else 0
    return ".".join(parts[numbers[-1] + 1 if numbers else ends :])
