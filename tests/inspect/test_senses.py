"""One word in many sentences: its vectors, their plane, and words as models read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.data.processors import Processors
from legato.errors import DataError, LegatoError
from legato.inspect.senses import principal_plane, type_vector, word_senses, word_states
from legato.model import Model

LINES = ["the fish swims in the sea", "we eat the fish and the bread", "the boat is on the sea", "I fish in boats"]
WITH_FISH = ["The fish swims.", "We eat the fish, and the bread.", "the fish and the boat", "I fish in the sea"]
QUICK: dict[str, Any] = {
    "train.steps": 2,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
    "model.width": 16,
    "model.layers": 2,
    "train.batch_tokens": 64,
    "data.valid_share": 0.3,
}
HEADS = {"model.heads": 2, "data.window": 64}
RUNS: dict[str, dict[str, Any]] = {
    "bert": {"task": "mlm", "model": "bert", "tokenizer": "wordpiece", "tokenizer.size": 60, **HEADS},
    "gpt2": {"task": "lm", "model": "gpt2", "tokenizer": "bpe", "tokenizer.size": 270, **HEADS},
    "lstm": {"task": "lm", "model": "lstm", "tokenizer": "word", "model.embedding": 12, "data.window": 16},
    "elmo": {"task": "lm", "model": "elmo", "model.filters": 2, "model.reach": 3},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("senses")
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES * 10), encoding="utf-8")
    made = {}
    for name, given in RUNS.items():
        own = {key: value for key, value in given.items() if key != "task"}
        legato.train(
            given["task"], {**QUICK, **own, "data.train": str(folder / "text.txt")}, out=folder / name, quiet=True
        )
        made[name] = legato.load(folder / name, "cpu")
    own = {"data.train": str(folder / "text.txt"), "model.width": 8, "train.steps": 2, "device": "cpu"}
    legato.train("word2vec", {**own, "train.tensorboard": "false"}, out=folder / "w", quiet=True)
    made["word2vec"] = legato.load(folder / "w", "cpu")
    own = {**QUICK, "data.train": "toy:language", "data.toy.count": 50, "data.toy.valid_count": 5, "model.heads": 2}
    own = {key: value for key, value in own.items() if key not in ("data.valid_share", "train.batch_tokens")}
    legato.train("translation", {**own, "model": "transformer"}, out=folder / "t", quiet=True)
    made["transformer"] = legato.load(folder / "t", "cpu")
    return made


@pytest.mark.parametrize("name", [*RUNS, "word2vec"])
def test_a_word_has_the_mean_of_its_tokens_states(models: dict[str, Model], name: str) -> None:
    loaded = models[name].loaded
    words = ["the", "fish", "swims", "tea"]
    together = word_states(loaded, [words, ["we"], ["fish"] * 9])
    (layers,) = word_states(loaded, [words])
    assert layers is not None
    assert together[0] is not None
    for one, other in zip(layers, together[0], strict=True):  # what stands beside it changes nothing
        np.testing.assert_allclose(one, other, atol=1e-5)
        assert len(one) == len(words)
    row = models[name].module.config.text_reader(loaded.tokenizer).words(words)
    assert row.positions is not None
    first, end = row.positions[-1], len(row.ids) - (name == "bert")  # [SEP] is behind the last word
    _, states = models[name].embed_tokens([" ".join(words)])[0]
    assert end - first > 1 or name in ("lstm", "elmo", "word2vec")
    np.testing.assert_allclose(layers[-1][-1], states[first:end].mean(0), atol=1e-4)


def test_a_sentence_beyond_the_model_is_left_out(models: dict[str, Model]) -> None:
    most = models["bert"].module.max_length
    assert most is not None
    found = word_states(models["bert"].loaded, [["fish"], ["fish"] * most, ["sea"]])
    assert [each is None for each in found] == [False, True, False]
    assert word_states(models["lstm"].loaded, [["fish"] * (most + 5)])[0] is not None
    assert word_states(models["bert"].loaded, []) == []


@pytest.mark.parametrize("name", RUNS)
def test_context_makes_a_cloud_around_no_single_point(models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = word_senses(model, "fish", WITH_FISH, senses=["n", "n", "n", "v"])
    assert found.points.shape == (4, 2)
    assert found.vectors.shape[0] == 4
    assert 0 < found.explained.sum() <= 1 + 1e-9
    assert found.explained[0] >= found.explained[1]
    np.testing.assert_allclose(found.points.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(np.diag(found.cosines), 1)
    assert found.type_point is not None
    assert all(near != n for n, near in enumerate(found.nearest))
    assert found.silhouette is not None
    assert -1 <= found.silhouette <= 1
    again = word_senses(model, "FISH", WITH_FISH)
    np.testing.assert_array_equal(again.points, found.points)
    assert again.silhouette is again.same_sense is None


def test_a_model_of_types_has_one_point(models: dict[str, Model]) -> None:
    found = word_senses(models["word2vec"], "fish", WITH_FISH, senses=["n", "n", "n", "v"])
    assert found.type_point is not None
    np.testing.assert_allclose(found.points, 0, atol=1e-6)
    np.testing.assert_allclose(found.type_point, 0, atol=1e-6)
    np.testing.assert_allclose(found.cosines, 1)
    assert found.explained.tolist() == [0, 0]
    table = models["word2vec"].module.embedding.weight
    np.testing.assert_allclose(found.vectors[0], table[models["word2vec"].tokenizer.id_of("fish")].detach())


def test_the_type_is_in_the_table_or_spelt_alone(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    split = [["fish", "swims"], ["the", "fish"], ["a", "fish"]]
    found = type_vector(model.loaded, split, [0, 1, 1])
    ids = model.tokenizer.encode(" fish").tolist()  # as it is spelt most often
    np.testing.assert_allclose(found, model.module.embedding.weight[ids].detach().mean(0), rtol=1e-5)
    elmo = models["elmo"]
    spelt = word_states(elmo.loaded, [["fish"]])[0]
    assert spelt is not None
    np.testing.assert_allclose(type_vector(elmo.loaded, split, [0, 1, 1]), spelt[0][0])


def test_layers_are_counted_from_what_is_embedded(models: dict[str, Model]) -> None:
    model = models["lstm"]
    first, between, last = (word_senses(model, "fish", WITH_FISH, layer=layer) for layer in range(3))
    assert first.vectors.shape == last.vectors.shape == (4, 12)
    assert between.vectors.shape == (4, 16)
    assert between.type_point is None  # the embedding is of another width
    np.testing.assert_array_equal(last.vectors, word_senses(model, "fish", WITH_FISH).vectors)
    np.testing.assert_allclose(first.cosines, 1)  # no context yet
    assert first.type_point == pytest.approx([0, 0], abs=1e-6)
    with pytest.raises(LegatoError, match="has the layers 0 to 2, and no layer 3"):
        word_senses(model, "fish", WITH_FISH, layer=3)


def test_the_plane_has_the_most_variance_and_one_sign() -> None:
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(30, 6)) * np.array([1, 5, 1, 3, 1, 1])
    points, axes, explained = principal_plane(vectors)
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-9)
    values = np.sort(np.linalg.eigvalsh(np.cov(vectors.T)))[::-1]
    np.testing.assert_allclose(explained, values[:2] / values.sum())
    np.testing.assert_allclose(points, principal_plane(vectors[::-1])[0][::-1], atol=1e-9)


def test_senses_that_lie_apart_have_neighbours_of_their_own(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.array([[1.0, 0.1, 0], [0.1, 1, 0], [1, 0, 0.1], [0, 1, 0.1]])
    monkeypatch.setattr(
        "legato.inspect.senses.word_states",
        lambda loaded, split: [[np.tile(each, (9, 1))] for each in vectors],
    )
    found = word_senses(models["bert"], "fish", WITH_FISH, senses=["a", "b", "a", "b"])
    assert found.nearest == [2, 3, 0, 1]
    assert found.same_sense == 1
    assert found.silhouette is not None
    assert found.silhouette > 0.8


def test_what_cannot_be_looked_at_is_said(models: dict[str, Model]) -> None:
    bert = models["bert"]
    with pytest.raises(DataError, match="2 sentences with 'fish' span no plane; give 3 at least"):
        word_senses(bert, "fish", WITH_FISH[:2])
    with pytest.raises(DataError, match="'fish' is no word of sentence 2, 'the sea is wide'"):
        word_senses(bert, "fish", [WITH_FISH[0], "the sea is wide", WITH_FISH[1]])
    with pytest.raises(DataError, match="3 senses for 4 sentences"):
        word_senses(bert, "fish", WITH_FISH, senses=["a", "b", "a"])
    with pytest.raises(DataError, match="4 senses in 4 sentences; give two at least, one of them twice"):
        word_senses(bert, "fish", WITH_FISH, senses=list("abcd"))
    long = "fish " * (bert.module.max_length or 0)
    with pytest.raises(DataError, match=r"sentence 3 is longer than .* reads"):
        word_senses(bert, "fish", [*WITH_FISH[:2], long])
    with pytest.raises(DataError, match="does not know 'whale'"):
        word_senses(models["lstm"], "whale", ["a whale", "the whale", "one whale"])
    assert word_senses(models["elmo"], "whale", ["a whale", "the whale", "one whale"]).points.shape == (3, 2)
    with pytest.raises(LegatoError, match="transformer has no states of a text's words"):
        word_senses(models["transformer"], "fish", WITH_FISH)
    with pytest.raises(DataError, match="sentence 2 has no words"):
        word_states(bert.loaded, [["a"], []])
    blind = replace(bert.loaded, processors=Processors(others={"image": None}))  # type: ignore[dict-item]
    with pytest.raises(LegatoError, match="bert has no states of a text's words"):
        word_states(blind, [["a"]])
    assert torch.is_grad_enabled()
