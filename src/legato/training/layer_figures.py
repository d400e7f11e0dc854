"""What a step did to each layer: how large its gradient was, and how far it moved for how large it is.

    gradient   ‖∂L/∂θ‖         of all the layer's parameters together, before clipping
    update     ‖Δθ‖ / ‖θ‖      about 1e-3 where training goes well; far below it a layer hardly learns, far above it
                               a layer is thrown about; left out where ‖θ‖ is 0, as at the first step of a layer
                               that begins with zeros

Both are taken around the optimiser's step, so whether forward and backward were recorded as a CUDA graph makes no
difference, nor does it to the step whether anybody looks. A look costs a copy of the trained weights, some passes
over them and a wait for the device, once in `train.layers_every` steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from legato.training.optimizers import LAYER


def layer_of(parameter: str) -> str:
    """The layer that a parameter is of, by its name; outside of layers, the module.

    >>> layer_of("encoder.layers.3.attention.qkv.weight"), layer_of("embedding.weight")
    ('encoder.layers.3', 'embedding')
    """
    found = LAYER.match(parameter)
    return found[1] if found else parameter.rpartition(".")[0] or parameter


class LayerFigures:
    """The figures of the layers of `model`, every so many steps; never, where `every` is 0."""

    def __init__(self, model: nn.Module, every: int) -> None:
        self.every = every
        self.layers: dict[str, list[nn.Parameter]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.layers.setdefault(layer_of(name), []).append(parameter)
        self._gradients: list[Tensor] = []
        self._weights: list[list[Tensor]] = []

    def due(self, step: int) -> bool:
        return bool(self.every) and step % self.every == 0

    @torch.no_grad()
    def before(self) -> None:
        """Between the backward pass and the optimiser's step."""
        self._gradients = [
            _norm([parameter.grad for parameter in some if parameter.grad is not None], like=some[0])
            for some in self.layers.values()
        ]
        self._weights = [[parameter.detach().clone() for parameter in some] for some in self.layers.values()]

    @torch.no_grad()
    def after(self) -> dict[str, float]:
        """Behind the optimiser's step; `gradient/LAYER` and `update/LAYER`, of layers that are not all 0."""
        sizes, moves = [], []
        for some, old in zip(self.layers.values(), self._weights, strict=True):
            sizes.append(_norm(old, like=some[0]))
            torch._foreach_sub_(old, [parameter.detach() for parameter in some])
            moves.append(_norm(old, like=some[0]))
        self._weights = []
        gradients, sized, moved = torch.stack([torch.stack(row) for row in (self._gradients, sizes, moves)]).tolist()
        figures = {f"gradient/{layer}": value for layer, value in zip(self.layers, gradients, strict=True)}
        for layer, size, move in zip(self.layers, sized, moved, strict=True):
            if size != 0:  # a norm that is not finite stays one
                figures[f"update/{layer}"] = move / size
        return figures


def _norm(tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """Of all tensors together, as one vector."""
    given = list(tensors)
    if not given:
        return torch.zeros((), device=like.device)
    return torch.stack([norm.float() for norm in torch._foreach_norm(given)]).norm()
