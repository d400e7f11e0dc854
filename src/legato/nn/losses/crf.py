"""The linear-chain conditional random field: neighbouring tags scored together (Lafferty et al. 2001).

    s(x, y)  =  A[start, y_1] + Σ_t e_t[y_t] + Σ_t A[y_t, y_{t+1}] + A[y_W, end]
    log p(y | x)  =  s(x, y) - log Σ_y' exp s(x, y')

The emissions e (B, W, C) are a network's; A is learned here, or given. The sum over all C^W sequences is the forward
algorithm, the best one of them Viterbi's; each goes through the words once, for all rows side by side.

Notable: what may not follow what has a score so low that no sequence with it is ever the best, yet finite, so that
gradients are; all is computed in float32, whatever the emissions come in; the loss asks the device for nothing and
its shapes depend on its arguments' alone, so a CUDA graph can record it.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from legato.data.batching.batch import IGNORE

FORBIDDEN: Final = -1e4  # beside it whatever a network says is little; a sum of many is still a float32


def with_rules(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Scores of one tag after another, (C + 2, C + 2), with FORBIDDEN where one may not follow."""
    return scores if allowed is None else scores.masked_fill(~allowed, FORBIDDEN)


def log_partition(emissions: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """log Σ_y exp s(x, y) of each row, (B,), by the forward algorithm.

    α_1[j] = A[start, j] + e_1[j];  α_t[j] = e_t[j] + log Σ_i exp(α_{t-1}[i] + A[i, j]).
    """
    count = emissions.shape[-1]
    between = scores[:count, :count]  # (C, C)
    forward = scores[count, :count] + emissions[:, 0]  # (B, C)
    for place in range(1, emissions.shape[1]):
        after = torch.logsumexp(forward.unsqueeze(2) + between, 1) + emissions[:, place]
        forward = torch.where((place < lengths).unsqueeze(1), after, forward)
    return torch.logsumexp(forward + scores[:count, count + 1], 1)


def path_scores(emissions: Tensor, scores: Tensor, tags: Tensor) -> Tensor:
    """s(x, y) of each row's tags (B, W), (B,); what is IGNORE counts nothing.

    Sums over ones and zeros, not look-ups: their gradients are the same to the bit each time, on any device.
    """
    count, words = emissions.shape[-1], emissions.shape[1]
    chosen = (tags.unsqueeze(2) == torch.arange(count, device=tags.device)).float()  # (B, W, C)
    last = torch.arange(1, words + 1, device=tags.device) == (tags != IGNORE).sum(1, keepdim=True)  # (B, W)
    pairs = chosen[:, :-1].transpose(1, 2) @ chosen[:, 1:]  # (B, C, C), how often one follows the other
    moved = (pairs * scores[:count, :count]).sum((1, 2))
    edges = chosen[:, 0] * scores[count, :count] + (chosen * last.unsqueeze(2)).sum(1) * scores[:count, count + 1]
    return (chosen * emissions).sum((1, 2)) + moved + edges.sum(1)


def log_likelihood(emissions: Tensor, scores: Tensor, tags: Tensor) -> Tensor:
    """log p(y | x), (B,), of tags (B, W) that are IGNORE beyond a row's end; 0 for a row without any."""
    with torch.autocast(emissions.device.type, enabled=False):
        emissions, lengths = emissions.float(), (tags != IGNORE).sum(1)
        path = path_scores(emissions, scores, tags)
        return (path - log_partition(emissions, scores, lengths)) * (lengths > 0)


@torch.no_grad()
def best_paths(emissions: Tensor, scores: Tensor, lengths: Tensor) -> list[list[int]]:
    """The tags of highest s(x, y) of each row, by Viterbi's algorithm; as many as the row is long."""
    count, words = emissions.shape[-1], emissions.shape[1]
    emissions, scores = emissions.float(), scores.float()
    between = scores[:count, :count]
    best = scores[count, :count] + emissions[:, 0]  # (B, C): of the sequences that end in each tag
    before = []
    still = torch.arange(count, device=emissions.device).expand_as(best)
    for place in range(1, words):
        value, origin = (best.unsqueeze(2) + between).max(1)  # (B, C) each
        inside = (place < lengths).unsqueeze(1)
        best = torch.where(inside, value + emissions[:, place], best)
        before.append(torch.where(inside, origin, still))
    tag = (best + scores[:count, count + 1]).argmax(1)  # (B,)
    path = [tag]
    for origin in reversed(before):
        tag = origin.gather(1, tag.unsqueeze(1)).squeeze(1)
        path.append(tag)
    found = torch.stack(path[::-1], 1).tolist()  # beyond its end a row repeats its last tag
    return [row[:length] for row, length in zip(found, lengths.tolist(), strict=True)]


def tag_probabilities(emissions: Tensor, scores: Tensor, lengths: Tensor) -> Tensor:
    """p(y_t = c | x), (B, W, C): the gradient of log Σ_y exp s(x, y) by the emissions, which is just that.

    Beyond a row's length all are 0.
    """
    with torch.enable_grad():
        emissions = emissions.detach().float().requires_grad_()
        total = log_partition(emissions, scores.detach().float(), lengths).sum()
        (found,) = torch.autograd.grad(total, emissions)
    own = torch.arange(emissions.shape[1], device=emissions.device) < lengths.unsqueeze(1)
    return found * own.unsqueeze(2)


class CRF(nn.Module):
    """Scores of one tag after another, learned; the last two rows and columns are the start and the end.

    `allowed` (C + 2, C + 2) says which tag (column) may follow which (row).

    >>> best_paths(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), CRF(2).scores, torch.tensor([2]))
    [[0, 1]]
    """

    allowed: Tensor | None

    def __init__(self, outputs: int, allowed: Tensor | None = None) -> None:
        super().__init__()
        self.outputs = outputs
        self.transitions = nn.Parameter(torch.zeros(outputs + 2, outputs + 2))
        # Not a weight: whoever makes the layer knows the rules.
        self.register_buffer("allowed", None if allowed is None else allowed.bool(), persistent=False)

    def extra_repr(self) -> str:
        return f"{self.outputs} tags"

    @property
    def scores(self) -> Tensor:
        """A, (C + 2, C + 2)."""
        return with_rules(self.transitions.float(), self.allowed)
