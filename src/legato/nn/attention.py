"""Attention: scores between queries and keys, a softmax over the keys, a weighted mean of the values.

    weights = softmax(score(query, key))        over the source, or over the past
    context = weights · values

Notable here:

- the three scores of the recurrent models, one small class each: `Dot`, `Bilinear` (Luong et al. 2015)
  and `MLP` (Bahdanau et al. 2015);
- the Transformer's scaled dot product (Vaswani et al. 2017, equation 1) twice: `fused_attention`, which
  is PyTorch's kernel, and `written_out_attention`, the equation, which also gives the weights. Tests
  hold the two equal where a row sees something in outputs and gradients;
- on a GPU, cuDNN's kernel is left out where its gradients can be NaN, or nothing is trained (`trusted_kernels`);
- where a token sees the last few only, or those of its own text, there are ways without a mask (`nn/spans/`);
- a mask is True where there is something to look at. A row that may look at nothing gets zeros. For the
  kernels, `additive` turns it into numbers, and then such a row gets something finite.
"""

from __future__ import annotations

import math
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from legato.nn.kernels.training import attention_takes, dropout_attention


class Score(nn.Module):
    """How well each query and each key go together. Keys are made of the memory once, for all queries to come."""

    def keys(self, memory: Tensor) -> Tensor:
        """(B, S, D) to what `forward` takes; the part of the score that no query changes."""
        return memory

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        """Queries (B, T, D) with the keys of as many rows: (B, T, S)."""
        return query @ keys.transpose(1, 2)


class Dot(Score):
    """score(q, m) = q · m; both have one width."""

    def __init__(self, query: int, memory: int, width: int) -> None:
        super().__init__()
        if query != memory:
            raise ValueError(f"the dot score needs queries and a memory of one width, not {query} and {memory}")


class Bilinear(Score):
    """score(q, m) = qᵀ W m: Luong's "general"."""

    def __init__(self, query: int, memory: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Linear(memory, query, bias=False)  # W

    def keys(self, memory: Tensor) -> Tensor:
        return self.weight(memory)  # (B, S, D)


class MLP(Score):
    """score(q, m) = vᵀ tanh(W q + U m): Bahdanau's, a small network of `width` hidden units."""

    def __init__(self, query: int, memory: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, width)  # W
        self.memory = nn.Linear(memory, width, bias=False)  # U
        self.energy = nn.Linear(width, 1, bias=False)  # v

    def keys(self, memory: Tensor) -> Tensor:
        return self.memory(memory)  # (B, S, D)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        query = self.query(query)  # (B, T, D)
        steps = max(LARGEST // max(keys.numel(), 1), 1)
        if query.shape[1] <= steps:
            return self._energies(query, keys)
        # A piece's hidden units are forgotten and computed again for the gradient: one piece's are there at a time.
        pieces = [
            checkpoint(self._energies, piece, keys, use_reentrant=False, preserve_rng_state=False)
            for piece in query.split(steps, dim=1)
        ]
        return torch.cat(pieces, dim=1)  # (B, T, S)

    def _energies(self, query: Tensor, keys: Tensor) -> Tensor:
        both = query.unsqueeze(2) + keys.unsqueeze(1)  # (B, T, S, D)
        return self.energy(both.tanh_()).squeeze(-1)  # (B, T, S)


TRUSTED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
FAR = 512  # queries from which, on a CPU, heads that lie apart in memory are worth a copy: 31 ms for 36 of 1,500
LARGEST = 2**27  # hidden units that the MLP score makes at a time: 512 MiB of float32
SCORES: dict[str, type[Score]] = {"dot": Dot, "bilinear": Bilinear, "mlp": MLP}


def weigh(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the last dimension, where `mask` is True."""
    if mask is None:
        return scores.softmax(-1)
    # A row without a single key would be NaN; multiplied by its own mask it is zeros.
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights * mask


def written_out_attention(
    query: Tensor,  # (B, H, T, K)
    key: Tensor,  # (B, H, S, K), or fewer heads, each of which serves a group of queries' heads
    value: Tensor,  # as key
    mask: Tensor | None = None,  # broadcastable to (B, H, T, S), True where a query may look, or `additive`
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √K) V, and the softmax: (B, H, T, K) and (B, H, T, S).

    `causal` lets query t look at keys up to t, itself included, where both count from the first.
    """
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])  # (B, H, T, S)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask >= 0
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()  # (T, S)
        mask = past if mask is None else mask & past
    weights = weigh(scores, mask)
    return F.dropout(weights, dropout, training=dropout > 0) @ value, weights


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """The same output by PyTorch's kernel, or in training on a CPU by ours."""
    if attention_takes(query, key, mask, dropout):
        return dropout_attention(query, key, value, mask, causal=causal, dropout=dropout)
    if causal and mask is not None:
        past = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, torch.finfo(mask.dtype).min)
        causal = False
    if query.is_cpu and query.shape[-2] >= FAR and not torch.is_grad_enabled():
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    with trusted_kernels(query, plain=causal and mask is None):
        return _fused(query, key, value, mask, causal, dropout)


def trusted_kernels(query: Tensor, plain: bool) -> AbstractContextManager[None]:
    """Leaves out cuDNN's kernel on CUDA, but for training's `plain` causal attention without a mask.

    What fills up its last tile of keys has a score of 0 otherwise, and where all true scores are below about −88 the
    gradient overflows (cuDNN 9.19 on Hopper; pytorch/pytorch#196678, NVIDIA/cudnn-frontend#1072). And where nothing
    is trained each batch has another shape, for each of which cuDNN makes a plan: 22 ms for a prompt of 30 layers.
    """
    if not query.is_cuda or (query.requires_grad and plain):
        return nullcontext()
    if torch.compiler.is_compiling():
        return sdpa_kernel(TRUSTED) if query.requires_grad else nullcontext()
    return _WITHOUT_CUDNN


class _WithoutCudnn(AbstractContextManager[None]):
    """`sdpa_kernel` at a tenth of its cost; the setting is one for all threads, and comes back with the last."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = torch.backends.cuda.cudnn_sdp_enabled()
                torch.backends.cuda.enable_cudnn_sdp(False)
            self._inside += 1

    def __exit__(self, *problem: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.cuda.enable_cudnn_sdp(self._before)


_WITHOUT_CUDNN: Final = _WithoutCudnn()


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    if key.shape[1] == query.shape[1]:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal)
    if query.shape[2] == 1 and not causal:
        # The heads of a group look at the same keys, so they can be one head's several queries.
        grouped = query.view(query.shape[0], key.shape[1], -1, query.shape[3])  # (B, kv heads, group, K)
        context = F.scaled_dot_product_attention(grouped, key, value, mask, dropout)
        return context.reshape(query.shape)  # some kernels leave the queries outside the heads
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal, enable_gqa=True)


def visible(query: Tensor, key: Tensor, *, causal: bool, window: int | None = None) -> Tensor:
    """Which positions (…, S) the positions (…, T) may look at, (…, T, S).

    `causal`: not at later ones. `window`: only at those less than so far away (restricted attention,
    Vaswani et al. 2017, section 4).
    """
    ahead = key.unsqueeze(-2) - query.unsqueeze(-1)  # (…, T, S)
    if causal:
        return ahead <= 0 if window is None else (ahead <= 0) & (ahead > -window)
    return torch.ones_like(ahead, dtype=torch.bool) if window is None else ahead.abs() < window


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to the scores: 0 where it is True, the lowest number elsewhere.

    The kernels want it so; made once, it serves every layer. Not −∞, which is NaN where a row sees nothing.
    Its rows lie a multiple of 8 apart in memory, or CUDA's kernel would copy it at each call.
    """
    size = mask.shape[-1]
    added = torch.zeros(*mask.shape[:-1], -(-size // 8) * 8, dtype=dtype, device=mask.device)[..., :size]
    return added.masked_fill_(~mask, torch.finfo(dtype).min)
