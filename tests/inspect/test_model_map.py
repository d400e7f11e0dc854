"""The model's map: what each part costs, against figures that are worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import HEADS
from torch import Tensor, nn

from legato.inspect.report.build import report_of
from legato.inspect.report.trace_views import Costs, map_view
from legato.model import Model
from legato.models.vit import PatchEmbedding
from legato.nn.capture import record
from legato.nn.feedforward import BlockShape, FeedForward
from legato.nn.linear import FEW, Linear, pack
from legato.nn.multihead import CrossAttention, SelfAttention
from legato.nn.recurrent import Recurrent

TEXT = "the dog runs and the cat sleeps"
TRAINING_TEXT = f"{TEXT}\n" * 40
RUNS: dict[str, dict[str, Any]] = {
    "lstm": {"task": "lm", "model": "lstm", "model.layers": 2, "model.dropout": 0},
    "gpt2": {"task": "lm", "model": "gpt2", "model.layers": 1, **HEADS},
    "transformer": {"task": "translation", "model": "transformer", "model.layers": 1, **HEADS},
}
B, T, S, D, H = 2, 7, 5, 12, 3
K = D // H


def operations(module: nn.Module, *given: Any) -> dict[str, int]:
    """What a part does, as a report counts it: while somebody looks inside."""
    with torch.no_grad(), Costs(module.eval()) as costs, record():
        module(*given)
    return costs.operations


def product(rows: int, inputs: int, outputs: int) -> int:
    """A multiplication and an addition for each weight and each row."""
    return 2 * rows * inputs * outputs


# --- parts --------------------------------------------------------------------------------------------


def test_a_linear_layer_costs_two_operations_a_weight_and_row() -> None:
    whole = nn.Sequential(nn.Linear(D, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))
    assert operations(whole, torch.zeros(B, T, D)) == {
        "": product(B * T, D, 5) + product(B * T, 5, 3),
        "0": product(B * T, D, 5),
        "2": product(B * T, 5, 3),
    }


@pytest.mark.parametrize("rows", [FEW - 1, FEW, 64])
def test_weights_that_are_packed_for_a_cpu_cost_as_much(rows: int) -> None:
    layer = Linear(D, 5)
    pack(layer)
    found = operations(layer, torch.zeros(rows, D))
    assert (layer._packed is not None) == (rows >= FEW and torch.backends.mkldnn.is_available())
    assert found == {"": product(rows, D, 5)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu"])
def test_a_feed_forward_layer_costs_as_much_with_packed_weights(packed: bool, activation: Any) -> None:
    layer = FeedForward(BlockShape(D, H, 4 * D, activation))
    if packed:
        pack(layer)
    assert operations(layer, torch.zeros(B, T, D))[""] == 2 * product(B * T, D, 4 * D)


@pytest.mark.parametrize(("cell", "gates"), [("elman", 1), ("gru", 3), ("lstm", 4)])
def test_a_recurrent_layer_multiplies_its_input_and_its_state_in_every_gate(cell: str, gates: int) -> None:
    stack = Recurrent(cell, S, [D, D])
    first = product(T * B, S, gates * D) + product(T * B, D, gates * D)
    second = 2 * product(T * B, D, gates * D)
    found = operations(stack, torch.zeros(T, B, S))
    assert (found["layers.0"], found["layers.1"], found[""]) == (first, second, first + second)


def test_attention_costs_its_projections_and_twice_all_pairs() -> None:
    layer = SelfAttention(BlockShape(D, H, 4 * D))
    found = operations(layer, torch.zeros(B, T, D))
    pairs = 2 * B * H * T * T * K  # of the scores, and again of the sum
    assert found["qkv"] == product(B * T, D, 3 * D)
    assert found["output"] == product(B * T, D, D)
    assert found[""] == found["qkv"] + found["output"] + 2 * pairs


def test_keys_of_what_is_looked_at_count_for_who_looks() -> None:
    class Looking(nn.Module):
        """As a stack does it: keys and values first, then the layer."""

        def __init__(self) -> None:
            super().__init__()
            self.cross = CrossAttention(BlockShape(D, H, 4 * D))

        def forward(self, x: Tensor, memory: Tensor) -> Tensor:
            found: Tensor = self.cross(x, self.cross.source(memory))
            return found

    found = operations(Looking(), torch.zeros(B, T, D), torch.zeros(B, S, D))
    assert found["cross.key_value"] == product(B * S, D, 2 * D)
    pairs = 2 * B * H * T * S * K
    assert found["cross"] == found[""] == found["cross.key_value"] + 2 * product(B * T, D, D) + 2 * pairs


def test_patches_cost_a_product_with_all_their_pixels() -> None:
    found = operations(PatchEmbedding(D, image=8, patch=4), torch.zeros(B, 3, 8, 8))
    assert found["projection"] == found[""] == product(B * 4, 3 * 4 * 4, D)


def test_nothing_is_counted_or_left_behind_afterwards() -> None:
    layer = nn.Linear(D, 5)
    with Costs(layer) as costs:
        layer(torch.zeros(T, D))
    layer(torch.zeros(T, D))
    assert costs.operations == {"": product(T, D, 5)}
    with pytest.raises(RuntimeError), Costs(layer):
        layer(torch.zeros(T, D + 1))
    assert not layer._forward_hooks
    assert not layer._forward_pre_hooks


# --- whole models -------------------------------------------------------------------------------------


def nodes(root: dict[str, Any]) -> list[dict[str, Any]]:
    return [root, *(each for child in root["children"] for each in nodes(child))]


def test_a_language_model_costs_its_layers_and_its_readout(models: dict[str, Model]) -> None:
    model = models["lstm"]
    report = report_of(model, TEXT)
    root = report.views["map"]["root"]
    count, width, vocabulary = len(report.streams["input"]["names"]), 16, model.loaded.target.size
    readout = product(count, width, vocabulary)
    assert root["operations"] == 4 * product(count, width, 4 * width) + readout
    output = next(child for child in root["children"] if child["name"] == "output")
    assert (output["operations"], output["output"]) == (readout, [1, count, vocabulary])


@pytest.mark.parametrize("name", RUNS)
def test_a_part_costs_what_its_parts_cost_at_least(models: dict[str, Model], name: str) -> None:
    model = models[name]
    root = report_of(model, "a b" if name == "transformer" else TEXT).views["map"]["root"]
    assert root["operations"] > 0
    for node in nodes(root):
        assert sum(child["operations"] or 0 for child in node["children"]) <= (node["operations"] or 0), node["name"]
    layers = [
        node for node in nodes(root) if node["kind"] in ("Linear", "Readout") and node["operations"] is not None
    ]
    for node in layers:
        (rows, height), inputs = (node["output"][-2], node["output"][-1]), node["own"][0]["shape"][1]
        assert node["operations"] >= product(rows, inputs, height), node["name"]


def test_parameters_are_the_models_own_and_a_shared_matrix_is_marked(models: dict[str, Model]) -> None:
    root = map_view(models["gpt2"].loaded)["root"]
    assert root["parameters"] == sum(each.numel() for each in models["gpt2"].module.parameters())
    assert all(node["operations"] is None and node["output"] is None for node in nodes(root))  # nothing has run
    own = {(node["name"], each["name"]): each["shared"] for node in nodes(root) for each in node["own"]}
    assert own["embedding", "weight"] is False
    assert own["output", "weight"] is True  # the embedding's
    assert sum(own.values()) == 1


def test_the_search_before_is_not_counted(models: dict[str, Model]) -> None:
    """A translator reads what it has written, which it has searched for first; the map is of one pass."""
    report = report_of(models["transformer"], "a b")
    count = len(report.streams["target"]["names"])
    (cross,) = (node for node in nodes(report.views["map"]["root"]) if node["name"] == "cross")
    (query,) = (child for child in cross["children"] if child["name"] == "query")
    assert query["operations"] == product(count, 16, 16)
