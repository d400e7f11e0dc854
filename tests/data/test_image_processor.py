"""The image processor: what Hugging Face's makes of the same file and picture, and its file both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil, ViTImageProcessorPil

from legato.data.image.image_processor import ImageProcessor
from legato.errors import DataError, FolderError

SIZES = [(300, 400), (400, 300), (100, 37), (1, 1), (224, 224), (3, 1000)]
THEIRS = {
    "vit": ViTImageProcessorPil(),
    "clip": CLIPImageProcessorPil(),
    "crop beyond the picture": CLIPImageProcessorPil(
        size={"shortest_edge": 20}, crop_size={"height": 31, "width": 28}
    ),
    "no scale": ViTImageProcessorPil(size={"height": 32, "width": 48}, resample=3, do_rescale=False),
    "as it is": ViTImageProcessorPil(do_resize=False, do_normalize=False),
}


def noise(height: int, width: int) -> Image.Image:
    rng = np.random.default_rng(height)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_their_processor(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    theirs: Any = THEIRS[name]
    theirs.save_pretrained(tmp_path)
    ours = ImageProcessor.load(tmp_path)
    expected = theirs(noise(*size), return_tensors="np", input_data_format="channels_last")["pixel_values"]
    found = ours.read([noise(*size)]).values
    assert found is not None
    assert found.is_contiguous()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("name", THEIRS)
def test_what_is_saved_is_read_by_both(name: str, tmp_path: Path) -> None:
    theirs: Any = THEIRS[name]
    theirs.save_pretrained(tmp_path)
    ours = ImageProcessor.load(tmp_path)
    ours.save(tmp_path)
    assert ImageProcessor.load(tmp_path) == ours
    assert ImageProcessor.load(tmp_path).fingerprint() == ours.fingerprint()
    again = type(theirs).from_pretrained(tmp_path)
    picture = noise(40, 50)
    read = [
        p(picture, return_tensors="np", input_data_format="channels_last")["pixel_values"] for p in (theirs, again)
    ]
    np.testing.assert_array_equal(*read)


def test_a_fingerprint_tells_processors_apart() -> None:
    assert ImageProcessor().fingerprint() != ImageProcessor(size=(32, 32)).fingerprint()
    assert ImageProcessor().fingerprint() != ImageProcessor(mean=None).fingerprint()
    assert ImageProcessor().fingerprint() == ImageProcessor(kind="CLIPImageProcessor").fingerprint()


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"size": {"height": 0, "width": 4}}, "size"),
        ({"size": {"height": 4}}, "should have height and width"),
        ({"size": 10**9}, "size"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std is 0"),
        ({"resample": 9}, "resample"),
        ({"do_resize": "perhaps"}, "do_resize"),
    ],
)
def test_what_a_file_cannot_mean_is_named(entries: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(entries))
    with pytest.raises((DataError, FolderError), match=said) as problem:
        ImageProcessor.load(tmp_path)
    assert "preprocessor_config.json" in str(problem.value)
