"""Where a place of a picture stands: positions that CLIP and ViT learn, waves that DETR and UniT add."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from read_reports import array
from tiny_models import made_once
from torch import Tensor

import legato
from legato.config import validate
from legato.data.image.image_processor import ImageProcessor
from legato.errors import LegatoError
from legato.inspect.pictures import position_similarity
from legato.inspect.positions import dot_products, grid_waves, waves_of_grid
from legato.inspect.report.analysis_views import MOST_GRIDS, positions_view
from legato.inspect.report.build import report_of
from legato.inspect.report.page import Report
from legato.model import Model
from legato.models.base import Sizes
from legato.models.detr import DETRModel, place_waves
from legato.registry import MODELS
from legato.tasks.picture_data import image_processor, picture_encoder
from tiny_boxes import HEIGHT, SMALL, WIDTH, painted
from tiny_pictures import picture_model, pixels
from tiny_tasks import VIT

RUNS: dict[str, tuple[str, dict[str, Any]]] = {"boxes": ("detection", {}), "unit": ("unit", {})}
ENCODER = {
    key.removeprefix("model.encoder."): value for key, value in SMALL.items() if key.startswith("model.encoder.")
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    return made_once(tmp_path_factory, RUNS, lambda name, folder, given: given)


def a_report() -> Report:
    return Report("", "", {"name": "any"})


def codes_of(model: Model, report: Report, size: tuple[int, int] | None = None) -> dict[str, dict[str, Any]]:
    view = positions_view(report, model, size)
    assert view is not None
    return {code["kind"]: code for code in view["codes"]}


# --- learned ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vit", "clip-vision"])
def test_the_positions_that_an_encoder_learns_are_those_of_its_patches(name: str, tmp_path: Path) -> None:
    model = legato.load(picture_model(tmp_path / "model", name, **VIT), "cpu")
    encoder: Any = picture_encoder(model.module)
    learned = encoder.learned_positions()
    assert learned.shape == (2, 2, VIT["width"])
    torch.testing.assert_close(learned.flatten(0, 1), encoder.patches.positions[1:])  # the first is of the whole
    report = a_report()
    code = codes_of(model, report)["patches"]
    alike = position_similarity(model)
    np.testing.assert_allclose(array(report, code["cosines"]), alike.flatten(2).flatten(0, 1), atol=5e-3)


def test_clip_says_that_pictures_of_another_size_stretch_its_positions(tmp_path: Path) -> None:
    loaded = legato.load(picture_model(tmp_path / "model", "clip-vision", **VIT), "cpu").loaded
    image_processor(loaded)  # as it was trained: nothing to say
    loaded.processors.others["image"] = ImageProcessor((16, 16))
    with pytest.warns(UserWarning, match=r"makes pictures of 16 × 16 .* its positions are stretched to them"):
        image_processor(loaded)


# --- waves --------------------------------------------------------------------------------------------


def added(model: Model, given: Any) -> Tensor:
    """What is added to the places of a picture before they look at each other, (S, D): seen while a model runs."""
    module: Any = next(part for part in model.module.modules() if hasattr(part, "places"))
    seen: dict[str, Tensor] = {}
    hooks = [
        module.encoder.register_forward_hook(lambda _, __, out: seen.update(read=out)),
        module.places.register_forward_pre_hook(lambda _, got: seen.update(placed=got[0])),
    ]
    model.trace(given)
    for hook in hooks:
        hook.remove()
    return (seen["placed"] - seen["read"][:, module.encoder.model.before_grid :])[0]


def test_the_waves_of_detr_are_what_it_adds_to_the_places(trained: Callable[[str], Model]) -> None:
    model, (picture, _) = trained("boxes"), painted(1)
    waves = grid_waves(model)
    assert (len(waves.rows), len(waves.columns)) == (HEIGHT // 2, WIDTH // 2)
    table = waves.table()
    np.testing.assert_allclose(table.reshape(-1, table.shape[-1]), added(model, picture), atol=1e-5)
    report = report_of(model, picture)
    code = next(each for each in report.views["positions"]["codes"] if each["kind"] == "grid")
    assert (code["name"], code["grid"]) == ("grid", [len(waves.rows), len(waves.columns)])
    np.testing.assert_allclose(array(report, code["across"]), waves.columns, atol=1e-3)
    np.testing.assert_allclose(array(report, code["down"]), waves.rows, atol=1e-3)


def test_the_waves_of_unit_are_what_it_adds_to_the_places(trained: Callable[[str], Model]) -> None:
    model, picture = trained("unit").for_task("boxes"), pixels("red")
    table = grid_waves(model).table()
    np.testing.assert_allclose(table.reshape(-1, table.shape[-1]), added(model, picture), atol=1e-5)
    codes = codes_of(model, a_report())
    assert set(codes) == {"grid", "learned", "patches"}  # of its decoder, its reader of texts, its encoder
    assert codes["grid"]["name"] == "model.grid"


def test_half_a_code_is_the_column_and_half_the_row(trained: Callable[[str], Model]) -> None:
    waves = grid_waves(trained("boxes"), (32, 48))
    table = waves.table()
    half = waves.rows.shape[1]
    assert table.shape == (16, 24, 2 * half)
    assert np.ptp(table[..., :half], axis=0).max() == 0  # the first half is the same in every row
    assert np.ptp(table[..., half:], axis=1).max() == 0  # … and the second in every column
    across, down = (dot_products(side, cosine=True) for side in (waves.columns, waves.rows))
    flat = dot_products(table.reshape(-1, 2 * half), cosine=True).reshape(16, 24, 16, 24)
    np.testing.assert_allclose(flat, (down[:, None, :, None] + across[None, :, None]) / 2, atol=1e-6)


def test_the_waves_are_those_of_the_picture_that_is_read(trained: Callable[[str], Model]) -> None:
    """Of a larger picture there are more places, and the same share of a side has the same waves."""
    model = trained("boxes")
    small, large = grid_waves(model, (16, 24)), grid_waves(model, (48, 72))
    np.testing.assert_allclose(large.rows[1::3], small.rows, atol=1e-3)  # the middle of three is where one was
    np.testing.assert_allclose(large.columns[1::3], small.columns, atol=1e-3)
    code = codes_of(model, a_report(), (48, 72))["grid"]
    assert code["grid"] == [24, 36]
    assert len(code["rows"]) <= MOST_GRIDS
    assert len(code["columns"]) <= MOST_GRIDS


def test_what_is_left_over_of_a_width_is_nothing() -> None:
    config = {"name": "detr", "width": 18, "heads": 3, "layers": 1, "encoder_layers": 0}
    made = DETRModel(
        validate(MODELS.get("detr").Config, {**config, "encoder": {"name": "resnet", **ENCODER}}), Sizes(2)
    )
    whole = place_waves(made.cells(16, 24, torch.device("cpu")), 18)
    table = waves_of_grid(made, (16, 24)).table()
    assert table.shape == (8, 12, 16)
    np.testing.assert_allclose(table.reshape(-1, 16), whole[:, :16], atol=1e-6)
    assert (whole[:, 16:] == 0).all()


def test_a_model_that_reads_no_places_has_no_such_waves(tmp_path: Path) -> None:
    model = legato.load(picture_model(tmp_path / "model", "vit", **VIT), "cpu")
    with pytest.raises(LegatoError, match="vit adds no waves to the places of a picture"):
        grid_waves(model)
