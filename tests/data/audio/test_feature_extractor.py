"""Feature extractors: what Hugging Face's make of the same file and sound, and their file both ways."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Speech2TextFeatureExtractor, WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from legato.data.audio.feature_extractor import KINDS, PARAKEET, SPEECH2TEXT, WHISPER, FeatureExtractor
from legato.data.image.image_processor import ImageProcessor
from legato.errors import DataError, FolderError
from legato.registry import PROCESSORS

# Asked for by name, because `from … import` wants librosa to be there.
parakeet = importlib.import_module("transformers.models.parakeet.feature_extraction_parakeet")

pytestmark = pytest.mark.filterwarnings("ignore:At least one mel filter has all zero values")  # at 8 kHz

ABOVE = 1e-4
LENGTHS = (16_000, 2_001, 5_120, 12_345)
RATE = 16_000


@pytest.fixture(autouse=True)
def _their_mel_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parakeet's asks librosa for its filters, which their own function gives just as well."""

    def mel(sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float, norm: str) -> Any:
        filters = mel_filter_bank(1 + n_fft // 2, n_mels, fmin, fmax, sr, norm=norm, mel_scale="slaney")
        return filters.T.astype(np.float32)

    monkeypatch.setattr(parakeet, "librosa", SimpleNamespace(filters=SimpleNamespace(mel=mel)), raising=False)


def theirs_of(name: str) -> Any:
    return {
        "whisper": lambda: WhisperFeatureExtractor(),
        "whisper 128, 5 s": lambda: WhisperFeatureExtractor(feature_size=128, chunk_length=5),
        "whisper 8 kHz": lambda: WhisperFeatureExtractor(20, 8_000, hop_length=100, chunk_length=4, n_fft=256),
        "parakeet": lambda: parakeet.ParakeetFeatureExtractor(),
        "parakeet 128": lambda: parakeet.ParakeetFeatureExtractor(128, hop_length=200, win_length=512),
        "parakeet plain": lambda: parakeet.ParakeetFeatureExtractor(preemphasis=None),
        "speech2text": lambda: Speech2TextFeatureExtractor(),
        "speech2text 40": lambda: Speech2TextFeatureExtractor(40, num_mel_bins=40, normalize_vars=False),
        "speech2text raw": lambda: Speech2TextFeatureExtractor(do_ceptral_normalize=False),
    }[name]()


NAMES = [
    *("whisper", "whisper 128, 5 s", "whisper 8 kHz"),
    *("parakeet", "parakeet 128", "parakeet plain"),
    *("speech2text", "speech2text 40", "speech2text raw"),
]


def noise(length: int) -> Any:
    return (0.1 * np.random.default_rng(length).standard_normal(length)).astype(np.float32)


def sine(length: int) -> Any:
    """Of 440 Hz, which swells: the spread of one that stays as it is would be nothing but rounding."""
    times = np.arange(length) / RATE
    return (np.sin(2 * np.pi * 440 * times) * (0.5 + 0.4 * np.sin(60 * times))).astype(np.float32)


def steady(length: int) -> Any:
    return (0.5 * np.sin(2 * np.pi * 440 / RATE * np.arange(length))).astype(np.float32)


SOUNDS: dict[str, list[Any]] = {
    "noise": [noise(length) for length in LENGTHS],
    "sines": [sine(length) for length in LENGTHS],
    "both": [noise(9_999), sine(9_999) + 0.1 * noise(9_999)],
}


def ours_of(theirs: Any, folder: Path) -> FeatureExtractor:
    theirs.save_pretrained(folder)
    return FeatureExtractor.load(folder)


def frames_of(theirs: Any, sounds: list[Any], **options: Any) -> Any:
    """(B, T, F) as theirs makes them."""
    found = theirs(sounds, sampling_rate=theirs.sampling_rate, return_tensors="np", **options)["input_features"]
    return found.transpose(0, 2, 1) if isinstance(theirs, WhisperFeatureExtractor) else found


def batch_of(sounds: list[Any], fill: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    samples = torch.full((len(sounds), max(map(len, sounds))), fill)
    for row, sound in zip(samples, sounds, strict=True):
        row[: len(sound)] = torch.from_numpy(sound)
    return samples, torch.tensor([len(sound) for sound in sounds])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", SOUNDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_that_of_their_extractor(name: str, kind: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    ours = ours_of(theirs, tmp_path)
    options = {} if name.startswith("whisper") else {"padding": "longest"}
    expected = frames_of(theirs, SOUNDS[kind], **options)
    found, lengths = ours.extract(*batch_of(SOUNDS[kind]))
    assert found.is_contiguous()
    assert found.dtype == torch.float32
    if not name.startswith("whisper"):
        for row, length, alone in zip(expected, lengths, frames_of_each(theirs, SOUNDS[kind]), strict=True):
            assert length == min(len(alone), len(row))
    np.testing.assert_allclose(found.numpy(), expected[:, : found.shape[1]], atol=ABOVE)


def frames_of_each(theirs: Any, sounds: list[Any]) -> Iterator[Any]:
    for sound in sounds:
        found = theirs(sound, sampling_rate=RATE, return_tensors="np", padding="longest")
        yield found["input_features"][0, found["attention_mask"][0].astype(bool)]


@pytest.mark.parametrize("kind", SOUNDS)
@pytest.mark.parametrize("name", NAMES)
def test_each_row_is_that_of_the_sound_alone(name: str, kind: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    ours = ours_of(theirs, tmp_path)
    found, lengths = ours.extract(*batch_of(SOUNDS[kind], fill=7.0), padded=False)
    for row, length, sound in zip(found, lengths.tolist(), SOUNDS[kind], strict=True):
        expected = frames_of(theirs, [sound], padding="longest")[0]
        # What is divided by a band's spread, which is small in sines, shows how transforms round.
        above = 10 * ABOVE if name.startswith("parakeet") and kind == "sines" else ABOVE
        np.testing.assert_allclose(row[:length].numpy(), expected[:length], atol=above)
        assert length == ours.frames(len(sound), padded=False)
        assert length == len(expected) - name.startswith("parakeet")  # whose last one is padding
        assert not row[length:].any()


@pytest.mark.parametrize("name", ["whisper", "speech2text raw"])
def test_steady_sines_are_theirs_where_nothing_is_divided_by_a_spread(name: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    ours = ours_of(theirs, tmp_path)
    for sound in map(steady, LENGTHS):
        expected = frames_of(theirs, [sound], padding="longest")
        np.testing.assert_allclose(ours.read([sound], padded=False).values, expected, atol=ABOVE)


def test_windows_are_cut_and_lengths_are_of_sound() -> None:
    ours = FeatureExtractor(seconds=1)
    theirs = WhisperFeatureExtractor(chunk_length=1)
    sounds = [noise(20_000), noise(1_601), noise(1)]
    found, lengths = ours.extract(*batch_of(sounds))
    assert lengths.tolist() == [100, 11, 1]
    np.testing.assert_allclose(found.numpy(), frames_of(theirs, sounds), atol=ABOVE)
    assert ours.read(sounds).lengths is None
    assert ours.read(sounds, padded=False).lengths is not None
    assert ours.frames(20_000) == found.shape[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 159, 161, 399])
def test_a_moment_has_a_frame(kind: str, length: int) -> None:
    ours = FeatureExtractor.of_kind(kind)
    for sound in (noise(length), np.zeros(length, np.float32)):
        alone = ours.read([sound], padded=False)
        beside = ours.read([sound, noise(4_000)], padded=False)
        assert alone.values is not None
        assert beside.values is not None
        assert alone.values.isfinite().all()
        torch.testing.assert_close(beside.values[:1, : alone.values.shape[1]], alone.values)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(kind: str) -> None:
    ours, sounds = FeatureExtractor.of_kind(kind), batch_of(SOUNDS["noise"])
    expected, _ = ours.extract(*sounds)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ours.extract(*sounds)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_read_by_both(name: str, tmp_path: Path) -> None:
    theirs = theirs_of(name)
    ours = ours_of(theirs, tmp_path)
    before = json.loads((tmp_path / "preprocessor_config.json").read_text())
    ours.save(tmp_path)
    after = json.loads((tmp_path / "preprocessor_config.json").read_text())
    unread = {"dither"} | ({"normalize_means", "normalize_vars"} if name == "speech2text raw" else set())
    assert {key: value for key, value in before.items() if key not in unread}.items() <= after.items()
    assert FeatureExtractor.load(tmp_path) == ours
    assert FeatureExtractor.load(tmp_path).fingerprint() == ours.fingerprint()
    again = type(theirs).from_pretrained(tmp_path)
    read = [frames_of(each, [noise(3_000)], padding="longest") for each in (theirs, again)]
    np.testing.assert_array_equal(*read)


def test_entries_may_be_those_of_a_shared_file(tmp_path: Path) -> None:
    entries = {"feature_extractor_type": PARAKEET, "sampling_rate": 16_000, "feature_size": 128}
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": entries}))
    assert FeatureExtractor.load(tmp_path) == FeatureExtractor.of_kind(PARAKEET, bins=128)


def test_files_of_pictures_and_of_sounds_are_told_apart(tmp_path: Path) -> None:
    assert PROCESSORS.get("audio") is FeatureExtractor
    for mine, other in ((FeatureExtractor(), ImageProcessor), (ImageProcessor(), FeatureExtractor)):
        mine.save(tmp_path)
        with pytest.raises(DataError, match="feature extractor"):
            other.load(tmp_path)
    old = {"feature_extractor_type": "ViTFeatureExtractor", "size": 32}  # an image processor's of years ago
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    assert ImageProcessor.load(tmp_path).size == (32, 32)
    with pytest.raises(DataError, match=r"preprocessor_config\.json has no entries of a feature extractor for sound"):
        FeatureExtractor.load(tmp_path)


def test_a_fingerprint_tells_extractors_apart() -> None:
    every = [*KINDS.values(), FeatureExtractor(bins=128), FeatureExtractor(hop=80), FeatureExtractor(seconds=5)]
    assert len({each.fingerprint() for each in every}) == len(every)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"sampling_rate": 0}, "sampling_rate"),
        ({"sampling_rate": 16_000, "feature_extractor_type": "WavFeatures"}, "'WavFeatures' is not read here"),
        ({"sampling_rate": 16_000, "feature_size": 0}, "feature_size"),
        ({"sampling_rate": 16_000, "n_fft": 10**9}, "n_fft"),
        ({"sampling_rate": 16_000, "hop_length": 500}, "hop_length 500 ≤ win_length 400 ≤ n_fft 400 should hold"),
        ({"sampling_rate": 16_000, "dither": 0.1}, "dither is 0.1, and only 0 is read here"),
        ({"sampling_rate": 16_000, "chunk_length": "long"}, "chunk_length"),
        ({}, "no entries of a feature extractor"),
    ],
)
def test_what_a_file_cannot_mean_is_named(entries: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(entries))
    with pytest.raises((DataError, FolderError), match=said) as problem:
        FeatureExtractor.load(tmp_path)
    assert "preprocessor_config.json" in str(problem.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lacks preprocessor_config\.json"):
        FeatureExtractor.load(tmp_path)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(DataError, match=f"those are {WHISPER}, {PARAKEET}, {SPEECH2TEXT}"):
        FeatureExtractor.of_kind("Other")
