"""Finding a loss or gradient that is not finite, without asking the device at every step.

The loop hands each step's loss and gradient norm to `Watch`, which keeps them on the device and reads
many at once. When one is bad, the loop goes back to the last checkpoint, makes the steps up to the
bad one again, and runs that one under `first_bad_module`, which names where it began.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


class NotFinite(Exception):
    """A step whose loss or gradient is not finite."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(f"{what} at step {step}")
        self.step, self.what = step, what


class Watch:
    """Losses and gradient norms of the steps since the last reading; `check` may come in between."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[Tensor] = []  # each (2,): summed loss, gradient norm
        self._loss, self._norm, self._tokens = 0.0, 0.0, 0

    def see(self, step: int, loss: Tensor, norm: Tensor, tokens: int) -> None:
        """Note a step's loss, summed over `tokens`, and its gradient's norm."""
        self._steps.append(step)
        self._values.append(torch.stack([loss.detach().float(), norm.detach().float()]))
        self._tokens += tokens

    def check(self) -> None:
        """Raise NotFinite for the first bad step; one wait for the device."""
        if not self._values:
            return
        rows = torch.stack(self._values).tolist()
        steps, self._steps, self._values = self._steps, [], []
        for step, (loss, norm) in zip(steps, rows, strict=True):
            if not math.isfinite(loss):
                raise NotFinite(step, f"the loss is {loss}")
            if not math.isfinite(norm):
                raise NotFinite(step, f"the gradient's norm is {norm}")
            self._loss += loss
            self._norm = norm

    def peek(self) -> tuple[float, float]:
        """Mean loss per token since the last reading, and the last gradient norm."""
        self.check()
        return self._loss / max(self._tokens, 1), self._norm

    def read(self) -> tuple[float, float]:
        """The same, after which the next reading begins."""
        figures = self.peek()
        self._loss, self._tokens = 0.0, 0
        return figures


def first_bad_module(model: nn.Module, step: Callable[[], None]) -> str:
    """Run `step` (forward and backward) and name the first module that gave something not finite."""
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the weights '{name}' were so already"
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and not _finite(output):
                found.append(name or type(model).__name__)

        return hook

    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"first in the output of '{found[0]}'"
    # Gradients flow from the last module to the first, so the last bad one is where it began.
    bad = [name for name, p in model.named_parameters() if p.grad is not None and not _finite(p.grad)]
    if bad:
        return f"first in the gradient of '{bad[-1]}'"
    return "outside any module (the loss itself), or it did not happen again"


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict) or is_dataclass(value):
        value = list((value if isinstance(value, dict) else vars(value)).values())
    return not isinstance(value, list | tuple) or all(_finite(part) for part in value)
