"""From gradients to weights: clipping, and the optimiser's step.

    g ← min(1, c / |g|) g          |g| is the norm of all gradients as one vector, c is train.clip

On a CPU AdamW's step takes the gradients as clipping lets them be, in one pass over memory (`nn/kernels/update.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from legato.nn.kernels import update as kernels

SMALL = 1e-6  # what PyTorch adds to a norm before it divides by it


@torch.no_grad()
def clip_and_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Make a step with clipped gradients; their norm before."""
    if not _is_ours(optimizer, parameters):
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        return norm
    norm = torch.tensor(kernels.gradient_norm([p.grad for p in parameters if p.grad is not None]))
    clip = float((limit / (norm + SMALL)).clamp(max=1.0))
    for group in optimizer.param_groups:
        moved = [p for p in group["params"] if p.grad is not None]
        for parameter in moved:
            if not optimizer.state[parameter]:
                means = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter].update(step=torch.zeros(()), **means)
        states = [optimizer.state[parameter] for parameter in moved]
        if states:
            torch._foreach_add_([state["step"] for state in states], 1)
        rate, decay = float(group["lr"]), group["weight_decay"]
        tensors = [
            kernels.Moved(p, p.grad, state["exp_avg"], state["exp_avg_sq"], float(state["step"]), rate, decay)
            for p, state in zip(moved, states, strict=True)
        ]
        beta1, beta2 = group["betas"]
        kernels.adamw(tensors, beta1=beta1, beta2=beta2, eps=group["eps"], clip=clip)
    return norm


def _is_ours(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Whether it is AdamW as `make_optimizer` makes it, with parameters that the kernels take."""
    if type(optimizer) is not torch.optim.AdamW or any(group["amsgrad"] for group in optimizer.param_groups):
        return False
    moved = [p for p in parameters if p.grad is not None]
    kept = [state for p in moved if (state := optimizer.state.get(p))]
    return (
        bool(moved)
        and all(kernels.takes(p, p.grad) for p in moved if p.grad is not None)
        and all(
            kernels.takes(state["exp_avg"], state["exp_avg_sq"]) for state in kept
        )  # a checkpoint may be anybody's
    )
