"""The Conformer's parts: beside Parakeet's of `transformers`, fused and written out, padded and alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import ParakeetEncoderConfig
from transformers.models.parakeet import modeling_parakeet as theirs

from legato.nn.capture import record
from legato.nn.conformer import (
    ConformerBlock,
    ConformerStack,
    ConvolutionModule,
    FrameNorm,
    FrameView,
    RelativeAttention,
    Subsampling,
    relative_sinusoids,
    subsampled,
)
from legato.nn.convolution import running_statistics
from legato.nn.feedforward import BlockShape

B, T, D, H, F = 3, 9, 16, 4, 20
SHAPE = BlockShape(D, H, 24, activation="silu")
LENGTHS = torch.tensor([9, 4, 7])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def config(factor: int = 4, bias: bool = True) -> Any:
    made = ParakeetEncoderConfig(
        hidden_size=D,
        num_hidden_layers=2,
        num_attention_heads=H,
        intermediate_size=24,
        conv_kernel_size=5,
        subsampling_factor=factor,
        subsampling_conv_channels=6,
        num_mel_bins=16,
        attention_bias=bias,
        convolution_bias=bias,
        scale_input=False,
    )
    made._attn_implementation = "sdpa"
    return made


@torch.no_grad()
def scrambled(module: Any) -> Any:
    """In evaluation, with biases, norms and averages that are not what they start as."""
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            tensor.normal_(0.0, 0.5)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return module.eval()


def copied(ours: nn.Module, source: nn.Module, names: dict[str, list[str]]) -> None:
    """Their tensors in ours; several of theirs may be one of ours. Every tensor of ours is set."""
    tensors = source.state_dict()
    own = ours.state_dict()
    parts = {name: [tensors[one] for one in names[name]] for name in own}
    made = {name: torch.cat(several) if len(several) > 1 else several[0] for name, several in parts.items()}
    ours.load_state_dict({name: tensor.view(own[name].shape) for name, tensor in made.items()})


def attention_names(ours: str = "", source: str = "", bias: bool = True) -> dict[str, list[str]]:
    names = {}
    for kind in ("weight", "bias") if bias else ("weight",):
        names[f"{ours}qkv.{kind}"] = [f"{source}{one}_proj.{kind}" for one in "qkv"]
        names[f"{ours}output.{kind}"] = [f"{source}o_proj.{kind}"]
    return names | {
        f"{ours}distance.weight": [f"{source}relative_k_proj.weight"],
        f"{ours}content_bias": [f"{source}bias_u"],
        f"{ours}distance_bias": [f"{source}bias_v"],
    }


def convolution_names(ours: str = "", source: str = "") -> dict[str, list[str]]:
    parts = {"inner": "pointwise_conv1", "depthwise": "depthwise_conv", "norm": "norm", "outer": "pointwise_conv2"}
    kinds = ("weight", "bias", "running_mean", "running_var")
    names = {f"{ours}{one}.{kind}": [f"{source}{other}.{kind}"] for one, other in parts.items() for kind in kinds}
    return names | {f"{ours}norm.num_batches_tracked": [f"{source}norm.num_batches_tracked"]}


def block_names(ours: str = "", source: str = "", bias: bool = True) -> dict[str, list[str]]:
    names = attention_names(f"{ours}attention.", f"{source}self_attn.", bias)
    names |= convolution_names(f"{ours}convolution.", f"{source}conv.")
    norms = {"attention_norm": "norm_self_att", "convolution_norm": "norm_conv", "norm": "norm_out"}
    for one in "12":
        norms[f"feedforward_{one}_norm"] = f"norm_feed_forward{one}"
        norms[f"feedforward_{one}.inner"] = f"feed_forward{one}.linear1"
        norms[f"feedforward_{one}.outer"] = f"feed_forward{one}.linear2"
    return names | {
        f"{ours}{one}.{k}": [f"{source}{other}.{k}"] for one, other in norms.items() for k in ("weight", "bias")
    }


def subsampling_names(factor: int, ours: str = "", source: str = "") -> dict[str, list[str]]:
    places = {"first": "layers.0", "output": "linear"}
    for stage in range(factor.bit_length() - 2):
        places[f"depthwise.{stage}"] = f"layers.{2 + 3 * stage}"
        places[f"pointwise.{stage}"] = f"layers.{3 + 3 * stage}"
    return {f"{ours}{one}.{k}": [f"{source}{other}.{k}"] for one, other in places.items() for k in ("weight", "bias")}


def inside(lengths: Tensor = LENGTHS, length: int = T) -> Tensor:
    return torch.arange(length) < lengths[:, None]


def view(masked: bool = True) -> FrameView:
    own = inside() if masked else None
    return FrameView(relative_sinusoids(T, D), own, None if own is None else own.unsqueeze(1))


def their_mask() -> Tensor:
    return (inside().unsqueeze(1) & inside().unsqueeze(2)).unsqueeze(1)  # (B, 1, T, T)


def close(left: Tensor, right: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


def test_distances_are_theirs() -> None:
    positions = theirs.ParakeetEncoderRelPositionalEncoding(config())
    close(relative_sinusoids(T, D), positions(torch.zeros(1, T, D))[0])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_relative_attention_is_theirs(masked: bool, bias: bool) -> None:
    other = scrambled(theirs.ParakeetEncoderAttention(config(bias=bias), 0))
    ours = RelativeAttention(BlockShape(D, H, 24, bias=bias)).eval()
    copied(ours, other, attention_names(bias=bias))
    x = torch.randn(B, T, D)
    positions = relative_sinusoids(T, D).expand(B, -1, -1)
    wanted, _ = other(x, position_embeddings=positions, attention_mask=their_mask() if masked else None)
    found = ours(x, view(masked))
    valid = inside() if masked else torch.ones(B, T, dtype=torch.bool)
    close(found[valid], wanted[valid])


def test_a_score_is_that_of_content_and_of_distance() -> None:
    """Place by place, without the shift."""
    ours = scrambled(RelativeAttention(SHAPE)).double()
    x = torch.randn(1, T, D).double()
    query, key, _ = ours.qkv(x).view(T, 3, H, -1).unbind(1)  # (T, H, K)
    far = ours.distance(relative_sinusoids(T, D).double()).view(2 * T - 1, H, -1)
    scores = torch.empty(H, T, T).double()
    for i in range(T):
        for j in range(T):
            content = (query[i] + ours.content_bias) * key[j]
            distance = (query[i] + ours.distance_bias) * far[T - 1 - (i - j)]
            scores[:, i, j] = (content + distance).sum(-1) / (D // H) ** 0.5
    with record() as trace:
        ours(x, view(masked=False))
    close(trace["weights"][0][0], scores.softmax(-1), 1e-9)


@pytest.mark.parametrize("masked", [True, False])
def test_the_convolution_module_is_theirs(masked: bool) -> None:
    other = scrambled(theirs.ParakeetEncoderConvolutionModule(config()))
    ours = ConvolutionModule(SHAPE, 5).eval()
    copied(ours, other, convolution_names())
    x = torch.randn(B, T, D)
    found, wanted = ours(x, view(masked)), other(x, their_mask() if masked else None)
    valid = inside() if masked else torch.ones(B, T, dtype=torch.bool)
    close(found[valid], wanted[valid])


def paired(factor: int = 4) -> tuple[Subsampling, ConformerStack, Any]:
    """Their encoder's weights in our subsampling and our stack."""
    other = scrambled(theirs.ParakeetEncoder(config(factor)))
    first = Subsampling(16, D, 6, factor).eval()
    copied(first, other, subsampling_names(factor, source="subsampling."))
    stack = ConformerStack("encoder", 2, SHAPE, 5).eval()
    names: dict[str, list[str]] = {}
    for index in range(2):
        names |= block_names(f"layers.{index}.", f"layers.{index}.")
    copied(stack, other, names)
    return first, stack, other


def test_a_block_is_theirs() -> None:
    _, stack, other = paired()
    x = torch.randn(B, T, D)
    positions = relative_sinusoids(T, D).expand(B, -1, -1)
    wanted = other.layers[0](x, attention_mask=their_mask(), position_embeddings=positions)
    close(stack.layers[0](x, view())[inside()], wanted[inside()])


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_subsampling_and_the_whole_stack_are_theirs(factor: int) -> None:
    first, stack, other = paired(factor)
    lengths = torch.tensor([61, 33, 8])
    valid = torch.arange(61) < lengths[:, None]
    frames = torch.randn(3, 61, 16) * valid.unsqueeze(2)
    states, left = first(frames, lengths)
    assert left is not None
    assert left.tolist() == [subsampled(length, factor) for length in (61, 33, 8)]
    assert left.tolist() == other._get_subsampling_output_length(lengths).tolist()
    rest = inside(left, states.shape[1])
    close(states[rest], other.subsampling(frames, valid)[rest])
    wanted = other(frames, attention_mask=valid)
    assert wanted.attention_mask.sum(1).tolist() == left.tolist()
    close(stack(states, left)[rest], wanted.last_hidden_state[rest])
    unpadded, _ = first(frames[:1])
    close(stack(unpadded), other(frames[:1]).last_hidden_state)


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([2, 4, 8]))
def test_padding_never_changes_a_row(lengths: list[int], factor: int) -> None:
    torch.manual_seed(0)
    first, stack = scrambled(Subsampling(F, D, 6, factor)), scrambled(ConformerStack("encoder", 2, SHAPE, 5))
    frames = 9 * torch.randn(len(lengths), 43, F)  # what is in the padding is no zero
    states, left = first(frames, torch.tensor(lengths))
    states = stack(states, left)
    for row, length in enumerate(lengths):
        alone = stack(*first(frames[row : row + 1, :length], torch.tensor([length])))
        close(states[row, : left[row]], alone[0])
        assert alone.shape[1] == subsampled(length, factor)


@pytest.mark.parametrize("window", [1, 3, 40])
def test_with_a_window_frames_see_those_near_them(window: int) -> None:
    torch.manual_seed(0)
    stack = scrambled(ConformerStack("encoder", 2, SHAPE, 3, window=window))
    reach = 2 * (window - 1 + 1)  # of two layers, each with its attention and a kernel of 3
    x = torch.randn(1, 40, D)
    other = x.clone()
    other[0, 20] += torch.randn(D)
    changed = (stack(x) - stack(other)).abs().amax(2)[0] > 1e-6
    assert changed[20]
    assert not changed[: max(0, 20 - reach)].any()
    assert not changed[20 + reach + 1 :].any()
    if window == 40:
        whole = scrambled(ConformerStack("encoder", 2, SHAPE, 3))
        whole.load_state_dict(stack.state_dict())
        close(stack(x), whole(x))
    with record():
        close(stack(x, torch.tensor([30]))[:, :30], stack(x[:, :30]))  # the plain way, with padding


def test_in_training_the_norm_is_of_frames_alone_and_follows_them() -> None:
    ours, other = FrameNorm(D), nn.BatchNorm1d(D)
    x = 2 + 3 * torch.randn(B, D, T)
    valid = inside()
    frames = x.transpose(1, 2)[valid]  # (N, D)
    close(ours(x, valid).transpose(1, 2)[valid], other(frames))
    for name, average in other.state_dict().items():
        close(ours.state_dict()[name].float(), average.float())
    assert running_statistics(ours).keys() == {"running_mean", "running_var"}
    ours.eval(), other.eval()
    close(ours(x, valid).transpose(1, 2)[valid], other(frames))


def test_gradients_of_the_norm_are_those_of_batch_norm() -> None:
    ours, other = FrameNorm(D).double(), nn.BatchNorm1d(D).double()
    x = torch.randn(B, D, T, dtype=torch.double, requires_grad=True)
    y = torch.randn(int(LENGTHS.sum()), D).double()
    (ours(x, inside()).transpose(1, 2)[inside()] * y).sum().backward()
    found, x.grad = x.grad, None
    (other(x.transpose(1, 2)[inside()]) * y).sum().backward()
    close(found, x.grad)
    close(ours.weight.grad, other.weight.grad)


def test_a_single_frame_and_a_frozen_norm_are_normalised_by_what_was_seen() -> None:
    norm = FrameNorm(D)
    norm(torch.randn(B, D, T), inside())
    seen = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    one, x = inside(torch.tensor([1, 0, 0])), torch.randn(B, D, T)
    close(norm(x, one)[0, :, 0], norm.eval()(x)[0, :, 0])
    norm.train().weight.requires_grad_(False)
    close(norm(x, inside()), norm.eval()(x))
    assert all(torch.equal(norm.state_dict()[name], tensor) for name, tensor in seen.items())


def test_in_training_what_is_in_the_padding_changes_no_loss_nor_gradient() -> None:
    found = []
    for noise in (0.0, 5.0):
        torch.manual_seed(1)
        first, stack = Subsampling(F, D, 6, 4), ConformerStack("encoder", 2, SHAPE, 5)
        frames = torch.randn(B, 40, F)
        lengths = torch.tensor([40, 17, 30])
        frames = torch.where(inside(lengths, 40).unsqueeze(2), frames, noise)
        states, left = first(frames, lengths)
        loss = stack(states, left)[inside(left, 10)].square().mul(torch.arange(D)).sum()
        loss.backward()
        gradients = [p.grad for module in (first, stack) for p in module.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
        found.append([loss.detach(), *gradients, *running_statistics(stack).values()])
    for left_one, right_one in zip(*found, strict=True):
        assert torch.equal(left_one, right_one)


def test_gradients_reach_every_parameter() -> None:
    block = ConformerBlock(SHAPE, 5)
    (block(torch.randn(B, T, D), view()) * torch.randn(B, T, D)).sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # Batch norm takes away the bias before it.
        assert parameter.grad.abs().max() > 0 or name == "convolution.depthwise.bias", name


def test_a_look_inside_changes_nothing_and_names_its_parts() -> None:
    stack = scrambled(ConformerStack("encoder", 2, SHAPE, 5))
    x = torch.randn(B, T, D)
    with record() as trace:
        seen = stack(x, LENGTHS)
    every: list[Tensor] = []
    close(stack(x, LENGTHS, every=every)[inside()], seen[inside()])
    assert len(every) == 2
    shapes = {name: tuple(tensors[0].shape) for name, tensors in trace.items()}
    parts = {
        "attention.weights": (B, H, T, T),
        "convolution.units": (B, T, D),
        "feedforward_1.units": (B, T, 24),
        "feedforward_2.units": (B, T, 24),
        "hidden": (B, T, D),
    }
    own = {f"encoder.{index}.{name}": shape for index in range(2) for name, shape in parts.items()}
    assert shapes == {**own, "encoder.embedded": (B, T, D)}
    weights = trace["encoder.0.attention.weights"][0]
    assert not weights.transpose(2, 3).masked_select(~inside()[:, None, :, None]).any()
    close(weights.sum(-1), torch.ones(B, H, T))


def test_dropout_acts_in_training_only() -> None:
    block = ConformerBlock(BlockShape(D, H, 24, activation="silu", dropout=0.5), 5)
    x = torch.randn(B, T, D)
    assert not torch.equal(block(x, view()), block(x, view()))
    block.eval()
    assert torch.equal(block(x, view()), block(x, view()))


def test_shapes_that_cannot_be_are_said() -> None:
    with pytest.raises(ValueError, match="2, 4, 8, …, not by 6"):
        Subsampling(F, D, 6, 6)
    with pytest.raises(ValueError, match="no middle"):
        ConvolutionModule(SHAPE, 4)
