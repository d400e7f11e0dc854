"""How well a language model predicts a text.

    loss             mean negative log-likelihood of a token, in nats
    perplexity       exp(loss): per token, so comparable only under one tokenizer
    word_perplexity  exp(total nats / words), words counted as PTB and WikiText do: with line ends
    bits_per_byte    total bits / UTF-8 bytes: comparable between tokenizers that keep the whole text

Every token of the text is predicted, the first one from the start mark, with the state carried from
the first to the last. A tokenizer that hides words behind `<unk>`, or drops white space, flatters the
last two: compare byte, char, bpe by them, and look at the share of unknown tokens with the rest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batch import IGNORE, Batch
from legato.models.base import SequenceModel

CHUNK = 2048  # tokens read at once; bounds the logits in memory, changes no result


@torch.no_grad()
def stream_loss(model: SequenceModel, ids: Tensor, rows: int = 1) -> float:
    """Total nats of ids[1:], each given everything before it.

    With `rows` > 1 the text is read in that many strips side by side, which is faster, and each strip
    but the first starts without its past, which is slightly pessimistic.
    """
    count = len(ids) - 1
    rows = max(1, min(rows, count))
    length = -(-count // rows)
    padded = torch.full((rows * length + 1,), IGNORE, dtype=torch.long, device=model.device)
    padded[: len(ids)] = ids.to(model.device)
    inputs = padded[:-1].view(rows, length).clamp(min=0)  # what pads the last strip is read but not scored
    targets = padded[1:].view(rows, length)
    total = torch.zeros((), dtype=torch.float64, device=model.device if model.device.type != "mps" else "cpu")
    state: Any = None
    window = max(1, CHUNK // rows)
    for start in range(0, length, window):
        part = slice(start, start + window)
        output = model(Batch(inputs[:, part]), state)
        total += nats(model, output.hidden, targets[:, part]).double().to(total.device)
        state = output.state
    return float(total)


def nats(model: SequenceModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Summed negative log-likelihood of `targets` (B, T) given hidden states (B, T, D)."""
    logits = model.readout(hidden.flatten(0, 1))  # (B·T, V)
    return F.cross_entropy(logits.float(), targets.flatten(), ignore_index=IGNORE, reduction="sum")


def smoothed_nats(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed loss of `targets` (N,) under `logits` (N, V): with smoothed labels, and without.

    Label smoothing (Szegedy et al. 2016) gives the right token 1 - ε and spreads ε evenly over all:
    loss = (1 - ε) · -log p(y) + ε · mean_v -log p(v).
    """
    counted = targets != IGNORE
    logp = F.log_softmax(logits.float(), -1)
    likelihood = logp.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # (N,)
    plain = -(likelihood * counted).sum()
    if smoothing == 0.0:
        return plain, plain
    return (1 - smoothing) * plain - smoothing * (logp.mean(-1) * counted).sum(), plain


def language_metrics(total: float, tokens: int, words: int, size: int) -> dict[str, float]:
    """The figures above from the total nats of a text of so many tokens, words and bytes."""
    loss = total / max(tokens, 1)
    return {
        "loss": loss,
        "perplexity": _exp(loss),
        "word_perplexity": _exp(total / max(words, 1)),
        "bits_per_byte": total / math.log(2) / max(size, 1),
    }


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
