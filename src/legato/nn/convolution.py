"""What convolutional networks are made of: a convolution, its batch norm and an activation; how edges are padded.

    y = f(norm(W ∗ x))                                          no bias: the norm's shift is one
    norm(x) = γ (x - mean) / √(var + ε) + β                     batch norm (Ioffe & Szegedy 2015)

In training mean and variance are the batch's, of each channel; both are followed by running averages, which take
their place in evaluation. These are buffers: they are saved with the weights, and no gradient reaches them.

`symmetric` padding puts as many zeros on either side, k // 2 for a kernel of k. `same` is TensorFlow's: as few zeros
as ⌈n / stride⌉ results need, and where their number is odd, one more behind than before. With stride 1 and an odd k
both are alike; with stride 2 they look at other places of a picture, so weights are for one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.linear import as_wide_as

Padding = Literal["symmetric", "same"]
STATISTICS: Final = ("running_mean", "running_var")
FOLLOWED: Final = 0.01  # share of a sort's averages that a step adds to the network's own


class BatchNorm(nn.BatchNorm2d):
    """Batch norm that follows the batches only while it is trained.

    Where its scale is frozen it normalises by what it has seen before, and leaves that as it is: a frozen body gives
    the same features in training as later, and its folder still holds them. It does so, too, where a channel has a
    single value, of which there is no variance.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not (self.weight.requires_grad and x.numel() > x.shape[1]):
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


def batch_norms(module: nn.Module) -> list[BatchNorm]:
    """The batch norms inside a module."""
    return [part for part in module.modules() if isinstance(part, BatchNorm)]


class OwnStatistics(nn.Module):
    """The running averages of a network's norms for one sort of its inputs, in the place of the network's own.

    Norms that follow batches of several sorts in turn would divide each by the averages of all. The network's own
    follow those of every sort slowly, for whoever takes the network alone.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        for name, average in _averages(network):
            self.register_buffer(name.replace(".", "/"), average.clone())

    def begin(self, network: nn.Module) -> None:
        """Take over the network's own."""
        for name, average in _averages(network):
            self.get_buffer(name.replace(".", "/")).copy_(average)

    def applied(self, network: nn.Module, *inputs: Any) -> Any:
        """What the network makes of its inputs with these; in training they follow them."""
        own = {name.replace("/", "."): average for name, average in self.named_buffers()}
        if not own:
            return network(*inputs)
        made = torch.func.functional_call(network, own, inputs)
        if network.training:
            averages = dict(_averages(network))
            torch._foreach_lerp_([*averages.values()], [own[name] for name in averages], FOLLOWED)
        return made


def _averages(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, buffer) for name, buffer in network.named_buffers() if name.endswith(STATISTICS))


def running_statistics(module: nn.Module) -> dict[str, Tensor]:
    """The running averages that training a module changes, by their names."""
    found: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        if isinstance(part, BatchNorm) and part.weight.requires_grad:
            found |= {f"{name}.{each}".removeprefix("."): part.get_buffer(each) for each in STATISTICS}
        elif isinstance(part, OwnStatistics):
            found |= {f"{name}.{each}".removeprefix("."): buffer for each, buffer in part.named_buffers()}
    return found


class Convolution(nn.Module):
    """A convolution of k × k pixels with its batch norm, and an activation behind it where one is given."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        depthwise: bool = False,  # each channel by itself
        dilation: int = 1,  # pixels from one that the kernel reads to the next
        padding: Padding = "symmetric",
        eps: float = 1e-5,
        momentum: float = 0.1,  # of the running averages
    ) -> None:
        super().__init__()
        self.activation = activation
        self.pads = padding == "same" and stride > 1
        self.convolution = nn.Conv2d(
            inputs,
            outputs,
            kernel,
            stride,
            padding=0 if self.pads else dilation * (kernel // 2),
            dilation=dilation,
            groups=inputs if depthwise else 1,
            bias=False,
        )
        self.norm = BatchNorm(outputs, eps=eps, momentum=momentum)
        # He et al. 2015, equation 14: what comes back through a ReLU keeps its variance.
        nn.init.kaiming_normal_(self.convolution.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C′, ⌈H / stride⌉, ⌈W / stride⌉)."""
        if self.pads:
            x = same_padding(x, self.convolution.kernel_size[0], self.convolution.stride[0])
        x = self.norm(self.convolution(as_wide_as(self.convolution.weight, x)))
        return x if self.activation is None else self.activation(x)


def same_padding(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Pictures (B, C, H, W) with TensorFlow's zeros around them."""
    height, width = (_zeros(size, kernel, stride) for size in x.shape[2:])
    return F.pad(x, (*width, *height))


def _zeros(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """How many zeros are put before and behind a side of so many pixels.

    >>> _zeros(224, 3, 2), _zeros(225, 3, 2), _zeros(224, 5, 2)
    ((0, 1), (1, 1), (1, 2))
    """
    count = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return count // 2, count - count // 2
