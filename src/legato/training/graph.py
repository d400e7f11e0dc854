"""A training step as one CUDA graph: the forward and backward passes recorded once, then replayed.

A recurrent layer launches a handful of small kernels for every time step, and launching them can take
longer than running them. Recorded as a graph, the whole step is launched at once. This needs batches
of one shape, which streams and windows have.

The recording reads its input from fixed places: `replay` copies the batch there. Random draws follow
the generator's seed at the time of the replay, so a step is the same function of its seed as without
a graph. Gradients are written to the same tensors each time; nobody may set them to None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from legato.data.batch import Batch
from legato.training.checkpoints import flatten, unflatten

WARM = 3  # ordinary steps before recording: libraries set themselves up in the first ones

ForwardBackward = Callable[[Batch, Any], tuple[Tensor, Any]]


class StepGraph:
    """Records `run(batch, state) -> (summed loss, next state)` with its backward pass."""

    def __init__(self, run: ForwardBackward, batch: Batch, state: Any) -> None:
        """`batch` and `state` say what shapes to expect; nothing is computed yet."""
        # `keep` is always there, so that forgetting is part of the recording; all True means nobody forgets.
        keep = torch.ones(batch.rows, dtype=torch.bool, device=batch.ids.device)
        self.batch = replace(batch, fresh=False, keep=keep)
        for name, tensor in _tensors(self.batch).items():
            setattr(self.batch, name, tensor.clone())
        places, self._shape = flatten(state)
        self._places = [place.clone() for place in places]
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self._recorded(run)

    def _recorded(self, run: ForwardBackward) -> None:
        self.loss, after = run(self.batch, self.state)
        for place, new in zip(self._places, flatten(after)[0], strict=True):
            place.copy_(new)

    @property
    def state(self) -> Any:
        """The state after the last replay; the next one goes on from it."""
        return unflatten(self._places, self._shape)

    def fits(self, batch: Batch) -> bool:
        return batch.ids.shape == self.batch.ids.shape and batch.lengths is None and batch.tokens == self.batch.tokens

    def replay(self, batch: Batch) -> Tensor:
        """Make the step on `batch`; the summed loss, valid until the next replay."""
        given = _tensors(batch)
        for name, place in _tensors(self.batch).items():
            if name in given:
                place.copy_(given[name])
        assert self.batch.keep is not None
        if batch.fresh or batch.keep is None:
            self.batch.keep.fill_(not batch.fresh)  # in a new epoch every row starts anew
        self.graph.replay()
        return self.loss


def _tensors(batch: Batch) -> dict[str, Tensor]:
    return {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), Tensor)}
