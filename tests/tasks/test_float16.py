"""Models in float16 on a CPU: those that only encode are as good as in float32, and others are told of."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import legato
from legato.nn.kernels.library import library
from tiny_published import gpt2_folder
from tiny_tasks import tiny

kernels = library()
needs_halves = pytest.mark.skipif(kernels is None or not kernels.multiplies_halves, reason="needs float16 products")


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    settings = {**tiny("classification", folder), "model": "bert", "model.width": 64, "model.heads": 4}
    legato.train("classification", settings, out=folder / "run", quiet=True)
    return folder / "run"


@needs_halves
def test_an_encoder_in_float16_says_the_same_and_nobody_is_warned(classifier: Path) -> None:
    wide = legato.load(classifier, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        half = legato.load(classifier, "cpu", dtype="float16")
    assert {parameter.dtype for parameter in half.module.parameters()} == {torch.float16}
    texts = ["a dog runs", "two cats", "the old man sleeps in the house by the river"]
    np.testing.assert_allclose(half.embed(texts), wide.embed(texts), rtol=1e-2, atol=1e-2)
    assert half.predict(texts) == wide.predict(texts)


def test_what_writes_is_told_that_float32_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.loading.multiplies_bf16", lambda device: False)
    with pytest.warns(UserWarning, match="no fast products of float16 for this model"):
        legato.load(gpt2_folder(tmp_path), "cpu", dtype="float16")


def test_an_encoder_that_the_kernels_lack_is_told_so(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.loading.multiplies_bf16", lambda device: False)
    with pytest.warns(UserWarning, match="no fast products of bfloat16"):
        legato.load(classifier, "cpu", dtype="bfloat16")
    monkeypatch.setenv("LEGATO_KERNELS", "off")
    library.cache_clear()
    try:
        with pytest.warns(UserWarning, match="no fast products of float16"):
            legato.load(classifier, "cpu", dtype="float16")
    finally:
        library.cache_clear()
