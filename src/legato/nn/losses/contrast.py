"""What vectors of texts learn from: which of them are alike.

    contrast    -log softmax_j(s cos(a_i, b_j)) at j = i        the other pairs of the batch are negatives
                (multiple negatives ranking; Henderson et al. 2017, InfoNCE; van den Oord et al. 2018)
    cosent      log(1 + Σ_{y_i > y_j} exp(s (cos_j - cos_i)))    pairs in the order of their scores (Su 2022)
    cosine      (cos(a, b) - y)²                                 scores as cosines

Notable: of a batch's texts, those that are one and the same are no negatives of each other, and neither are other
partners of the same first text. Everything here is float32, whatever the model's states are in.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def text_keys(ids: Tensor) -> Tensor:
    """A number for each row of tokens, (…, T) to (…,): the same for the same row, and hardly ever for another."""
    places = torch.arange(1, ids.shape[-1] + 1, device=ids.device)
    x = (ids + 1) * -7046029254386353131 ^ places * -4658895280553007687  # products wrap around
    x = (x ^ x >> 30) * -4658895280553007687
    x = (x ^ x >> 27) * -7723592293110705685
    return (x ^ x >> 31).sum(-1)


def contrast(vectors: Tensor, keys: Tensor, scale: float | Tensor = 20.0, symmetric: bool = False) -> Tensor:
    """The loss of each row of texts, (B,): `vectors` (B, K, D) and `keys` (B, K) of a text, its partner and, perhaps,
    negatives of its own. With `symmetric` a partner must find its text, too, and the two losses are averaged. `scale`
    may be learned."""
    count = len(vectors)
    units = F.normalize(vectors.float(), dim=-1)
    candidates = units[:, 1:].transpose(0, 1).flatten(0, 1)  # (N, D): all partners, then all negatives
    with torch.autocast(vectors.device.type, enabled=False):
        scores = scale * units[:, 0] @ candidates.t()  # (B, N)
    right = torch.arange(count, device=vectors.device)
    names = keys[:, 1:].transpose(0, 1).flatten()  # (N,)
    same = names == keys[:, 1:2]  # the partner again
    same[:, :count] |= keys[:, 0] == keys[:, :1]  # another partner of the same text
    own = torch.arange(len(names), device=vectors.device) == right[:, None]
    scores = scores.masked_fill(same & ~own, -torch.inf)
    losses = F.cross_entropy(scores, right, reduction="none")
    if symmetric:
        losses = (losses + F.cross_entropy(scores[:, :count].t(), right, reduction="none")) / 2
    return losses


def cosines(vectors: Tensor) -> Tensor:
    """The cosine of each row's first two vectors, (B, K, D) to (B,)."""
    return F.cosine_similarity(vectors[:, 0].float(), vectors[:, 1].float(), dim=-1)


def cosent(found: Tensor, scores: Tensor, scale: float = 20.0) -> Tensor:
    """One number for a batch: whether cosines (B,) stand in the order of the scores (B,)."""
    apart = scale * (found[None] - found[:, None])  # (B, B): j less i
    apart = apart.masked_fill(scores[:, None] <= scores[None], -torch.inf)
    return torch.cat([apart.flatten(), apart.new_zeros(1)]).logsumexp(0)
