"""Many layers to one, many tokens to one."""

import pytest
import torch

from legato.errors import LegatoError
from legato.nn.pooling import AttentionPool, ScalarMix, combine_layers, pool

STATES = [torch.full((1, 2, 3), float(number)) for number in range(6)]  # the input and five layers


@pytest.mark.parametrize(
    ("how", "value", "width"),
    [
        ("last", 5, 3),
        ("first", 0, 3),
        ("second-to-last", 4, 3),
        ("sum-last-4", 2 + 3 + 4 + 5, 3),
        ("sum-all", 1 + 2 + 3 + 4 + 5, 3),
        ("mix", 2.5, 3),
    ],
)
def test_a_way_to_combine_layers(how: str, value: float, width: int) -> None:
    assert torch.equal(combine_layers(STATES, how), torch.full((1, 2, width), float(value)))


def test_joined_layers_stand_side_by_side() -> None:
    joined = combine_layers(STATES, "concat-last-4")
    assert joined.shape == (1, 2, 12)
    assert joined[0, 0].tolist() == [2.0] * 3 + [3.0] * 3 + [4.0] * 3 + [5.0] * 3


def test_too_few_layers_are_named() -> None:
    with pytest.raises(LegatoError, match="concat-last-4 needs 4 layers, and this model has 2"):
        combine_layers(STATES[:3], "concat-last-4")


def test_a_mix_starts_as_the_mean_and_follows_its_weights() -> None:
    mix = ScalarMix(6)
    assert torch.allclose(mix(STATES), torch.full((1, 2, 3), 2.5))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 0, 0, 0, 0, 100]))
        mix.scale.fill_(2)
    assert torch.allclose(mix(STATES), torch.full((1, 2, 3), 10.0))


HIDDEN = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]], [[5.0, 1.0], [99.0, 99.0], [99.0, 99.0]]])
LENGTHS = torch.tensor([2, 1])


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("first", [[1.0, -4.0], [5.0, 1.0]]),
        ("last", [[3.0, -2.0], [5.0, 1.0]]),
        ("mean", [[2.0, -3.0], [5.0, 1.0]]),
        ("max", [[3.0, -2.0], [5.0, 1.0]]),
    ],
)
def test_padding_is_not_pooled(how: str, expected: list[list[float]]) -> None:
    assert pool(HIDDEN, LENGTHS, how).tolist() == expected
    assert torch.equal(pool(HIDDEN[:1, :2], None, how), pool(HIDDEN, LENGTHS, how)[:1])


def test_attention_pools_what_is_there() -> None:
    layer = AttentionPool(2)
    both, alone = layer(HIDDEN, LENGTHS), layer(HIDDEN[:1, :2], None)
    assert torch.allclose(both[:1], alone)
    assert torch.allclose(both[1], HIDDEN[1, 0])
