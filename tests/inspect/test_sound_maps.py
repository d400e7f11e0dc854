"""What a model makes of a sound, as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import legato
from legato.errors import LegatoError
from legato.inspect.sounds import sound_maps
from tiny_sounds import RATE, SMALL, samples_of, write_sounds
from tiny_whisper import whisper_folder

QUICK: dict[str, Any] = {"train.steps": 4, "train.tensorboard": "false", "device": "cpu", "tokenizer": "word"}
ENCODER = {f"model.encoder.{key.partition('.')[2]}": value for key, value in SMALL.items() if "model." in key}
SOUND = (samples_of("high low", 5), RATE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("maps")
    tables = write_sounds(folder, 2)
    legato.train("speech", {**tables, **SMALL, **QUICK}, out=folder / "ctc", quiet=True)
    decoder = {"model": "transformer", "model.layers": 1, "model.width": 8, "model.heads": 2, "data.batch_seconds": 3}
    joint = {**ENCODER, **decoder, "model.encoder.name": "conformer", "model.encoder.ctc": 0.3}
    legato.train("speech", {**tables, **joint, **QUICK}, out=folder / "joint", quiet=True)
    return folder


def test_what_ctc_says_at_each_state(home: Path) -> None:
    held = legato.load(home / "ctc", "cpu")
    heard = sound_maps(held, SOUND)
    assert heard.said is not None
    assert heard.attention is None
    assert heard.frames.shape == (round(len(SOUND[0]) / RATE / heard.seconds_of_frame), 8)
    assert heard.said.shape == (-(-len(heard.frames) // 4), len(heard.names))
    np.testing.assert_allclose(heard.said.sum(1), 1, rtol=1e-5)
    assert heard.text == held.predict([SOUND])[0]
    assert heard.text.split() == [word.text for word in heard.words] == heard.tokens
    assert heard.seconds_of_state == pytest.approx(4 * heard.seconds_of_frame)


def test_where_a_decoder_looks(home: Path) -> None:
    held = legato.load(home / "joint", "cpu")
    heard = sound_maps(held, SOUND)
    assert heard.text == held.predict([SOUND])[0]
    assert heard.said is not None
    assert heard.attention is not None
    assert heard.attention.shape == (len(heard.tokens), len(heard.said))
    np.testing.assert_allclose(heard.attention.sum(1), 1, rtol=1e-4)


@pytest.mark.parametrize("languages", [True, False])
def test_where_whisper_looks_in_its_window(languages: bool, tmp_path: Path) -> None:
    whisper_folder(tmp_path, languages=languages)
    held = legato.load(tmp_path, "cpu")
    heard = sound_maps(held, SOUND)
    assert heard.said is None
    assert heard.words == []
    assert heard.text == held.predict([SOUND])[0]
    assert heard.attention is not None
    assert heard.attention.shape == (len(heard.tokens), 50)


def test_a_model_that_hears_nothing_is_refused(home: Path) -> None:
    held = legato.load(home / "ctc", "cpu")
    held.loaded.task = "audio-classification"
    with pytest.raises(LegatoError, match="give a model of the task speech"):
        sound_maps(held, SOUND)
