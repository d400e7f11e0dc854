"""Models that cut texts into different numbers of tokens are compared on the same texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from legato.errors import ConfigError
from legato.runs import compare as comparing
from legato.runs.compare import compare, table_of
from tiny_adapted import published_folder
from tiny_reviews import write_reviews


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Path]:
    """A recurrent classifier from scratch, and an encoder with LoRA."""
    write_reviews(tmp_path / "train.tsv", seed=1)
    write_reviews(tmp_path / "dev.tsv", rows=20, seed=2)
    train = {"batch_rows": 8, "steps": 2, "samples": 0, "tensorboard": False}
    alike: dict[str, Any] = {
        "task": "classification",
        "data": {"train": str(tmp_path / "train.tsv"), "valid": str(tmp_path / "dev.tsv")},
        "train": train,
        "device": "cpu",
    }
    encoder = {"from": str(published_folder(tmp_path / "bert", "bert")), "adapt": {"name": "lora"}}
    recurrent = {"model": {"name": "lstm", "width": 8}}
    for name, own in (("recurrent", recurrent), ("encoder", encoder)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**alike, **own}))
    return tmp_path / "recurrent.yaml", tmp_path / "encoder.yaml"


def test_a_recurrent_model_beside_an_encoder(written: tuple[Path, Path], tmp_path: Path) -> None:
    found = compare([str(file) for file in written], quiet=True, out=tmp_path / "out")
    first, second = (entry.results[0] for entry in found.entries)
    assert first.tokens < second.tokens  # of the same texts
    assert first.trainable == first.parameters
    assert second.trainable < second.parameters
    assert [column.header for column in table_of(found).columns][1:4] == ["parameters", "tokens", "tokens/s"]


def test_more_texts_for_one_are_refused(written: tuple[Path, Path], tmp_path: Path) -> None:
    settings = yaml.safe_load(written[1].read_text())
    settings["train"]["steps"] = 3
    written[1].write_text(yaml.safe_dump(settings))
    with pytest.raises(
        ConfigError, match=r"'encoder' would train on 24 texts, 'recurrent' on 16; set train\.batch_rows"
    ):
        compare([str(file) for file in written], quiet=True, out=tmp_path / "out")


def test_heads_on_one_model_have_the_texts_read_once_beforehand(
    written: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    sizes = comparing._sizes
    monkeypatch.setattr(comparing, "_sizes", lambda config: read.append(config) or sizes(config))
    changes = {"head.layers": ["first", "last"], "adapt": ["lora", "head"]}
    found = compare([str(written[1])], changes, quiet=True, out=tmp_path / "out")
    assert len(found.entries) == 4
    assert len(read) == 1
