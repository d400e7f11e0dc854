"""Vectors of texts: which layers, how pooled, for every model that reads one text."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import legato
from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.errors import ConfigError, LegatoError
from legato.folders.loaded import Loaded
from legato.folders.sentence_encoder import SentenceEncoder
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.nn.pooling import WAYS
from legato.registry import MODELS
from legato.tasks.embedding.embed_files import embed_to_file, ending_of
from legato.tasks.embedding.text_vectors import TextVectors
from tiny_published import gpt2_folder
from tiny_runs import small as small_run

TEXTS = ["the cat sat", "a", "one more dog, and rain", "ünïcode straße"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> legato.Model:
    return legato.load(gpt2_folder(tmp_path_factory.mktemp("gpt2")), "cpu")


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> legato.Model:
    folder = tmp_path_factory.mktemp("lstm")
    legato.train("lm", small_run(folder, train__steps=1, model__layers=4), out=folder / "run", quiet=True)
    return legato.load(folder / "run", "cpu")


def one_by_one(model: legato.Model, text: str, layers: str, pool: str) -> Any:
    """The plain twin: a text alone, its states in a list."""
    vectors = TextVectors.of(model.loaded)
    ids = torch.tensor([vectors.rows([text])[0].ids])
    with torch.no_grad():
        states = [state[0] for state in model.module.states(Batch(Inputs(ids)))]
    combined = {
        "last": lambda: states[-1],
        "first": lambda: states[0],
        "second-to-last": lambda: states[-2],
        "sum-last-4": lambda: sum(states[-4:]),
        "concat-last-4": lambda: torch.cat(states[-4:], -1),
        "sum-all": lambda: sum(states[1:]),
        "mix": lambda: sum(states) / len(states),
    }[layers]()
    pooled = {"mean": combined.mean(0), "max": combined.amax(0), "last": combined[-1]}
    return pooled[pool].numpy()


@pytest.mark.parametrize("layers", WAYS)
@pytest.mark.parametrize("pool", ["mean", "max", "last"])
def test_a_batch_gives_what_each_text_gives_alone(layers: str, pool: str, lstm: legato.Model) -> None:
    found = lstm.embed(TEXTS, layers=layers, pool=pool)
    for text, vector in zip(TEXTS, found, strict=True):
        assert np.abs(vector - one_by_one(lstm, text, layers, pool)).max() < 1e-5


@pytest.mark.parametrize("layers", ["last", "first", "second-to-last", "sum-all", "mix"])
def test_a_published_decoder_has_vectors(layers: str, gpt2: legato.Model) -> None:
    found = gpt2.embed(TEXTS, layers=layers, pool="last", normalize=True)
    assert found.shape == (4, 16)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text("abc tdog", max_size=12), min_size=1, max_size=9), st.integers(1, 5))
def test_neither_order_nor_batch_changes_a_vector(gpt2: legato.Model, texts: list[str], size: int) -> None:
    together = gpt2.embed(texts)
    assert np.abs(gpt2.embed(texts[::-1], batch_size=size)[::-1] - together).max() < 1e-5


def test_a_learned_mix_is_used(lstm: legato.Model) -> None:
    shape = HeadSpec(kind="classes", outputs=2, layers="mix", pool="mean")
    body = lstm.loaded.module
    module = ModelWithHead(copy.deepcopy(body), shape).eval()
    assert module.mix is not None
    with torch.no_grad():
        module.mix.weights[2] = 100.0  # all on the second layer
        module.mix.scale.fill_(3.0)
    loaded = Loaded(lstm.folder, module, Processors(lstm.tokenizer), "classification")
    with torch.no_grad():
        mixed = TextVectors.of(loaded, layers="mix").embed(TEXTS)
        body_alone = TextVectors.of(loaded).embed(TEXTS)
    expected = np.stack([3 * one_by_one_layer(lstm, text, 2) for text in TEXTS])
    assert np.abs(mixed - expected).max() < 1e-5
    assert np.abs(body_alone - lstm.embed(TEXTS)).max() < 1e-6


def one_by_one_layer(model: legato.Model, text: str, layer: int) -> Any:
    ids = torch.tensor([TextVectors.of(model.loaded).rows([text])[0].ids])
    with torch.no_grad():
        return model.module.states(Batch(Inputs(ids)))[layer][0].mean(0).numpy()


def test_a_word_model_gives_a_word_one_vector_wherever_it_stands(tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("the cat sat on the mat\nthe dog ran to the cat\n" * 30)
    given = {"data.train": str(text), "train.steps": 2, "model.width": 8, "device": "cpu", "train.samples": 0}
    legato.train("word2vec", {**given, "train.tensorboard": "false"}, out=tmp_path / "run", quiet=True)
    model = legato.load(tmp_path / "run", "cpu")
    found = model.embed_tokens(["the cat sat", "dog cat"])
    assert [tokens for tokens, _ in found] == [["the", "cat", "sat"], ["dog", "cat"]]
    assert np.array_equal(found[0][1][1], found[1][1][1])
    mean = (found[1][1][0] + found[1][1][1]) / 2
    assert np.abs(model.embed("dog cat") - mean).max() < 1e-6


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": "concat-last-4"}, "layers=concat-last-4 needs 4 layers, and this model has 2"),
        ({"layers": "lats"}, "did you mean 'last'"),
        ({"pool": "men"}, "did you mean 'mean'"),
        ({"batch_size": 0}, "at least one text"),
        ({"pool": "none"}, "embed_tokens"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], message: str, gpt2: legato.Model) -> None:
    with pytest.raises(LegatoError, match=message):
        gpt2.embed(["a"], **options)


def test_layers_of_different_widths_cannot_be_added(tmp_path: Path) -> None:
    changes = {"model__width": 16, "model__embedding": 12, "model__layers": 2, "train__steps": 1}
    legato.train("lm", small_run(tmp_path, **changes), out=tmp_path / "run", quiet=True)
    model = legato.load(tmp_path / "run", "cpu")
    assert model.embed("a", layers="second-to-last").shape == (16,)
    for layers in ("sum-all", "mix"):
        with pytest.raises(LegatoError, match="12 and 16 wide"):
            model.embed("a", layers=layers)


def test_a_model_that_reads_one_text_and_writes_another_has_none() -> None:
    model = MODELS.get("transformer")
    module = model(validate(model.Config, {"name": "transformer", "width": 8, "heads": 2, "layers": 1}), Sizes(9))
    with pytest.raises(LegatoError, match="reads one text and writes another"):
        TextVectors(module, None, SentenceEncoder())  # type: ignore[arg-type]


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_of_file_holds_the_same(gpt2: legato.Model, tmp_path: Path) -> None:
    expected = gpt2.embed(TEXTS, layers="first")
    for kind in ("npy", "npz", "jsonl", "tsv"):
        assert embed_to_file(TextVectors.of(gpt2.loaded, layers="first"), TEXTS, tmp_path / f"v.{kind}") == 16
    assert np.array_equal(np.load(tmp_path / "v.npy"), expected)
    with np.load(tmp_path / "v.npz") as held:
        assert np.array_equal(held["vectors"], expected)
        assert held["texts"].tolist() == TEXTS
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert np.array_equal(np.array([row["vector"] for row in rows], dtype=np.float32), expected)
    assert np.array_equal(np.loadtxt(tmp_path / "v.tsv", dtype=np.float32, delimiter="\t"), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v.jsonl", "v.npy", "v.npz", "v.tsv"]


def test_tokens_have_vectors_of_their_own(gpt2: legato.Model, tmp_path: Path) -> None:
    embed_to_file(TextVectors.of(gpt2.loaded), TEXTS, tmp_path / "v.npz", pool="none")
    with np.load(tmp_path / "v.npz") as held:
        first = held["vectors"][: held["offsets"][1]]
        assert len(held["tokens"]) == held["offsets"][-1] == len(held["vectors"])
    assert np.abs(first.mean(0) - gpt2.embed(TEXTS[0])).max() < 1e-5


def test_blocks_change_nothing(gpt2: legato.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.tasks.embedding.embed_files.BLOCK", 3)
    counted: list[int] = []
    embed_to_file(TextVectors.of(gpt2.loaded), TEXTS * 2, tmp_path / "v.npy", batch_size=2, done=counted.append)
    assert np.abs(np.load(tmp_path / "v.npy") - gpt2.embed(TEXTS * 2)).max() < 1e-6
    assert sum(counted) == 8


@pytest.mark.parametrize(("out", "pool"), [("v.txt", None), ("v", None), ("v.npy", "none"), ("v.tsv", "none")])
def test_a_file_says_what_it_is(out: str, pool: str | None) -> None:
    with pytest.raises(ConfigError, match=out):
        ending_of(out, pool)


def test_a_folder_that_is_not_there_is_said(gpt2: legato.Model, tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match="cannot be written"):
        embed_to_file(TextVectors.of(gpt2.loaded), TEXTS, tmp_path / "none" / "v.npy")
