"""What a classifier made of a sentence encoder reads: what the folder says that makes its vectors, comes first."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import legato
from legato.config import read_yaml, to_yaml, validate
from legato.folders.sentence_encoder import SentenceEncoder, save_sentence_encoder
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from legato.runs.train import with_head
from tiny_adapted import published_folder
from tiny_reviews import settings, write_pairs, write_reviews

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "layers": 1, "length": 16}
NOTE = (
    "transformers loads this model's body alone, without its head: it has none with head.pool=mean (Legato loads "
    "both); what it loads whole is trained with head.pool=pooler (where the model has one)"
)


def body(name: str, **config: Any) -> Any:
    kind = MODELS.get(name)
    return kind(validate(kind.Config, {"name": name, **SMALL, **config}), Sizes(20))


def head_of(
    name: str, mode: str | None, before: HeadSpec | None = None, adapt: str = "full", **head: Any
) -> HeadSpec:
    """The head put on a model whose folder says to pool by `mode`, if anything, and which had a head `before`."""
    how = None if mode is None else SentenceEncoder((mode,))
    module = body(name) if before is None else ModelWithHead(body(name), before)
    loaded: Any = SimpleNamespace(module=module, sentences=how, about={})
    job = SimpleNamespace(head=validate(HeadSpec, {"kind": "classes", "outputs": 2, **head}), labels=["a", "b"])
    found: Any = with_head(body(name), job, loaded, adapt)
    return found.shape  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "mode", "pool", "inner"),
    [
        ("bert", "mean", "mean", "none"),
        ("bert", "cls", "first", "none"),
        ("bert", None, "pooler", "none"),
        ("distilbert", "mean", "mean", "none"),
        ("distilbert", "cls", "first", "relu"),  # as the architecture's own head, with its dense layer
        ("distilbert", None, "first", "relu"),
        ("gpt2", "mean", "mean", "none"),
        ("gpt2", "lasttoken", "last", "none"),
        ("gpt2", None, "last", "none"),
    ],
)
def test_a_head_pools_as_the_folder_says(name: str, mode: str | None, pool: str, inner: str) -> None:
    shape = head_of(name, mode)
    assert (shape.pool, shape.inner) == (pool, inner)
    assert shape.bias is not (name == "gpt2" and pool == "last")


def test_a_frozen_encoder_is_read_as_its_vectors_are_made() -> None:
    for name, mode, pool in (("bert", "mean", "mean"), ("distilbert", "cls", "first"), ("gpt2", "lasttoken", "last")):
        shape = head_of(name, mode, adapt="head")
        assert (shape.pool, shape.inner, shape.bias) == (pool, "none", True)


def test_what_somebody_asks_for_comes_before_what_the_folder_says() -> None:
    assert head_of("bert", "mean", pool="max").pool == "max"
    assert head_of("bert", "mean", pool="model").pool == "pooler"
    assert head_of("distilbert", "mean", pool="model") == head_of("distilbert", None)
    assert head_of("bert", "cls", kind="tags") == head_of("bert", None, kind="tags")


def test_a_head_that_is_there_goes_on_as_it_is() -> None:
    assert head_of("bert", "mean", HeadSpec(kind="classes", outputs=2, pool="max")).pool == "max"
    assert head_of("bert", "mean", HeadSpec(kind="tags", outputs=2)).pool == "mean"


# ── whole runs ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder with a pooler, whose folder says mean."""
    folder = published_folder(tmp_path_factory.mktemp("encoder") / "m", "bert", pooler=True)
    save_sentence_encoder(folder, SentenceEncoder(("mean",)), 16)
    return folder


def trained(encoder: Path, folder: Path, **changes: Any) -> Path:
    given = {**settings(folder, train__steps=2, train__validate_every=2), "from": str(encoder), **changes}
    given.pop("model.width")
    legato.train("classification", given, out=folder / "run")
    return folder / "run"


def shape_of(run: Path) -> HeadSpec:
    module: Any = legato.load(run, "cpu").loaded.module
    return module.shape  # type: ignore[no-any-return]


@pytest.mark.parametrize("adapt", ["full", "lora", "bitfit", "head"])
def test_whatever_is_tuned_the_head_pools_as_the_folder_says(adapt: str, encoder: Path, tmp_path: Path) -> None:
    assert shape_of(trained(encoder, tmp_path, adapt=adapt)).pool == "mean"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["multilabel", "pairs", "regression"])
def test_so_it_does_for_labels_of_every_kind(kind: str, encoder: Path, tmp_path: Path) -> None:
    data, more = tmp_path / "data.tsv", {}
    if kind == "multilabel":
        write_reviews(data, labels=("bad", "good;fine"))
        more = {"data.kind": "multilabel"}
    else:
        write_pairs(data, scale=kind == "regression")
    run = trained(encoder, tmp_path, **{"data.train": str(data), "data.valid": str(data), **more})
    assert shape_of(run).pool == "mean"
    assert legato.load(run).about["kind"] == ("classes" if kind == "pairs" else kind)


def test_that_transformers_lacks_the_head_is_said_in_training_and_in_the_card(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(encoder, tmp_path)
    assert f"note: {NOTE}\n" in capsys.readouterr().err
    assert f"\nNote: {NOTE}.\n" in (run / "best" / "README.md").read_text()


def test_of_a_head_that_it_has_neither_speaks(
    encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(encoder, tmp_path, **{"head.pool": "pooler"})
    assert "transformers" not in capsys.readouterr().err
    assert "transformers" not in (run / "best" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("adapt", ["full", "lora"])
def test_a_run_that_began_with_the_models_own_head_goes_on_with_it(adapt: str, encoder: Path, tmp_path: Path) -> None:
    run = trained(encoder, tmp_path, **{"head.pool": "model", "adapt": adapt})
    config, provenance = run / "config.yaml", run / "provenance.json"
    told = read_yaml(config)
    told["head"]["pool"] = "auto"  # which meant that, and nothing said how the head pooled
    config.write_text(to_yaml(told))
    about = json.loads(provenance.read_text())
    assert about.pop("pool") == "pooler"
    provenance.write_text(json.dumps(about))
    legato.train(resume=str(run), **{"train.steps": 4}, quiet=True)
    assert shape_of(run).pool == "pooler"


@pytest.mark.slow
def test_a_run_goes_on_as_the_folder_says(encoder: Path, tmp_path: Path) -> None:
    run = trained(encoder, tmp_path)
    legato.train(resume=str(run), **{"train.steps": 4}, quiet=True)
    assert shape_of(run).pool == "mean"
