"""Optimisers, how fast each parameter learns, and averages of the weights over time.

The optimisers are PyTorch's, fused where they exist, and Muon. What is ours is which parameters decay, how an
optimiser's state becomes named tensors in a checkpoint, what share of the rate a parameter has, and the averages:

    a layer      d^(n + 1 - i)                layer i of n, embeddings being i = 0: what is general changes least
    the head     train.head_lr / train.lr     what is drawn anew may learn faster than what is tuned

    EMA          a ← a + (1 - d)(w - a)
    Polyak       a ← a + (w - a) / k          k counts updates since averaging was triggered

A layer's share is discriminative fine-tuning (Howard & Ruder 2018) as BEiT does it, `train.layer_decay`; what lies
above the layers has the whole rate.

Averaged SGD "triggered as in AWD-LSTM" (NT-ASGD; Merity et al. 2018, algorithm 1) is plain SGD whose
Polyak average starts when the validation loss has not improved for n validations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from legato.errors import CheckpointError, ConfigError, brief
from legato.models.base import SequenceModel
from legato.nn.convolution import batch_norms, running_statistics
from legato.training.adapt import head_parameters
from legato.training.config import TrainConfig
from legato.training.muon import Muon

NORMS: Final = "norms"  # of train.frozen: all batch norms
LAYER: Final = re.compile(
    r"(.*?\b(?:layers|stages)\.(\d+))\."
)  # a parameter's name: its layer, and the layer's number


def make_optimizer(model: SequenceModel, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """PyTorch's optimiser over `model`'s trainable parameters; only matrices decay.

    A group of parameters has the schedule's rate times its `share`.
    """
    shares = rate_shares(model, config)
    matrices = _matrices_of_layers(model) if config.optimizer == "muon" else set()
    together: dict[tuple[float, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = (shares[name], parameter.dim() >= 2, name in matrices)
            together.setdefault(kind, []).append(parameter)
    groups = [
        {"params": some, "share": share, "weight_decay": config.weight_decay if decays else 0.0, "orthogonal": whole}
        for (share, decays, whole), some in sorted(together.items(), key=lambda entry: entry[0], reverse=True)
    ]
    fused = device.type in ("cuda", "cpu")
    if config.optimizer in ("adamw", "muon"):
        settings: dict[str, Any] = {"lr": config.rate, "betas": (config.beta1, config.beta2), "eps": config.eps}
        if config.optimizer == "muon":
            return Muon(groups, config.momentum_or_default, **settings, fused=fused)
        return torch.optim.AdamW(groups, **settings, fused=fused)
    return torch.optim.SGD(groups, lr=config.rate, momentum=config.momentum_or_default, fused=fused)


def _matrices_of_layers(model: SequenceModel) -> set[str]:
    """What `muon` is for: matrices and filters inside layers, without tables of embeddings."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    inside = {
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() in (2, 4) and LAYER.match(name) and id(parameter) not in tables
    }
    if not any(parameter.requires_grad for name, parameter in model.named_parameters() if name in inside):
        raise ConfigError(
            f"train.optimizer=muon is for matrices of layers, and model={model.config.name} trains none"
        )
    return inside


def rate_shares(model: SequenceModel, config: TrainConfig) -> dict[str, float]:
    """For each trained parameter, what the schedule's rate is multiplied with."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    shares = dict.fromkeys(names, 1.0)
    head = head_parameters(model)
    if config.layer_decay < 1:
        depths, above = _depths([name for name, _ in model.named_parameters() if name not in head], model.config.name)
        tuned = [name for name in names if name in depths]
        if not tuned:
            raise ConfigError("train.layer_decay is for layers that are tuned, and here the head alone is trained")
        shares |= {name: config.layer_decay ** (above - depths[name]) for name in tuned}
    if config.head_lr is not None:
        if not head:
            raise ConfigError("train.head_lr is for tasks that put a head on a model, such as classification")
        shares |= {name: config.head_lr / config.rate for name in names if name in head}
    for part, rate in rated_parts(model, config):
        inside = {id(parameter) for parameter in part.parameters()}
        own = {name for name, parameter in model.named_parameters() if id(parameter) in inside}
        shares |= {name: rate / config.rate for name in names if name in own}
    return shares


def rated_parts(model: SequenceModel, config: TrainConfig) -> list[tuple[SequenceModel, float]]:
    """The parts with a rate of their own (`train.encoder_lr`, `train.text_lr`), and the rate."""
    found = []
    for key, rate, names in (
        ("encoder_lr", config.encoder_lr, ("encoder", "vision")),
        ("text_lr", config.text_lr, ("text",)),
    ):
        if rate is None:
            continue
        part = next((model.parts[name] for name in names if name in model.parts), None)
        if part is None:
            raise ConfigError(
                f"train.{key} is for models with a model.{names[0]}; model={model.config.name} has none"
            )
        found.append((part, rate))
    return found


def freeze_parts(model: SequenceModel, names: Sequence[str]) -> None:
    """Keep parts of a model as they are (`train.frozen`); `norms` are its batch norms, averages and all."""
    for name in names:
        if name == NORMS:
            for norm in batch_norms(model):
                norm.requires_grad_(False)
        elif name not in model.parts:
            known = f"it has {' and '.join(model.parts)}" if model.parts else "it has none"
            raise ConfigError(f"train.frozen={brief(name)}: model={model.config.name} has no such part; {known}")
        else:
            model.parts[name].requires_grad_(False)
    if names and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"train.frozen={','.join(names)} leaves nothing to train; leave some of it out")


def _depths(names: list[str], model: str) -> tuple[dict[str, int], int]:
    """The layer of each parameter, from 1; 0 for what lies below the first. And the number of what lies above."""
    numbered = [int(found[2]) + 1 if (found := LAYER.match(name)) else None for name in names]
    top = max((number for number in numbered if number is not None), default=0)
    if not top:
        raise ConfigError(f"train.layer_decay is for models of layers, and model={model} has none")
    first = next(place for place, number in enumerate(numbered) if number is not None)
    around = [0 if place < first else top + 1 for place in range(len(names))]
    depths = [beside if number is None else number for number, beside in zip(numbered, around, strict=True)]
    return dict(zip(names, depths, strict=True)), top + 1


_ADAMW: Final = {"step", "exp_avg", "exp_avg_sq"}


def _slots(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, set[str]]:
    """What an optimiser keeps of each parameter that it has moved."""
    return {
        parameter: _ADAMW
        if isinstance(optimizer, torch.optim.AdamW) and not group["orthogonal"]
        else {"momentum_buffer"}
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


def _check_alike(name: str, tensor: Tensor, like: Tensor, where: str) -> None:
    if tensor.shape != like.shape or not tensor.is_floating_point():
        raise CheckpointError(
            f"{where} is another run's: its '{brief(name)}' is {tensor.dtype} of shape {tuple(tensor.shape)}, not a "
            f"float of shape {tuple(like.shape)}".replace("torch.", "")
        )


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as `parameter/slot` tensors."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for slot, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                tensors[f"{name}/{slot}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return tensors


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor], where: str = "the checkpoint"
) -> None:
    """Put back what `optimizer_tensors` gave; what no optimiser of this model gave is a CheckpointError."""
    parameters = dict(model.named_parameters())
    kept = _slots(optimizer)
    state: dict[Any, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or slot not in kept.get(parameter, ()):
            raise CheckpointError(f"{where} is another run's: this optimiser keeps nothing called '{brief(key)}'")
        _check_alike(key, value, torch.zeros(()) if slot == "step" else parameter, where)
        # A step count stays where PyTorch keeps it: beside the parameter for fused kernels.
        state.setdefault(parameter, {})[slot] = value.to(parameter.device)
    for parameter, slots in state.items():
        missing = kept[parameter] - set(slots)
        if missing:
            name = next(name for name, other in parameters.items() if other is parameter)
            raise CheckpointError(f"{where} lacks '{name}/{min(missing)}', which this optimiser keeps")
    optimizer.state.clear()  # at step 0 there is nothing to put back, and what is there must go
    optimizer.state.update(state)


class Average:
    """A running average of a model's weights; it can stand in for them for a while."""

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        """`decay` for an exponential moving average; None for Polyak's equal weights."""
        self.decay, self.updates = decay, 0
        self.parameters: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters |= running_statistics(model)  # a norm divides by what its own weights made
        self.weights = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        # An EMA that starts at random weights would drag them along; young averages count evenly.
        share = 1 / self.updates if self.decay is None else max(1 - self.decay, 1 / self.updates)
        torch._foreach_lerp_([*self.weights.values()], [p.detach() for p in self.parameters.values()], share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, weight in self.weights.items():
            kept = self.parameters[name].detach().clone()
            self.parameters[name].copy_(weight)
            weight.copy_(kept)

    def restore(self, tensors: dict[str, Tensor], updates: int, where: str = "the checkpoint") -> None:
        for name, weight in self.weights.items():
            if name not in tensors:
                raise CheckpointError(f"{where} lacks the average of '{name}'")
            _check_alike(name, tensors[name], weight, where)
            weight.copy_(tensors[name])
        self.updates = updates
