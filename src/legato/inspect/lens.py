"""The logit lens (nostalgebraist 2020): what a model would say if it stopped after each layer.

Each layer's states go through the last norm and the readout, as the last layer's do; layer 0 is what the first block
reads. In a pre-norm model every layer writes into one stream, so this is fair; in others it shows how far a layer is
from the last one's language.

>>> lens = logit_lens(legato.load("runs/x"), "A dog runs.")                  # doctest: +SKIP
>>> lens.guesses[3][1], lens.shares[3][1]                                    # doctest: +SKIP
>>> lens.top[3][1], lens.top_shares[3][1]                                    # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from legato.data.positions import Positions, Reading, shown_token
from legato.errors import LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.inspect.trace import Shaped
from legato.nn.capture import Recording, record
from legato.nn.transformer import Stack

TOP: Final = 3  # tokens at each place
AT_ONCE: Final = 1 << 24  # logits that are held at one time: a vocabulary is large, and there is one for each layer

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, repr=False)
class Lens(Shaped):
    """What each layer would say at each position."""

    positions: Positions
    top: list[list[list[str]]]  # (layers + 1) of (T) of (≤ 3): the likeliest tokens, the likeliest first
    top_shares: Array  # (layers + 1, T, ≤ 3), their probabilities
    entropies: Array  # (layers + 1, T), in nats
    agreement: Array  # (layers + 1,), how often the likeliest token is the last layer's
    distances: Array  # (layers + 1, T), KL(last layer ‖ this layer), in nats
    ranks: Array | None  # (layers + 1, T − 1), of the token that follows: 1 is the likeliest; of who reads one way

    @property
    def guesses(self) -> list[list[str]]:
        """(layers + 1) of (T): the likeliest token."""
        return [[tokens[0] for tokens in row] for row in self.top]

    @property
    def shares(self) -> Array:
        """(layers + 1, T), its probability."""
        return self.top_shares[..., 0]


def logit_lens(model: Any, given: Any, *, written: str | None = None) -> Lens:
    """Of a model that says something at each position: the next token, or what is hidden there."""
    loaded: Loaded = model.loaded
    return lens_of(loaded, reading_of(loaded, given, written))


@torch.no_grad()
def lens_of(loaded: Loaded, reading: Reading, most: int | None = None) -> Lens:
    """The same of what was made ready to be read; with `most` of the first positions alone, whose logits are no more
    than that in all layers together."""
    module = loaded.module.eval()
    if not module.has_readout:
        raise LegatoError(f"{loaded.folder}: {module.config.name} has no words that it guesses")
    with record(lambda name: name.endswith((".hidden", "embedded"))) as trace:
        hidden = module(reading.batch.to(module.device)).hidden[0]
    stacks = [each for each in module.modules() if isinstance(each, Stack)]
    states = next((found for each in stacks if (found := _states(each, trace, hidden)) is not None), None)
    if states is None:
        raise LegatoError(f"{loaded.folder}: {module.config.name} has no blocks to look between")
    size = len(states) * module.readout(states[:1, :1]).shape[-1]  # logits of a position
    places = list(reading.positions.values())[-1]
    if most is not None and size * places.count > most:
        states = states[:, : max(2, most // size)]
        places = Positions(places.kind, places.names[: states.shape[1]])
    followed = None
    if reading.written is not None:
        followed = reading.batch.inputs.token_ids[0, 1 : states.shape[1]]  # (T − 1,)
    ids, shares, entropies, distances, ranks = _measured(module, states, followed, max(1, AT_ONCE // size))
    texts = {index: shown_token(loaded.target, index) for index in set(ids.flatten().tolist())}
    return Lens(
        places,
        [[[texts[index] for index in place] for place in row] for row in ids.tolist()],
        shares.double().numpy(),
        entropies.double().numpy(),
        (ids[..., 0] == ids[-1, :, 0]).double().mean(-1).numpy(),
        distances.double().numpy(),
        None if followed is None else ranks.double().numpy(),
    )


def _states(stack: Stack, trace: Recording, hidden: Tensor) -> Tensor | None:
    """What the readout would read after each layer, (L + 1, T, D); None of a stack that does not leave what it reads,
    (T, D): one that reads a picture for an LSTM, say."""
    names = [f"{stack.name}.embedded", *(f"{stack.name}.{layer}.hidden" for layer in range(len(stack.layers)))]
    if not all(name in trace for name in names):
        return None
    states = torch.stack([trace[name][0][0] for name in names])
    states = states if stack.norm is None else stack.norm(states)
    return states if states.shape[1:] == hidden.shape and torch.allclose(states[-1], hidden, 1e-2, 1e-2) else None


def _measured(module: Any, states: Tensor, followed: Tensor | None, step: int) -> tuple[Tensor, ...]:
    """Of states (L + 1, T, D), `step` positions at a time: tokens and shares (L + 1, T, ≤ 3), entropies and
    distances (L + 1, T), ranks (L + 1, T − 1); all on the CPU."""
    found = []
    for start in range(0, states.shape[1], step):
        logs = module.readout(states[:, start : start + step]).float().log_softmax(-1)  # (L + 1, ≤ step, V)
        each, last = logs.exp(), logs[-1]
        shares, ids = each.topk(min(TOP, logs.shape[-1]), dim=-1)
        entropies = -(each * logs).sum(-1)
        distances = (last.exp() * (last - logs)).sum(-1)
        ranks = logs.new_zeros(len(logs), 0)
        if followed is not None:
            wanted = followed[start : start + step]
            logs = logs[:, : len(wanted)]
            own = logs.gather(2, wanted.to(logs.device).expand(len(logs), -1).unsqueeze(2))
            ranks = (logs > own).sum(-1) + 1
        found.append((ids, shares, entropies, distances, ranks))
    return tuple(torch.cat(parts, dim=1).cpu() for parts in zip(*found, strict=True))
