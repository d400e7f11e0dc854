"""The logit lens (nostalgebraist 2020): what a model would say if it stopped after each layer.

Each layer's states go through the last norm and the readout, as the last layer's do; layer 0 is what the first block
reads. In a pre-norm model every layer writes into one stream, so this is fair; in others it shows how far a layer is
from the last one's language.

>>> lens = logit_lens(legato.load("runs/x"), "A dog runs.")                  # doctest: +SKIP
>>> lens.guesses[3][1], lens.shares[3][1]                                    # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato.data.positions import Positions, shown_token
from legato.errors import LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.nn.capture import record
from legato.nn.transformer import Stack

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Lens:
    """What each layer would say at each position."""

    positions: Positions
    guesses: list[list[str]]  # (layers + 1) of (T): the likeliest token
    shares: Array  # (layers + 1, T), its probability
    entropies: Array  # (layers + 1, T), in nats
    agreement: Array  # (layers + 1,), how often the likeliest token is the last layer's
    distances: Array  # (layers + 1, T), KL(last layer ‖ this layer), in nats
    ranks: Array | None  # (layers + 1, T − 1), of the token that follows: 1 is the likeliest; of who reads one way


@torch.no_grad()
def logit_lens(model: Any, given: Any, *, written: str | None = None) -> Lens:
    """Of a model that says something at each position: the next token, or what is hidden there."""
    loaded: Loaded = model.loaded
    module = loaded.module.eval()
    reading = reading_of(loaded, given, written)
    stacks = [each for each in module.modules() if isinstance(each, Stack)]
    if not module.has_readout or not stacks:
        wanted = "blocks to look between" if module.has_readout else "words that it guesses"
        raise LegatoError(f"{loaded.folder}: {module.config.name} has no {wanted}")
    stack = stacks[-1]  # that which writes
    with record(lambda name: name.endswith((".hidden", "embedded"))) as trace:
        module(reading.batch.to(module.device))
    names = [f"{stack.name}.embedded", *(f"{stack.name}.{layer}.hidden" for layer in range(len(stack.layers)))]
    states = torch.stack([trace[name][0][0] for name in names])  # (L + 1, T, D)
    if stack.norm is not None:
        states = stack.norm(states)
    logs = module.readout(states).float().log_softmax(-1).cpu()  # (L + 1, T, V)
    shares, best = logs.exp().max(-1)
    last = logs[-1]
    ranks = None
    if reading.written is not None:
        wanted_ids = reading.batch.inputs.token_ids[0, 1:].cpu()
        own = logs[:, :-1].gather(2, wanted_ids.expand(len(logs), -1).unsqueeze(2))
        ranks = ((logs[:, :-1] > own).sum(-1) + 1).double().numpy()
    return Lens(
        list(reading.positions.values())[-1],
        [[shown_token(loaded.target, index) for index in row] for row in best.tolist()],
        shares.double().numpy(),
        -(logs.exp() * logs).sum(-1).double().numpy(),
        (best == best[-1]).double().mean(-1).numpy(),
        (last.exp() * (last - logs)).sum(-1).double().numpy(),
        ranks,
    )
