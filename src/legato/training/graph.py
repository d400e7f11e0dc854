"""Training steps as CUDA graphs: the forward and backward passes recorded once for each shape, then replayed.

A small model's step is many small kernels, and launching them can take longer than running them. Recorded as a
graph, the whole step is launched at once. This needs batches that come in few shapes: streams and windows have
one, and pairs a dozen when `PairBatches` fixes their shapes.

A recording reads its input from fixed places: `replay` copies the batch there. Random draws follow the
generator's seed at the time of the replay, so a step is the same function of its seed as without a graph. All
recordings leave their gradients in the same places, those that the first one made; `replay` hands them to the
parameters. Memory is so for two sets of gradients, not for one a shape: what a later recording makes before it is
copied lies where the next recording may use it again.

Ordinary and recorded steps go through one stream (`own_stream`), since cuBLAS keeps memory to work in for each; and
what ordinary steps took lies beside what recordings take, so there should be few of them: after the first steps, and
while there are few recordings, a shape is recorded when it first comes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from legato.data.batching.batch import Batch, map_tensors, named_tensors
from legato.training.checkpoints import flatten, unflatten

WARM = 3  # ordinary steps before recording: libraries set themselves up in the first ones
MOST = 24  # shapes recorded
AT_ONCE = 12  # of those, recorded when they first come; the others when they come again

ForwardBackward = Callable[[Batch, Any, Tensor], tuple[Tensor, Any]]
"""From a batch, a state and the number of its targets to the summed loss and the next state."""


def shape_of(batch: Batch) -> Hashable:
    """What two batches must have in common to go through one recording."""
    shapes = ((name, tensor.shape) for name, tensor in named_tensors(batch).items() if name != "keep_state")
    return batch.task, *shapes


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work on a stream of a GPU that can be recorded from, which the default one cannot.

    PyTorch keeps freed memory for the stream that had it, so at each change what lies idle is given back.
    """
    before, own = torch.cuda.current_stream(device), _stream(device)
    own.wait_stream(before)
    torch.cuda.empty_cache()
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        before.wait_stream(own)
        torch.cuda.empty_cache()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The same for every run of the process: what cuBLAS keeps for a stream, it keeps for good."""
    return torch.cuda.Stream(device)


def _recordable() -> Any:
    """The stream to record from: the current one, or PyTorch's choice (None) where that is the default stream."""
    current = torch.cuda.current_stream()
    return None if current == torch.cuda.default_stream() else current


def _end_recording(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Let ordinary steps go on after a recording that failed.

    Where its end failed, too, PyTorch leaves its allocator and its generator as if it still went on: memory stays the
    recording's, and dropout refuses to draw. The allocator can be told; the generator takes it from the end of
    another recording, so a tiny one is made.
    """
    number = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # where PyTorch has told it
        torch._C._cuda_endAllocateToPool(number, pool)
    try:
        graph.pool()  # what ended gives its memory back itself
    except RuntimeError:
        with suppress(RuntimeError):
            torch._C._cuda_releasePool(number, pool)
    place = torch.zeros((), device=device)
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=_recordable()):
        place.zero_()


def failure_reason(problem: BaseException) -> str:
    """Why a recording failed, in a line: that its end then fails, too, is no news.

    A caller that kept the exception would keep the memory of the step that it was raised in.
    """
    while "previous error during capture" in str(problem) and problem.__context__ is not None:
        problem = problem.__context__
    return str(problem).partition("\n")[0] or type(problem).__name__


class StepGraph:
    """Records `run(batch, state, tokens)` with its backward pass, for batches of one shape."""

    def __init__(
        self,
        run: ForwardBackward,
        batch: Batch,
        state: Any,
        parameters: Sequence[nn.Parameter],
        first: StepGraph | None = None,
    ) -> None:
        """`batch` and `state` say what shapes to expect; nothing is computed yet.

        Recordings after the `first` one share its memory and leave their gradients where it does.
        """
        device = batch.inputs.content.device
        # Where there is a state, `keep_state` is always there, so that forgetting is part of the recording; all True
        # means nobody forgets.
        keep = None if state is None else torch.ones(batch.rows, dtype=torch.bool, device=device)
        self.batch = map_tensors(
            replace(batch, reset_all=False, keep_state=keep), lambda name, tensor: tensor.clone()
        )
        self.tokens = torch.tensor(float(batch.tokens), device=device)
        places, self._shape = flatten(state)
        self._places = [place.clone() for place in places]
        self._parameters = list(parameters)
        self.gradients: list[Tensor | None] | None = None if first is None else first.gradients
        self._forget_gradients()
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self.pool: Any = torch.cuda.graph_pool_handle() if first is None else first.pool
        try:
            with torch.cuda.graph(self.graph, pool=self.pool, stream=_recordable()):
                self._recorded(run)
        except RuntimeError:
            _end_recording(self.graph, self.pool, device)
            raise

    def _recorded(self, run: ForwardBackward) -> None:
        self._forget_gradients()
        self.loss, after = run(self.batch, self.state, self.tokens)
        for place, new in zip(self._places, flatten(after)[0], strict=True):
            place.copy_(new)
        made = [parameter.grad for parameter in self._parameters]
        if self.gradients is None or [g is None for g in self.gradients] != [g is None for g in made]:
            self.gradients = made
            return
        kept, new_ones = ([g for g in some if g is not None] for some in (self.gradients, made))
        if kept:
            torch._foreach_copy_(kept, new_ones)  # all in a few kernels
        for parameter, gradient in zip(self._parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def _forget_gradients(self) -> None:
        """So that the backward pass makes new ones rather than adds to what is there."""
        for parameter in self._parameters:
            parameter.grad = None

    @property
    def state(self) -> Any:
        """The state after the last replay; the next one goes on from it."""
        return unflatten(self._places, self._shape)

    def replay(self, batch: Batch) -> Tensor:
        """Make the step on `batch`, wherever it lies; the summed loss, valid until the next replay."""
        given = named_tensors(batch)
        for name, place in named_tensors(self.batch).items():
            if name in given:
                place.copy_(given[name], non_blocking=True)
        if self.batch.keep_state is not None and (batch.reset_all or batch.keep_state is None):
            self.batch.keep_state.fill_(not batch.reset_all)  # in a new epoch every row starts anew
        self.tokens.fill_(float(max(batch.tokens, 1)))
        assert self.gradients is not None
        for parameter, gradient in zip(self._parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.graph.replay()
        return self.loss
