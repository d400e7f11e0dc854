"""Audio classification: a class of a whole sound, from tables and folders, learned, scored, resumed and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import legato
from legato.data.audio.labelled_sounds import read_labelled_sounds
from legato.errors import ConfigError, DataError
from tiny_runs import weights_digest
from tiny_sounds import RATE, SMALL, samples_of, write_sound, write_sounds, write_table

QUICK: dict[str, Any] = {"train.steps": 4, "train.samples": 1, "train.tensorboard": "false", "device": "cpu"}
LEARNED: dict[str, Any] = {
    "model.width": 16,
    "model.features": 20,
    "model.dropout": 0.0,
    "data.augment.frequency_masks": 0,
    "data.augment.time_masks": 0,
    "train.steps": 90,
    "train.lr": 0.005,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tells low from high sounds, `run`, a folder for each class, `classes`, and tables."""
    folder = tmp_path_factory.mktemp("classes")
    write_sounds(folder)
    for number in range(12):
        word = "high" if number % 2 else "low"
        (folder / "classes" / word).mkdir(parents=True, exist_ok=True)
        write_sound(folder / "classes" / word / f"{number}.wav", samples_of(f"{word} {word}", number))
    given = {"data.train": str(folder / "classes"), "data.valid": str(folder / "classes")}
    legato.train("audio-classification", {**given, **SMALL, **QUICK, **LEARNED}, out=folder / "run", quiet=True)
    return folder


def settings(home: Path, **changes: Any) -> dict[str, Any]:
    table = str(home / "classes.tsv")
    return {"data.train": table, "data.valid": table, **SMALL, **QUICK, **changes}


def test_it_learns_what_is_heard(home: Path) -> None:
    held = legato.load(home / "run")
    assert held.predict([(samples_of("high high high", 70), RATE), (samples_of("low", 71), RATE)]) == ["high", "low"]
    both = held.predictions([home / "sound.wav"], nbest=2)[0]
    assert {answer.text for answer in both.answers} == {"low", "high"}
    scores = held.evaluate(test=str(home / "classes"))
    assert scores["accuracy"] == 1
    assert scores["sounds"] == 12
    assert held.about["labels"] == ["high", "low"]


def test_what_stands_beside_a_sound_changes_nothing(home: Path) -> None:
    held = legato.load(home / "run")
    short, long = (samples_of("low", 5), RATE), (samples_of("high low high low", 6), RATE)
    alone = held.predictions([short])[0].answers[0].score
    assert held.predictions([long, short])[1].answers[0].score == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "deepspeech", "head.pool": "max"},
        {"head.pool": "attention", "data.augment.speed": 0.1, "data.augment.noise": 0.2},
        {"train.batch_rows": 3, "data.class_weights": "balanced", "train.label_smoothing": 0.1},
    ],
)
def test_every_way_to_learn_it_runs(home: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    given = settings(home, **changes)
    if given["model"] == "deepspeech":
        del given["model.heads"]
    legato.train("audio-classification", given, out=tmp_path / "run", quiet=True)
    assert legato.load(tmp_path / "run").predict(home / "sound.wav") in ("low", "high")


def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    given = settings(home, **{"data.augment.speed": 0.1, "train.schedule": "constant"})
    legato.train("audio-classification", given, out=tmp_path / "whole", quiet=True)
    legato.train("audio-classification", {**given, "train.steps": 2}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 4}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")


def test_a_model_of_speech_begins_one_of_classes(home: Path, tmp_path: Path) -> None:
    tables = {"data.train": str(home / "train.tsv"), "data.valid": str(home / "valid.tsv")}
    legato.train("speech", {**tables, **SMALL, **QUICK}, out=tmp_path / "speech", quiet=True)
    given = {key: value for key, value in settings(home).items() if not key.startswith("model")}
    given |= {"from": str(tmp_path / "speech"), "adapt": "head"}
    legato.train("audio-classification", given, out=tmp_path / "run", quiet=True)
    assert legato.load(tmp_path / "run").predict(home / "sound.wav") in ("low", "high")


def test_what_will_not_do(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="toy:sounds have transcripts and no labels"):
        read_labelled_sounds("toy:sounds")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no folders in it; put the sounds of each class in one of its own"):
        read_labelled_sounds(str(tmp_path / "empty"))
    (tmp_path / "empty" / "cat").mkdir()
    with pytest.raises(DataError, match="cat holds no sound, so that class cannot be learned"):
        read_labelled_sounds(str(tmp_path / "empty"))
    table = write_table(tmp_path / "t.tsv", [("none.wav", "low")], "audio\tlabel")
    with pytest.raises(DataError, match=r"t.tsv, line 2: there is no sound"):
        read_labelled_sounds(table)
    with pytest.raises(ConfigError, match="model=vit reads no sound; use conformer or deepspeech"):
        legato.train("audio-classification", settings(home, model="vit"), out=tmp_path / "no", quiet=True)
