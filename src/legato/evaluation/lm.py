"""How well a language model predicts a text.

    loss             mean negative log-likelihood of a token, in nats
    perplexity       exp(loss): per token, so comparable only under one tokenizer
    word_perplexity  exp(total nats / words), words counted as PTB and WikiText do: with line ends
    bits_per_byte    total bits / UTF-8 bytes, with a price for what the tokens do not spell: comparable between
                     tokenizers

Every token of the text is predicted, the first one from the start token. Recurrent models carry their state from
the first to the last; Transformers, which carry none, read windows that overlap, so that a token is predicted
from the half of a window before it at least. Either way the text is one stream: what stands before a document's
border is seen behind it, so the figures of both kinds compare.

A tokenizer that hides words behind `<unk>`, or drops white space, leaves its model less to predict. So whatever the
tokens do not spell is charged to bits_per_byte: each byte of it, and the end of each unknown word, at log2 257 =
8.006 bits, as if the 256 bytes and the end were equally likely. That is the length of a code from which the text can
be read again, so no model gains by not saying something. (Upper case that `tokenizer.lowercase` drops is not
charged.) The perplexities are as published ones are, where `<unk>` is a word like any other: the share of unknown
tokens is told.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.formats.text import Text
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.evaluation.metrics import metrics
from legato.models.base import SequenceModel

Array = np.ndarray[Any, np.dtype[Any]]

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("bits_per_byte", "perplexity", "backward_perplexity", better="down", headline=True),
    *metrics("accuracy", unit="fraction", better="up", headline=True),
    *metrics("word_perplexity", better="down"),
    *metrics("tokens", "context", "stride", "unspelt_bytes"),
    *metrics("unknown_share", unit="fraction", better="down"),
)
PRICE: Final = math.log2(257)  # bits of what no token spells: one of the 256 bytes, or the end of a word
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


def text_metrics(total: float, ids: Array, text: Text, tokenizer: AnyTokenizer) -> dict[str, float]:
    """The figures above from the total nats of ids[1:], the ids of `text` behind the start token."""
    count, (missing, unknown) = len(ids) - 1, unspelt(ids[1:], text, tokenizer)
    scores = {**language_metrics(total, count, text.words, text.bytes, missing + unknown), "tokens": count}
    scores |= {"unspelt_bytes": missing} if missing else {}
    hidden = 0 if tokenizer.unk_id is None else int((ids == tokenizer.unk_id).sum())
    return {**scores, "unknown_share": hidden / len(ids)} if hidden else scores


def unspelt(ids: Array, text: Text, tokenizer: AnyTokenizer) -> tuple[int, int]:
    """How many bytes of `text` its ids do not spell, and how many unknown words are among what they do not.

    Where the text itself spells `<unk>`, as PTB and WikiText do, that token says what is there.
    """
    counts = np.bincount(ids, minlength=tokenizer.size)
    unknown = 0
    if tokenizer.unk_id is not None and counts[tokenizer.unk_id]:
        name = tokenizer.token_name(tokenizer.unk_id)
        written = sum(document.count(name) for document in text.documents)
        unknown = max(0, int(counts[tokenizer.unk_id]) - written)
    if not unknown and not (tokenizer.pieces is not None and tokenizer.spaced):
        return 0, 0  # it keeps white space, and says all else
    if tokenizer.pieces is None:
        spelt: Any = _solid_and_white(tokenizer.decode(ids[ids != tokenizer.unk_id].tolist()).encode())
    else:
        used = np.flatnonzero(counts)
        spelt = counts[used] @ np.array([_solid_and_white(tokenizer.pieces[index]) for index in used])
        if unknown and tokenizer.unk_id is not None:  # its name is not in the text; its space is
            spelt[0] -= unknown * _solid_and_white(tokenizer.pieces[tokenizer.unk_id])[0]
    there = np.sum([_solid_and_white(document.encode()) for document in text.documents], axis=0)
    return int(np.maximum(there - spelt, 0).sum()), unknown


def _solid_and_white(text: bytes) -> tuple[int, int]:
    """How many bytes are none of white space, and how many are."""
    white = sum(text.count(blank) for blank in b" \n\t\r\v\f")
    return len(text) - white, white


def language_metrics(total: float, tokens: int, words: int, size: int, charged: int = 0) -> dict[str, float]:
    """The figures above from the total nats of a text of so many tokens, words and bytes.

    `charged` is the number of bytes and ends of words that are paid for beside the tokens.
    """
    loss = total / max(tokens, 1)
    return {
        "loss": loss,
        "perplexity": safe_exp(loss),
        "word_perplexity": safe_exp(total / max(words, 1)),
        "bits_per_byte": (total / math.log(2) + charged * PRICE) / max(size, 1),
    }


def safe_exp(value: float) -> float:
    """exp(value), infinite where floats end."""
    return math.exp(value) if value < 700 else math.inf
