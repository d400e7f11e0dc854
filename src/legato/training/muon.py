"""Muon (Jordan et al. 2024): a step for a whole matrix, whose directions all have the same length.

    B ← μ B + (1 - μ) G                             momentum of the gradient G
    O = NS((1 - μ) G + μ B)                         Nesterov's look ahead, then the nearest orthogonal matrix: U Vᵀ
    W ← W - lr λ W - lr · 0.2 √max(rows, columns) O   the factor of Liu et al. (2025): steps as long as AdamW's

NS is the Newton-Schulz iteration X ← a X + (b A + c A²) X with A = X Xᵀ, which moves every singular value towards 1;
five of them bring it between about 0.7 and 1.2, which is near enough. Matrices of one shape go through it together.

It is for the matrices inside layers; embeddings, heads, norms and biases have AdamW's step with the same rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)  # steepest at 0, so that small singular values grow quickly
ITERATIONS: Final = 5
LIKE_ADAMW: Final = 0.2  # the root mean square of an AdamW step is about this share of the rate


class Muon(torch.optim.AdamW):
    """AdamW, but for groups with `orthogonal`, whose parameters are matrices or filters."""

    def __init__(self, groups: list[dict[str, Any]], momentum: float, **adamw: Any) -> None:
        super().__init__(groups, **adamw)
        self.momentum = momentum

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # nothing to return
        if closure is not None:
            raise NotImplementedError("gradients are made before a step")
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group["orthogonal"]:
                self._step_matrices(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        shapes: dict[torch.Size, list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                shapes.setdefault(parameter.shape, []).append(parameter)
        for shape, parameters in shapes.items():
            gradients = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            buffers = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_lerp_(buffers, gradients, 1 - self.momentum)
            ahead = torch._foreach_lerp(gradients, buffers, self.momentum)
            matrices = torch.stack([*ahead]).flatten(2)  # (N, rows, columns); a filter is a row
            length = LIKE_ADAMW * max(matrices.shape[1:]) ** 0.5
            steps = [*orthogonal(matrices).to(parameters[0].dtype).view(-1, *shape)]
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, steps, alpha=-group["lr"] * length)


def orthogonal(matrices: Tensor) -> Tensor:
    """About U Vᵀ for each U S Vᵀ of (N, rows, columns), in bf16 on a GPU."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # the product X Xᵀ is the smaller one
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x
