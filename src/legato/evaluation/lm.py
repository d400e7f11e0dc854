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
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.models.base import SequenceModel

CHUNK = 2048  # tokens read at once; bounds what lies in memory, changes no result
SLIDING = {"cuda": 1 << 16}  # the same for windows, of which a GPU likes many


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
        output = model(Batch(Inputs(inputs[:, part])), state)
        total += model.nll(output.hidden, targets[:, part])[0].double().to(total.device)
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
        output = model(Batch(Inputs(padded[at].clamp(min=0))))
        total += model.nll(output.hidden, targets.masked_fill(old, IGNORE))[0].double().to(total.device)
    return float(total)


def _zero(device: torch.device) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=device if device.type != "mps" else "cpu")


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
