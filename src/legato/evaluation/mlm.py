"""How well a model guesses hidden words.

    loss                  mean negative log-likelihood of a hidden token, in nats
    masked_perplexity     exp(loss)
    masked_accuracy       share of the hidden tokens that are the most probable ones
    pseudo_perplexity     exp(-1/N Σ log P(w_t | all others)): each token of a sentence hidden in turn
                          (Salazar et al. 2020); comparable only under one tokenizer

For the first three a fixed 15 % of the tokens is hidden, the same for every model with the same tokenizer and
window, and each of them by the mask itself: in training some stay or become another token, which would flatter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.masking import Frame
from legato.evaluation.lm import safe_exp
from legato.evaluation.metrics import metrics
from legato.models.base import SequenceModel
from legato.nn.pooling import at_positions
from legato.nn.state import Output

Array = np.ndarray[Any, np.dtype[Any]]
METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("masked_accuracy", unit="fraction", better="up", headline=True),
    *metrics("masked_perplexity", better="down", headline=True),
    *metrics("next_sentence_accuracy", unit="fraction", better="up", headline=True),
    *metrics("masked_tokens"),
    *metrics("pseudo_perplexity", better="down", eval_only=True),
)
TOKENS = 8192  # read at once while scoring; changes no result
LOGITS = 1 << 25  # made at once while scoring; the same


def masked_nll(model: SequenceModel, output: Output, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """Summed negative log-likelihood of the masked tokens, with smoothed labels and without."""
    assert batch.targets is not None
    return model.nll(at_positions(output.hidden, batch.positions), batch.targets, smoothing)


@torch.no_grad()
def masked_scores(model: SequenceModel, batches: Iterable[Batch]) -> dict[str, float]:
    """Loss, perplexity and accuracy over all hidden tokens of `batches`."""
    nll = torch.zeros((), device=model.device)
    right = torch.zeros((), dtype=torch.long, device=model.device)
    tokens = 0
    for batch in batches:
        batch = batch.to(model.device)
        assert batch.targets is not None
        hidden = at_positions(model(batch).hidden, batch.positions).flatten(0, 1)  # (N, D)
        targets = batch.targets.flatten()  # (N,)
        size = max(1, LOGITS // model.vocabulary)
        for some, wanted in zip(hidden.split(size), targets.split(size), strict=True):
            logp = model.readout(some).float().log_softmax(-1)  # (n, V)
            there = wanted != IGNORE
            nll -= (logp.gather(1, wanted.clamp(min=0).unsqueeze(1)).squeeze(1) * there).sum()
            right += ((logp.argmax(-1) == wanted) & there).sum()
        tokens += batch.tokens
    loss = float(nll) / max(tokens, 1)
    return {
        "loss": loss,
        "masked_perplexity": safe_exp(loss),
        "masked_accuracy": int(right) / max(tokens, 1),
        "masked_tokens": tokens,
    }


@torch.no_grad()
def next_sentence_accuracy(model: Any, batches: Iterable[Batch]) -> float:
    """How often the model tells a sentence that follows from one that does not."""
    right = rows = 0
    for batch in batches:
        batch = batch.to(model.device)
        guessed = model.next_sentence(model(batch).hidden).argmax(-1)  # (B,)
        right += int((guessed == batch.labels).sum())
        rows += batch.rows
    return right / max(rows, 1)


@torch.no_grad()
def pseudo_nll(
    model: SequenceModel, texts: Sequence[Array], frame: Frame, mask: int, tokens: int = TOKENS
) -> tuple[float, int]:
    """Summed -log P(token | all others of its text) over texts without special tokens, and how many that are."""
    total = torch.zeros((), dtype=torch.float64)
    waiting: list[tuple[Array, int]] = []
    held = 0
    for text in sorted(texts, key=len):  # those of like length go together
        for place in range(len(text)):
            waiting.append((text, place))
            held = len(text) + 2
            if len(waiting) * held >= tokens:
                total += _hidden_in_turn(model, waiting, frame, mask)
                waiting = []
    if waiting:
        total += _hidden_in_turn(model, waiting, frame, mask)
    return float(total), sum(len(text) for text in texts)


def _hidden_in_turn(model: SequenceModel, rows: list[tuple[Array, int]], frame: Frame, mask: int) -> Tensor:
    """The nats of each text's token at its place, given the rest: summed."""
    inputs = frame.rows([text for text, _ in rows])
    places = torch.tensor([[place + 1] for _, place in rows])  # (B, 1), behind the first special token
    targets = inputs.token_ids.gather(1, places)
    inputs.token_ids.scatter_(1, places, mask)
    batch = Batch(inputs, targets, positions=places).to(model.device)
    return masked_nll(model, model(batch), batch)[1].double().cpu()


@torch.no_grad()
def guess(model: SequenceModel, batch: Batch) -> Tensor:
    """The probabilities of every token at the `positions` of each row: (B, N, V)."""
    batch = batch.to(model.device)
    return model.readout(at_positions(model(batch).hidden, batch.positions)).float().softmax(-1).cpu()
