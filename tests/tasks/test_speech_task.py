"""Speech: sounds and transcripts learned by CTC; what is written, timed, scored, resumed and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.data.audio.transcripts import read_transcripts
from legato.data.batching.batch import Inputs
from legato.decoding.speech import ctc
from legato.errors import ConfigError, DataError, FolderError
from legato.registry import MODELS, TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of, with_head
from legato.tasks.base import Plan
from legato.tasks.speech import recognizer as recognizing
from legato.tasks.speech.recognizer import Recognizer
from tiny_runs import read_metrics, weights_digest
from tiny_sounds import RATE, SMALL, TEXTS, encoded, samples_of, write_sound, write_sounds, write_table

CPU = torch.device("cpu")
QUICK: dict[str, Any] = {
    "train.steps": 6,
    "train.validate_every": 3,
    "train.samples": 1,
    "train.tensorboard": "false",
    "device": "cpu",
}
LEARNED: dict[str, Any] = {
    "model.width": 32,
    "model.features": 20,
    "model.channels": 8,
    "model.kernel": 7,
    "tokenizer": "word",
    "model.dropout": 0.0,
    "data.augment.frequency_masks": 0,
    "data.augment.time_masks": 0,
    "train.steps": 120,
    "train.lr": 0.006,
    "train.validate_every": 60,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows low from high, `run`, and its tables."""
    folder = tmp_path_factory.mktemp("speech")
    given = {**write_sounds(folder, 6), **SMALL, **QUICK, **LEARNED}
    legato.train("speech", given, out=folder / "run", quiet=True)
    return folder


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    tables = {"data.train": str(folder / "train.tsv"), "data.valid": str(folder / "valid.tsv")}
    return {**tables, **SMALL, **QUICK, **{key.replace("__", "."): value for key, value in changes.items()}}


def prepared(given: dict[str, Any], said: list[str] | None = None) -> Any:
    plan = plan_of(check(settings_for("speech", given)), CPU)
    return TASKS.get("speech").prepare(plan, (said if said is not None else []).append)


@pytest.mark.parametrize("name", ["conformer", "deepspeech"])
def test_rows_that_fill_up_a_batch_change_no_loss_nor_gradient(
    home: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = Plan.batch_shape
    few = lambda plan, source, multiple=8: replace(ordinary(plan, source, multiple), fixed_shape=True)  # noqa: E731
    monkeypatch.setattr(Plan, "batch_shape", few)
    changes = {"model": name, "model__dropout": 0, "head__dropout": 0, "data__augment__speed": 0.1}
    if name == "deepspeech":
        monkeypatch.delitem(SMALL, "model.heads")
    else:
        changes["model__dropout_attention"] = 0
    job = prepared({**settings(home, **changes), "data.batch_seconds": 5})
    torch.manual_seed(0)
    model = with_head(MODELS.get(name)(job.model_config, job.sizes), job, None).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases, too: what is 0 has no direction
    every = [job.batches.at(step) for step in range(job.batches.steps_per_epoch)]
    batch = min(every, key=lambda one: int((one.inputs.lengths > 0).sum()))
    own = int((batch.inputs.lengths > 0).sum())
    assert own < batch.rows
    assert job.recordable(batch)
    inputs = batch.inputs
    cut = Inputs(values=inputs.content[:own], lengths=inputs.lengths[:own], draws=inputs.draws[:own])
    found = []
    for each in (batch, replace(batch, inputs=cut, targets=batch.targets[:own])):
        model.zero_grad()
        loss = job.loss(model, each, None)
        loss.total.backward()
        found.append([loss.reported.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_it_learns_to_write_what_is_said(home: Path) -> None:
    held = legato.load(home / "run")
    sounds = [(samples_of("high low high", 71), RATE), (samples_of("low low", 72), RATE)]
    assert held.predict(sounds) == ["high low high", "low low"]
    scores = held.evaluate(test=str(home / "train.tsv"))
    assert scores["wer"] < 10
    assert scores["sounds"] == 36
    assert scores["wer_signature"].endswith("jiwer 4.0.0")
    assert held.about["beams"] == 1


def test_a_sound_may_be_a_file_bytes_or_samples_of_any_rate(home: Path, tmp_path: Path) -> None:
    held = legato.load(home / "run")
    samples = samples_of("high low", 5)
    slow = np.interp(np.arange(0, len(samples), RATE / 44_100), np.arange(len(samples)), samples).astype(np.float32)
    file = write_sound(tmp_path / "a.flac", samples)
    given = [
        file,
        str(file),
        encoded(samples),
        (samples, RATE),
        (slow, 44_100),
        {"array": samples, "sampling_rate": RATE},
    ]
    assert held.predict(given) == ["high low"] * 6


def test_what_stands_beside_a_sound_changes_nothing(home: Path) -> None:
    held = Recognizer.of(legato.load(home / "run").loaded)
    rows = [torch.from_numpy(samples_of(text, 3)) for text in ("low", "high low high")]
    alone, _ = held.log_probs(rows[0][None], torch.tensor([len(rows[0])]))
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    both, counts = held.log_probs(padded, torch.tensor([len(row) for row in rows]))
    assert int(counts[0]) == alone.shape[1]
    assert torch.allclose(both[0, : alone.shape[1]], alone[0], atol=1e-4)


def test_beams_and_several_answers(home: Path) -> None:
    held = legato.load(home / "run")
    several = held.predictions([(samples_of("high low", 7), RATE)], beams=16, nbest=3)[0]
    assert several.answers[0].text == "high low"
    assert len({answer.text for answer in several.answers}) == 3
    assert [answer.score for answer in several.answers] == sorted((a.score for a in several.answers), reverse=True)


def test_words_have_the_times_at_which_they_were_said(home: Path) -> None:
    held = legato.load(home / "run")
    answer = held.predictions([(samples_of("low high low", 8), RATE)], timestamps=True)[0].answers[0]
    words = answer.more["words"]
    assert [word["word"] for word in words] == ["low", "high", "low"]
    for number, word in enumerate(words):
        middle = 0.05 + number * 0.2 + 0.075  # of its tone
        assert abs((word["start"] + word["end"]) / 2 - middle) < 0.12
    assert all(one["end"] <= other["start"] + 1e-9 for one, other in pairwise(words))


def test_a_long_sound_is_read_in_windows(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Recognizer.of(legato.load(home / "run").loaded)
    said = " ".join(TEXTS * 2)
    samples = torch.from_numpy(samples_of(said, 9))
    whole, _ = held.log_probs(samples[None], torch.tensor([len(samples)]))
    monkeypatch.setattr(recognizing, "WINDOW", 1.0)
    monkeypatch.setattr(recognizing, "MARGIN", 0.4)
    parts = held.windowed(samples)
    assert parts.shape == whole.shape
    assert (parts.argmax(-1) == whole.argmax(-1)).float().mean() > 0.9
    tokens, counts = ctc.greedy(parts, torch.tensor([parts.shape[1]]), held.blank)
    text = legato.load(home / "run").predict([(samples.numpy(), RATE)])[0]
    assert text == held.text(tokens[0, : counts[0]].tolist())
    passages = list(held.passages(samples))
    assert " ".join(passage.text for passage in passages) == text
    assert len(passages) > 1
    assert passages[-1].end == pytest.approx(len(samples) / RATE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "deepspeech", "model.cell": "gru"},
        {"model.subsampling": 2, "model.kernel": 3},
        {"tokenizer": "bpe", "tokenizer.size": 260},
        {"head.lstm": 1, "head.width": 8},
        {"data.augment.speed": 0.1, "data.augment.gain": 3, "data.augment.noise": 0.1, "data.augment.time_masks": 1},
        {"train.batch_rows": 3, "data.metric": "cer", "data.beams": 2},
    ],
)
def test_every_way_to_learn_it_runs(home: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    given = settings(home, **changes)
    if given["model"] == "deepspeech":
        del given["model.heads"]
    legato.train("speech", given, out=tmp_path / "run", quiet=True)
    losses = [line["loss"] for line in read_metrics(tmp_path / "run") if line["kind"] == "valid"]
    assert losses
    assert all(loss == loss for loss in losses)
    assert isinstance(legato.load(tmp_path / "run").predict(home / "sound.wav"), str)


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    changes = {"data.augment.speed": 0.1, "data.augment.noise": 0.1, "train.schedule": "constant"}
    given = settings(home, **changes)
    legato.train("speech", given, out=tmp_path / "whole", quiet=True)
    legato.train("speech", {**given, "train.steps": 3}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 6}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")


@pytest.mark.slow
def test_it_goes_on_from_a_trained_model(home: Path, tmp_path: Path) -> None:
    given = {key: value for key, value in settings(home).items() if not key.startswith("model")}
    given |= {"from": str(home / "run"), "train.lr": 1e-6, "train.steps": 1}
    legato.train("speech", given, out=tmp_path / "run", quiet=True)
    assert legato.load(tmp_path / "run").predict([(samples_of("high low", 4), RATE)]) == ["high low"]
    adapted = {**given, "adapt": "lora", "adapt.rank": 2, "train.lr": 1e-4}
    legato.train("speech", adapted, out=tmp_path / "lora", quiet=True)
    assert legato.load(tmp_path / "lora").predict([(samples_of("high low", 4), RATE)]) == ["high low"]


@pytest.mark.slow
def test_sounds_that_are_made(tmp_path: Path) -> None:
    given = {**SMALL, **QUICK, "data.train": "toy:sounds", "data.test": "toy:sounds", "data.sounds.count": 8}
    given |= {"data.sounds.valid_count": 3, "data.sounds.test_count": 3}
    legato.train("speech", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.evaluate(test="toy:sounds")["sounds"] == 3
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["test.wer"] == pytest.approx(held.evaluate(test="toy:sounds")["wer"])


def test_too_much_said_in_too_little_time_is_left_out(home: Path, tmp_path: Path) -> None:
    rows = [
        (str(home / "0.wav"), "low"),
        (str(home / "1.flac"), "a transcript that no such sound could have"),
        (str(home / "2.wav"), "low high"),
    ]
    table = write_table(tmp_path / "train.tsv", rows)
    said: list[str] = []
    job = prepared({**settings(home), "data.train": table}, said)
    assert len(job.parts["train"]) == len(job.waves["train"]) == 2
    told = next(line for line in said if "left out" in line)
    assert "1 sounds are left out" in told
    assert f"{table}, line 3" in told
    none = write_table(tmp_path / "none.tsv", [rows[1]])
    with pytest.raises(DataError, match=r"no transcript fits its sound.*lower model.subsampling"):
        prepared({**settings(home), "data.train": none})


@pytest.mark.slow
def test_letters_that_the_vocabulary_lacks_are_said(home: Path, tmp_path: Path) -> None:
    table = write_table(tmp_path / "train.tsv", [(str(home / "2.wav"), "löw"), (str(home / "0.wav"), "low")])
    given = {key: value for key, value in settings(home).items() if not key.startswith("model")}
    said: list[str] = []
    legato.train(
        "speech",
        {**given, "data.train": table, "from": str(home / "run"), "train.steps": 1},
        out=tmp_path / "r",
        quiet=True,
    )
    held = legato.load(home / "run").loaded
    plan = plan_of(check(settings_for("speech", {**given, "data.train": table, "from": str(home / "run")})), CPU)
    plan.loaded = held
    TASKS.get("speech").prepare(plan, said.append)
    assert any("1 training transcripts have characters or words that the vocabulary lacks" in line for line in said)


def test_what_will_not_do(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model=lstm reads no sound; use conformer or deepspeech"):
        prepared({**settings(home), "model": "lstm"})
    empty = write_table(tmp_path / "a.tsv", [("0.wav", " ")])
    with pytest.raises(DataError, match=r"a.tsv, line 2: the transcript is empty"):
        prepared({**settings(home), "data.train": empty, "data.audio": str(home)})
    missing = write_table(tmp_path / "b.tsv", [("none.wav", "low")])
    with pytest.raises(DataError, match=r"b.tsv, line 2: there is no sound .*none.wav"):
        prepared({**settings(home), "data.train": missing})
    given = {**settings(home), "data.train": write_table(tmp_path / "c.tsv", [(str(home / "0.wav"), "low")])}
    del given["data.valid"]
    with pytest.raises(DataError, match="one sound, too few to hold any out"):
        prepared(given)
    with pytest.raises(DataError, match=r"seconds, more than a batch of 0.1; raise data.batch_seconds"):
        prepared({**settings(home), "data.batch_seconds": 0.1})


def test_a_feature_extractor_that_does_not_fit(home: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(home / "run" / "best", tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    del config["legato"]["processors"]
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    file = tmp_path / "other" / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"feature_size": 20', '"feature_size": 24'))
    with pytest.raises(FolderError, match="makes frames of 24 features, and the model reads 20"):
        legato.load(tmp_path / "other").predict(home / "sound.wav")


def test_columns_are_found_by_their_names(home: Path, tmp_path: Path) -> None:
    head = "speaker\tpath\tsentence"
    table = write_table(tmp_path / "t.tsv", [("x", str(home / "0.wav") + "\tlow")], head)  # type: ignore[list-item]
    found = read_transcripts(table)
    assert found.texts == ["low"]
    assert "as sound and" in found.note
