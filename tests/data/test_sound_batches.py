"""Batches of sounds: by seconds, kept or decoded ahead, the same for a step whoever asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from legato.data.audio.sound_files import Sound, sound_file
from legato.data.audio.spec_augment import SpecAugment, SpecAugmentConfig, resampled_by
from legato.data.audio.toy_sounds import ToySounds, ToySoundsConfig
from legato.data.batching.batch import IGNORE, Inputs
from legato.data.batching.batches import BatchShape
from legato.data.batching.sound_batches import SoundBatches, Waves, sound_batch
from legato.errors import DataError
from tiny_sounds import RATE, TEXTS, samples_of, write_sound


@pytest.fixture
def sounds(tmp_path: Path) -> list[Sound]:
    return [
        sound_file(write_sound(tmp_path / f"{number}.wav", samples_of(text, number)))
        for number, text in enumerate(TEXTS * 2)
    ]


def batches(sounds: list[Sound], keep: bool, **shape: Any) -> SoundBatches:
    targets = [[number, number] for number in range(len(sounds))]
    make = lambda inputs, rows: sound_batch(inputs, [targets[row] for row in rows])  # noqa: E731
    return SoundBatches(Waves(sounds, RATE, keep=keep), make, BatchShape(3, **{"batch_tokens": 150, **shape}))


def test_an_epoch_has_every_sound_once(sounds: list[Sound]) -> None:
    made = batches(sounds, keep=True)
    for epoch in range(2):
        steps = range(epoch * made.steps_per_epoch, (epoch + 1) * made.steps_per_epoch)
        seen = [int(row[0]) for step in steps for row in made.at(step).targets]  # type: ignore[union-attr]
        assert sorted(seen) == list(range(len(sounds)))


def test_a_batch_has_no_more_seconds_than_said(sounds: list[Sound]) -> None:
    made = batches(sounds, keep=True)
    for step in range(made.steps_per_epoch):
        batch = made.at(step)
        assert batch.inputs.lengths is not None
        assert batch.rows * int(batch.inputs.lengths.max()) <= 1.5 * RATE + batch.rows * 160
        assert batch.tokens == 2 * batch.rows
        assert batch.read <= 150
    assert {made.at(step).rows for step in range(made.steps_per_epoch)} != {1}
    assert all(batches(sounds, keep=True, batch_rows=5).at(step).rows <= 5 for step in range(3))


def test_what_is_decoded_ahead_is_what_is_kept(sounds: list[Sound]) -> None:
    kept, ahead = batches(sounds, keep=True), batches(sounds, keep=False)
    for step in (0, 1, 2, 7, 1):  # in order, and not
        one, other = kept.at(step), ahead.at(step)
        assert torch.equal(one.inputs.content, other.inputs.content)
        assert torch.equal(one.inputs.lengths, other.inputs.lengths)  # type: ignore[arg-type]
        assert torch.equal(one.targets, other.targets)  # type: ignore[arg-type]


def test_some_of_the_sounds(sounds: list[Sound]) -> None:
    whole = Waves(sounds, RATE)
    part = whole.select([3, 1])
    assert len(part) == 2
    found, lengths = part.take([0, 1])
    assert lengths.tolist() == [len(sounds[3].load(RATE)), len(sounds[1].load(RATE))]
    assert torch.equal(found[1, : lengths[1]], torch.from_numpy(sounds[1].load(RATE)))
    seen = [number for numbers, _, _ in whole.scored(0.5) for number in numbers]
    assert sorted(seen) == list(range(len(sounds)))


def test_rows_of_few_tokens_end_in_what_carries_no_loss() -> None:
    targets = sound_batch(Inputs(values=torch.zeros(2, 5)), [[1], [2, 3, 4]]).targets
    assert targets is not None
    assert sorted(targets.tolist()) == [[1, IGNORE, IGNORE], [2, 3, 4]]


def test_a_sound_longer_than_a_batch_is_refused(sounds: list[Sound]) -> None:
    with pytest.raises(DataError, match=r"seconds, more than a batch of 0.1; raise data.batch_seconds"):
        batches(sounds, keep=True, batch_tokens=10)


def test_made_sounds_are_kept_alike() -> None:
    made = [each.sound for each in ToySounds(ToySoundsConfig(count=3), "train", 0)]
    found, lengths = Waves(made, RATE).take([2])
    assert np.array_equal(found[0].numpy(), made[2].load(RATE))
    assert int(lengths[0]) == found.shape[1]


def test_speed_moves_pitches_and_lengths() -> None:
    times = torch.arange(RATE) / RATE
    tone = torch.sin(2 * torch.pi * 440 * times)[None]
    lengths = torch.tensor([RATE])
    for factor in (0.9, 1.0, 1.1):
        found, counts = resampled_by(tone, lengths, torch.tensor([factor], dtype=torch.double), 18_000)
        count = int(counts[0])
        assert abs(count - RATE / factor) <= 1
        assert not found[0, count:].any()
        wanted = torch.sin(2 * torch.pi * 440 * factor * torch.arange(count) / RATE)
        assert (found[0, : count - 4] - wanted[: count - 4]).abs().max() < 2e-3
    same, _ = resampled_by(tone, lengths, torch.ones(1, dtype=torch.double), RATE)
    assert torch.allclose(same, tone, atol=1e-6)


def test_each_row_has_its_own_speed() -> None:
    mine = SpecAugment(SpecAugmentConfig(speed=0.2), seed=1)
    assert not mine.idle
    sound, lengths = torch.randn(3, 1000), torch.tensor([1000, 500, 10])
    changed, counts = mine.change_speed(sound, lengths, mine.draws(4, 3))
    assert counts is not None
    assert len(set((counts / lengths).tolist())) == 3
    assert ((counts / lengths) > 0.8).all()
    alone, _ = mine.change_speed(sound[1:2, :500], lengths[1:2], mine.draws(4, 3)[1:2])
    assert torch.equal(alone[0, : int(counts[1])], changed[1, : int(counts[1])])
    plain = SpecAugment(SpecAugmentConfig(), seed=1)
    assert plain.change_speed(sound, None, plain.draws(4, 3)) == (sound, None)


def test_batches_of_few_shapes_are_filled_up_with_rows_without_a_sound(sounds: list[Sound]) -> None:
    targets = [[number] * (1 + number % 3) for number in range(len(sounds))]
    make = lambda inputs, rows: sound_batch(inputs, [targets[row] for row in rows])  # noqa: E731
    made = SoundBatches(
        Waves(sounds, RATE),
        make,
        BatchShape(3, batch_tokens=350, fixed_shape=True),
        augmentation=SpecAugment(SpecAugmentConfig(speed=0.1), 1),
        tokens=[len(row) for row in targets],
    )
    shapes, seen = set(), []
    for step in range(made.steps_per_epoch):
        batch = made.at(step)
        inputs = batch.inputs
        assert inputs.lengths is not None
        assert batch.targets is not None
        assert inputs.draws is not None
        assert batch.fixed_shape
        shapes.add((inputs.content.shape, inputs.draws.shape, batch.targets.shape))
        own = inputs.lengths > 0
        seen += batch.targets[own, 0].tolist()
        assert (batch.targets[~own] == IGNORE).all()
        assert not inputs.content[~own].any()
        assert batch.tokens == int((batch.targets != IGNORE).sum())
        assert batch.read <= 350
    assert sorted(seen) == list(range(len(sounds)))
    assert len(shapes) == len({shape[0][1] for shape in shapes})  # one for each width
