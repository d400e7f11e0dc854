"""How well a language model predicts a text.

    loss             mean negative log-likelihood of a token, in nats
    perplexity       exp(loss): per token, so comparable only under one tokenizer
    word_perplexity  exp(total nats / words), words counted as PTB and WikiText do: with line ends
    bits_per_byte    total bits / UTF-8 bytes: comparable between tokenizers that keep the whole text

Every token of the text is predicted, the first one from the start mark. Recurrent models carry their state from
the first to the last; Transformers, which carry none, read windows that overlap, so that a token is predicted
from the half of a window before it at least. Either way the text is one stream: what stands before a document's
border is seen behind it, so the figures of both kinds compare.

A tokenizer that hides words behind `<unk>`, or drops white space, flatters the last two: compare byte, char, bpe by
them, and look at the share of unknown tokens with the rest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.data.batch import IGNORE, Batch
from legato.models.base import SequenceModel
from legato.nn.losses import chunked_nats

CHUNK = 2048  # tokens read at once; bounds what lies in memory, changes no result
SLIDING = {"cuda": 1 << 16}  # the same for windows, of which a GPU likes many
# Logits from which they are made in chunks. Below it a CPU loses as much as it gains; a GPU gains soon, since
# gradients made in place mean fewer passes over them.
MANY = {"cpu": 1 << 25, "cuda": 1 << 22}


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
    total = _zero(model.device)
    state: Any = None
    window = max(1, CHUNK // rows)
    for start in range(0, length, window):
        part = slice(start, start + window)
        output = model(Batch(inputs[:, part]), state)
        total += nats(model, output.hidden, targets[:, part]).double().to(total.device)
        state = output.state
    return float(total)


@torch.no_grad()
def sliding_loss(model: SequenceModel, ids: Tensor, context: int, stride: int) -> float:
    """Total nats of ids[1:] for a model that carries no state: from windows of `context` tokens that overlap.

    The first window scores all its tokens; each other one begins `stride` tokens later than the one before and
    scores its last `stride` targets, so that each is predicted from more than context - stride tokens.
    """
    device, count = model.device, len(ids) - 1
    context = min(context, count)
    stride = min(stride, context)
    windows = 1 + max(0, -(-(count - context) // stride))
    padded = torch.full((context + (windows - 1) * stride + 1,), IGNORE, dtype=torch.long, device=device)
    padded[: len(ids)] = ids.to(device)
    places = torch.arange(context, device=device)
    total = _zero(device)
    side_by_side = max(1, SLIDING.get(device.type, CHUNK) // context)
    for first in range(0, windows, side_by_side):
        starts = stride * torch.arange(first, min(first + side_by_side, windows), device=device)
        at = starts.unsqueeze(1) + places  # (B, T)
        targets = padded[at + 1]
        old = (starts > 0).unsqueeze(1) & (places < context - stride)  # the window before has scored these
        output = model(Batch(padded[at].clamp(min=0)))
        total += nats(model, output.hidden, targets.masked_fill(old, IGNORE)).double().to(total.device)
    return float(total)


def _zero(device: torch.device) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=device if device.type != "mps" else "cpu")


def nats(model: SequenceModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Summed negative log-likelihood of `targets` (B, T) given hidden states (B, T, D)."""
    return readout_loss(model, hidden, targets)[0]


def readout_loss(
    model: SequenceModel, hidden: Tensor, targets: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Summed loss of `targets` (…) given hidden states (…, D): with smoothed labels, to learn from, and without.

    What the vocabulary's loss costs in memory is bounded: many logits are made and used chunk by chunk.
    """
    hidden, targets = hidden.flatten(0, -2), targets.flatten()  # (N, D), (N,)
    output = getattr(model, "plain_output", None)
    if output is None or not _many(model, output, targets.numel(), hidden.device):
        return smoothed_nats(model.readout(hidden), targets, smoothing)
    return chunked_nats(model.transform(hidden), output.weight, output.bias, targets, model.vocabulary, smoothing)


def _many(model: SequenceModel, output: nn.Linear, tokens: int, device: torch.device) -> bool:
    """Whether the logits of so many tokens are better made chunk by chunk."""
    rows, width = output.weight.shape
    if rows > model.vocabulary >= 4 * width:
        return True  # cutting the padding off many logits, and putting it back in their gradient, takes longer
    return tokens * rows > MANY.get(device.type, MANY["cpu"])


def smoothed_nats(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Summed loss of `targets` (N,) under `logits` (N, V): with smoothed labels, and without.

    Label smoothing (Szegedy et al. 2016) gives the right token 1 - ε and spreads ε evenly over all:
    loss = (1 - ε) · -log p(y) + ε · mean_v -log p(v).
    """
    if smoothing == 0.0:
        plain = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")
        return plain, plain
    counted = targets != IGNORE
    logp = F.log_softmax(logits.float(), -1)
    likelihood = logp.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)  # (N,)
    plain = -(likelihood * counted).sum()
    return (1 - smoothing) * plain - smoothing * (logp.mean(-1) * counted).sum(), plain


def language_metrics(total: float, tokens: int, words: int, size: int) -> dict[str, float]:
    """The figures above from the total nats of a text of so many tokens, words and bytes."""
    loss = total / max(tokens, 1)
    return {
        "loss": loss,
        "perplexity": safe_exp(loss),
        "word_perplexity": safe_exp(total / max(words, 1)),
        "bits_per_byte": total / math.log(2) / max(size, 1),
    }


def safe_exp(value: float) -> float:
    """exp(value), infinite where floats end."""
    return math.exp(value) if value < 700 else math.inf
