"""Between our tensors and the published ones: what every map of names needs.

A map says for each of our tensors which of theirs it is made of. In memory several of theirs may be one of ours,
stacked; a matrix may lie the other way round; and the rows beyond the vocabulary are in no file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from legato.config import validate
from legato.errors import ConfigError, FolderError, brief
from legato.models.base import ModelConfig, Sizes
from legato.models.building import built
from legato.models.published.entries import Entries
from legato.schema import fit

Config = TypeVar("Config", bound=ModelConfig)
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class From:
    """Where one of our tensors comes from."""

    names: tuple[str, ...]  # theirs, in the order in which they are stacked
    sizes: tuple[int, ...] | None = None  # rows of each; left out: as many each
    turned: bool = False  # theirs is (inputs, outputs)
    rows: int | None = None  # that files hold, where ours has more


Names = Mapping[str, From]


def to_hf(module: nn.Module, names: Names) -> dict[str, Tensor]:
    """The tensors of a module under their published names."""
    ours = module.state_dict()
    tensors = {}
    for name, source in names.items():
        whole = ours[name].detach()[: source.rows]
        for their, part in zip(source.names, whole.split(_sizes(source, whole)), strict=True):
            copy = part.clone() if part.is_cpu else part.cpu()  # views of one tensor cannot be saved apart
            tensors[their] = copy.t().contiguous() if source.turned else copy
    return tensors


@torch.no_grad()
def from_hf(
    module: nn.Module,
    names: Names,
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    ignored: str = r"(?!)",
) -> None:
    """Fill a module from published tensors; nothing is touched unless all of them fit.

    What matches `ignored`, a regular expression, is left where it is.
    """
    for part, place in matched(module, names, tensors, where, ignored=ignored):
        place.copy_(part)


@torch.no_grad()
def matched(
    module: nn.Module, names: Names, tensors: Mapping[str, Tensor], where: str, *, ignored: str = r"(?!)"
) -> list[tuple[Tensor, Tensor]]:
    """Each published tensor and its place in the module, which may be a sketch; all of them fit."""
    ours = module.state_dict()
    left = {name: tensor for name, tensor in tensors.items() if not re.search(ignored, name)}
    copies: list[tuple[Tensor, Tensor]] = []  # from theirs, to ours; the numbers themselves are read last
    for name, source in names.items():
        target = ours[name][: source.rows]
        for their, place in zip(source.names, target.split(_sizes(source, target)), strict=True):
            part = _take(left, their, tuple(place.t().shape if source.turned else place.shape), where)
            copies.append((part.t() if source.turned else part, place))
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise FolderError(f"{where} holds a tensor that this architecture lacks: '{min(left)}'{more}")
    return copies


def filled(
    model: Callable[[Any, Sizes], Module],
    config: Any,
    vocabulary: int,
    names: Callable[[Any, int], Names],
    tensors: Mapping[str, Tensor],
    where: str,
    *,
    ignored: str,
) -> Module:
    """A model of these settings with a folder's tensors in it."""

    def check(plan: nn.Module) -> None:
        matched(plan, names(config, vocabulary), tensors, where, ignored=ignored)

    module = built(lambda: model(config, Sizes(vocabulary)), tensors, check, where, drawn=False)
    from_hf(module, names(config, vocabulary), tensors, where, ignored=ignored)
    return module


def with_prefix(tensors: Mapping[str, Tensor], prefix: str, heads: str) -> dict[str, Tensor]:
    """The same tensors, with `prefix` where it is left out, as folders of a body without heads do.

    `heads` is a regular expression of names that never have it.
    """
    if any(name.startswith(prefix) for name in tensors):
        return dict(tensors)
    return {name if re.match(heads, name) else prefix + name: tensor for name, tensor in tensors.items()}


# Their names for activations, and ours; the first of several is what is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def written_activation(ours: str) -> str:
    return next(their for their, our in ACTIVATIONS.items() if our == ours)


def class_prefix(architecture: str) -> str:
    """How the names of an architecture's classes begin.

    >>> class_prefix("BertForMaskedLM"), class_prefix("GPT2LMHeadModel")
    ('Bert', 'GPT2')
    """
    return re.sub(r"(For[A-Z]\w*|LMHeadModel)$", "", architecture)


def checked(model: type[Config], settings: dict[str, Any], where: str) -> Config:
    """Our settings for a folder's config.json."""
    try:
        return validate(model, settings)
    except ConfigError as problem:
        raise FolderError(f"{where}/config.json: {problem}") from None


def entries_of(schema: type[Entries], config: Mapping[str, Any], where: str) -> Entries:
    """A folder's config.json, whose entries are what a family's `schema` says."""
    return fit(dict(config), schema, f"{where}/config.json")


def activation_of(
    config: Mapping[str, Any], name: str, default: str, where: str, known: Mapping[str, str] = ACTIVATIONS
) -> str:
    """Our name for the activation that an entry names; `known` is from theirs to ours."""
    value = config.get(name, default)
    if value not in known:
        there = ", ".join(sorted(known))
        raise FolderError(f"{where}/config.json: {name}={brief(value)} is unknown; there is {there}")
    return known[value]


def refuse_unless(config: Mapping[str, Any], expected: Mapping[str, Any], where: str) -> None:
    """Refuse a folder whose entries, where there are any, ask for what we do not have."""
    for name, value in expected.items():
        if config.get(name, value) != value:
            raise FolderError(f"{where}/config.json: {name} is {brief(config[name])}; Legato has only {value}")


def is_tied(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor], embedding: str, readout: str, default: bool = True
) -> bool:
    """Whether a folder's readout is its embedding. A copy that differs is none, whatever the config says."""
    if not config.get("tie_word_embeddings", default):
        return False
    if embedding not in tensors or readout not in tensors:
        return True
    return torch.equal(tensors[embedding].float(), tensors[readout].float())


def _sizes(source: From, whole: Tensor) -> list[int]:
    if source.sizes is not None:
        return list(source.sizes)
    return [len(whole) // len(source.names)] * len(source.names)


def _take(left: dict[str, Tensor], name: str, shape: tuple[int, ...], where: str) -> Tensor:
    if name not in left:
        raise FolderError(f"{where} lacks the tensor '{name}'")
    tensor = left.pop(name)
    if not tensor.is_floating_point():
        raise FolderError(f"{where}: '{name}' holds {str(tensor.dtype).removeprefix('torch.')} numbers, not weights")
    if tuple(tensor.shape) != shape:
        raise FolderError(f"{where}: '{name}' should have shape {shape}, but has {tuple(tensor.shape)}")
    return tensor
