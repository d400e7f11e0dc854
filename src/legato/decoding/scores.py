"""Functions of next-token logits: what shapes a distribution before a token is drawn from it.

Each takes logits (B, V) and gives logits (B, V). A forbidden token has the logit −∞. Float32 throughout.

- `temperature`         p ∝ p^(1/T)
- `top_k`               the k most probable tokens
- `top_p`               the smallest set of most probable tokens with mass ≥ p (Holtzman et al. 2020, §3.1)
- `min_p`               tokens with p ≥ m · max p (Nguyen et al. 2024)
- `repetition_penalty`  tokens seen before lose probability (CTRL: Keskar et al. 2019, §4.1)

`best` is the top-k that they and the search share: equal scores go to the lower index, on every device.
`log_sum_exp_` is what makes logits log-probabilities, in no more memory than they have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from legato.decoding.options import SearchOptions

# How many tokens to sort in search of a nucleus, until it is found: it is rarely most of the vocabulary.
HEADS = (1024, 8192)
# Scores whose largest is asked for first, on a CPU: the k best lie in the k blocks with the largest of these.
BLOCK = 128
# Logits of a row from which the C++ kernel that chooses (nn/kernels/choice.py) is worth being compiled.
LARGE = 4096


def best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row (B, N) and their indices, (B, k) each, best first.

    `torch.topk` leaves open which of several equal scores it returns; here it is the first ones.
    """
    size = scores.shape[-1]
    k = min(k, size)
    if scores.device.type != "cpu" or size < 4 * k * BLOCK:
        return _best(scores, k)
    # PyTorch's top-k and argmax look at one score at a time on a CPU, its largest at sixteen. And k blocks
    # that come before another, by their largest and then by place, hold k scores that come before its scores.
    whole = size // BLOCK * BLOCK
    highest = scores[:, :whole].unflatten(-1, (-1, BLOCK)).amax(-1)  # (B, N / BLOCK)
    if whole < size:
        highest = torch.cat([highest, scores[:, whole:].amax(-1, keepdim=True)], dim=-1)
    blocks = _best(highest, k)[1].sort(-1).values  # (B, k), in order of place
    places = (blocks.unsqueeze(-1) * BLOCK + torch.arange(BLOCK)).flatten(1)  # (B, k · BLOCK)
    beyond = places >= size if whole < size else None  # the last block is a short one
    inside = scores.gather(-1, places.clamp_(max=size - 1))
    if beyond is not None:
        inside.masked_fill_(beyond, -torch.inf)
    values, found = _best(inside, k)
    return values, places.gather(-1, found)  # (B, k), (B, k)


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The plain way."""
    size = scores.shape[-1]
    if k == 1:
        found = scores.argmax(-1, keepdim=True)  # (B, 1), documented to be the first maximum
        return scores.gather(-1, found), found
    if k == size:
        return scores.sort(stable=True, dim=-1, descending=True)
    values, indices = scores.topk(k + 1)  # (B, k + 1)
    threshold = values[:, k - 1 : k]  # (B, 1)
    # Only a tie across the k-th place leaves the set open, and among the forbidden it never matters. Asking would
    # make a GPU wait, so there the second pass runs always; on a CPU it runs when needed.
    if scores.device.type != "cpu" or bool(((threshold == values[:, k:]) & (threshold > -torch.inf)).any()):
        place = torch.arange(size, 0, -1, dtype=torch.int32, device=scores.device)  # (N,), earlier is larger
        tie = torch.where(scores == threshold, place, torch.zeros_like(place))  # (B, N)
        indices = torch.where(scores > threshold, place + size, tie).topk(k).indices
    indices = indices[:, :k].sort(-1).values
    values = scores.gather(-1, indices)
    order = values.sort(stable=True, dim=-1, descending=True).indices
    return values.gather(-1, order), indices.gather(-1, order)  # (B, k), (B, k)


def log_sum_exp_(logits: Tensor, largest: Tensor) -> Tensor:
    """log Σ exp of each row (B, V), (B, 1), given its largest (B, 1). What is left in `logits` is nothing to use.

    Not finite exactly where some logit of the row is NaN or +∞, or all are −∞.
    """
    return logits.sub_(largest).exp_().sum(-1, keepdim=True).log_().add_(largest)


def temperature(logits: Tensor, value: float) -> Tensor:
    """log p / T up to a constant: below 1 sharper, above 1 flatter.

    >>> temperature(torch.tensor([[0.0, -1.0]]), 0.5)
    tensor([[ 0., -2.]])
    """
    # The best is moved to 0 first, and T kept above what float32 can hold: no T overflows to ∞ − ∞.
    return (logits - logits.amax(-1, keepdim=True)) / max(value, 1e-30)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Only the k most probable tokens; k = 0 keeps all."""
    if k == 0 or k >= logits.shape[-1]:
        return logits
    values, tokens = best(logits, k)
    return torch.full_like(logits, -torch.inf).scatter(-1, tokens, values)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Only the smallest set of most probable tokens whose mass reaches p."""
    if p >= 1:
        return logits
    probabilities = logits.softmax(-1)
    vocabulary = logits.shape[-1]
    # Asking whether a head was enough would make a GPU wait, and sorting is cheap there.
    heads = [size for size in HEADS if size < vocabulary] if logits.device.type == "cpu" else []
    for size in (*heads, vocabulary):
        values, tokens = best(probabilities, size)  # (B, size)
        if size == vocabulary or bool((values.sum(-1) >= p).all()):
            break
    before = values.cumsum(-1).roll(1, -1)  # (B, size), the mass of all that are more probable
    before[:, 0] = 0
    beyond = before >= p
    beyond[:, 0] = False  # whatever p is in their width
    kept = logits.gather(-1, tokens).masked_fill(beyond, -torch.inf)
    return torch.full_like(logits, -torch.inf).scatter(-1, tokens, kept)


def min_p(logits: Tensor, share: float) -> Tensor:
    """Only tokens at least `share` times as probable as the most probable one."""
    if share == 0:
        return logits
    # In logits the ratio of two probabilities is a difference: no softmax is needed.
    least = logits.amax(-1, keepdim=True) + math.log(share)
    return logits.masked_fill(logits < least, -torch.inf)


def repetition_penalty(logits: Tensor, seen: Tensor, penalty: float | Tensor) -> Tensor:
    """Tokens marked in `seen` (B, V) are lowered: positive logits divided, negative ones multiplied."""
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def filter_scores(logits: Tensor, options: SearchOptions, seen: Tensor | None = None) -> Tensor:
    """All of the above in order: what a token is drawn from. `seen` (B, V) marks each row's tokens so far."""
    if seen is not None and options.repetition_penalty != 1:
        logits = repetition_penalty(logits, seen, options.repetition_penalty)
    if options.temperature != 1:
        logits = temperature(logits, options.temperature)
    logits = top_k(logits, options.top_k)
    logits = top_p(logits, options.top_p)
    return min_p(logits, options.min_p)


def normalise(logprob: float, length: int, penalty: float) -> float:
    """log p / length^α, so that a longer hypothesis is not worse for its length alone (α = 0: log p).

    >>> normalise(-6.0, 3, 1.0)
    -2.0
    """
    return logprob / max(length, 1) ** penalty
