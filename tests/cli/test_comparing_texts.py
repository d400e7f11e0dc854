"""Models that cut texts into different numbers of tokens are compared on the same texts."""

from __future__ import annotations

import random
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
    assert table_of(found)[0][1:4] == ["parameters", "tokens", "tokens/s"]


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
    prepared = comparing._prepared
    monkeypatch.setattr(comparing, "_prepared", lambda config: read.append(config) or prepared(config))
    changes = {"head.layers": ["first", "last"], "adapt": ["lora", "head"]}
    found = compare([str(written[1])], changes, quiet=True, out=tmp_path / "out")
    assert len(found.entries) == 4
    assert len(read) == 1


@pytest.mark.slow
def test_a_tokenizer_that_hides_words_gains_nothing_by_it(tmp_path: Path) -> None:
    """A model of words that has <unk> to guess has few bits to pay for its tokens, and many for the letters."""
    for name, lines in (("train", 200), ("valid", 60)):
        draw = random.Random(name)
        letters = "abcdefghijklmnopqrstuvwxyz"
        rare = ["".join(draw.choices(letters, k=6)) for _ in range(lines)]  # each comes once
        (tmp_path / f"{name}.txt").write_text("".join(f"the cat saw {word} and ran\n" for word in rare))
    settings = {"data.train": str(tmp_path / "train.txt"), "data.valid": str(tmp_path / "valid.txt")}
    settings |= {"model": "lstm", "tokenizer": ["char", "word"], "tokenizer.min_count": 2, "data.window": 8}
    settings |= {"train.batch_tokens": 64, "train.steps": 60, "train.lr": 0.02, "train.validate_every": 60}
    found = compare("lm", settings, quiet=True, match="none", device="cpu", out=tmp_path / "out")
    char, word = found.entries
    assert word.mean("valid.unknown_share") > 0.1
    assert char.mean("valid.unknown_share") == 0
    assert word.mean("valid.perplexity") < 2  # each token is easy
    assert word.mean("valid.bits_per_byte") > char.mean("valid.bits_per_byte")
    caption = table_of(found)[2]
    assert "what a model's tokens do not spell is charged at 8.006 bits a byte" in caption
    assert "perplexity is that of a token" in caption
