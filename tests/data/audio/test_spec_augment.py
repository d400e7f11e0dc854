"""Other views of sounds: drawn for each row alone, within its length, as loud and as wide as the settings say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.data.audio.spec_augment import DRAWS, SpecAugment, SpecAugmentConfig, gaussian_noise

ALL: dict[str, Any] = {"gain": 6.0, "noise": 0.5, "frequency_masks": 2, "frequency_width": 5, "time_masks": 2}
LENGTHS = torch.tensor([400, 150, 1])


def augment(**settings: Any) -> SpecAugment:
    return SpecAugment(SpecAugmentConfig(**settings), seed=3)


def frames(rows: int = 3, total: int = 400, bins: int = 20) -> Tensor:
    return torch.randn(rows, total, bins, generator=torch.Generator().manual_seed(0))


def runs(hidden: Tensor) -> int:
    """How many stretches of True there are in a row of them."""
    return int((hidden.int().diff(prepend=torch.zeros(1, dtype=torch.int)) == 1).sum())


def test_draws_follow_from_seed_step_and_row() -> None:
    mine = augment(**ALL)
    assert mine.draws(5, 3).shape == (3, DRAWS)
    assert torch.equal(mine.draws(5, 3), augment().draws(5, 7)[:3])
    assert not torch.equal(mine.draws(5, 3), mine.draws(6, 3))
    assert not torch.equal(mine.draws(5, 3), SpecAugment(SpecAugmentConfig(), 4).draws(5, 3))


def test_a_row_changes_alone() -> None:
    mine, x, draws = augment(**ALL), frames(), augment().draws(1, 3)
    sound = x.flatten(1)
    samples = LENGTHS * 20
    for row in range(3):
        one = slice(row, row + 1)
        changed = mine.change_sound(sound[one], samples[one], draws[one])
        torch.testing.assert_close(changed, mine.change_sound(sound, samples, draws)[one])
        masked = mine.mask_frames(x[one], LENGTHS[one], draws[one])
        torch.testing.assert_close(masked, mine.mask_frames(x, LENGTHS, draws)[one])


def test_nothing_beyond_a_row_s_length_is_looked_at_or_changed() -> None:
    mine, x = augment(**ALL, time_share=1.0), frames()
    other = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        other[row, length:] = math.inf
    for step in range(5):
        draws = mine.draws(step, 3)
        for first, second in (
            (mine.mask_frames(x, LENGTHS, draws), mine.mask_frames(other, LENGTHS, draws)),
            (
                mine.change_sound(x[..., 0], LENGTHS, draws),
                mine.change_sound(other[..., 0], LENGTHS, draws),
            ),
        ):
            for row, length in enumerate(LENGTHS.tolist()):
                torch.testing.assert_close(first[row, :length], second[row, :length])
                assert (second[row, length:] == math.inf).all()


def test_time_masks_are_as_many_and_as_wide_as_they_may_be() -> None:
    mine, x = augment(time_masks=3, time_width=30, time_share=0.1), frames(200, 400)
    lengths = torch.full((200,), 400)
    lengths[100:] = 100  # a tenth: 10 frames
    hidden = mine.mask_frames(x, lengths, mine.draws(0, 200)) != x
    assert torch.equal(hidden.any(2), hidden.all(2))  # whole frames
    counts = hidden.any(2).sum(1)
    assert 60 < counts[:100].max() <= 90
    assert 20 < counts[100:].max() <= 30
    assert not hidden[100:, 100:].any()
    assert 2 < max(map(runs, hidden.any(2))) <= 3
    assert hidden[100:, 0].any()  # the first frame and the last one can be hidden
    assert hidden[100:, 99].any()


def test_frequency_masks_are_as_many_and_as_wide_as_they_may_be() -> None:
    mine, x = augment(frequency_masks=2, frequency_width=4), frames(200, 30)
    hidden = mine.mask_frames(x, None, mine.draws(0, 200)) != x
    assert torch.equal(hidden.any(1), hidden.all(1))  # of the whole sound
    counts = hidden.any(1).sum(1)
    assert counts.min() == 0
    assert counts.max() == 8
    assert max(map(runs, hidden.any(1))) == 2
    assert hidden.any(1)[:, 0].any()
    assert hidden.any(1)[:, -1].any()


def test_a_band_wider_than_all_hides_what_there_is() -> None:
    mine, x = augment(frequency_masks=10, frequency_width=1024), frames(3, 30) + 5
    found = mine.mask_frames(x, LENGTHS.clamp(max=30), torch.full((3, DRAWS), 1 - 2**-24))
    torch.testing.assert_close(found[0], x[0].mean().expand_as(found[0]))


def test_gain_is_in_decibels() -> None:
    sound, draws = frames()[..., 0], augment().draws(0, 3)
    for draw, decibels in ((0.0, -6.0), (0.5, 0.0), (0.75, 3.0)):
        draws[:, 0] = draw
        changed = augment(gain=6.0).change_sound(sound, None, draws)
        torch.testing.assert_close(changed, sound * 10 ** (decibels / 20))


def test_noise_is_as_loud_as_a_share_of_the_sound() -> None:
    sound = torch.sin(torch.arange(40_000) / 7).repeat(2, 1) * torch.tensor([[1.0], [0.1]])
    draws = augment().draws(0, 2)
    draws[:, 1] = 0.5
    added = augment(noise=0.4).change_sound(sound, None, draws) - sound
    torch.testing.assert_close(added.std(1), torch.tensor([0.2, 0.02]) / math.sqrt(2), rtol=0.03, atol=0)
    assert not augment(noise=1.0).change_sound(torch.zeros(2, 50), None, draws).any()


def test_noise_is_gaussian_and_another_for_each_row() -> None:
    keys = torch.rand(4, 2, generator=torch.Generator().manual_seed(1))
    keys[3] = keys[2] + 2**-24  # nearly the same numbers are other ones
    noise = gaussian_noise(keys, 50_000)
    assert torch.equal(noise, gaussian_noise(keys, 60_000)[:, :50_000])
    assert noise.mean(1).abs().max() < 0.02
    assert (noise.var(1) - 1).abs().max() < 0.03
    assert (noise.pow(4).mean(1) - 3).abs().max() < 0.2
    assert (torch.corrcoef(torch.cat((noise, noise.roll(1, 1)))) - torch.eye(8)).abs().max() < 0.02


@pytest.mark.parametrize("name", ["gain", "noise", "frequency_masks", "time_masks"])
def test_a_setting_moves_no_other_one_s_draws(name: str) -> None:
    assert augment().idle
    mine = augment(**{name: 2})
    assert not mine.idle
    x, draws = frames(), mine.draws(1, 3)
    both = augment(**{name: 2}, **({"gain": 3} if name != "gain" else {"noise": 1}))
    if name.endswith("masks"):
        torch.testing.assert_close(both.mask_frames(x, None, draws), mine.mask_frames(x, None, draws))
        assert not torch.equal(mine.mask_frames(x, None, draws), x)
        assert mine.change_sound(x[..., 0], None, draws) is not None
    else:
        assert not torch.equal(mine.change_sound(x[..., 0], None, draws), x[..., 0])
        assert mine.mask_frames(x, None, draws) is x
