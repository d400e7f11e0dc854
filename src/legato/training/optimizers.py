"""Optimisers, and averages of the weights over time.

The optimisers are PyTorch's, fused where they exist. What is ours is which parameters decay, how an
optimiser's state becomes named tensors in a checkpoint, and the averages:

    EMA      a ← a + (1 - d)(w - a)
    Polyak   a ← a + (w - a) / k        k counts updates since averaging was triggered

Averaged SGD "triggered as in AWD-LSTM" (NT-ASGD; Merity et al. 2018, algorithm 1) is plain SGD whose
Polyak average starts when the validation loss has not improved for n validations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from legato.errors import CheckpointError, brief
from legato.models.base import SequenceModel
from legato.training.config import TrainConfig
from legato.training.rates import rate_shares


def make_optimizer(model: SequenceModel, config: TrainConfig, device: torch.device) -> torch.optim.Optimizer:
    """PyTorch's optimiser over `model`'s trainable parameters; only matrices decay.

    A group of parameters has the schedule's rate times its `share`.
    """
    shares = rate_shares(model, config)
    together: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            together.setdefault((shares[name], parameter.dim() >= 2), []).append(parameter)
    groups = [
        {"params": some, "share": share, "weight_decay": config.weight_decay if decays else 0.0}
        for (share, decays), some in sorted(together.items(), key=lambda entry: entry[0], reverse=True)
    ]
    fused = device.type in ("cuda", "cpu")
    if config.optimizer == "adamw":
        betas = (config.beta1, config.beta2)
        return torch.optim.AdamW(groups, lr=config.rate, betas=betas, eps=config.eps, fused=fused)
    return torch.optim.SGD(groups, lr=config.rate, momentum=config.momentum, fused=fused)


SLOTS: Final = {torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"}, torch.optim.SGD: {"momentum_buffer"}}
"""What each optimiser keeps of a parameter that it has moved."""


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
    state: dict[Any, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, slot = key.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or slot not in SLOTS.get(type(optimizer), {slot}):
            raise CheckpointError(f"{where} is another run's: this optimiser keeps nothing called '{brief(key)}'")
        _check_alike(key, value, torch.zeros(()) if slot == "step" else parameter, where)
        # A step count stays where PyTorch keeps it: beside the parameter for fused kernels.
        state.setdefault(parameter, {})[slot] = value.to(parameter.device)
    for parameter, slots in state.items():
        missing = SLOTS.get(type(optimizer), set()) - set(slots)
        if missing:
            name = next(name for name, other in parameters.items() if other is parameter)
            raise CheckpointError(f"{where} lacks '{name}/{min(missing)}', which this optimiser keeps")
    optimizer.state.clear()  # at step 0 there is nothing to put back, and what is there must go
    optimizer.state.update(state)


class Average:
    """A running average of a model's weights; it can stand in for them for a while."""

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        """`decay` for an exponential moving average; None for Polyak's equal weights."""
        self.model, self.decay, self.updates = model, decay, 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.weights = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        self.updates += 1
        # An EMA that starts at random weights would drag them along; young averages count evenly.
        share = 1 / self.updates if self.decay is None else max(1 - self.decay, 1 / self.updates)
        torch._foreach_lerp_(self.weights, [p.detach() for p in self.parameters], share)

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
        for parameter, weight in zip(self.parameters, self.weights, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(weight)
            weight.copy_(kept)

    def tensors(self) -> dict[str, Tensor]:
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        return dict(zip(names, self.weights, strict=True))

    def restore(self, tensors: dict[str, Tensor], updates: int, where: str = "the checkpoint") -> None:
        for name, weight in self.tensors().items():
            if name not in tensors:
                raise CheckpointError(f"{where} lacks the average of '{name}'")
            _check_alike(name, tensors[name], weight, where)
            weight.copy_(tensors[name])
        self.updates = updates
