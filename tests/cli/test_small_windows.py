"""Pre-training with few positions, and prompts that read alike here and in `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import legato
from legato.data.sources.corpora import stdlib_corpus

TINY = {"model.layers": 1, "model.width": 16, "train.batch_tokens": 256, "train.steps": 4, "tokenizer.size": 300}


@pytest.fixture
def text(tmp_path: Path) -> str:
    file = tmp_path / "a.txt"
    file.write_text("\n".join(stdlib_corpus("valid"))[:12_000], encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_samples_stay_within_a_short_context(model: str, text: str, tmp_path: Path) -> None:
    settings = {**TINY, "data.train": text, "model": model, "tokenizer": "bpe", "data.window": 16, "train.samples": 1}
    result = legato.train("lm", settings, out=str(tmp_path / "run"), quiet=True)
    assert result.steps == 4


def test_prompts_have_the_same_ids_in_transformers(text: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    settings = {**TINY, "data.train": text, "model": "gpt2", "tokenizer": "bpe", "data.window": 32}
    legato.train("lm", settings, out=str(tmp_path / "run"), quiet=True)
    ours, theirs = legato.load(tmp_path / "run"), AutoTokenizer.from_pretrained(tmp_path / "run" / "best")
    for prompt in ("The game", " café", ""):
        assert theirs(prompt)["input_ids"] == ours.prompt_ids(prompt)
    assert theirs.bos_token_id == ours.tokenizer.eos_id


def test_a_masked_model_has_as_many_positions_as_its_window(text: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**TINY, "data.train": text, "model": "bert", "data.window": 24}
    legato.train("mlm", settings, out=str(tmp_path / "run"), quiet=True)
    assert legato.load(tmp_path / "run").module.max_length == 24
