"""What the views of analyses are given: the numbers of the analyses, as they travel."""

from __future__ import annotations

import copy
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import HEADS
from torch import nn

import legato
from legato.data.positions import Positions
from legato.errors import DataError
from legato.inspect.gradients import gradient_through_time
from legato.inspect.heads import head_measures
from legato.inspect.lens import logit_lens
from legato.inspect.pictures import mean_attention_distance, position_similarity
from legato.inspect.positions import dot_products, position_table, sinusoidal_table
from legato.inspect.probes import Probes
from legato.inspect.readings import reading_of
from legato.inspect.report import analysis_views, build
from legato.inspect.report.analysis_views import (
    gradient_view,
    grid_distances,
    layers_view,
    lens_view,
    positions_view,
    rates_of,
)
from legato.inspect.report.page import Report
from legato.inspect.trace import Captured
from legato.model import Model
from legato.models.vit import PatchEmbedding
from legato.nn.capture import record
from legato.nn.conformer import FrameView, RelativeAttention, relative_sinusoids
from legato.nn.feedforward import BlockShape
from legato.nn.pooling import ScalarMix
from legato.nn.positions import Rotary
from tiny_pictures import TINY, TINY_CAPTIONER, captioned, class_folders, pixels

TEXT = "the dog runs and the cat sleeps"
TRAINING_TEXT = f"{TEXT}\n" * 40
RUNS: dict[str, dict[str, Any]] = {
    "gpt2": {"task": "lm", "model": "gpt2", "model.layers": 2, **HEADS},
    "bert": {"task": "mlm", "model": "bert", "model.layers": 2, **HEADS},
    "roberta": {"task": "mlm", "model": "roberta", "model.layers": 1, **HEADS},
    "llama": {"task": "lm", "model": "llama", "model.layers": 2, **HEADS},
    "elman": {"task": "lm", "model": "elman", "model.layers": 1},
    "lstm": {"task": "lm", "model": "lstm", "model.layers": 1},
    "transformer": {"task": "translation", "model": "transformer", "model.layers": 2, **HEADS},
}


def a_report() -> Report:
    return Report("a title", TEXT, {"name": "any"})


def array(report: Report, number: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """As the studio reads it (studio/src/lib/report.ts)."""
    kept = report.arrays[number]
    read = np.frombuffer(zlib.decompress(kept.blob), np.uint8 if kept.dtype == "u8" else "<f2").reshape(kept.shape)
    share = read.astype(np.float64)
    return share if kept.dtype == "f16" else kept.low + (kept.high - kept.low) * (share / 255) ** kept.power


def whole(report: Report, number: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    high, middle, low = np.round(array(report, number))
    return high * 65536 + middle * 256 + low


def holding(*parts: nn.Module) -> Any:
    """What looks like a model with these parts."""
    return SimpleNamespace(loaded=SimpleNamespace(module=nn.ModuleList(parts)))


# --- the logit lens -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "bert", "transformer"])
def test_the_lens_travels_as_it_is(models: dict[str, Model], name: str) -> None:
    text = "a b" if name == "transformer" else TEXT
    report, lens = a_report(), logit_lens(models[name], text)
    view = lens_view(report, models[name], text)
    assert view is not None
    assert view["names"] == list(lens.positions.names)
    assert view["count"] == len(view["names"])
    top = whole(report, view["top"]).astype(int)
    assert [[[view["tokens"][i] for i in place] for place in row] for row in top.tolist()] == lens.top
    np.testing.assert_allclose(array(report, view["shares"]), lens.top_shares, atol=1e-3)
    np.testing.assert_allclose(array(report, view["entropies"]), lens.entropies, atol=5e-3)
    np.testing.assert_allclose(array(report, view["distances"]), lens.distances, atol=5e-3)
    np.testing.assert_allclose(array(report, view["agreement"]), lens.agreement, atol=1e-3)
    assert (view["ranks"] is None) == (lens.ranks is None) == (name == "bert")
    if lens.ranks is not None:
        np.testing.assert_array_equal(whole(report, view["ranks"]), lens.ranks)


def test_a_reading_at_hand_is_not_read_again(models: dict[str, Model]) -> None:
    model = models["transformer"]
    one, other = a_report(), a_report()
    reading = reading_of(model.loaded, "a b", "x")
    assert lens_view(one, model, "a b", "x") == lens_view(other, model, None, reading=reading)
    assert one.arrays == other.arrays


def test_a_large_lens_is_of_the_first_positions(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    report, lens = a_report(), logit_lens(models["gpt2"], TEXT)
    monkeypatch.setattr(analysis_views, "MOST_LOGITS", 1)
    view = lens_view(report, models["gpt2"], TEXT)
    assert view is not None
    assert (view["names"], view["count"]) == (list(lens.positions.names[:2]), lens.positions.count)
    np.testing.assert_allclose(array(report, view["shares"]), lens.top_shares[:, :2], atol=1e-3)
    assert lens.ranks is not None
    np.testing.assert_array_equal(whole(report, view["ranks"]), lens.ranks[:, :1])


def test_what_has_no_lens_has_no_view_and_what_cannot_be_read_is_said(models: dict[str, Model]) -> None:
    assert lens_view(a_report(), models["lstm"], TEXT) is None
    with pytest.raises(DataError, match="there is no text to look at"):
        lens_view(a_report(), models["gpt2"], " ")


@pytest.mark.slow
def test_an_encoder_of_pictures_is_not_what_writes(tmp_path: Path) -> None:
    table = captioned(tmp_path)
    given = {**TINY_CAPTIONER, "data.train": table, "data.valid": table, "train.steps": 1}
    legato.train("captioning", given, out=tmp_path / "run", quiet=True)
    model = legato.load(tmp_path / "run", "cpu")
    assert lens_view(a_report(), model, pixels("red"), "a dog") is None  # an LSTM writes what a ViT sees


# --- codes of positions -------------------------------------------------------------------------------


def test_a_learned_table_has_its_cosines_and_norms(models: dict[str, Model]) -> None:
    report, table = a_report(), position_table(models["gpt2"])
    view = positions_view(report, models["gpt2"])
    assert view is not None
    (code,) = view["codes"]
    assert (code["kind"], code["length"]) == ("learned", len(table))
    most = np.quantile(np.abs(table), 0.999)
    np.testing.assert_allclose(array(report, code["table"]), table.clip(-most, most), atol=most / 200)
    np.testing.assert_allclose(array(report, code["cosines"]), np.triu(dot_products(table, cosine=True)), atol=5e-3)
    np.testing.assert_allclose(array(report, code["norms"]), np.linalg.norm(table, axis=1), rtol=1e-3)


def test_rows_that_no_token_uses_are_left_out(models: dict[str, Model]) -> None:
    report, model = a_report(), models["roberta"]
    view = positions_view(report, model)
    assert view is not None
    module: Any = model.loaded.module
    before: int = module.before
    assert before > 0
    assert view["codes"][0]["length"] == len(position_table(model)) - before
    used = position_table(model)[before:][: len(array(report, view["codes"][0]["norms"]))]
    np.testing.assert_allclose(array(report, view["codes"][0]["norms"]), np.linalg.norm(used, axis=1), rtol=1e-3)


def test_waves_have_the_angle_of_a_step(models: dict[str, Model]) -> None:
    report = a_report()
    view = positions_view(report, models["transformer"])
    assert view is not None
    (code,) = view["codes"]
    table = array(report, code["table"])
    assert (code["kind"], table.shape[1]) == ("sinusoidal", 16)
    np.testing.assert_allclose(table, sinusoidal_table(len(table), 16), atol=1e-3)
    np.testing.assert_allclose(10 ** array(report, code["rates"]), 10000 ** (-np.arange(8) / 8), rtol=1e-2)
    assert rates_of(sinusoidal_table(40, 7)).shape == (3,)


def test_rotary_angles_are_the_models_own() -> None:
    report, rotary = a_report(), Rotary(5000, 8, theta=500.0, slowed=lambda rates: rates / 4)
    view = positions_view(report, holding(rotary))
    assert view is not None
    (code,) = view["codes"]
    assert (code["kind"], code["length"]) == ("rotary", 5000)
    table = array(report, code["table"])
    assert table.shape == (512, 8)
    np.testing.assert_allclose(table, torch.cat([rotary.sin[:512, :4], rotary.cos[:512, :4]], dim=1), atol=1e-3)
    np.testing.assert_allclose(10 ** array(report, code["rates"]), 500 ** (-np.arange(4) / 4) / 4, rtol=1e-2)


@pytest.mark.parametrize(("side", "drawn"), [(6, 6), (20, 10)])
def test_patches_are_as_alike_as_their_positions(side: int, drawn: int) -> None:
    torch.manual_seed(0)
    patches = PatchEmbedding(12, side * 2, 2)
    nn.init.normal_(patches.positions)
    report = a_report()
    view = positions_view(report, holding(patches))
    assert view is not None
    (code,) = view["codes"]
    assert (code["grid"], len(code["rows"]), len(code["columns"])) == ([side, side], drawn, drawn)
    every = dot_products(patches.positions[1:].detach().double().numpy(), cosine=True).reshape((side,) * 4)
    some = every[np.ix_(code["rows"], code["columns"])].reshape(drawn**2, -1)
    np.testing.assert_allclose(array(report, code["cosines"]), some, atol=5e-3)


def test_scores_of_distances_are_what_a_head_adds_to_any_query() -> None:
    torch.manual_seed(0)
    attention = RelativeAttention(BlockShape(8, 2, 16)).eval()
    nn.init.normal_(attention.distance_bias)
    report = a_report()
    view = positions_view(report, holding(attention))
    assert view is not None
    (code,) = view["codes"]
    scores, reach = array(report, code["scores"])[0], code["reach"]
    assert scores.shape == (2, 2 * reach + 1)
    with torch.no_grad(), record() as trace:
        for parameter in attention.qkv.parameters():
            parameter.zero_()  # so a score is of the distance alone
        attention(torch.randn(1, 5, 8), FrameView(relative_sinusoids(5, 8)))
    places = np.arange(5)
    wanted = np.exp(scores[:, reach - (places[:, None] - places)])  # (H, T, T)
    np.testing.assert_allclose(trace["weights"][0][0], wanted / wanted.sum(-1, keepdims=True), atol=2e-3)


def test_what_knows_no_positions_has_no_view(models: dict[str, Model]) -> None:
    assert positions_view(a_report(), models["lstm"]) is None


# --- gradients ----------------------------------------------------------------------------------------


def test_gradients_of_several_models_on_one_input(models: dict[str, Model]) -> None:
    report = a_report()
    view = gradient_view(report, {name: models[name] for name in ("elman", "gpt2", "bert")}, TEXT)
    assert view is not None
    assert ([line["name"] for line in view["lines"]], view["left"]) == (["elman", "gpt2"], ["bert"])
    for line in view["lines"]:
        found = gradient_through_time(models[line["name"]], TEXT)
        np.testing.assert_allclose(10 ** array(report, line["norms"]), found.norms, rtol=0.02)
        assert (line["tokens"], line["wanted"]) == (list(found.tokens), found.wanted)
        assert (line["factor"] is None) == (found.bound is None)
        if found.bound is not None:
            np.testing.assert_allclose(found.norms[-1] * line["factor"] ** found.distances, found.bound, rtol=1e-6)
    assert gradient_view(a_report(), {"bert": models["bert"]}, TEXT) is None


def test_an_lstm_has_a_line_for_its_cell(models: dict[str, Model]) -> None:
    report = a_report()
    view = gradient_view(report, {"runs/x": models["lstm"], "gpt2": models["gpt2"]}, TEXT)
    assert view is not None
    assert [line["name"] for line in view["lines"]] == ["runs/x", "runs/x, cell", "gpt2"]
    hidden, cell, _ = view["lines"]
    assert (hidden["states"], cell["states"]) == ("lstm.0.hidden", "lstm.0.cell")
    found = gradient_through_time(models["lstm"], TEXT, of="cell")
    np.testing.assert_allclose(10 ** array(report, cell["norms"]), found.norms, rtol=0.02)


def test_a_gradient_that_is_gone_is_a_gap(models: dict[str, Model]) -> None:
    """Not 10⁰, which would be a large one."""
    model = copy.deepcopy(models["elman"])
    with torch.no_grad():
        next(value for name, value in model.module.named_parameters() if name.endswith("weight_hh")).zero_()
    report = a_report()
    view = gradient_view(report, {"elman": model}, TEXT)
    assert view is not None
    (line,) = view["lines"]
    powers = array(report, line["norms"])
    assert np.isnan(powers[:-1]).all()
    assert np.isfinite(powers[-1])


# --- layers -------------------------------------------------------------------------------------------


def test_layers_are_compared_position_by_position(models: dict[str, Model]) -> None:
    report, trace = a_report(), models["gpt2"].trace(TEXT)
    view = layers_view(report, trace)
    assert view is not None
    (stack,) = view["stacks"]
    states = [trace[f"decoder.{name}"].values for name in ("embedded", "0.hidden", "1.hidden")]
    np.testing.assert_allclose(
        array(report, stack["norms"]), [np.linalg.norm(each, axis=1) for each in states], rtol=1e-3
    )
    cosines = array(report, stack["cosines"])
    for k, one in enumerate(states):
        for m, other in enumerate(states):
            each = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
            assert cosines[k, m] == pytest.approx(each.mean(), abs=5e-3)
    far = [measured.distance for measured in head_measures(trace)]
    np.testing.assert_allclose(array(report, stack["distance"]["heads"]).ravel(), np.array(far, float), rtol=2e-3)
    assert stack["distance"]["unit"] == "tokens"


def test_both_sides_of_a_translator_are_stacks(models: dict[str, Model]) -> None:
    view = layers_view(a_report(), models["transformer"].trace("a b"))
    assert view is not None
    assert [(stack["name"], stack["stream"]) for stack in view["stacks"]] == [
        ("encoder", "source"),
        ("decoder", "target"),
    ]
    assert layers_view(a_report(), models["lstm"].trace(TEXT)) is None
    part = models["gpt2"].trace(TEXT, layers=[1])
    assert layers_view(a_report(), part) is None  # without the first layer there is nothing to compare


def test_a_picture_is_looked_at_across_its_grid(tmp_path: Path) -> None:
    photos = str(class_folders(tmp_path / "train"))
    given = {**TINY, "data.train": photos, "data.valid": photos, "train.steps": 2}
    legato.train("image-classification", given, out=tmp_path / "run", quiet=True)
    model = legato.load(tmp_path / "run", "cpu")
    report = a_report()
    view = layers_view(report, model.trace(pixels("red")))
    assert view is not None
    (stack,) = view["stacks"]
    assert stack["distance"]["unit"] == "patches"
    wanted = mean_attention_distance(model, pixels("red")) / TINY["model.patch"]
    np.testing.assert_allclose(array(report, stack["distance"]["heads"]), wanted, rtol=2e-3)
    found = positions_view(report, model)
    assert found is not None
    np.testing.assert_allclose(
        array(report, found["codes"][0]["cosines"]), position_similarity(model).flatten(2).flatten(0, 1), atol=5e-3
    )


def test_weights_on_what_is_no_patch_are_left_out() -> None:
    places = Positions("patch", ("whole", "1, 1", "1, 2"), grid=(1, 2), before=1)
    weights = np.array([[[1, 0, 0], [0.5, 0.25, 0.25], [0.5, 0, 0.5]]], dtype=np.float32)
    far = grid_distances(Captured(weights, ("head", "position", "seen"), "input"), places)
    np.testing.assert_allclose(far, [0.25])  # a half for the first patch, none for the second


def test_probes_and_mixes_are_beside_the_states(models: dict[str, Model]) -> None:
    report, mix = a_report(), ScalarMix(3)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, 1.0, 2.0]))
        mix.scale.fill_(1.5)
    accuracy, control = np.array([0.5, 0.75, 0.625]), np.array([0.5, 0.25, 0.25])
    weights, mixes = np.array([0.25, 0.25, 0.5]), np.array([0.5, 0.75, 1.0])
    probes = Probes(["a", "b"], (20, 10), 0, 0.5, accuracy, control, mixes, 0.5, weights)
    model = copy.deepcopy(models["lstm"])
    model.loaded.module.mix = mix
    view = layers_view(report, model.trace(TEXT), {"tags": probes}, model)
    assert view is not None
    (found,), (own,) = view["probes"], view["mixes"]
    assert (found["task"], found["labels"], found["examples"], found["baseline"]) == ("tags", 2, [20, 10], 0.5)
    assert (found["centre"], found["expected"]) == (1.25, 1.5)
    for name, wanted in (("accuracy", accuracy), ("control", control), ("weights", weights)):
        np.testing.assert_allclose(array(report, found[name]), wanted)
    np.testing.assert_allclose(array(report, own["weights"]), mix.weights.detach().softmax(0), atol=1e-3)
    assert own["scale"] == 1.5


# --- together -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_report_has_what_its_model_has(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    has = {name: set(build.report_of(models[name], TEXT).views) for name in ("gpt2", "bert", "lstm")}
    own = {"lens", "layers", "positions", "gradient"}
    assert has["gpt2"] >= own
    assert has["bert"] & own == {"lens", "layers", "positions"}
    assert has["lstm"] & own == {"gradient"}
    monkeypatch.setattr(build, "MOST_TOKENS", 3)
    assert set(build.report_of(models["gpt2"], TEXT).views) & own == {"lens", "layers", "positions"}
