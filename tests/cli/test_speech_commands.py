"""Speech on the command line: files, folders, lists and tables of sounds; what will not do, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import legato
import tiny_reviews
from legato.inspect.subtitles import subtitles
from tiny_sounds import RATE, SMALL, samples_of, write_sound, write_sounds, write_table

QUICK = {"train.steps": 2, "train.samples": 0, "train.tensorboard": "false", "device": "cpu"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hearing")
    legato.train("speech", {**write_sounds(folder), **SMALL, **QUICK}, out=folder / "speech", quiet=True)
    (folder / "reviews").mkdir()
    reviews = {**tiny_reviews.settings(folder / "reviews"), **QUICK, "model.width": 8}
    legato.train("classification", reviews, out=folder / "texts", quiet=True)
    return folder


@pytest.fixture
def sounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some sounds, which the commands run in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").mkdir()
    write_sound(tmp_path / "a.wav", samples_of("low"))
    write_sound(tmp_path / "more" / "b.flac", samples_of("high low"))
    write_sound(tmp_path / "more" / "c.wav", samples_of("high"), 8000)
    (tmp_path / "list.txt").write_text("a.wav\nmore/b.flac\n")
    write_table(tmp_path / "t.tsv", [("a.wav", "low"), ("more/b.flac", "x")])
    (tmp_path / "note.wav").write_text("this is no sound")
    return tmp_path


def lines(answer: Any) -> list[str]:
    assert answer.code == 0, answer.err
    found: list[str] = answer.out.split("\n")[:-1]
    return found


def test_the_speed_of_training_is_seconds_of_sound(runs: Path) -> None:
    result = json.loads((runs / "speech" / "result.json").read_text())
    assert result["speed_unit"] == "seconds of sound"
    assert result["speed"] == pytest.approx(result["tokens_per_second"] / 100)  # frames of 10 ms


@pytest.mark.parametrize(
    ("words", "count"), [(["a.wav"], 1), (["a.wav", "more/b.flac"], 2), (["--file", "list.txt"], 2)]
)
def test_a_line_for_each_sound(command: Any, runs: Path, sounds: Path, words: list[str], count: int) -> None:
    assert len(lines(command("predict", runs / "speech", *words))) == count


def test_folders_and_tables(command: Any, runs: Path, sounds: Path) -> None:
    told = lines(command("predict", runs / "speech", "--file", "more"))
    assert [line.split("\t")[0] for line in told] == ["b.flac", "c.wav"]
    assert len(lines(command("predict", runs / "speech", "--file", "t.tsv"))) == 2
    assert len(lines(command("predict", runs / "speech", "--file", "t.tsv", "--columns", "audio"))) == 2
    assert len(lines(command("predict", runs / "speech", "--file", "a.wav"))) == 1


def test_json_has_words_and_their_times(command: Any, runs: Path, sounds: Path) -> None:
    (line,) = lines(command("predict", runs / "speech", "a.wav", "--timestamps", "--beams", 4, "--json"))
    found = json.loads(line)
    assert found["input"] == "a.wav"
    answer = found["answers"][0]
    assert [word["word"] for word in answer["words"]] == answer["text"].split()


def test_scores_of_a_table(command: Any, runs: Path, sounds: Path) -> None:
    answer = command("eval", runs / "speech", "data.test=t.tsv", "--json")
    assert answer.code == 0, answer.err
    scores = json.loads(answer.out)
    assert scores["sounds"] == 2
    assert "wer" in scores
    shown = command("eval", runs / "speech", "data.test=t.tsv")
    assert "wer (greedy)" in shown.out
    assert "the worst transcripts" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["note.wav"], "legato: note.wav is no sound"),
        (["none.wav"], "legato: there is no sound none.wav"),
        (["empty.wav"], "legato: empty.wav has no samples"),
        (["nan.wav"], "legato: nan.wav has samples that are not finite"),
        (["more"], "legato: more is a folder"),
        (["--file", "none.tsv"], "legato: there is no file or folder none.tsv"),
        (["a.wav", "--max-tokens", "5"], "legato: "),
        (["a.wav", "--labels", "x,y"], "legato: --labels is for"),
    ],
)
def test_what_will_not_do_is_one_line(command: Any, runs: Path, sounds: Path, words: list[str], said: str) -> None:
    write_sound(sounds / "empty.wav", np.zeros(0, np.float32))
    soundfile.write(sounds / "nan.wav", np.full(800, np.nan, np.float32), RATE, subtype="FLOAT")
    answer = command("predict", runs / "speech", *words)
    assert (answer.code, answer.out.strip()) == (2, "")
    assert answer.err.startswith(said), answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("seconds", [0.01, 0.0001])
def test_hardly_any_sound_says_something_or_nothing(command: Any, runs: Path, sounds: Path, seconds: float) -> None:
    write_sound(sounds / "short.wav", np.full(max(1, int(seconds * RATE)), 0.1, np.float32))
    assert len(lines(command("predict", runs / "speech", "short.wav", "--timestamps"))) >= 1


@pytest.mark.parametrize(
    ("rate", "channels", "subtype"), [(96_000, 1, "PCM_24"), (16_000, 5, "PCM_16"), (8000, 2, "PCM_U8")]
)
def test_any_rate_channels_and_bits(
    command: Any, runs: Path, sounds: Path, rate: int, channels: int, subtype: str
) -> None:
    samples = np.repeat(samples_of("low high")[:, None], channels, 1)
    soundfile.write(sounds / "odd.wav", samples, rate, subtype=subtype)
    assert len(lines(command("predict", runs / "speech", "odd.wav"))) == 1
    soundfile.write(sounds / "still.wav", np.zeros_like(samples), rate, subtype=subtype)
    assert len(lines(command("predict", runs / "speech", "still.wav"))) == 1


def test_a_sound_for_a_model_of_text_and_a_text_for_one_of_sound(command: Any, runs: Path, sounds: Path) -> None:
    answer = command("predict", runs / "texts", "a.wav")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"legato: a.wav is a sound, but {runs / 'texts' / 'best'} reads text; give it a text\n"
    refused = command("predict", runs / "texts", "--file", "a.wav")
    assert refused.err == "legato: a.wav is a sound, and classification reads text; give a file of that\n"
    asked = command("predict", runs / "speech", "what is said here?")
    assert asked.code == 2
    assert asked.err == "legato: there is no sound what is said here?; check the path\n"
    several = command("predict", runs / "speech", "a.wav", "none.wav")
    assert several.code == 2
    assert "legato: sound 2: there is no sound none.wav" in several.err
    assert len(several.out.split("\n")) == 3


def test_a_table_that_will_not_do(command: Any, sounds: Path) -> None:
    write_table(sounds / "bad.tsv", [("note.wav", "low"), ("a.wav", "low")])
    words = [f"{key}={value}" for key, value in {**SMALL, **QUICK}.items()]
    answer = command("train", "speech", "data.train=bad.tsv", "data.valid=t.tsv", "out=r", *words, "--quiet")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "note.wav is no sound" in answer.err


def test_subtitles_of_a_recording(command: Any, runs: Path, sounds: Path) -> None:
    answer = command("predict", runs / "speech", "a.wav", "--srt", "a.srt")
    assert answer.code == 0, answer.err
    assert answer.err == "legato: note: the subtitles are in a.srt\n"
    said = [line.split("\t")[2] for line in answer.out.split("\n")[:-1] if line]
    assert [word for line in (sounds / "a.srt").read_text().split("\n")[2::4] for word in line.split()] == said
    for words, told in (
        (("a.wav", "more/b.flac", "--srt", "b.srt"), "--srt is for one recording"),
        (("a.wav", "--srt", "more"), "--srt more is a folder; name a file"),
        (("a.wav", "--srt", "none/a.srt"), "--srt none/a.srt lies in none, which is no folder; name a file"),
    ):
        refused = command("predict", runs / "speech", *words)
        assert refused.code == 2
        assert told in refused.err
    other = command("predict", runs / "texts", "a text", "--srt", "c.srt")
    assert "is a model for classification, which hears nothing; leave out --srt" in other.err


def test_a_subtitle_ends_where_it_is_full_or_something_pauses() -> None:
    words = [{"word": "word", "start": at * 0.3, "end": at * 0.3 + 0.2} for at in range(20)]
    words += [{"word": "later", "start": 3661.5, "end": 3662.0}]
    made = subtitles(words).split("\n\n")
    assert len(made) == 3
    assert len(made[0].split("\n")[2]) <= 84
    assert made[2].split("\n") == ["3", "01:01:01,500 --> 01:01:02,000", "later", ""]


def test_partial_results_are_lines_with_their_times(command: Any, runs: Path, sounds: Path) -> None:
    whole = lines(command("predict", runs / "speech", "more/b.flac"))[0]
    told = [line.split("\t") for line in lines(command("predict", runs / "speech", "more/b.flac", "--partial"))]
    assert " ".join(text for _, _, text in told) == whole
    assert all(float(start) < float(end) for start, end, _ in told)


@pytest.mark.parametrize(
    ("run", "words", "said"),
    [
        ("speech", ["a.wav", "more/b.flac"], "--partial is for one recording; name one"),
        ("speech", ["--file", "list.txt"], "--partial is for one recording; name one"),
        ("speech", ["note.wav"], "note.wav is no sound"),
        ("speech", ["a.wav", "--beams", "2"], "--partial prints lines as they come; leave out --beams"),
        ("speech", ["a.wav", "--json"], "--partial prints lines as they come; leave out --json"),
        ("texts", ["fine"], "which writes down no speech; leave out --partial"),
    ],
)
def test_partial_results_are_of_one_recording(
    command: Any, runs: Path, sounds: Path, run: str, words: list[str], said: str
) -> None:
    answer = command("predict", runs / run, *words, "--partial")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1
