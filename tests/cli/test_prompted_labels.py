"""`legato predict` with a model that only writes, and with vectors of words; bad input gets one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.folders.model_folder import save_model
from legato.models.base import Sizes
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.word2vec import Word2VecConfig, Word2VecModel

ASK = ("--task", "classification", "--labels", "good,bad")


@pytest.fixture
def writer(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.train(TokenizerConfig(name="byte"), [])
    torch.manual_seed(0)
    module = GPT2Model(GPT2Config(layers=1, width=8, heads=2, length=64), Sizes(tokenizer.size))
    (tmp_path / "m").mkdir()
    save_model(tmp_path / "m", module, Processors(tokenizer), task="lm", about={}, card="")
    return tmp_path / "m"


def test_labels_behind_a_prompt(writer: Path, tmp_path: Path, command: Any) -> None:
    told = command("predict", writer, "a film", *ASK)
    label, share = told.out.strip().split("\t")
    assert told.code == 0
    assert label in ("good", "bad")
    assert float(share) >= 0.5
    (tmp_path / "texts.txt").write_text("a film\nbad\n")
    (tmp_path / "shots.tsv").write_text("fine\tgood\n" * 9)
    told = command(
        "predict", writer, "--file", tmp_path / "texts.txt", *ASK, "--shots", tmp_path / "shots.tsv", "--json"
    )
    found = [json.loads(line)["answers"][0]["probabilities"] for line in told.out.splitlines()]
    assert [set(shares) for shares in found] == [{"good", "bad"}] * 2
    assert "note: the model reads 64 tokens at most: 2 of 2 texts have fewer than the 9 examples" in told.err
    assert f"note: {tmp_path / 'shots.tsv'}: reading column 1 as text and column 2 as label, no header" in told.err
    (tmp_path / "shots.tsv").write_text("good\t7\tfine\n")
    told = command("predict", writer, "a", *ASK, "--shots", tmp_path / "shots.tsv", "--columns", "3,1")
    assert (told.code, told.err) == (0, "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("x", "--labels", "a,b"), "--labels is for asking a model that writes for labels: --task classification"),
        (("x", "--task", "tagging"), "is a model for lm, not for tagging; leave out --task tagging"),
        (("x", *ASK, "--beams", "3"), "asking for labels has no option 'beams'"),
        (("x", *ASK, "--shots", "none.tsv"), "there is no file none.tsv; --shots needs a csv, tsv or jsonl file"),
        (("x", *ASK, "--columns", "2,1"), "--columns is for a file of examples; name it with --shots"),
        (("x" * 99, *ASK), "but the model reads 64 at most"),
    ],
)
def test_bad_questions_are_one_line(words: tuple[str, ...], line: str, writer: Path, command: Any) -> None:
    told = command("predict", writer, *words)
    assert told.code == 2
    assert line in told.err
    assert len(told.err.strip().splitlines()) == 1


def test_the_nearest_words_and_their_cosines(tmp_path: Path, command: Any) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["a b c d\n"])
    module = Word2VecModel(Word2VecConfig(width=2), Sizes(tokenizer.size))
    with torch.no_grad():
        module.embedding.weight[:] = 1.0
        for word, vector in {"a": (1, 0), "b": (1, 0), "c": (0.6, 0.8), "d": (-1, 0)}.items():
            module.embedding.weight[tokenizer.id_of(word)] = torch.tensor(vector, dtype=torch.float32)
    (tmp_path / "w").mkdir()
    save_model(tmp_path / "w", module, Processors(tokenizer), task="word2vec", about={}, card="")
    assert command("predict", tmp_path / "w", "a", "--nbest", 3).out == "b\t1.0000\nc\t0.6000\nd\t-1.0000\n"
    told = command("predict", tmp_path / "w", "a", "zebra", "--nbest", 1)
    assert told.out == "0\tb\t1.0000\n1\t\n"
    assert "'zebra' is no word of the model's vocabulary" in told.err
    assert told.code == 2
    told = command("export", tmp_path / "w", "--to", "vectors", "--out", tmp_path / "v.txt")
    assert (tmp_path / "v.txt").read_text().startswith("4 2\n")
