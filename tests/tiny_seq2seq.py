"""Small recurrent encoder–decoders of every kind, sources and prompts for them, and their logits without a cache."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.models.base import Sizes
from legato.models.seq2seq import Seq2SeqConfig, Seq2SeqMemory, Seq2SeqModel, Seq2SeqState
from legato.nn.attention import SCORES
from legato.nn.recurrent import CELLS
from thinned import some

V = 13
SMALL: dict[str, Any] = {"layers": 2, "width": 8, "embedding": 6, "dropout": 0.0}


class Kind(NamedTuple):
    cell: str
    attention: str
    input_feeding: bool
    bidirectional: bool

    def __str__(self) -> str:
        feeding = "-fed" if self.input_feeding else ""
        return f"{self.cell}-{self.attention}{feeding}{'-both-ways' if self.bidirectional else ''}"


PARTS: list[list[Any]] = [[*CELLS], ["none", *SCORES], [False, True], [False, True]]
KINDS = [Kind(*choice) for choice in product(*PARTS) if not (choice[1] == "none" and choice[2])]
# One of each cell, score and way, where the cells' differences cannot matter.
FEW = [
    Kind("lstm", "bilinear", False, True),
    Kind("gru", "mlp", True, False),
    Kind("elman", "dot", False, True),
    Kind("lstm", "none", False, False),
]
ATTENTIVE = [kind for kind in FEW if kind.attention != "none"]
LATIN = [kind for kind in KINDS if sum(part.index(value) for part, value in zip(PARTS, kind, strict=True)) % 3 == 0]
every_kind = pytest.mark.parametrize("kind", some(KINDS, LATIN), ids=str)
few_kinds = pytest.mark.parametrize("kind", FEW, ids=str)
attentive_kinds = pytest.mark.parametrize("kind", ATTENTIVE, ids=str)


def build(kind: Kind = FEW[0], sizes: Sizes = Sizes(V), **settings: Any) -> Seq2SeqModel:
    """A small model in double precision, with weights large enough to have opinions."""
    torch.manual_seed(0)
    made = Seq2SeqModel(validate(Seq2SeqConfig, {**SMALL, **kind._asdict(), **settings}), sizes).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    return made


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(rows: list[list[int]]) -> Inputs:
    # What pads is a real word, so that reading it would show.
    return Inputs.of(rows, padding=7)


SOURCES = [[3, 8, 1, 4], [9, 2, 6, 5, 11, 1], [10], [4, 4, 12]]
PROMPTS = [[3, 1, 4, 1, 5], [6], [5, 3, 5], [8, 9, 7, 9]]


def batch_of(sources: list[list[int]], ids: Tensor, **more: Any) -> Batch:
    return Batch(Inputs(ids), **more, source=padded(sources))


def memory_of(model: Seq2SeqModel, sources: list[list[int]] = SOURCES) -> Seq2SeqMemory:
    with torch.no_grad():
        return model.encode(batch_of(sources, torch.zeros(len(sources), 1, dtype=torch.long)))


def logits_of(model: Seq2SeqModel, source: list[int], row: list[int]) -> Tensor:
    """What the whole forward pass over one pair, nothing padded, says after the last of `row`, (V,)."""
    with torch.no_grad():
        return model.readout(
            model(Batch(Inputs(torch.tensor([row])), source=Inputs(torch.tensor([source])))).hidden[0, -1]
        )


def all_logits(model: Seq2SeqModel, sources: list[list[int]], rows: list[list[int]]) -> Tensor:
    return torch.stack([logits_of(model, source, row) for source, row in zip(sources, rows, strict=True)])


def started(model: Seq2SeqModel, keep: int = 0) -> tuple[Seq2SeqState, Tensor]:
    state = model.start(len(SOURCES), 50, memory_of(model), keep=keep)
    with torch.no_grad():
        return state, model.prefill(padded(PROMPTS), state)


def gradients(model: Seq2SeqModel, batches: list[Batch]) -> dict[str, Tensor]:
    """Of a loss with a weight of its own for every place that is no padding."""
    model.zero_grad()
    for batch in batches:
        hidden = model(batch).hidden
        lengths = (
            torch.tensor([batch.inputs.ids.shape[1]] * batch.rows)
            if batch.inputs.lengths is None
            else batch.inputs.lengths
        )
        losses = model.readout(hidden).logsumexp(-1) * torch.arange(1, hidden.shape[1] + 1)
        (losses * (torch.arange(hidden.shape[1]) < lengths.unsqueeze(1))).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
