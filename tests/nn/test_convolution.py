"""Convolutions with batch norms: what they compute, when statistics follow the batches, how edges are padded."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.convolution import BatchNorm, Convolution, running_statistics, same_padding


def grids(rows: int = 4, side: int = 5) -> Tensor:
    return 2 + 3 * torch.randn(rows, 2, side, side, generator=torch.Generator().manual_seed(0))


def test_a_batch_is_normalised_by_itself_and_remembered() -> None:
    norm, x = BatchNorm(2), grids()
    y = norm(x)
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(y.var((0, 2, 3), unbiased=False), torch.ones(2), atol=1e-5, rtol=0)
    assert norm.running_mean is not None
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean((0, 2, 3)))
    assert norm.num_batches_tracked == 1


def test_a_frozen_norm_is_the_same_in_training_and_in_evaluation() -> None:
    norm, x = BatchNorm(2), grids()
    norm(x)
    norm.weight.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    assert torch.equal(norm.train()(x), norm.eval()(x))
    assert all(torch.equal(norm.state_dict()[name], tensor) for name, tensor in before.items())
    assert running_statistics(nn.Sequential(norm)) == {}


def test_a_single_value_is_normalised_by_what_was_seen() -> None:
    norm = BatchNorm(2)
    norm(grids())
    before = norm.state_dict()["running_mean"].clone()
    x = grids(1, 1)
    assert torch.equal(norm(x), norm.eval()(x))
    assert torch.equal(norm.state_dict()["running_mean"], before)


@pytest.mark.parametrize("depthwise", [False, True])
def test_a_convolution_its_norm_and_its_activation(depthwise: bool) -> None:
    layer = Convolution(2, 4, 3, 2, activation=F.relu, depthwise=depthwise).eval()
    plain = F.conv2d(grids(), layer.convolution.weight, stride=2, padding=1, groups=2 if depthwise else 1)
    torch.testing.assert_close(layer(grids()), F.relu(plain / (1 + 1e-5) ** 0.5))
    assert layer.convolution.bias is None


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [(8, 8), (9, 12), (1, 2)])
def test_same_padding_puts_fewer_zeros_before_than_behind(kernel: int, size: tuple[int, int]) -> None:
    x = torch.ones(1, 2, *size)
    padded = same_padding(x, kernel, 2)
    for side, before, after in zip((2, 3), size, padded.shape[2:], strict=True):
        wide = (-(-before // 2) - 1) * 2 + kernel
        assert after == max(wide, before)
        line = padded[0, 0].amax(3 - side).tolist()
        assert line.index(1) == (after - before) // 2
    layer = Convolution(2, 2, kernel, 2, padding="same").eval()
    assert layer(x).shape[2:] == tuple(-(-n // 2) for n in size)


def test_what_is_padded_counts_only_with_a_stride() -> None:
    torch.manual_seed(0)
    for stride, alike in ((1, True), (2, False)):
        one, other = (Convolution(2, 2, 3, stride, padding=how).eval() for how in ("symmetric", "same"))  # type: ignore[arg-type]
        other.load_state_dict(one.state_dict())
        assert torch.allclose(one(grids(side=6)), other(grids(side=6)), atol=1e-6) == alike


def test_weights_begin_as_he_et_al_say() -> None:
    torch.manual_seed(0)
    layer = Convolution(64, 128, 3)
    assert layer.convolution.weight.std().item() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
