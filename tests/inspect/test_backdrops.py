"""What positions lie on: the picture under its patches, the spectrogram under the states of a sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from read_reports import array
from tiny_models import made_once

from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.positions import Positions, Reading, named_patches
from legato.inspect.readings import reading_of
from legato.inspect.report.backdrops import LARGEST, LONGEST, add_backdrops
from legato.inspect.report.build import report_of
from legato.inspect.report.page import Report
from legato.model import Model
from tiny_clips import frames_of, write_clips
from tiny_pictures import pixels
from tiny_sounds import RATE, samples_of
from tiny_tasks import VIT

PICTURE = pixels("red")
CLIP = np.stack([np.asarray(frame) for frame in frames_of("up")])  # (5, H, W, 3)
EYES = {f"model__encoder__{key}": value for key, value in VIT.items()}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "captions": ("captioning", {}),
    "questions": ("vqa", {}),
    "clips": ("image-classification", {"model": "frames", "data__frames": 3, "model__encoder": "vit", **EYES}),
    "speech": ("speech", {}),
}


def changed(name: str, folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    if name == "clips":
        clips = str(write_clips(folder / "clips"))
        given = {key: value for key, value in given.items() if key.removeprefix("model.") not in VIT}
        given |= {"data.train": clips, "data.valid": clips, "model.width": 8}
    return given


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    return made_once(tmp_path_factory, RUNS, changed)


def backdrops(read: Any, processor: Any = None) -> Report:
    """The report of a stream of patches and one of frames, above what was read, (…)."""
    places = {"picture": named_patches((2, 2), 1), "sound": Positions("frame", ("0", "1"), seconds=0.04)}
    report = Report("", "", {"name": "any"}, {name: {} for name in places})
    loaded: Any = SimpleNamespace(processors=SimpleNamespace(others={"image": processor}))
    add_backdrops(report, loaded, Reading(Batch(Inputs(values=torch.as_tensor(read)[None])), places))
    return report


# --- pictures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "processor",
    [
        ImageProcessor((8, 8)),
        ImageProcessor((8, 8), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ImageProcessor((8, 8), mean=None),
        ImageProcessor((8, 8), factor=None, mean=None),
        ImageProcessor((8, 8), factor=1 / 127.5, mean=(1.0, 1.0, 1.0), std=(1.0, 1.0, 1.0)),
    ],
)
def test_under_the_patches_lies_the_picture_itself_however_it_was_scaled(processor: ImageProcessor) -> None:
    report = backdrops(processor.scaled(torch.from_numpy(PICTURE)), processor)
    shown = array(report, report.streams["picture"]["pixels"])
    np.testing.assert_allclose(shown, PICTURE, atol=0.51)
    assert "pixels" not in report.streams["sound"]
    assert "frames" not in report.streams["picture"]


def test_a_large_picture_is_thinned_and_keeps_its_shape() -> None:
    high, wide = 3 * LARGEST // 2, 2 * LARGEST + 1
    colours = np.indices((high, wide)).sum(0) % 256
    plain = ImageProcessor((high, wide), factor=None, mean=None)
    report = backdrops(np.repeat(colours[None], 3, 0).astype(np.float32), plain)
    shown = array(report, report.streams["picture"]["pixels"])
    assert max(shown.shape[:2]) <= LARGEST
    assert shown.shape[1] / shown.shape[0] == pytest.approx(wide / high, rel=0.02)
    np.testing.assert_allclose(shown[..., 0], colours[::3, ::3], atol=0.51)


@pytest.mark.slow
def test_a_caption_has_no_picture_under_it_and_what_it_looks_at_has(trained: Callable[[str], Model]) -> None:
    report = report_of(trained("captions"), PICTURE, written="a square")
    np.testing.assert_allclose(array(report, report.streams["source"]["pixels"]), PICTURE, atol=0.51)
    assert "pixels" not in report.streams["target"]


def test_a_picture_beside_a_question_lies_under_all_that_has_its_grid(trained: Callable[[str], Model]) -> None:
    report = report_of(trained("questions"), (PICTURE, "what colour is it?"))
    with_picture = {name for name, stream in report.streams.items() if "pixels" in stream}
    assert with_picture == {"image", "source"}
    assert len({report.streams[name]["pixels"] for name in with_picture}) == 1  # it travels once


def test_of_a_clip_the_first_picture_that_is_read_is_shown(trained: Callable[[str], Model]) -> None:
    model = trained("clips")
    report = report_of(model, CLIP)
    (stream,) = (each for each in report.streams.values() if each["grid"] is not None)
    shown = array(report, stream["pixels"])
    nearest = np.abs(CLIP.astype(float) - shown).reshape(len(CLIP), -1).max(1)
    assert nearest.min() < 1
    values = reading_of(model.loaded, CLIP).batch.inputs.content[0]  # (N, 3, H, W)
    processor = model.loaded.processors.others["image"]
    first = processor.scaled(torch.from_numpy(CLIP[int(nearest.argmin())]))
    torch.testing.assert_close(values[0], first)


# --- sounds -------------------------------------------------------------------------------------------


def test_under_the_states_of_a_sound_lies_what_the_model_reads(trained: Callable[[str], Model]) -> None:
    model, sound = trained("speech"), (samples_of("high low", 5), RATE)
    report = report_of(model, sound)
    (stream,) = report.streams.values()
    assert stream["kind"] == "frame"
    shown = array(report, stream["frames"])
    read = reading_of(model.loaded, sound).batch.inputs.content[0].numpy()
    assert shown.shape == read.shape
    low, high = np.quantile(read, (0.02, 0.998))
    np.testing.assert_allclose(shown / 255, ((read - low) / (high - low)).clip(0, 1), atol=3e-3)


def test_a_long_sound_is_thinned_and_silence_is_dark() -> None:
    long = np.linspace(-4, 4, 2 * LONGEST + 1, dtype=np.float32)[:, None].repeat(3, 1)
    report = backdrops(long)
    shown = array(report, report.streams["sound"]["frames"])
    assert len(shown) <= LONGEST
    assert (np.diff(shown[:, 0]) >= 0).all()
    assert (shown[0, 0], shown[-1, 0]) == (0, 255)
    silence = backdrops(np.full((5, 3), -11.5, dtype=np.float32))
    assert (array(silence, silence.streams["sound"]["frames"]) == 0).all()


def test_a_text_lies_on_nothing() -> None:
    report = Report("", "", {"name": "any"}, {"input": {}})
    read = Reading(Batch(Inputs(torch.tensor([[1, 2]]))), {"input": Positions("token", ("a", "b"))})
    loaded: Any = SimpleNamespace(processors=SimpleNamespace(others={}))
    add_backdrops(report, loaded, read)
    assert (report.streams, report.arrays) == ({"input": {}}, [])
