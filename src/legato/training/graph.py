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
while there are few recordings, a shape is recorded when it first comes (`Recordings`).

Where a step is made of several parts (`train.accumulate`), a part is what is recorded, and it adds its gradients to
those places. They are cleared before the first part, so a part may be the first of a step or any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from legato.data.batching.batch import Batch, map_tensors, named_tensors
from legato.nn.kernels.recording import end_recording, failure_reason, recordable_stream
from legato.training.checkpoints import flatten, unflatten

WARM = 3  # ordinary steps before recording: libraries set themselves up in the first ones
MOST = 24  # shapes recorded
AT_ONCE = 12  # of those, recorded when they first come; the others when they come again

ForwardBackward = Callable[[Batch, Any, Tensor], tuple[Tensor, Any]]
"""From a batch, a state and the number of its targets to the summed loss and the next state."""


def shape_of(batch: Batch) -> Hashable:
    """What two batches must have in common to go through one recording."""
    shapes = ((name, tensor.shape) for name, tensor in named_tensors(batch).items() if name != "keep_state")
    return batch.task, batch.inputs.most_documents, *shapes


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


def copied_as_laid_out(tensor: Tensor) -> Tensor:
    """A copy that lies in memory as the tensor does: what is compiled is compiled anew for other strides."""
    if 0 in tensor.stride():
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


class StepGraph:
    """Records `run(batch, state, tokens)` with its backward pass, for batches of one shape."""

    def __init__(
        self,
        run: ForwardBackward,
        batch: Batch,
        state: Any,
        parameters: Sequence[nn.Parameter],
        first: StepGraph | None = None,
        *,
        adds: bool = False,
    ) -> None:
        """`batch` and `state` say what shapes to expect; nothing is computed yet.

        Recordings after the `first` one share its memory and leave their gradients where it does. One that `adds`
        adds them there; which parameters have any, it takes from an ordinary step, whose gradients are still there.
        """
        device = batch.inputs.content.device
        # Where there is a state, `keep_state` is always there, so that forgetting is part of the recording; all True
        # means nobody forgets.
        keep = None if state is None else torch.ones(batch.rows, dtype=torch.bool, device=device)
        self.batch = map_tensors(
            replace(batch, reset_all=False, keep_state=keep), lambda name, tensor: copied_as_laid_out(tensor)
        )
        self.tokens = torch.tensor(float(batch.tokens), device=device)
        places, self._shape = flatten(state)
        self._places = [place.clone() for place in places]
        self._parameters = list(parameters)
        self._adds = adds
        self.gradients: list[Tensor | None] | None = None if first is None else first.gradients
        if adds and self.gradients is None:
            self.gradients = [None if p.grad is None else torch.zeros_like(p) for p in self._parameters]
        self._forget_gradients()
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        self.pool: Any = torch.cuda.graph_pool_handle() if first is None else first.pool
        try:
            with torch.cuda.graph(self.graph, pool=self.pool, stream=recordable_stream()):
                self._recorded(run)
        except RuntimeError:
            end_recording(self.graph, self.pool, device)
            raise

    def _recorded(self, run: ForwardBackward) -> None:
        self._hand_over() if self._adds else self._forget_gradients()
        self.loss, after = run(self.batch, self.state, self.tokens)
        for place, new in zip(self._places, flatten(after)[0], strict=True):
            place.copy_(new)
        made = [parameter.grad for parameter in self._parameters]
        if self._adds:
            if any(new is not place for new, place in zip(made, self.gradients or (), strict=True)):
                raise RuntimeError("gradients came where an ordinary step had none")
            return
        if self.gradients is None or [g is None for g in self.gradients] != [g is None for g in made]:
            self.gradients = made
            return
        kept, new_ones = ([g for g in some if g is not None] for some in (self.gradients, made))
        if kept:
            torch._foreach_copy_(kept, new_ones)  # all in a few kernels
        self._hand_over()

    def _hand_over(self) -> None:
        """Give the parameters their gradients, which lie in the places of all recordings."""
        assert self.gradients is not None
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

    def replay(self, batch: Batch, tokens: int | None = None, *, begins: bool = True) -> Tensor:
        """Make the step on `batch`, wherever it lies; the summed loss, valid until the next replay.

        Where it is a part of a step, `tokens` are those of the whole step, and one that `begins` is the first.
        """
        given = named_tensors(batch)
        for name, place in named_tensors(self.batch).items():
            if name in given:
                place.copy_(given[name], non_blocking=True)
        if self.batch.keep_state is not None and (batch.reset_all or batch.keep_state is None):
            self.batch.keep_state.fill_(not batch.reset_all)  # in a new epoch every row starts anew
        self.tokens.fill_(float(max(batch.tokens if tokens is None else tokens, 1)))
        self._hand_over()
        if self._adds and begins:
            torch._foreach_zero_([gradient for gradient in self.gradients or () if gradient is not None])
        self.graph.replay()
        return self.loss


class Recordings:
    """The recordings of a run: what has one, and when one is made."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
        *,
        on: bool,
        warn: Callable[[str], None],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """`settle` is called before a recording: other threads must leave the GPU alone meanwhile."""
        self.parameters, self.device, self.warn, self.settle = parameters, device, warn, settle
        self.on = on
        self.at_once = True  # False where what is run is compiled: anew for a new shape, which cannot be recorded
        self.reset()

    def reset(self) -> None:
        self.graphs: dict[Hashable, StepGraph] = {}
        self.met: set[Hashable] = set()  # shapes of the ordinary steps so far
        self.warm: Counter[str | None] = Counter()  # steps of each task made so far

    def of(self, parts: Sequence[Batch], states: list[Any], run: ForwardBackward) -> list[StepGraph] | None:
        """The recordings that make a step of these parts, each with its place among `states`.

        They are made of `run` when a shape comes for the first or second time. None: make an ordinary step.
        """
        if not self.on or any(not (part.inputs.lengths is None or part.fixed_shape) for part in parts):
            if self.device.type == "cuda":  # where somebody may ask
                self.met |= {shape_of(part) for part in parts}
            return None
        # A stream's state lives in its one recording, so each part has its own, and there can be no second shape.
        streaming = states[0] is not None
        keys = [(index if streaming else 0, shape_of(part)) for index, part in enumerate(parts)]
        new = {key: index for index, key in enumerate(keys) if key not in self.graphs}
        if not new:
            return [self.graphs[key] for key in keys]
        task = parts[0].task
        full = len(self.graphs) + len(new) > (len(parts) if streaming else MOST)
        few = self.at_once and len(self.graphs) + len(new) <= max(AT_ONCE, len(new))
        due = few or all(shape in self.met for _, shape in new)
        starting = parts[0].keep_state is not None and not streaming  # a stream begins with a state
        if self.warm[task] < WARM or not due or full or starting:
            self.met |= {shape for _, shape in new}
            return None
        for key, index in new.items():
            first = next(iter(self.graphs.values()), None)
            part, state = parts[index].to(self.device), states[index] if streaming else None
            self.settle()
            try:
                graph = StepGraph(run, part, state, self.parameters, first, adds=len(parts) > 1)
            except RuntimeError as problem:  # a model that asks the device for something, or no memory left
                self.on, self.graphs = False, {}
                self.warn(f"steps are not recorded as CUDA graphs: {failure_reason(problem)}")
                return None
            self.graphs[key] = graph
            if streaming:
                states[index] = graph.state
        return [self.graphs[key] for key in keys]
