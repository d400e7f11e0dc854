"""Sounds of every kind of file, rate and channels; where they lie; and what is wrong with one, in a line."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from legato.data.audio import sounds
from legato.data.audio.sound_files import Sound, SoundFinder, as_sound, members_of, sound_file, sounds_in
from legato.data.audio.sounds import is_sound_file, read_sound, sound_extent
from legato.data.audio.transcripts import read_transcripts
from legato.data.sources.files import FileOptions
from legato.data.sources.named_files import find_files
from legato.data.sources.tables import read_table
from legato.errors import DataError

RATE = 16_000
KINDS = [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("MP3", "MPEG_LAYER_III")]


def tone(seconds: float = 0.5, rate: int = RATE, channels: int = 1) -> Any:
    mono = 0.5 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * rate)) / rate)
    return np.repeat(mono[:, None], channels, 1).astype(np.float32)


def encoded(samples: Any, rate: int = RATE, kind: str = "WAV", subtype: str = "PCM_16") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def write(path: Path, samples: Any, **how: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(samples, **how))
    return path


def refused(raw: bytes, rate: int = RATE) -> str:
    with pytest.raises(DataError) as problem:
        read_sound(raw, "a.wav", rate)
    said = str(problem.value)
    assert said.startswith("a.wav ")
    assert "\n" not in said
    return said


# --- what is read --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_every_kind_of_file_is_read(kind: str, subtype: str) -> None:
    raw = encoded(tone(), kind=kind, subtype=subtype)
    found = read_sound(raw, "a", RATE)
    assert found.dtype == np.float32
    assert sound_extent(raw, "a") == (8_000, RATE)
    assert abs(found - tone()[:, 0])[500:-500].max() < (0.05 if kind in ("OGG", "MP3") else 1e-4)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_samples_of_any_bits_are_read(subtype: str) -> None:
    found = read_sound(encoded(tone(), subtype=subtype), "a", RATE)
    assert abs(found - tone()[:, 0]).max() < (0.02 if subtype == "PCM_U8" else 1e-4)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 96_000])
def test_any_rate_is_resampled_to_that_of_the_model(rate: int) -> None:
    found = read_sound(encoded(tone(rate=rate), rate), "a", RATE)
    assert len(found) == 8_000
    assert abs(found - tone()[:, 0])[200:-200].max() < 1e-3


def test_channels_are_averaged() -> None:
    five = tone(channels=5) * np.array([1, 0, 0.5, 0, -0.5], np.float32)
    assert abs(read_sound(encoded(five), "a", RATE) - tone()[:, 0] / 5).max() < 1e-4


def test_a_sound_is_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = encoded(tone(channels=2))
    whole = read_sound(raw, "a", RATE)
    monkeypatch.setattr(sounds, "PIECE", 2_000)
    np.testing.assert_array_equal(read_sound(raw, "a", RATE), whole)


def test_ten_milliseconds_and_silence_are_sounds() -> None:
    assert len(read_sound(encoded(tone(0.01)), "a", RATE)) == 160
    assert len(read_sound(encoded(tone(1 / 96_000, rate=96_000), 96_000), "a", RATE)) == 1
    assert not read_sound(encoded(np.zeros(1_000)), "a", RATE).any()


def test_a_wav_from_a_pipe_which_does_not_know_its_length_is_read() -> None:
    raw = bytearray(encoded(tone()))
    raw[40:44] = struct.pack("<I", 0xFFFFFFFF)
    assert len(read_sound(bytes(raw), "a", RATE)) == 8_000


def test_a_stream_that_does_not_know_its_length_is_read() -> None:
    raw = bytearray(encoded(tone(), kind="FLAC"))
    raw[21] &= 0xF0  # 36 bits of its header: 0 for an unknown length
    raw[22:26] = bytes(4)
    assert sound_extent(bytes(raw), "a") is None
    assert len(read_sound(bytes(raw), "a", RATE)) == 8_000
    assert Sound("a", data=bytes(raw)).seconds() == 0.5


# --- what is refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw", [b"", b"hello" * 100, b"RIFF", encoded(tone())[:30], b"\x89PNG\r\n\x1a\n" + bytes(99)]
)
def test_what_is_no_sound_is_refused(raw: bytes) -> None:
    assert "is no sound of WAV, FLAC, Ogg or MP3" in refused(raw)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("my talk.m4a", "ffmpeg -i 'my talk.m4a' 'my talk.wav'"),
        ("all.tar: b/a.m4a", "ffmpeg -i b/a.m4a b/a.wav"),
        ("t.jsonl, line 3", "ffmpeg -i sound.m4a sound.wav"),
    ],
)
def test_a_sound_that_others_read_is_converted_by_these_words(name: str, words: str) -> None:
    with pytest.raises(DataError, match="is a sound of MPEG-4, which is not read here") as caught:
        read_sound(b"\0\0\0\x20ftypM4A " + bytes(99), name, RATE)
    assert str(caught.value).endswith(f"make it a WAV: {words}")


def test_whatever_a_row_holds_is_said_of_the_row(tmp_path: Path) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text('{"audio": {"bytes": "xx"}, "text": "a"}\n')
    with pytest.raises(DataError, match=r"t\.jsonl, line 1: 'bytes' is 'xx', and no bytes; give a path"):
        read_transcripts(str(table))
    rows = read_table(str(table), ["audio"], FileOptions(binary=1))
    with pytest.raises(DataError, match=r"t\.jsonl, line 1: .*bytes.* names no file \(unhashable"):
        find_files(rows, lambda value, where: {value: where})


@pytest.mark.parametrize(("kind", "subtype"), KINDS)
def test_half_a_file_is_refused(kind: str, subtype: str) -> None:
    raw = encoded(0.1 * np.random.default_rng(0).standard_normal(40_000), kind=kind, subtype=subtype)
    assert "cut short" in refused(raw[: len(raw) // 2])


def test_no_samples_are_refused() -> None:
    assert refused(encoded(np.zeros(0))) == "a.wav has no samples; leave it out"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(value: float) -> None:
    samples = tone(channels=2)
    samples[17, 1] = value
    assert "not finite" in refused(encoded(samples, subtype="FLOAT"))


def test_samples_beyond_all_loudness_are_refused() -> None:
    assert "1e+30, where 1 is full scale" in refused(encoded(tone() * 0 + 1e30, subtype="FLOAT"))


def test_a_rate_of_nonsense_is_refused() -> None:
    assert "a rate of 3 samples for a second" in refused(encoded(tone(), rate=3))


def test_a_format_of_another_kind_is_named() -> None:
    assert "is a sound of AU" in refused(encoded(tone(), kind="AU"))


def test_more_than_the_limit_is_refused_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(encoded(tone(), kind="FLAC"))
    raw[21] |= 0x0F
    raw[22:26] = b"\xff" * 4
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *args, **named: pytest.fail("it was decoded"))
    assert "says that it has 68,719,476,735 samples, more than" in refused(bytes(raw))


def test_a_stream_beyond_the_limit_is_refused_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytearray(encoded(tone(), kind="FLAC"))
    raw[21] &= 0xF0
    raw[22:26] = bytes(4)
    monkeypatch.setattr(sounds, "MAX_SAMPLES", 3_000)
    monkeypatch.setattr(sounds, "PIECE", 1_000)
    assert "has more than 3,000 samples" in refused(bytes(raw))


# --- where sounds lie ----------------------------------------------------------------------------------


def test_a_sound_may_be_given_in_many_ways(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", tone())
    whole = read_sound(path.read_bytes(), "a", RATE)
    entries = {"bytes": path.read_bytes(), "path": None}
    array = {"array": whole, "sampling_rate": RATE}
    for given in (path, str(path), path.read_bytes(), (whole, RATE), entries, array, {"path": str(path)}):
        np.testing.assert_array_equal(as_sound(given).load(RATE), whole)
        assert as_sound(given).seconds() == 0.5
    assert as_sound(sound := as_sound(path)) is sound
    assert len(as_sound((whole, RATE)).load(8_000)) == 4_000


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float64])
def test_samples_of_whole_numbers_are_scaled(dtype: Any) -> None:
    scale = {np.uint8: 127, np.int16: 32_767, np.int32: 2**31 - 1}.get(dtype, 1)
    samples = (tone(channels=2).astype(np.float64) * scale + (128 if dtype == np.uint8 else 0)).astype(dtype)
    found = as_sound((samples, RATE)).load(RATE)
    assert abs(found - tone()[:, 0]).max() < (0.02 if dtype == np.uint8 else 1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((np.zeros(8), 0), "rate of 0"),
        ((np.zeros(8), None), "rate of None"),
        ((np.zeros(8), 16_000.5), "rate of 16000.5"),
        ((np.zeros((2, 3, 4)), RATE), "not float64 of shape"),
        ((np.zeros((2, 400)), RATE), "more channels than samples"),
        ((["a"], RATE), "samples are numbers"),
        (([[1.0], [1.0, 2.0]], RATE), "samples are numbers"),
        ((np.zeros(0), RATE), "has no samples"),
        ((np.array([np.nan]), RATE), "not finite"),
        (3, "int is no sound"),
        ({}, "there is no sound"),
    ],
)
def test_what_is_given_for_a_sound_and_is_none_is_named(given: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        as_sound(given)


def test_a_missing_file_is_named_with_the_one_that_was_meant(tmp_path: Path) -> None:
    write(tmp_path / "hello.wav", tone())
    with pytest.raises(DataError, match=r"there is no sound .*/helo.wav; did you mean '.*/hello.wav'\?"):
        sound_file(tmp_path / "helo.wav")
    with pytest.raises(DataError, match="is a folder"):
        as_sound(tmp_path)


def test_a_folder_has_its_sounds_in_order(tmp_path: Path) -> None:
    for name in ("b/1.wav", "a.WAV", ".hidden/2.wav"):
        write(tmp_path / name, tone(0.01))
    (tmp_path / "notes.txt").write_text("no sound")
    assert [str(path.relative_to(tmp_path)) for path in sounds_in(tmp_path)] == ["a.WAV", "b/1.wav"]
    assert is_sound_file(tmp_path / "a.WAV")
    assert not is_sound_file(tmp_path / "notes.txt")


def test_a_table_finds_its_sounds_beside_it(tmp_path: Path) -> None:
    for name in ("near.wav", "audio/inside.wav"):
        write(tmp_path / name, tone(0.01))
    packed = write(tmp_path / "elsewhere" / "packed.wav", tone(0.02))
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        archive.add(packed, "./deep/packed.wav")
    finder = SoundFinder(None, tmp_path / "train.tsv")
    lengths = {"near.wav": 160, "inside.wav": 160, "deep/packed.wav": 320}
    for name, length in lengths.items():
        assert len(finder.find(name, "train.tsv:2").load(RATE)) == length
    assert finder.find({"bytes": packed.read_bytes()}, "train.tsv:3").where == "train.tsv:3"
    assert len(finder.find({"path": "near.wav"}, "train.tsv:3").load(RATE)) == 160
    with pytest.raises(DataError, match=r"^train.tsv:4: there is no sound 'deep/paked.wav' in .*did you mean"):
        finder.find("deep/paked.wav", "train.tsv:4")


def test_a_missing_sound_of_a_table_is_named_with_its_line(tmp_path: Path) -> None:
    finder = SoundFinder(None, tmp_path / "train.tsv")
    with pytest.raises(DataError, match=r"^train.tsv:7: there is no sound .*/x.wav; set data.audio to the folder"):
        finder.find("x.wav", "train.tsv:7")
    for value, said in ((None, "there is no sound; give"), (3, "3 names no sound"), (" ", "names no sound")):
        with pytest.raises(DataError, match=f"^train.tsv:8: .*{said}"):
            finder.find(value, "train.tsv:8")
    with pytest.raises(DataError, match=r"data.audio=.*/none: there is no such folder"):
        SoundFinder(tmp_path / "none", None)


def test_a_tar_that_is_none_or_holds_no_sound_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(DataError, match=r"a.tar cannot be read as a .tar"):
        members_of(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        archive.add(tmp_path / "a.tar", "a.txt")
    with pytest.raises(DataError, match=r"b.tar holds no sound"):
        members_of(tmp_path / "b.tar")


def test_damage_in_a_tar_names_the_member(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"no sound")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "a.wav", "in/a.wav")
    with pytest.raises(DataError, match=r"a.tar: in/a.wav is no sound"):
        members_of(tmp_path / "a.tar")["in/a.wav"].load(RATE)
