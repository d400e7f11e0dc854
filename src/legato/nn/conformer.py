"""The Conformer's blocks (Gulati et al. 2020), and stacks of them: attention for the whole, convolution for the near.

    x ← x + ½ FFN₁(norm(x))                 a block has a feed-forward layer on either side, at half weight
    x ← x + attention(norm(x))
    x ← x + convolution(norm(x))
    x ← norm(x + ½ FFN₂(norm(x)))

Notable here:

- `RelativeAttention`: a score is of content and of distance (Dai et al. 2019, section 3.3),

      score(i, j) = ((q_i + u) · k_j + (q_i + v) · W_r r_{i-j}) / √K

  with r the sinusoids of a distance, W_r a matrix of each layer and u, v vectors of each head; where there is a
  window, frames look only at those less than so far away;
- `ConvolutionModule`: pointwise with a gate (GLU), each channel along time, batch norm, swish, pointwise;
- `FrameNorm`: batch norm whose averages are of frames and never of padding;
- `Subsampling`: strided convolutions over time and frequency, depthwise separable after the first (Rekesh et al.
  2023), which leave a quarter or an eighth of the frames.

A row is padded on the right, and padding changes nothing before it.

Captured inside `record()`: `encoder.3.attention.weights` (B, H, T, T), `encoder.3.convolution.units` (B, T, D),
`encoder.3.feedforward_1.units`, `encoder.3.feedforward_2.units` (B, T, inner), `encoder.3.hidden` (B, T, D), and what
the first block reads, `encoder.embedded`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.attention import fused_attention
from legato.nn.capture import capture, capturing, scope
from legato.nn.convolution import BatchNorm
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape, FeedForward, make_norm
from legato.nn.linear import Linear, as_wide_as, xavier
from legato.nn.multihead import MultiHead

Count = TypeVar("Count", int, Tensor)


def relative_sinusoids(length: int, width: int, device: torch.device | None = None) -> Tensor:
    """Sinusoids of the distances from length - 1 down to 1 - length, (2T - 1, D): sines and cosines in turn."""
    distances = torch.arange(length - 1, -length, -1, device=device).float()
    rates = 10000 ** (-torch.arange(0, width, 2, device=device).float() / width)  # (⌈D/2⌉,)
    angles = distances.unsqueeze(1) * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :width]


def shift(scores: Tensor) -> Tensor:
    """Scores of distances (B, H, T, 2T - 1), from the farthest ahead, as scores of places (B, H, T, T).

    Row i wants columns T - 1 - i to 2T - 2 - i. With a column of zeros before them, all rows read as one lie one
    place off from row to row when they are cut anew (Dai et al. 2019, appendix B).

    >>> shift(torch.arange(6.0).view(1, 1, 2, 3))  # distances 1, 0, -1 of two queries
    tensor([[[[1., 2.],
              [3., 4.]]]])
    """
    rows, heads, length, _ = scores.shape
    padded = F.pad(scores, (1, 0)).view(rows, heads, 2 * length, length)
    return padded[:, :, 1:].reshape(rows, heads, length, 2 * length - 1)[..., :length]


class FrameView(NamedTuple):
    """What all layers of a pass share."""

    distances: Tensor  # (2T - 1, D), see `relative_sinusoids`
    inside: Tensor | None = None  # (B, T), True where there is a frame; left out: everywhere
    seen: Tensor | None = None  # (B, T, T) or as broadcasts to it, True where one sees another; left out: everywhere


class RelativeAttention(MultiHead):
    """Frames look at one another, and know how far apart they are."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__(shape, shape.bias)
        own = shape.heads * shape.head_size
        self.qkv = Linear(shape.width, 3 * own, shape.bias)  # W_q over W_k over W_v
        self.distance = Linear(shape.width, own, bias=False)  # W_r
        self.content_bias = nn.Parameter(torch.zeros(shape.heads, shape.head_size))  # u
        self.distance_bias = nn.Parameter(torch.zeros(shape.heads, shape.head_size))  # v
        xavier(self.qkv, own, own, own)
        xavier(self.distance)

    def forward(self, x: Tensor, view: FrameView) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        rows, length, _ = x.shape
        qkv = self.qkv(x).view(rows, length, 3, self.heads, self.head_width)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind()  # (B, H, T, K)
        far = self.distance(view.distances.to(x.dtype)).view(-1, self.heads, self.head_width)  # (2T - 1, H, K)
        by_distance = (query + self.distance_bias.to(query.dtype).unsqueeze(1)) @ far.permute(1, 2, 0)
        bias = shift(by_distance) / math.sqrt(self.head_width)  # (B, H, T, T)
        if view.seen is not None:
            bias = bias.masked_fill(~view.seen.unsqueeze(1), torch.finfo(bias.dtype).min)
        query = query + self.content_bias.to(query.dtype).unsqueeze(1)
        dropout = self.dropout if self.training else 0.0
        if self.fused and not capturing():
            context = fused_attention(query, key, value, bias, dropout=dropout)
        else:
            weights = (query @ key.transpose(2, 3) / math.sqrt(self.head_width) + bias).softmax(-1)
            capture("weights", weights, "row head position seen")
            context = F.dropout(weights, dropout, training=dropout > 0) @ value
        return self.output(context.transpose(1, 2).reshape(rows, length, -1))


class FrameNorm(BatchNorm):
    """Batch norm of channels over the frames of all rows, padding left out."""

    def forward(self, x: Tensor, inside: Tensor | None = None) -> Tensor:
        """(B, D, T), with `inside` (B, T), to (B, D, T)."""
        if inside is None or not (self.training and self.weight.requires_grad):
            return super().forward(x.unsqueeze(3)).squeeze(3)
        mask = inside.unsqueeze(1)  # (B, 1, T)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = inside.sum().clamp(min=1)
        mean = torch.where(mask, wide, 0).sum((0, 2)) / count  # (D,)
        var = torch.where(mask, wide - mean[:, None], 0).square().sum((0, 2)) / count
        mean, var = self._follow(mean, var, count)
        scale = self.weight * (var + self.eps).rsqrt()
        return (wide * scale[:, None] + (self.bias - mean * scale)[:, None]).to(x.dtype)

    def _follow(self, mean: Tensor, var: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Let the running averages follow a batch's; what to normalise by. Of one frame there is no variance."""
        running_mean, running_var = self.get_buffer("running_mean"), self.get_buffer("running_var")
        several = count > 1
        mean, var = torch.where(several, mean, running_mean), torch.where(several, var, running_var)
        share = torch.where(several, self.momentum or 0.0, 0.0)
        with torch.no_grad():
            unbiased = torch.where(several, var * count / (count - 1).clamp(min=1), running_var)
            # Not in place in what the gradient still needs.
            running_mean.copy_(running_mean + share * (mean - running_mean))
            running_var.copy_(running_var + share * (unbiased - running_var))
            self.get_buffer("num_batches_tracked").add_(several)
        return mean, var


class ConvolutionModule(nn.Module):
    """W₂ swish(norm(k ∗ GLU(W₁ x))), where k is a kernel along time for each channel."""

    def __init__(self, shape: BlockShape, kernel: int, bias: bool = True) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"a kernel of {kernel} frames has no middle; use an odd number")
        self.inner = Linear(shape.width, 2 * shape.width, bias)  # W₁: what passes over its gate
        self.depthwise = nn.Conv1d(
            shape.width, shape.width, kernel, padding=kernel // 2, groups=shape.width, bias=bias
        )
        self.norm = FrameNorm(shape.width)
        self.outer = Linear(shape.width, shape.width, bias)  # W₂
        xavier(self.inner, shape.width, shape.width)
        xavier(self.outer)

    def forward(self, x: Tensor, view: FrameView) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        x = F.glu(self.inner(x), dim=2)
        if view.inside is not None:
            x = x.masked_fill(~view.inside.unsqueeze(2), 0.0)
        x = F.silu(self.norm(self.depthwise(x.transpose(1, 2)), view.inside)).transpose(1, 2)
        capture("units", x, "row position unit")
        return self.outer(x)


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, convolution, the other half, and a norm."""

    def __init__(self, shape: BlockShape, kernel: int, bias_convolution: bool = True) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.feedforward_1, self.feedforward_1_norm = FeedForward(shape), make_norm(shape)
        self.attention, self.attention_norm = RelativeAttention(shape), make_norm(shape)
        self.convolution, self.convolution_norm = ConvolutionModule(shape, kernel, bias_convolution), make_norm(shape)
        self.feedforward_2, self.feedforward_2_norm = FeedForward(shape), make_norm(shape)
        self.norm = make_norm(shape)

    def forward(self, x: Tensor, view: FrameView) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        x = x + 0.5 * self._added("feedforward_1", self.feedforward_1, self.feedforward_1_norm(x))
        x = x + self._added("attention", self.attention, self.attention_norm(x), view)
        x = x + self._added("convolution", self.convolution, self.convolution_norm(x), view)
        x = x + 0.5 * self._added("feedforward_2", self.feedforward_2, self.feedforward_2_norm(x))
        return self.norm(x)

    def _added(self, name: str, sublayer: nn.Module, *inputs: Any) -> Tensor:
        with scope(name):
            y: Tensor = sublayer(*inputs)
        return dropout(y, self.dropout) if self.training else y


class ConformerStack(nn.Module):
    """Blocks one after the other; `name` is what their captured tensors are called after."""

    def __init__(
        self,
        name: str,
        layers: int,
        shape: BlockShape,
        kernel: int,
        *,
        window: int | None = None,
        bias_convolution: bool = True,
    ) -> None:
        super().__init__()
        self.name, self.window = name, window
        self.layers = nn.ModuleList(ConformerBlock(shape, kernel, bias_convolution) for _ in range(layers))

    def forward(self, x: Tensor, lengths: Tensor | None = None, *, every: list[Tensor] | None = None) -> Tensor:
        """Whole sequences (B, T, D), padded on the right. What each block leaves is added to `every`."""
        length, width = x.shape[1:]
        inside = None if lengths is None else torch.arange(length, device=x.device) < lengths[:, None]
        seen = None if inside is None else inside.unsqueeze(1)  # (B, 1, T)
        if self.window is not None and self.window < length:
            places = torch.arange(length, device=x.device)
            apart = (places[:, None] - places).abs()  # (T, T)
            near = (apart < self.window).unsqueeze(0)
            seen = near if seen is None else (seen & near) | (apart == 0)  # padding at least itself
        view = FrameView(relative_sinusoids(length, width, x.device), inside, seen)
        with scope(self.name):
            capture("embedded", x, "row position unit")
        for index, block in enumerate(self.layers):
            with scope(f"{self.name}.{index}"):
                x = block(x, view)
                capture("hidden", x, "row position unit")
            if every is not None:
                every.append(x)
        return x


def subsampled(length: Count, factor: int) -> Count:
    """How many frames are left of so many: half of them, rounded up, after each stride of 2.

    >>> subsampled(100, 8), subsampled(1, 4), subsampled(0, 4)
    (13, 1, 0)
    """
    for _ in range(factor.bit_length() - 1):
        length = (length + 1) // 2
    return length


class Subsampling(nn.Module):
    """Frames of F features to a `factor`-th as many of width D, by strides of 2 in time and frequency."""

    def __init__(self, features: int, width: int, channels: int, factor: int, kernel: int = 3) -> None:
        super().__init__()
        if factor < 2 or factor & (factor - 1):
            raise ValueError(f"frames can be subsampled by 2, 4, 8, …, not by {factor}")
        if kernel % 2 == 0:
            raise ValueError(f"a kernel of {kernel} frames has no middle; use an odd number")
        self.factor = factor
        self.first = nn.Conv2d(1, channels, kernel, 2, kernel // 2)
        self.depthwise = nn.ModuleList()
        self.pointwise = nn.ModuleList()
        for _ in range(factor.bit_length() - 2):
            self.depthwise.append(nn.Conv2d(channels, channels, kernel, 2, kernel // 2, groups=channels))
            self.pointwise.append(nn.Conv2d(channels, channels, 1))
        self.output = Linear(channels * subsampled(features, factor), width)
        xavier(self.output)

    def forward(self, frames: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """(B, T, F) and (B,) to (B, ⌈T / factor⌉, D) and (B,)."""
        x, lengths = self._clear(as_wide_as(self.first.weight, frames).unsqueeze(1), lengths)  # (B, 1, T, F)
        x, lengths = self._clear(self.first(x).relu(), lengths, 2)  # (B, C, T/2, F/2)
        for depthwise, pointwise in zip(self.depthwise, self.pointwise, strict=True):
            x, lengths = self._clear(pointwise(depthwise(x)).relu(), lengths, 2)
        return self.output(x.transpose(1, 2).flatten(2)), lengths

    def _clear(self, x: Tensor, lengths: Tensor | None, factor: int = 1) -> tuple[Tensor, Tensor | None]:
        """Zeros for the padding of (B, C, T, F), whose lengths were so many times larger."""
        if lengths is None:
            return x, None
        lengths = subsampled(lengths, factor)
        outside = torch.arange(x.shape[2], device=x.device) >= lengths[:, None]  # (B, T)
        return x.masked_fill(outside[:, None, :, None], 0.0), lengths
