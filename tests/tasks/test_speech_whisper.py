"""Whisper at work: prompts, languages, times, long recordings, training and adapters, and what folders keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.data.audio.sound_files import as_sound
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.sound_batches import Waves
from legato.errors import ConfigError, DataError, FolderError, LegatoError
from legato.folders.exports import export
from legato.folders.model_folder import read_model
from legato.tasks.speech.task import Speech
from legato.tasks.speech.writer import Writer, recognizer_of
from tiny_sounds import RATE, samples_of, write_sound, write_sounds, write_table
from tiny_whisper import DE, EN, EOS, NO_TIMES, START, TRANSCRIBE, VOCABULARY, whisper_folder

transformers = pytest.importorskip("transformers")

QUICK: dict[str, Any] = {
    "train.steps": 4,
    "train.validate_every": 2,
    "train.samples": 1,
    "train.tensorboard": "false",
    "train.batch_rows": 4,
    "device": "cpu",
}
TINY: dict[str, Any] = {
    "model": "whisper",
    "model.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.features": 8,
    "model.source_length": 50,
    "model.length": 16,
    "tokenizer": "word",
}


def sound(text: str, seed: int = 0) -> dict[str, Any]:
    return {"array": samples_of(text, seed), "sampling_rate": RATE}


def writer_of(folder: Path, language: str | None = None) -> Writer:
    found = recognizer_of(read_model(folder), language)
    assert isinstance(found, Writer)
    return found


# --- writing -----------------------------------------------------------------------------------------


def their_texts(folder: Path, sounds: list[Any], **asked: Any) -> list[list[int]]:
    """The tokens that `generate` writes behind the prompt, without the end."""
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    features = extractor(sounds, sampling_rate=RATE, return_tensors="pt").input_features
    rows = theirs.generate(features, do_sample=False, max_new_tokens=12, **asked).tolist()
    cut = [row[: row.index(EOS)] if EOS in row else row for row in rows]
    return [[token for token in row if token < EOS] for row in cut]


def test_what_is_said_is_what_their_generate_writes(tmp_path: Path) -> None:
    no_text = [0, *range(EOS + 1, VOCABULARY)]
    whisper_folder(tmp_path, suppress_tokens=no_text, begin_suppress_tokens=[EOS])
    sounds = [samples_of(text, seed) for seed, text in enumerate(("low", "high low", "low high"))]
    writer = writer_of(tmp_path)
    writer.longest = 12
    waves = Waves([as_sound({"array": each, "sampling_rate": RATE}) for each in sounds], RATE)
    ids = torch.tensor([[START, NO_TIMES]] * 3)
    expected = their_texts(tmp_path, sounds, decoder_input_ids=ids)
    found = [answers[0][0].tokens for answers in writer.transcribe(waves)]
    assert found == expected
    assert any(found)


def test_windows_are_read_silence_and_all_whatever_stands_beside_them(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    held = legato.load(str(tmp_path), device="cpu")
    given = [sound("low"), sound("high low high", 1), sound("high", 2)]
    assert held.predict(given) == [held.predict([each])[0] for each in given]


def test_several_threads_write_what_one_writes(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    held = legato.load(str(tmp_path), device="cpu")
    given = [sound("low high", seed) for seed in range(5)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = held.predict(given)
        torch.set_num_threads(3)
        assert held.predict(given) == alone
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_beams_give_the_n_best(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    found = legato.load(str(tmp_path), device="cpu").predictions([sound("low")], beams=3, nbest=3)[0]
    assert len({answer.text for answer in found.answers}) == len(found.answers) == 3
    assert [answer.score for answer in found.answers] == sorted((a.score for a in found.answers), reverse=True)


# --- languages ---------------------------------------------------------------------------------------


def test_a_language_is_said_or_heard(tmp_path: Path) -> None:
    whisper_folder(tmp_path, languages=True)
    open_prompt = writer_of(tmp_path).begins
    assert (open_prompt.tokens, open_prompt.languages) == ((START, TRANSCRIBE, NO_TIMES), (EN, DE))
    assert writer_of(tmp_path, "de").begins.tokens == (START, DE, TRANSCRIBE, NO_TIMES)
    held = legato.load(str(tmp_path), device="cpu")
    said = {name: held.predict([sound("low")], language=name)[0] for name in ("en", "de")}
    writer = writer_of(tmp_path)
    memory = writer._encoded(*Waves([as_sound(sound("low"))], RATE).take([0]))
    with torch.no_grad():
        state = writer.model.start(1, 1, memory)
        logits = writer.model.prefill(Inputs(torch.tensor([[START]])), state)[0]
    spoken = "en" if logits[EN] > logits[DE] else "de"
    assert held.predict([sound("low")])[0] == said[spoken]


@pytest.mark.parametrize(("languages", "message"), [(True, "does not write 'xx'"), (False, "writes one language")])
def test_languages_that_a_model_has_not_are_refused(tmp_path: Path, languages: bool, message: str) -> None:
    whisper_folder(tmp_path, languages=languages)
    with pytest.raises(ConfigError, match=message):
        legato.load(str(tmp_path), device="cpu").predict([sound("low")], language="xx")


def test_training_several_languages_asks_for_one(tmp_path: Path) -> None:
    whisper_folder(tmp_path / "m", languages=True)
    data = write_sounds(tmp_path)
    with pytest.raises(ConfigError, match=r"writes 2 languages; say which one is spoken, such as data\.language=en"):
        legato.train("speech", **{**QUICK, **data, "from": str(tmp_path / "m"), "out": str(tmp_path / "r")})


# --- times -------------------------------------------------------------------------------------------


def test_times_are_told_of_each_passage(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    found = legato.load(str(tmp_path), device="cpu").predictions([sound("low high low")], timestamps=True)[0]
    words = found.answers[0].more["words"]
    assert words
    assert found.answers[0].text == " ".join(word["word"] for word in words)
    assert all(0 <= word["start"] <= word["end"] <= 0.66 for word in words)


@pytest.mark.slow
def test_a_recording_longer_than_a_window_is_read_to_its_end(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    held = legato.load(str(tmp_path), device="cpu")
    long = {"array": np.concatenate([samples_of("low high", seed) for seed in range(8)]), "sampling_rate": RATE}
    found = held.predictions([long], timestamps=True)[0].answers[0]
    starts = [word["start"] for word in found.more["words"]]
    assert starts == sorted(starts)
    assert starts[-1] > 2
    assert held.predict([long])[0] == found.text


@pytest.mark.slow
def test_a_model_without_times_says_so_and_reads_long_sounds_in_pieces(tmp_path: Path) -> None:
    model = whisper_folder(tmp_path)
    data = write_sounds(tmp_path)
    run = legato.train("speech", **{**QUICK, **TINY, **data, "out": str(tmp_path / "r")}).run
    held = legato.load(str(run), device="cpu")
    with pytest.raises(LegatoError, match="says no times"):
        held.predict([sound("low")], timestamps=True)
    long = {"array": np.tile(samples_of("low high"), 4), "sampling_rate": RATE}
    assert isinstance(held.predict([long])[0], str)
    assert model.max_frames == 100


# --- training ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_learns_from_nothing_and_its_folder_is_theirs(tmp_path: Path) -> None:
    data = write_sounds(tmp_path)
    learned = {"train.steps": 120, "train.validate_every": 120, "train.lr": 0.01, "train.label_smoothing": 0.0}
    masks = {"data.augment.frequency_masks": 0, "data.augment.time_masks": 0}
    asked = {**QUICK, **TINY, **data, **learned, **masks, "out": str(tmp_path / "r")}
    result = legato.train("speech", **asked)
    assert result.metrics["valid.loss"] < 0.5
    theirs = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "r" / "best").eval()
    ours = read_model(tmp_path / "r")
    source = ours.processors.others["audio"].read([samples_of("low")])
    ids = torch.tensor([[ours.start, 1]])
    with torch.no_grad():
        expected = theirs(input_features=source.content.transpose(1, 2), decoder_input_ids=ids).logits
        found = ours.module.readout(ours.module(Batch(Inputs(ids), source=source)).hidden)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [None, "lora"])
def test_tuning_keeps_the_prompt(tmp_path: Path, adapter: str | None) -> None:
    whisper_folder(tmp_path / "m", languages=True, suppress_tokens=[0])
    data = write_sounds(tmp_path)
    asked = {**QUICK, **data, "from": str(tmp_path / "m"), "data.language": "de", "out": str(tmp_path / "r")}
    if adapter is not None:
        asked["adapt"] = adapter
    run = legato.train("speech", **asked).run
    kept = json.loads((run / "best" / "generation_config.json").read_text())
    assert kept["lang_to_id"] == {"<|en|>": EN, "<|de|>": DE}
    assert (kept["decoder_start_token_id"], kept["suppress_tokens"]) == (START, [0])
    writer = writer_of(run, "de")
    assert writer.begins.tokens == (START, DE, TRANSCRIBE, NO_TIMES)
    assert writer_of(run).begins.tokens == writer.begins.tokens  # as it was tuned, where nobody says otherwise
    assert writer_of(run, "en").begins.tokens == (START, EN, TRANSCRIBE, NO_TIMES)
    assert writer.timed is not None
    merged = Path(export(str(run), "hf", out=str(tmp_path / "e")))
    assert json.loads((merged / "generation_config.json").read_text())["lang_to_id"] == kept["lang_to_id"]
    given = [sound("low high")]
    tuned, exported = (legato.load(str(place), device="cpu").predict(given, language="de") for place in (run, merged))
    assert tuned == exported


@pytest.mark.slow
def test_sounds_longer_than_a_window_are_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_sounds(tmp_path)
    write_sound(tmp_path / "long.wav", np.tile(samples_of("low"), 8))
    rows = [("0.wav", "low"), ("long.wav", "low"), ("1.flac", "high")]
    data["data.train"] = write_table(tmp_path / "t.tsv", rows)
    legato.train("speech", **{**QUICK, **TINY, **data, "out": str(tmp_path / "r")})
    assert "1 sounds are left out, longer than the 1 seconds that are read" in capsys.readouterr().err
    data["data.train"] = write_table(tmp_path / "t.tsv", rows[1:2])
    with pytest.raises(DataError, match="every sound is longer than the 1 seconds that this model reads"):
        legato.train("speech", **{**QUICK, **TINY, **data, "out": str(tmp_path / "s")})


# --- refusals ----------------------------------------------------------------------------------------


def test_windows_are_whole_seconds(tmp_path: Path) -> None:
    data = write_sounds(tmp_path)
    asked = {**QUICK, **TINY, **data, "model.source_length": 60, "out": str(tmp_path / "r")}
    with pytest.raises(ConfigError, match=r"model\.source_length=60.*use a multiple of 50"):
        legato.train("speech", **asked)


def test_tokens_that_the_model_has_not_are_refused(tmp_path: Path) -> None:
    whisper_folder(tmp_path, no_timestamps_token_id=500)
    with pytest.raises(FolderError, match=r"generation_config\.json names the token 500, and the model has 62"):
        writer_of(tmp_path)


def test_a_window_that_the_model_cannot_read_is_refused(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chunk_length": 2}))
    with pytest.raises(FolderError, match="makes 200 frames of a sound, and the model reads 100"):
        writer_of(tmp_path)


def test_whisper_classifies_no_sounds(tmp_path: Path) -> None:
    data = write_sounds(tmp_path)
    with pytest.raises(
        ConfigError, match="model=whisper writes what is said, and nothing else; use conformer or deepspeech"
    ):
        legato.train("audio-classification", **{**QUICK, **TINY, **data, "out": str(tmp_path / "r")})


def test_the_n_best_have_no_times(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    with pytest.raises(ConfigError, match="times are written of the best text alone; leave out nbest"):
        legato.load(str(tmp_path), device="cpu").predictions([sound("low")], timestamps=True, nbest=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.language": "de"}, r"data\.language is for a trained model of several languages"),
        ({"model.length": 1}, r"model\.length=1 leaves no token for what is said"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    data = write_sounds(tmp_path)
    with pytest.raises(ConfigError, match=message):
        legato.train("speech", **{**QUICK, **TINY, **data, **changes, "out": str(tmp_path / "r")})


@pytest.mark.slow
def test_a_recording_is_in_the_language_of_its_first_window(tmp_path: Path) -> None:
    whisper_folder(tmp_path, languages=True)
    held = legato.load(str(tmp_path), device="cpu")
    long = {"array": np.concatenate([samples_of("low high", seed) for seed in range(8)]), "sampling_rate": RATE}
    heard = held.predict([long])[0]
    assert heard in [held.predict([long], language=language)[0] for language in ("en", "de")]


# --- partial results ---------------------------------------------------------------------------------


def test_passages_come_while_a_recording_is_read(tmp_path: Path) -> None:
    whisper_folder(tmp_path)
    held = legato.load(str(tmp_path), device="cpu")
    long = {"array": np.concatenate([samples_of("low high", seed) for seed in range(8)]), "sampling_rate": RATE}
    words = held.predictions([long], timestamps=True)[0].answers[0].more["words"]
    found = Speech.passages(held.loaded, long)
    first = next(found)
    assert first.text == words[0]["word"]
    assert [tuple(word) for word in (first, *found)] == [(word["word"], word["start"], word["end"]) for word in words]


@pytest.mark.slow
def test_a_model_without_times_gives_a_passage_for_each_window(tmp_path: Path) -> None:
    data = write_sounds(tmp_path)
    run = legato.train("speech", **{**QUICK, **TINY, **data, "out": str(tmp_path / "r")}).run
    held = legato.load(str(run), device="cpu")
    long = {"array": np.tile(samples_of("low high"), 4), "sampling_rate": RATE}
    found = list(Speech.passages(held.loaded, long))
    assert " ".join(word.text for word in found) == held.predict(long)
    piece = 4 * len(samples_of("low high")) / RATE / -(-4 * len(samples_of("low high")) // RATE)
    assert all(round(word.start / piece, 2) % 1 == 0 and word.end <= word.start + 1 for word in found)
