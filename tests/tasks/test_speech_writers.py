"""Speech by a decoder that looks at the states of an encoder, alone and with CTC: learned, ranked, timed, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.data.audio.transcripts import read_transcripts
from legato.data.batching.batch import Batch
from legato.data.batching.sound_batches import Waves, written_batch
from legato.decoding.speech import ctc
from legato.errors import ConfigError, LegatoError, NotFiniteError
from legato.tasks.encoder_decoder import pair_loss
from legato.tasks.speech import writer as writing
from legato.tasks.speech.writer import Writer, recognizer_of
from tiny_runs import weights_digest
from tiny_sounds import RATE, samples_of, write_sounds

QUICK: dict[str, Any] = {
    "train.steps": 4,
    "train.validate_every": 2,
    "train.samples": 1,
    "train.tensorboard": "false",
    "device": "cpu",
    "data.batch_seconds": 3,
    "tokenizer": "word",
}
ENCODER: dict[str, Any] = {
    "model.encoder": "conformer",
    "model.encoder.layers": 1,
    "model.encoder.width": 16,
    "model.encoder.heads": 2,
    "model.encoder.features": 20,
    "model.encoder.channels": 4,
    "model.encoder.kernel": 7,
    "model.encoder.dropout": 0.0,
}
DECODERS: dict[str, dict[str, Any]] = {
    "seq2seq": {"model": "seq2seq", "model.layers": 1, "model.width": 16, "model.attention": "mlp"},
    "transformer": {
        "model": "transformer",
        "model.layers": 1,
        "model.width": 16,
        "model.heads": 2,
        "model.length": 32,
    },
}
LEARNED: dict[str, Any] = {
    "model.encoder.ctc": 0.3,
    "model.dropout": 0.0,
    "data.augment.frequency_masks": 0,
    "data.augment.time_masks": 0,
    "train.steps": 160,
    "train.lr": 0.006,
    "train.validate_every": 160,
    "train.label_smoothing": 0.0,
}


def settings(home: Path, decoder: str, **changes: Any) -> dict[str, Any]:
    tables = {"data.train": str(home / "train.tsv"), "data.valid": str(home / "valid.tsv")}
    return {**tables, **QUICK, **ENCODER, **DECODERS[decoder], **changes}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows low from high by both, `joint`, one that hardly learned, `alone`, and their tables."""
    folder = tmp_path_factory.mktemp("writers")
    write_sounds(folder, 6)
    legato.train("speech", settings(folder, "transformer", **LEARNED), out=folder / "joint", quiet=True)
    legato.train("speech", settings(folder, "seq2seq"), out=folder / "alone", quiet=True)
    return folder


def test_it_learns_to_write_what_is_said(home: Path) -> None:
    held = legato.load(home / "joint")
    sounds = [(samples_of("high low", 71), RATE), (samples_of("low low", 72), RATE)]
    assert held.predict(sounds) == ["high low", "low low"]
    scores = held.evaluate(test=str(home / "train.tsv"), beams=3)
    assert scores["wer"] < 10
    assert scores["search"] == "beam 3, CTC 0.3"


def test_what_is_written_has_the_score_of_both(home: Path) -> None:
    held = legato.load(home / "joint")
    recognizer = recognizer_of(held.loaded)
    assert isinstance(recognizer, Writer)
    samples = samples_of("high low", 5)
    answers = held.predictions([(samples, RATE)], beams=4, nbest=3)[0].answers
    assert [answer.score for answer in answers] == sorted((answer.score for answer in answers), reverse=True)
    source = recognizer.source(torch.from_numpy(samples)[None], torch.tensor([len(samples)]))
    with torch.no_grad():
        memory = recognizer.model.encode(Batch(source, source=source))
        logits = recognizer.model.ctc_logits(memory)
    assert logits is not None
    for answer in answers:
        tokens = recognizer.tokenizer.encode(answer.text).tolist()
        said = ctc.log_likelihood(logits.log_softmax(-1), memory.lengths, [tokens], recognizer.blank)
        batch = written_batch(source, [tokens], recognizer.begins.tokens, recognizer.tokenizer.eos_id)
        decoder = -float(pair_loss(recognizer.model, batch).reported.detach())
        assert answer.more["logprob"] == pytest.approx(0.7 * decoder + 0.3 * float(said), abs=1e-3)


def test_words_have_times_where_ctc_was_learned(home: Path) -> None:
    answer = legato.load(home / "joint").predictions([(samples_of("low high low", 8), RATE)], timestamps=True)[0]
    words = answer.answers[0].more["words"]
    assert [word["word"] for word in words] == answer.answers[0].text.split()
    with pytest.raises(
        LegatoError, match=r"decoder alone, which says no times; train one with model.encoder.ctc=0.3"
    ):
        legato.load(home / "alone").predict([(samples_of("low", 8), RATE)], timestamps=True)


@pytest.mark.parametrize("run", ["joint", "alone"])
def test_what_stands_beside_a_sound_changes_nothing(home: Path, run: str) -> None:
    held = legato.load(home / run)
    short, long = (samples_of("low", 5), RATE), (samples_of("high low high low", 6), RATE)
    alone, beside = held.predictions([short])[0].answers[0], held.predictions([long, short])[1].answers[0]
    assert beside.text == alone.text
    assert beside.score == pytest.approx(alone.score, abs=1e-3)


def test_a_long_sound_is_written_in_pieces(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = legato.load(home / "joint")
    monkeypatch.setattr(writing, "WINDOW", 0.45)  # two words
    sounds = [(samples_of("high low low high", 3), RATE)]
    found = held.predictions(sounds, timestamps=True)[0].answers[0]
    times = [word["start"] for word in found.more["words"]]
    assert times == sorted(times)
    assert found.text.split() == [word["word"] for word in found.more["words"]]
    assert max(times) > 0.45


def test_a_long_sound_is_split_evenly_and_has_one_answer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = legato.load(home / "joint")
    recognizer = recognizer_of(held.loaded)
    assert isinstance(recognizer, Writer)
    samples = torch.from_numpy(samples_of("high low low high", 3))
    recognizer.window = (len(samples) - 1) / RATE  # so that one sample is left
    assert [len(part) for part in recognizer._parts(samples)] == [-(-len(samples) // 2), len(samples) // 2]
    monkeypatch.setattr(writing, "WINDOW", 0.45)
    with pytest.warns(UserWarning, match=r"more than 0.45 seconds are written piece by piece, and have one answer"):
        found = held.predictions([(samples.numpy(), RATE)], nbest=2)
    assert len(found[0].answers) == 1


def test_weights_that_are_not_finite_are_said(home: Path) -> None:
    for name in ("encoder.ctc", "decoder"):
        held = legato.load(home / "joint")
        weight = next(each for key, each in held.loaded.module.named_parameters() if name in key)
        with torch.no_grad():
            weight.fill_(torch.nan)
        for beams in (1, 3):
            with pytest.raises(NotFiniteError):
                held.predict([(samples_of("low", 8), RATE)], beams=beams)


def test_of_sounds_in_pieces_there_is_no_loss(home: Path) -> None:
    data = read_transcripts(str(home / "valid.tsv"))
    recognizer = recognizer_of(legato.load(home / "joint").loaded)
    assert isinstance(recognizer, Writer)
    longest = float(max(Waves(data.sounds, RATE).lengths)) / RATE
    found = []
    for rows in (1, 8):
        recognizer.window, recognizer.rows = longest - 0.01, rows
        found.append(recognizer.score(data, Waves(data.sounds, RATE))[0]["loss"])
    assert found[0] == pytest.approx(found[1])


def test_the_loss_is_that_of_the_decoder(home: Path) -> None:
    data = read_transcripts(str(home / "valid.tsv"))
    recognizer = recognizer_of(legato.load(home / "joint").loaded)
    scores, written, _ = recognizer.score(data, Waves(data.sounds, RATE))
    assert scores["loss"] < 0.5
    assert len(written) == len(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model.input_feeding": "true", "model.context_gate": "true", "model.encoder.ctc": 0.5},
        {"model.attention": "none"},
        {"model.cell": "gru", "train.batch_rows": 3, "data.augment.speed": 0.1},
    ],
)
def test_every_way_to_write_runs(home: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    legato.train("speech", settings(home, "seq2seq", **changes), out=tmp_path / "run", quiet=True)
    assert isinstance(legato.load(tmp_path / "run").predict(home / "sound.wav", beams=2), str)


def test_a_recurrent_encoder_before_a_decoder(home: Path, tmp_path: Path) -> None:
    given = settings(home, "seq2seq", **{"model.encoder": "deepspeech", "model.encoder.ctc": 0.2})
    for name in ("heads", "kernel"):
        del given[f"model.encoder.{name}"]
    legato.train("speech", given, out=tmp_path / "run", quiet=True)
    assert isinstance(legato.load(tmp_path / "run").predict(home / "sound.wav"), str)


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    given = settings(home, "transformer", **{"model.encoder.ctc": 0.3, "train.schedule": "constant"})
    legato.train("speech", given, out=tmp_path / "whole", quiet=True)
    legato.train("speech", {**given, "train.steps": 2}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 4}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")


@pytest.mark.slow
def test_an_encoder_that_learned_ctc_begins_one(home: Path, tmp_path: Path) -> None:
    alone = {key.replace("model.encoder", "model"): value for key, value in ENCODER.items()}
    tables = {"data.train": str(home / "train.tsv"), "data.valid": str(home / "valid.tsv")}
    legato.train("speech", {**tables, **QUICK, **alone}, out=tmp_path / "ctc", quiet=True)
    given = {key: value for key, value in settings(home, "seq2seq").items() if not key.startswith("model.encoder")}
    given |= {"from.encoder": str(tmp_path / "ctc"), "train.encoder_lr": 0}
    legato.train("speech", given, out=tmp_path / "run", quiet=True)
    assert isinstance(legato.load(tmp_path / "run").predict(home / "sound.wav"), str)


def test_what_will_not_do(home: Path, tmp_path: Path) -> None:
    held = legato.load(home / "alone")
    with pytest.raises(ConfigError, match="asked in CTC's search, and this model has a decoder"):
        held.predict(home / "sound.wav", lm=str(home / "alone"))
    with pytest.raises(ConfigError, match="lstm reads neither pictures nor sound"):
        legato.train("speech", settings(home, "seq2seq", **{"model.encoder": "lstm"}), out=tmp_path / "a", quiet=True)
    other = {"data.train": "toy:scenes", "model": "seq2seq", "model.encoder": "conformer"}
    with pytest.raises(ConfigError, match="conformer reads no pictures"):
        legato.train("captioning", other, out=tmp_path / "b", quiet=True)
