"""Multi-head attention: several small attentions side by side, each with its own projections.

    head_i = softmax(Q_i K_iᵀ / √K) V_i          Q_i = W_q,i x,  K_i = W_k,i y,  V_i = W_v,i y
    MultiHead = W_o [head_1; …; head_H]          (Vaswani et al. 2017, section 3.2.2)

Notable here:

- `SelfAttention` (y is x) and `CrossAttention` (y is what an encoder left); the scores and the softmax are
  in `nn/attention.py`, fused as a rule, written out when somebody looks inside or `fused` is off;
- projections of the same input are one matrix: query, key and value of self-attention, key and value of
  cross-attention. Their rows stand in that order, head by head;
- with `kv_heads`, several heads of queries share one of keys and values (Ainslie et al. 2023); with `norm_heads`
  queries and keys are brought to one length before they are compared (Henry et al. 2020), as in Qwen 3;
- masks, positions and the past are made once and serve all layers: `AttentionView` and `Past`;
- what looks at each token alone need not see padding: with a `Packing` only attention does.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.attention import fused_attention, written_out_attention
from legato.nn.capture import capture, capturing
from legato.nn.feedforward import BlockShape
from legato.nn.kernels.description import is_stock, register
from legato.nn.kernels.training import attention_takes, self_attention
from legato.nn.linear import Linear, PartlyBiased, xavier
from legato.nn.positions import Rotation, rotate
from legato.nn.spans.spanned import Spans, spanned_attention


class Packing(NamedTuple):
    """Where the tokens are in a batch that is padded on the right; without the padding it is one long row."""

    places: Tensor  # (N,), among B · T
    rows: int  # B
    length: int  # T

    @classmethod
    def of(cls, lengths: Tensor, length: int) -> Packing:
        inside = torch.arange(length, device=lengths.device) < lengths[:, None]  # (B, T)
        return cls(inside.flatten().nonzero().squeeze(1), len(lengths), length)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, D) to (1, N, D)."""
        return x.flatten(0, 1).index_select(0, self.places).unsqueeze(0)

    def unpack(self, x: Tensor) -> Tensor:
        """(1, N, D) to (B, T, D), with zeros for padding."""
        padded = x.new_zeros(self.rows * self.length, x.shape[2])
        return padded.index_copy_(0, self.places, x[0]).view(self.rows, self.length, -1)


class AttentionView(NamedTuple):
    """Where the tokens of one pass stand and what they may see, the same in every layer."""

    mask: Tensor | None = None  # broadcastable to (B, H, T, S)
    causal: bool = False  # each token sees those up to itself; needs no mask
    rotation: Rotation | None = None
    packing: Packing | None = None  # then the tokens come as one long row, and leave so
    spans: Spans | None = None  # what is seen, in the place of a mask


class Past(NamedTuple):
    """A layer's share of a key/value cache, with places for the tokens of this pass."""

    new: Tensor  # (2, B, H, T, K), where the new keys and values go
    key: Tensor  # (B, H, S, K), old and new
    value: Tensor

    def write(self, new: Tensor) -> tuple[Tensor, Tensor]:
        """Take in keys and values (2, B, H, T, K); all there are."""
        self.new.copy_(new)
        return self.key, self.value


class Source(NamedTuple):
    """What a layer's cross-attention looks at: for each source, once, however many rows look at it."""

    key: Tensor  # (G, H, S, K); the batch's rows are G equal groups, one after the other
    value: Tensor
    mask: Tensor | None = None  # broadcastable to (G, H, T, S)


class SourceStates(NamedTuple):
    """The same without keys and values: a memory that all layers look at, each with its matrices in the queries."""

    states: Tensor  # (G, S, D)
    mask: Tensor | None = None  # broadcastable to (G, H, T, S)


class MultiHead(nn.Module):
    """What both attentions share: heads, the way out, the two ways to attend."""

    looks_at: ClassVar[str] = "seen"  # the axis of keys, where weights are captured

    def __init__(self, shape: BlockShape, bias: bool) -> None:
        super().__init__()
        if shape.head_width is None and shape.width % shape.heads:
            raise ValueError(f"{shape.heads} heads do not divide a width of {shape.width}")
        self.heads = shape.heads
        self.head_width = shape.head_size
        self.dropout = shape.dropout_attention
        self.fused = True
        self.output = Linear(shape.heads * shape.head_size, shape.width, bias)  # W_o
        xavier(self.output)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, rows: int
    ) -> Tensor:
        """Queries (G, T, H, K) to (G, T, H, K). What is captured has `rows` rows, like the batch."""
        dropout = self.dropout if self.training else 0.0
        query = query.transpose(1, 2)  # (G, H, T, K)
        if self.fused and not capturing():
            context = fused_attention(query, key, value, mask, causal=causal, dropout=dropout)
        else:
            context, weights = written_out_attention(query, key, value, mask, causal=causal, dropout=dropout)
            if capturing():
                per_source = weights.unflatten(2, (rows // len(weights), -1))  # (G, H, rows/G, T, S)
                capture("weights", per_source.transpose(1, 2).flatten(0, 1), f"row head position {self.looks_at}")
        return context.transpose(1, 2)


def _stacked(shape: BlockShape, heights: tuple[int, ...], bias: bool, key: int) -> Linear:
    """Projections of the same input as one matrix; the one at `key` may go without a bias."""
    if shape.bias_key or not bias:
        return Linear(shape.width, sum(heights), bias)
    return PartlyBiased(shape.width, heights, [place != key for place in range(len(heights))])


@register("self-attention")
class SelfAttention(MultiHead):
    """Tokens look at one another."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape, shape.bias if shape.bias_attention is None else shape.bias_attention)
        self.kv_heads = shape.kv_heads or shape.heads
        if shape.heads % self.kv_heads:
            raise ValueError(f"{self.kv_heads} key and value heads do not divide {shape.heads} heads")
        own, shared = shape.heads * shape.head_size, self.kv_heads * shape.head_size
        bias = shape.bias if shape.bias_qkv is None else shape.bias_qkv
        self.qkv = _stacked(shape, (own, shared, shared), bias, key=1)  # W_q over W_k over W_v
        xavier(self.qkv, own, shared, shared)
        self.query_norm = nn.RMSNorm(shape.head_size, eps=shape.eps) if shape.norm_heads else None
        self.key_norm = nn.RMSNorm(shape.head_size, eps=shape.eps) if shape.norm_heads else None

    def forward(self, x: Tensor, look: AttentionView = AttentionView(), past: Past | None = None) -> Tensor:
        qkv = self.qkv(x)
        if look.packing is not None:
            qkv = look.packing.unpack(qkv)
        rows, length, _ = qkv.shape  # (B, T, (H + 2 · kv heads) · K)
        heads, both = self.heads, self.heads + self.kv_heads
        qkv = qkv.view(rows, length, -1, self.head_width)  # (B, T, H + 2 · kv heads, K)
        if self.query_norm is not None and self.key_norm is not None:
            parts = self.query_norm(qkv[:, :, :heads]), self.key_norm(qkv[:, :, heads:both]), qkv[:, :, both:]
            qkv = torch.cat(parts, dim=2)
        if look.rotation is not None:
            qkv = torch.cat([rotate(qkv[:, :, :both], look.rotation), qkv[:, :, both:]], dim=2)
        if past is None and look.spans is not None:
            dropout = self.dropout if self.training else 0.0
            context = spanned_attention(qkv, heads, look.spans, dropout).flatten(2)
            return self.output(context if look.packing is None else look.packing.pack(context))
        if past is None:
            # Cut once, so that one pass puts their gradients together.
            query, key, value = qkv.split((heads, self.kv_heads, self.kv_heads), dim=2)
            key, value = key.transpose(1, 2), value.transpose(1, 2)  # (B, H, T, K)
            dropout = self.dropout if self.training else 0.0
            own = not self.fused or capturing()
            if not own and attention_takes(query.transpose(1, 2), key, look.mask, dropout) and is_stock(self):
                joined = self_attention(qkv, heads, look.mask, causal=look.causal, dropout=dropout)
                return self.output(joined.flatten(2))
        else:
            query, key_value = qkv[:, :, :heads], qkv[:, :, heads:]
            key_value = key_value.view(rows, length, 2, self.kv_heads, -1).permute(2, 0, 3, 1, 4)  # (2, B, H, T, K)
            key, value = past.write(key_value)
        if capturing() and past is None:
            serves = heads // self.kv_heads
            named = {"queries": query.transpose(1, 2), "keys": key, "values": value}
            for name, each in named.items():  # (B, H, T, K); a key may serve several queries
                shown = each if name == "queries" else each.repeat_interleave(serves, 1)
                capture(name, shown, "row head position unit")
        context = self.attend(query, key, value, look.mask, look.causal, rows).reshape(rows, length, -1)
        return self.output(context if look.packing is None else look.packing.pack(context))


@register("cross-attention")
class CrossAttention(MultiHead):
    """Tokens look at a memory."""

    looks_at = "source"

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape, shape.bias)
        own = shape.heads * shape.head_size
        self.query = Linear(shape.width, own, shape.bias)  # W_q
        self.key_value = _stacked(shape, (own, own), shape.bias, key=0)  # W_k over W_v
        xavier(self.query)
        xavier(self.key_value, own, own)

    def source(self, memory: Tensor, mask: Tensor | None = None, packing: Packing | None = None) -> Source:
        """Keys and values of a memory (G, S, D), which may come packed."""
        both = self.key_value(memory)
        if packing is not None:
            both = packing.unpack(both)
        both = both.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (2, G, H, S, K)
        return Source(both[0], both[1], mask)

    def forward(self, x: Tensor, source: Source | SourceStates) -> Tensor:
        rows, length, _ = x.shape  # (B, T, D)
        if isinstance(source, SourceStates):
            if not capturing():
                return self.output(self._look_at_states(x, source))
            source = self.source(source.states, source.mask)
        # Rows that look at one source are as good as one row with so many queries: keys are read once.
        query = self.query(x).view(len(source.key), -1, self.heads, self.head_width)  # (G, B/G · T, H, K)
        context = self.attend(query, source.key, source.value, source.mask, False, rows)
        return self.output(context.reshape(rows, length, -1))

    def _look_at_states(self, x: Tensor, source: SourceStates) -> Tensor:
        """The same context with the keys' matrix on the queries' side, and the values' behind the sum:

        q · (W_k m + b) = (W_kᵀ q) · m + q · b          q · b is the same for all m, and a softmax does not see it
        Σ a_s (W_v m_s + b) = W_v (Σ a_s m_s) + b
        """
        rows, length, _ = x.shape  # (B, T, D)
        heads, width, groups = self.heads, self.head_width, len(source.states)
        keys, values = self.key_value.weight.view(2, heads, width, -1).unbind()  # (H, K, D) each
        query = self.query(x).view(-1, heads, width).transpose(0, 1)  # (H, B · T, K)
        query = (query @ keys).transpose(0, 1).reshape(groups, 1, -1, source.states.shape[-1])  # (G, 1, n · H, D)
        states = source.states.unsqueeze(1)  # (G, 1, S, D)
        summed = F.scaled_dot_product_attention(query, states, states, source.mask, scale=width**-0.5)
        summed = summed.reshape(-1, heads, summed.shape[-1]).transpose(0, 1)  # (H, B · T, D)
        context = (summed @ values.transpose(1, 2)).transpose(0, 1).reshape(rows, length, -1)
        bias = self.key_value.added_bias
        return context if bias is None else context + bias[heads * width :]
