"""Sounds that are made: the same for a seed, apart in each split, and telling what their transcript says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from legato.data.audio.toy_sounds import (
    LEAST_DIGITS,
    PITCHES,
    ToySound,
    ToySounds,
    ToySoundsConfig,
    draw_sound,
    samples_of,
)
from legato.data.sources.files import SPLITS
from legato.errors import ConfigError

CONFIG = ToySoundsConfig(count=300, valid_count=300, test_count=300, most_digits=4)


def heard(sound: ToySound) -> list[int]:
    """The digits whose pitches are nearest to what the beginning and the end of each span have most of."""
    samples, found = samples_of(sound), []
    for start, end in sound.spans:
        piece = samples[round(start * sound.rate) : round(end * sound.rate)]
        quarter = len(piece) // 4
        ends = [_pitch(part, sound) for part in (piece[:quarter], piece[-quarter:])]
        aims = np.array(PITCHES, float)
        aims = aims + (aims[:, ::-1] - aims) / 8  # the middle of a quarter
        found.append(int(np.abs(np.log(aims / np.array(ends))).sum(1).argmin()))
    return found


def _pitch(part: np.ndarray, sound: ToySound) -> float:  # type: ignore[type-arg]
    spectrum = np.abs(np.fft.rfft(part * np.hanning(len(part)), 8192))
    return float(spectrum.argmax()) * sound.rate / 8192 / (sound.voice / 100)


def test_a_sound_is_the_same_whatever_others_there_are() -> None:
    few, many = ToySounds(CONFIG, "train", 1), ToySounds(replaced(count=9_000), "train", 1)
    assert few[7] == many[7]
    assert few[:3] == [few[0], few[1], few[2]]
    np.testing.assert_array_equal(samples_of(few[7]), samples_of(many[7]))
    assert few[7] != ToySounds(CONFIG, "train", 2)[7]
    assert few[7] != few[8]


def replaced(**changes: int) -> ToySoundsConfig:
    return CONFIG.model_copy(update=changes)


def test_what_is_told_can_be_heard() -> None:
    for number in range(60):
        sound = draw_sound(ToySoundsConfig(), "train", 0, number)
        assert heard(sound) == list(sound.digits)
        assert sound.text.split() == [str(digit) for digit in sound.digits]


def test_no_transcript_of_a_split_is_in_another_and_digits_are_even() -> None:
    texts = {split: {row.text for row in ToySounds(CONFIG, split, seed)} for seed, split in enumerate(SPLITS)}
    assert not texts["train"] & texts["valid"]
    assert not (texts["train"] | texts["valid"]) & texts["test"]
    digits = [digit for row in ToySounds(CONFIG, "train", 0) for digit in row.digits]
    assert np.bincount(digits, minlength=10).min() > len(digits) / 20
    assert {len(row.digits) for row in ToySounds(CONFIG, "train", 0)} == set(range(LEAST_DIGITS, 5))


def test_samples_fill_the_time_and_stay_within_full_scale() -> None:
    for rate in (8_000, 16_000, 44_100):
        sound = draw_sound(replaced(rate=rate), "valid", 3, 5)
        samples = samples_of(sound)
        assert samples.dtype == np.float32
        assert abs(samples).max() <= sound.loudness / 100 + 0.01
        milliseconds = sum(sound.lasting) + sum(sound.pauses)
        assert len(samples) == round(milliseconds * rate / 1000)
        first, last = sound.spans[0][0], sound.spans[-1][1]
        assert abs(samples[: int(first * rate)]).max() < 0.01  # pauses are noise alone
        assert abs(samples[int(last * rate) + 1 :]).max() < 0.01
        assert len(sound.sound.load(16_000)) == pytest.approx(16 * milliseconds, abs=2)


def test_a_digest_names_what_is_made() -> None:
    digests = {
        ToySounds(config, split, seed).digest()
        for config in (CONFIG, replaced(rate=8_000), replaced(most_digits=5), replaced(count=299))
        for split, seed in (("train", 0), ("train", 1), ("valid", 0))
    }
    assert len(digests) == 4 * 3 - 1  # the number of those to train on is no concern of validation
    assert ToySounds(CONFIG, "train", 0).digest() == ToySounds(replaced(), "train", 0).digest()


def test_another_split_is_named() -> None:
    with pytest.raises(ConfigError, match=r"toy:sounds has no split 'trian'; did you mean 'train'\?"):
        ToySounds(CONFIG, "trian", 0)


def test_a_sound_tells_its_voice() -> None:
    sound = draw_sound(CONFIG, "train", 0, 0)
    assert not np.array_equal(samples_of(sound), samples_of(replace(sound, voice=sound.voice + 1)))
