"""EfficientNet-Lite: weights that are published alone, our own folders of them, what its settings make."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import legato
from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.errors import ConfigError, FolderError
from legato.folders.finding import find_model
from legato.folders.model_folder import load_model, read_config, refusal, save_model
from legato.models.base import Sizes
from legato.models.efficientnet_lite import EfficientNetLiteConfig, EfficientNetLiteModel
from legato.models.model_with_head import ModelWithHead
from legato.models.published.efficientnet_lite import EfficientNetLite
from legato.runs.config import check, settings_for
from tiny_efficientnet import BLOCKS, published_weights


def published_logits(tensors: dict[str, Tensor], pixels: Tensor) -> Tensor:
    """What the published network computes, written out."""

    def convolved(x: Tensor, name: str, norm: str, stride: int, activated: bool = True) -> Tensor:
        weight = tensors[f"{name}.weight"]
        kernel = weight.shape[-1]
        rows, columns = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[2:])
        x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
        of = [tensors[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
        x = F.batch_norm(x, *of, False, 0.0, 1e-3)
        return x.clamp(0, 6) if activated else x

    x = convolved(pixels, "_conv_stem", "_bn0", 2)
    for number, (_, stride, width) in enumerate(BLOCKS):
        block = f"_blocks.{number}."
        y = convolved(x, f"{block}_expand_conv", f"{block}_bn0", 1) if number else x
        y = convolved(y, f"{block}_depthwise_conv", f"{block}_bn1", stride)
        y = convolved(y, f"{block}_project_conv", f"{block}_bn2", 1, activated=False)
        x = x + y if stride == 1 and x.shape[1] == width else y
    x = convolved(x, "_conv_head", "_bn1", 1)
    return x.mean((2, 3)) @ tensors["_fc.weight"].t() + tensors["_fc.bias"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("efficientnet-lite0")
    save_file(published_weights(), folder / "model.safetensors")
    return folder


def pictures(height: int = 64, width: int = 64) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(0))


def logits_of(model: Any, pixels: Tensor) -> Tensor:
    found: Tensor = model(Batch(Inputs(values=pixels))).logits
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", [(64, 64), (65, 90)])
@torch.no_grad()
def test_weights_that_are_published_alone_are_known_by_their_names(published: Path, size: tuple[int, int]) -> None:
    loaded = load_model(find_model(published))
    assert isinstance(loaded.module, ModelWithHead)
    assert loaded.module.config == EfficientNetLiteConfig() == read_config(published)
    assert (loaded.task, len(loaded.about["labels"])) == ("image-classification", 4)
    expected = published_logits(published_weights(), pictures(*size))
    assert expected.std() > 0.01
    torch.testing.assert_close(logits_of(loaded.module, pictures(*size)), expected, rtol=1e-4, atol=1e-4)
    assert "efficientnet-lite" in repr(legato.load(published))


def test_pictures_are_scaled_as_the_published_weights_need_it(published: Path) -> None:
    from PIL import Image

    processor = load_model(published).processors.others["image"]
    assert isinstance(processor, ImageProcessor)
    pixels = processor.read([Image.new("RGB", (30, 20), (255, 127, 0))]).content
    assert pixels.shape == (1, 3, 224, 224)
    torch.testing.assert_close(pixels[0, :, 0, 0], torch.tensor([1.0, 0.0, -127 / 128]))


@pytest.mark.slow
@torch.no_grad()
def test_our_own_folder_of_it_reads_back_equal(published: Path, tmp_path: Path) -> None:
    first = load_model(published)
    save_model(tmp_path, first.module, first.processors, task=first.task, about=first.about, card="")
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "legato-efficientnet-lite"
    again = load_model(tmp_path)
    assert again.module.config == first.module.config
    assert again.processors.fingerprints() == first.processors.fingerprints()
    for name, tensor in first.module.state_dict().items():
        assert torch.equal(again.module.state_dict()[name], tensor), name
    assert refusal(first.module.body) == "Hugging Face has no architecture like 'efficientnet-lite'"  # type: ignore[arg-type]


def test_a_file_of_a_processor_counts_where_there_is_one(published: Path, tmp_path: Path) -> None:
    save_file(published_weights(), tmp_path / "model.safetensors")
    ImageProcessor((96, 96)).save(tmp_path)
    assert load_model(tmp_path).processors.fingerprints() == {"image": ImageProcessor((96, 96)).fingerprint()}


def test_weights_alone_that_nobody_knows_are_no_model_folder(tmp_path: Path) -> None:
    tensors = published_weights()
    other = {name: tensor for name, tensor in tensors.items() if not name.startswith("_blocks.15.")}
    for held in ({"weight": torch.zeros(2)}, other):
        save_file(held, tmp_path / "model.safetensors")
        with pytest.raises(FolderError, match=r"is no model folder: it has no config\.json"):
            load_model(find_model(tmp_path))
    lacking = {name: tensor for name, tensor in tensors.items() if name != "_blocks.3._bn1.running_var"}
    save_file(lacking, tmp_path / "model.safetensors")
    with pytest.raises(FolderError, match=re.escape("lacks the tensor '_blocks.3._bn1.running_var'")):
        load_model(find_model(tmp_path))


# Blocks, the last one's width, and parameters in millions without the 1,281,000 of 1,000 classes (Lite0 has 4.7,
# Lite1 5.4, Lite2 6.1, Lite3 8.2, Lite4 13.0 with them).
@pytest.mark.parametrize(
    ("variant", "blocks", "width", "millions"),
    [(0, 16, 320, 3.4), (1, 21, 320, 4.1), (2, 21, 352, 4.8), (3, 24, 384, 6.9), (4, 30, 448, 11.7)],
)
def test_coefficients_make_the_published_variants(variant: int, blocks: int, width: int, millions: float) -> None:
    coefficients = [(1.0, 1.0, 224), (1.0, 1.1, 240), (1.1, 1.2, 260), (1.2, 1.4, 280), (1.4, 1.8, 300)][variant]
    fields = ("width_coefficient", "depth_coefficient", "image")
    config = validate(EfficientNetLiteConfig, dict(zip(fields, coefficients, strict=True)))
    assert (sum(config.depths), config.widths[-1]) == (blocks, width)
    with torch.device("meta"):
        model = EfficientNetLiteModel(config, Sizes(0))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)
    held = model.state_dict()
    theirs = {name: held[our] for our, of in EfficientNetLite.names(model).items() for name in of.names}
    entries = EfficientNetLite.entries_of(theirs)
    assert entries is not None
    assert [entries[name] for name in ("width_coefficient", "depth_coefficient", "image_size")] == [*coefficients]
    assert entries["architectures"] == ["EfficientNetLiteModel"]


@torch.no_grad()
def test_grids_of_every_stage() -> None:
    model = EfficientNetLiteModel(EfficientNetLiteConfig(), Sizes(0)).eval()
    states = model.states(Batch(Inputs(values=pictures())))
    widths = [32, 16, 24, 40, 80, 112, 192, 320, 1280]
    sides = [32, 32, 16, 8, 4, 4, 2, 2, 2]
    assert [tuple(state.shape[1:]) for state in states] == [(s * s, w) for s, w in zip(sides, widths, strict=True)]
    assert (model.stride, model.out_width, model.grid(65, 90)) == (32, 1280, (3, 3))


@pytest.mark.parametrize("field", ["width_coefficient", "depth_coefficient"])
@pytest.mark.parametrize("value", [0, -1, 17])
def test_coefficients_that_make_no_network_are_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"model.{field}={value} "):
        validate(EfficientNetLiteConfig, {field: value}, "model")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("size", [(64, 64), (65, 90), (33, 128)])
@pytest.mark.parametrize("finer", [16, 8])
@torch.no_grad()
def test_a_finer_grid_has_the_places_of_the_coarse_one(published: Path, size: tuple[int, int], finer: int) -> None:
    coarse: Any = load_model(find_model(published)).module.body
    fine = EfficientNetLiteModel(coarse.config.model_copy(update={"output_stride": finer}), Sizes(0)).eval()
    fine.load_state_dict(coarse.state_dict())
    batch = Batch(Inputs(values=pictures(*size)))
    (rows, columns), (few_rows, few_columns) = fine.grid(*size), coarse.grid(*size)
    expected = coarse(batch).hidden.unflatten(1, (few_rows, few_columns))
    found = fine(batch).hidden.unflatten(1, (rows, columns))
    assert (rows, columns) == tuple(-(-side // finer) for side in size)
    # TensorFlow's padding lets a stride of 2 begin at the second of an even number of places, at the first of an odd.
    places = []
    for count in (rows, columns):
        kept, number = torch.arange(count), count
        while number > -(-count * finer // 32):
            kept, number = kept[1 - number % 2 :: 2], -(-number // 2)
        places.append(kept)
    # Where strides differ, so may the way a convolution is computed: on some machines one rounds ten times more.
    torch.testing.assert_close(found[:, places[0]][:, :, places[1]], expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.01


@pytest.mark.slow
def test_the_grid_is_chosen_for_weights_that_are_there(published: Path) -> None:
    given = {"data.train": "toy:scenes", "model": "seq2seq", "from.encoder": str(published)}
    words = [f"{key}={value}" for key, value in given.items()]
    check(settings_for("captioning", [*words, "model.encoder.image=224"]))  # as it is
    chosen = check(settings_for("captioning", [*words, "model.encoder.output_stride=16"]))
    assert chosen.model.encoder.output_stride == 16  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"model\.encoder\.output_stride=12 should be 8, 16 or 32"):
        check(settings_for("captioning", {**given, "model.encoder.output_stride": 12}))
    with pytest.raises(ConfigError, match=r"model\.encoder\.image=64 is not what from\.encoder="):
        check(settings_for("captioning", {**given, "model.encoder.image": 64}))
    alone = {"data.train": "toy:scenes", "from": str(published)}
    config = check(settings_for("image-classification", {**alone, "model.output_stride": 8})).model
    assert isinstance(config, EfficientNetLiteConfig)
    assert config.output_stride == 8
    with pytest.raises(ConfigError, match="only dropouts and output_stride can be chosen with it"):
        check(settings_for("image-classification", {**alone, "model.image": 64}))
