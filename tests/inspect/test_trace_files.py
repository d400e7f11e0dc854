"""What a model computed of a picture or a sound: places and frames beside what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import QUICK

import legato
from legato.errors import DataError, LegatoError
from legato.inspect.trace import Trace
from tiny_sounds import RATE, SMALL, samples_of, write_sounds
from tiny_whisper import whisper_folder

EYES = {"name": "vit", "layers": 2, "width": 16, "heads": 2, "image": 32, "patch": 8}
SCENES = {"data.train": "toy:scenes", "data.scenes.count": 20, "data.scenes.valid_count": 4, "train.batch_rows": 4}
SOUND = (samples_of("high low", 5), RATE)
PICTURE = np.random.default_rng(0).integers(0, 255, (40, 40, 3)).astype(np.uint8)


def vit(prefix: str) -> dict[str, Any]:
    return {f"{prefix}.{key}": value for key, value in EYES.items()}


def fits(trace: Trace) -> None:
    assert trace
    for name, captured in trace.items():
        assert captured.values.ndim == len(captured.axes)
        for axis, size in zip(captured.axes, captured.values.shape, strict=True):
            there = trace.positions_of(name, axis)
            assert there is None or there.count == size, (name, axis)


def test_patches_of_a_picture(tmp_path: Path) -> None:
    legato.train("image-classification", {**QUICK, **SCENES, **vit("model")}, out=tmp_path / "i", quiet=True)
    trace = legato.load(tmp_path / "i", "cpu").trace(PICTURE)
    fits(trace)
    places = trace.positions["input"]
    assert (places.kind, places.grid, places.count) == ("patch", (4, 4), 17)
    assert places.names[:2] == ("whole", "1, 1")
    assert trace.guesses == []
    with pytest.raises(LegatoError, match="writes no text of what it reads"):
        legato.load(tmp_path / "i", "cpu").trace(PICTURE, written="a dog")


@pytest.mark.parametrize("decoder", ["transformer", "seq2seq"])
def test_a_caption_beside_its_picture(decoder: str, tmp_path: Path) -> None:
    own = {"model": decoder, "model.width": 16, "model.layers": 1}
    own |= {"model.heads": 2} if decoder == "transformer" else {}
    legato.train("captioning", {**QUICK, **SCENES, **own, **vit("model.encoder")}, out=tmp_path / "c", quiet=True)
    trace = legato.load(tmp_path / "c", "cpu").trace(PICTURE, written="a red circle")
    fits(trace)
    assert trace.positions["source"].grid == (4, 4)
    name = {"transformer": "decoder.0.cross.weights", "seq2seq": "decoder.attention.weights"}[decoder]
    np.testing.assert_allclose(trace[name].values.sum(-1), 1, rtol=1e-4)
    assert trace[name].stream == "target"
    assert len(trace.guesses) == trace.positions["target"].count
    inside = next(each for each in trace if each.endswith("1.attention.weights"))
    assert trace[inside].stream == "source"


def test_frames_of_a_sound(tmp_path: Path) -> None:
    given = {**write_sounds(tmp_path, 2), **SMALL, **QUICK}
    legato.train("speech", given, out=tmp_path / "s", quiet=True)
    model = legato.load(tmp_path / "s", "cpu")
    trace = model.trace(SOUND)
    fits(trace)
    states = trace.positions["input"]
    assert (states.kind, states.seconds, states.names[1]) == ("frame", pytest.approx(0.04), "0.04 s")
    assert not trace.guesses
    trace.save(tmp_path / "t")
    assert Trace.load(tmp_path / "t").positions == trace.positions
    (tmp_path / "none.wav").write_bytes(b"no sound")
    with pytest.raises(DataError):
        model.trace(tmp_path / "none.wav")


@pytest.mark.parametrize("languages", [True, False])
def test_what_whisper_writes_beside_its_window(languages: bool, tmp_path: Path) -> None:
    whisper_folder(tmp_path, languages=languages)
    model = legato.load(tmp_path, "cpu")
    trace = model.trace(SOUND)
    fits(trace)
    assert trace.positions["source"].count == 50
    target = trace.positions["target"].names
    assert target[0] == "<|startoftranscript|>"
    assert ("<|en|>" in target or "<|de|>" in target) == languages
    assert trace["decoder.0.cross.weights"].values.shape == (2, len(target), 50)
    forced = model.trace(SOUND, written="low high")
    assert forced.positions["target"].names[-2:] == ("low", "high")
