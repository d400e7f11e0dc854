"""Batches of sounds in few shapes: what is in the rows that fill them up, and in those of sounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from legato.data.audio.sound_files import Sound, sound_file
from legato.data.audio.spec_augment import SpecAugment, SpecAugmentConfig
from legato.data.batching.batch import IGNORE
from legato.data.batching.batches import BatchShape
from legato.data.batching.sound_batches import SoundBatches, Waves, sound_batch
from tiny_sounds import RATE, write_sound

SECONDS = (0.4, 0.9, 0.6, 0.3, 1.7, 1.4, 1.9, 1.2)  # four sounds of 100 positions, four of 200
TARGETS = ([0], [1, 1], [2, 2, 2, 2], [3], [4], [5], [6, 6], [7])
ROWS = {100: 6, 200: 3}  # of each width, where a batch has 600 positions


@pytest.fixture
def sounds(tmp_path: Path) -> list[Sound]:
    draw = np.random.default_rng(0)
    return [
        sound_file(write_sound(tmp_path / f"{number}.wav", draw.uniform(-0.5, 0.5, int(seconds * RATE))))
        for number, seconds in enumerate(SECONDS)
    ]


def batches(
    sounds: list[Sound], targets: Sequence[list[int]], augmentation: SpecAugment | None = None
) -> SoundBatches:
    make = lambda inputs, rows: sound_batch(inputs, [targets[row] for row in rows])  # noqa: E731
    shape, counts = BatchShape(3, batch_tokens=600, fixed_shape=True), [len(row) for row in targets]
    return SoundBatches(Waves(sounds, RATE), make, shape, augmentation=augmentation, tokens=counts)


def test_sounds_come_first_as_they_are_and_the_rows_behind_them_hold_nothing(sounds: list[Sound]) -> None:
    augmentation = SpecAugment(SpecAugmentConfig(speed=0.1), 1)
    made = batches(sounds, TARGETS, augmentation)
    seen, empty = [], 0
    for step in range(made.steps_per_epoch):
        batch = made.at(step)
        content, lengths, draws = batch.inputs.content, batch.inputs.lengths, batch.inputs.draws
        assert lengths is not None
        assert draws is not None
        assert batch.targets is not None
        assert batch.fixed_shape
        rows = ROWS[content.shape[1] * 100 // RATE]
        assert len(content) == len(lengths) == len(draws) == len(batch.targets) == rows

        own = [number for number in batch.targets[:, 0].tolist() if number != IGNORE]
        for row, number in enumerate(own):
            samples = torch.from_numpy(sounds[number].load(RATE))
            assert lengths[row] == len(samples)
            assert torch.equal(content[row, : len(samples)], samples)
            assert not content[row, len(samples) :].any()
            assert batch.targets[row].tolist() == [*TARGETS[number], *[IGNORE] * (4 - len(TARGETS[number]))]
        assert torch.equal(draws[: len(own)], augmentation.draws(step, len(own)))
        assert not any(part[len(own) :].any() for part in (content, lengths, draws))
        assert (batch.targets[len(own) :] == IGNORE).all()
        seen += own
        empty += rows - len(own)
    assert sorted(seen) == list(range(len(sounds)))
    assert empty == 4  # two beside the short sounds, two beside the last long one


def test_targets_are_as_wide_as_the_longest_of_any_sound_that_fits(sounds: list[Sound]) -> None:
    for talkative, wanted in ((2, {(100, 5), (200, 5)}), (5, {(100, 1), (200, 5)})):  # a short sound, a long one
        made = batches(sounds, [[number] * (5 if number == talkative else 1) for number in range(len(sounds))])
        shapes = set()
        for step in range(made.steps_per_epoch):
            batch = made.at(step)
            assert batch.targets is not None
            assert batch.inputs.draws is None
            shapes.add((batch.inputs.content.shape[1] * 100 // RATE, batch.targets.shape[1]))
        assert shapes == wanted


@pytest.mark.parametrize("keep", [True, False])
def test_a_sound_that_decodes_to_a_sample_more_than_its_header_says(keep: bool, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    file = write_sound(tmp_path / "odd.wav", draw.uniform(-0.5, 0.5, 32_001), rate=32_000)
    waves = Waves([sound_file(file)], 16_000, keep=keep)
    make = lambda inputs, rows: sound_batch(inputs, [[1] for _ in rows])  # noqa: E731
    batch = SoundBatches(waves, make, BatchShape(3, batch_tokens=600, fixed_shape=True), tokens=[1]).at(0)
    assert batch.inputs.content.shape[1] in (16_000, 32_000)
    assert batch.inputs.lengths is not None
    assert int(batch.inputs.lengths.max()) <= batch.inputs.content.shape[1]
