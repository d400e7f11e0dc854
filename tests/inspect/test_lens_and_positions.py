"""The logit lens, and tables of positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import HEADS

from legato.data.batching.batch import Batch, Inputs
from legato.errors import LegatoError
from legato.inspect.lens import logit_lens
from legato.inspect.positions import dot_products, position_table, rotation, sinusoidal_table
from legato.model import Model

TEXT = "the dog runs and the cat sleeps"
TRAINING_TEXT = f"{TEXT}\n" * 40
BLOCKS: dict[str, dict[str, Any]] = {
    "gpt2": {"task": "lm", "model": "gpt2", "model.layers": 2, **HEADS},
    "bert": {"task": "mlm", "model": "bert", "model.layers": 2, **HEADS},
    "llama": {"task": "lm", "model": "llama", "model.layers": 2, **HEADS},
    "transformer": {"task": "translation", "model": "transformer", "model.layers": 2, **HEADS},
}
RUNS = {**BLOCKS, "lstm": {"task": "lm", "model": "lstm", "model.layers": 2}}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_last_layer_says_what_the_model_says(models: dict[str, Model], name: str) -> None:
    lens = logit_lens(models[name], "a b" if name == "transformer" else TEXT)
    count = lens.positions.count
    assert lens.shares.shape == lens.entropies.shape == lens.distances.shape == (3, count)
    assert [len(row) for row in lens.guesses] == [count] * 3
    assert lens.agreement[-1] == 1
    np.testing.assert_allclose(lens.distances[-1], 0, atol=1e-5)
    assert (lens.distances >= -1e-5).all()
    assert (lens.ranks is None) == (name == "bert")


def test_it_is_the_models_own_readout(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    lens = logit_lens(model, TEXT)
    ids = torch.tensor([model.prompt_ids(TEXT)])
    with torch.no_grad():
        shares = model.module.readout(model.module(Batch(Inputs(ids))).hidden)[0].softmax(-1)
    np.testing.assert_allclose(lens.shares[-1], shares.max(-1).values, rtol=1e-4)
    assert lens.ranks is not None
    own = shares[:-1].gather(1, ids[0, 1:, None])
    np.testing.assert_array_equal(lens.ranks[-1], (shares[:-1] > own).sum(-1) + 1)


def test_the_likeliest_tokens_come_in_order_and_a_stretch_at_a_time(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = logit_lens(models["gpt2"], TEXT)
    assert lens.top_shares.shape == (3, lens.positions.count, 3)
    assert (np.diff(lens.top_shares) <= 0).all()
    assert lens.guesses == [[place[0] for place in row] for row in lens.top]
    np.testing.assert_array_equal(lens.shares, lens.top_shares[..., 0])
    monkeypatch.setattr("legato.inspect.lens.AT_ONCE", 1)
    again = logit_lens(models["gpt2"], TEXT)
    assert again.top == lens.top
    for name in ("top_shares", "entropies", "agreement", "distances", "ranks"):
        np.testing.assert_allclose(getattr(again, name), getattr(lens, name), rtol=1e-4, atol=1e-6)


def test_a_model_without_blocks_is_refused(models: dict[str, Model]) -> None:
    with pytest.raises(LegatoError, match="lstm has no blocks to look between"):
        logit_lens(models["lstm"], TEXT)


@pytest.mark.parametrize("distance", [0, 1, 17, -3])
def test_one_matrix_takes_every_position_as_far(distance: int) -> None:
    table = sinusoidal_table(60, 12)
    turned = table[10:40] @ rotation(distance, 12).T
    np.testing.assert_allclose(turned, table[10 + distance : 40 + distance], atol=1e-5)
    np.testing.assert_allclose(rotation(distance, 12) @ rotation(distance, 12).T, np.eye(12), atol=1e-9)


def test_products_of_sinusoids_depend_on_the_distance_alone(models: dict[str, Model]) -> None:
    products = dot_products(sinusoidal_table(40, 16))
    for distance in (0, 3, 11):
        along = np.diagonal(products, distance)
        np.testing.assert_allclose(along, along[0], atol=1e-4)
    learned = dot_products(position_table(models["gpt2"]), cosine=True)
    np.testing.assert_allclose(np.diagonal(learned), 1, atol=1e-6)
    assert np.ptp(np.diagonal(learned, 3)) > 1e-3
    np.testing.assert_allclose(position_table(models["transformer"])[:5], sinusoidal_table(5, 16), atol=1e-6)
    with pytest.raises(LegatoError, match="llama has no table of positions"):
        position_table(models["llama"])
    with pytest.raises(LegatoError, match="a sine without its cosine"):
        rotation(1, 3)
