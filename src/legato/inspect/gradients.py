"""How far gradients reach back: ‖∂loss_t / ∂h_s‖ for every s up to t, of a model that predicts the next token.

h_s is the state that a recurrent layer leaves at s, or what the first block of a Transformer reads there. In an
Elman RNN each step back multiplies by diag(1 − h²) U, so over t − s steps the norm in the last layer shrinks, or
grows, at most by

    (γ_w γ_g)^(t − s)          γ_w = ‖U‖₂, the largest singular value;  γ_g = the largest 1 − h² on the way

(Pascanu et al. 2013). Below 1 it vanishes; above 1 it may explode. From a layer l below, the way to the loss leads
along time in l and up into l + 1, so that

    ∂loss/∂h^l_s = U_lᵀ diag(1 − (h^l_{s+1})²) ∂loss/∂h^l_{s+1}  +  W_{l+1}ᵀ diag(1 − (h^{l+1}_s)²) ∂loss/∂h^{l+1}_s
    b^l_s = ‖U_l‖₂ γ^l b^l_{s+1}  +  ‖W_{l+1}‖₂ γ^{l+1} b^{l+1}_s          b^l_t = ‖∂loss/∂h^l_t‖

where W_{l+1} multiplies what layer l hands up and γ^l is the largest 1 − (h^l)². Of the last layer b is the product
above. The LSTM's cell and the Transformer's attention are ways around the product.

An LSTM hands on two states, and h_s = o_s ∘ tanh(c_s) is made of the other. So ∂loss_t / ∂h_s is what comes back
through the gates alone, c_s being held, and `of="cell"` asks for ∂loss_t / ∂c_s, what comes back by both ways: along
the cell each step multiplies by the forget gate, and by little else.

>>> found = gradient_through_time(legato.load("runs/elman"), "a b c …")      # doctest: +SKIP
>>> found.norms[0] / found.norms[-1]                                         # doctest: +SKIP
>>> gradient_through_time(legato.load("runs/lstm"), "a b c …", of="cell")    # doctest: +SKIP
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.errors import ConfigError, LegatoError, brief
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.inspect.trace import Shaped
from legato.nn.capture import Recording, record
from legato.nn.recurrent import ElmanCell, Layer

HIDDEN: Final = re.compile(r"(?:^|\.)(elman|gru|lstm)\.(\d+)\.hidden$")
CELL: Final = re.compile(r"(?:^|\.)(lstm)\.(\d+)\.cell$")
EMBEDDED: Final = re.compile(r"(?:^|\.)embedded$")

Array = np.ndarray[Any, np.dtype[np.float64]]
State = Literal["hidden", "cell"]


@dataclass(frozen=True, repr=False)
class Gradients(Shaped):
    """Of the loss at one position, with respect to the states up to it."""

    name: str  # of the states
    tokens: tuple[str, ...]  # at the positions 0 to t
    wanted: str  # the token whose loss it is, behind the last of them
    loss: float
    norms: Array  # (t + 1,), ‖∂loss_t / ∂h_s‖, or ‖∂loss_t / ∂c_s‖; the last is of t itself
    bound: Array | None  # (t + 1,), what the norms cannot exceed, b above; of an Elman RNN

    @property
    def distances(self) -> Array:
        """t − s."""
        return np.arange(len(self.norms) - 1, -1, -1).astype(np.float64)


def gradient_through_time(
    model: Any, text: str, *, at: int | None = None, layer: int | None = None, of: State = "hidden"
) -> Gradients:
    """Of the token behind position `at`; left out: of the last token. `layer` is a recurrent one, from 0; left out:
    the last. `of` is the state that is looked at: what each model hands on as `hidden`, or an LSTM's `cell`."""
    loaded: Loaded = model.loaded
    if of not in get_args(State):
        raise ConfigError(f"of='{brief(str(of), 40)}': the states are {' and '.join(get_args(State))}")
    reading = reading_of(loaded, text)
    module = loaded.module.eval()
    if reading.written is None or not module.has_readout or module.is_encoder_decoder:
        raise LegatoError(
            f"{loaded.folder} does not predict the next token, so there is no loss at one; give one that does"
        )
    places = list(reading.positions.values())[-1]
    last = places.count - 2  # the last position that a token follows
    at = last if at is None else at
    if not 0 <= at <= last:
        raise LegatoError(f"at={at}: the text has tokens behind the positions 0 to {last}")
    batch = reading.batch.to(module.device)
    with torch.enable_grad(), record(_states, attached=True) as trace:
        logits = module.readout(module(batch).hidden)[0, at]
        loss = F.cross_entropy(logits.float(), batch.inputs.token_ids[0, at + 1])
        name, states = _chosen(trace, layer, loaded, of)
        gradients = torch.autograd.grad(loss, states, allow_unused=True, retain_graph=True)
        bound = _bound(module, trace, name, loss, at)
    return Gradients(
        name,
        places.names[: at + 1],
        places.names[at + 1],
        float(loss.detach()),
        _norms(gradients, states)[: at + 1],
        bound,
    )


def _states(name: str) -> bool:
    return any(kind.search(name) is not None for kind in (HIDDEN, CELL, EMBEDDED))


def _chosen(trace: Recording, layer: int | None, loaded: Loaded, of: State) -> tuple[str, list[Tensor]]:
    """The states to look at: those of a recurrent layer, or what the first block reads."""
    kind = CELL if of == "cell" else HIDDEN
    layers = {int(found[2]): name for name in trace if (found := kind.search(name))}
    if layers:
        number = max(layers) if layer is None else layer
        if number not in layers:
            raise LegatoError(f"{loaded.folder} has the layers 0 to {max(layers)}, and no layer {number}")
        return layers[number], trace[layers[number]]
    if of == "cell":
        raise LegatoError(
            f"{loaded.folder}: {loaded.module.config.name} has no cell, which only an LSTM has; leave out of=cell"
        )
    embedded = next((name for name in reversed(trace) if EMBEDDED.search(name)), None)  # of what writes
    if embedded is None or layer is not None:
        wanted = "states that go from one position to the next" if embedded is None else "no recurrent layer"
        raise LegatoError(
            f"{loaded.folder}: {loaded.module.config.name} has {'no ' if embedded is None else ''}{wanted}"
        )
    return embedded, trace[embedded]


def _norms(found: tuple[Tensor | None, ...], states: list[Tensor]) -> Array:
    """Norms by position, of a tensor for each step (1, D), or one of all (1, T, D)."""
    if len(states) == 1 and states[0].dim() == 3:
        assert found[0] is not None
        return found[0][0].double().norm(dim=-1).cpu().numpy()
    zero = torch.zeros((), dtype=torch.double)
    return torch.stack([zero if each is None else each.double().norm().cpu() for each in found]).numpy()


def _bound(module: Any, trace: Recording, name: str, loss: Tensor, at: int) -> Array | None:
    """The recursion over layers and time, from the last layer down to the one of this name."""
    match = HIDDEN.search(name)
    if match is None or match[1] != "elman":
        return None
    cells = [each.cell for each in module.modules() if isinstance(each, Layer) and isinstance(each.cell, ElmanCell)]
    bound = from_above = np.zeros(at + 1)  # nothing lies above the last layer
    for number in reversed(range(int(match[2]), len(cells))):
        cell, states = cells[number], trace[f"{name[: match.start(2)]}{number}.hidden"][: at + 1]
        slope = max(float((1 - state.detach().double().square()).max()) for state in states)
        (gradient,) = torch.autograd.grad(loss, states[at], retain_graph=True)
        factor, bound = _operator_norm(cell.weight_hh) * slope, np.empty(at + 1)
        bound[at] = float(gradient.double().norm())
        for s in reversed(range(at)):
            bound[s] = factor * bound[s + 1] + from_above[s]
        from_above = _operator_norm(cell.weight_ih) * slope * bound
    return bound


def _operator_norm(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().double().cpu(), 2))
