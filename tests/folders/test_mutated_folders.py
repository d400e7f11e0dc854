"""Every entry of every JSON file of a folder, wrong in one way or another: a clear refusal, or a model that works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.errors import LegatoError
from legato.folders.model_folder import load_model
from legato.model import Model
from legato.models.model_with_head import HeadSpec
from mutated_json import mutations
from thinned import some
from tiny_adapted import adapted, published_folder, saved
from tiny_published import CHATML, change, gpt2_folder, write

CLASSES = {"kind": "classes", "outputs": 3}
PARTS = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]


def decoder(folder: Path) -> Path:
    """GPT-2 with all that may lie beside it."""
    gpt2_folder(folder, template=CHATML, num_beams=2)
    write(folder / "generation_config.json", {"eos_token_id": [0, 1], "num_beams": 2, "length_penalty": 1.0})
    write(folder / "special_tokens_map.json", {"bos_token": "<s>", "eos_token": {"content": "<|endoftext|>"}})
    return folder


def sentence_encoder(folder: Path) -> Path:
    published_folder(folder, "bert")
    write(folder / "modules.json", [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in PARTS])
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True, "include_prompt": True})
    write(folder / "sentence_bert_config.json", {"max_seq_length": 12, "do_lower_case": True})
    write(folder / "config_sentence_transformers.json", {"prompts": {"q": "say: "}, "default_prompt_name": "q"})
    return folder


def older_bert(folder: Path) -> Path:
    published_folder(folder, "bert")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 10**30}
    write(folder / "tokenizer_config.json", settings)
    write(folder / "added_tokens.json", {"<x>": 7, "<y>": 8})
    return folder


def adapter(folder: Path, name: str) -> Path:
    base = published_folder(folder.parent / "base", "bert")
    model, loaded = adapted(base, head=HeadSpec(**CLASSES), name=name)
    told: dict[str, Any] = {"labels": ["a", "b", "c"], "kind": "classes", "max_length": 8, "pair": False}
    return saved(folder, model, loaded, task="classification", **told)


def peft_adapter(folder: Path) -> Path:
    adapter(folder, "lora")
    (folder / "legato.json").unlink()
    change(folder / "adapter_config.json", rank_pattern={"x": 4}, alpha_pattern={"y": 2}, revision=None)
    return folder


def tagger(folder: Path) -> Path:
    """Ours as one model, with a head that only we have."""
    base = published_folder(folder.parent / "base", "roberta")
    shape = HeadSpec(kind="tags", outputs=3, crf=True, lstm=1, width=8)
    model, loaded = adapted(base, head=shape, name="head")
    model.adaptation = None
    told = {"labels": ["O", "B-x", "I-x"], "scheme": "iob2", "columns": {"word": 0, "tag": -1}}
    return saved(folder, model, loaded, task="tagging", **told)


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "decoder": decoder,
    "llama": lambda folder: published_folder(folder, "llama"),
    "qwen2": lambda folder: published_folder(folder, "llama", family="qwen2", window=8),
    "distilbert": lambda folder: published_folder(folder, "distilbert"),
    "marian": lambda folder: published_folder(folder, "transformer", norm="post", positions="sinusoidal"),
    "sentences": sentence_encoder,
    "older": older_bert,
    "lora": lambda folder: adapter(folder, "lora"),
    "bitfit": lambda folder: adapter(folder, "bitfit"),
    "peft": peft_adapter,
    "tagger": tagger,
    "shards": lambda folder: gpt2_folder(folder, largest=20_000),
}


def use(folder: Path) -> None:
    model = Model(load_model(folder), torch.device("cpu"))
    if model.loaded.sentences is not None or model.task == "mlm":
        model.embed(["the cat", ""])
    elif model.task in ("lm", "chat"):
        model.generate("the cat", max_tokens=2)
        if model.loaded.chat is not None:
            model.chat("hi", max_tokens=1)
    else:
        model.predictions(["the cat sat", "a dog"])


@pytest.mark.parametrize("name", some([*FOLDERS], [*[*FOLDERS][::2], "sentences"]))
def test_a_wrong_entry_is_refused_in_one_line_or_does_no_harm(name: str, tmp_path: Path) -> None:
    folder = FOLDERS[name](tmp_path / name)
    use(folder)
    messages: dict[str, str] = {}
    for file in sorted(folder.rglob("*.json")):
        if file.name == "tokenizer.json":  # the library reads it
            continue
        good = file.read_text(encoding="utf-8")
        for text, what in mutations(file, each=1):
            file.write_text(text, encoding="utf-8")
            try:
                use(folder)
            except LegatoError as problem:
                messages[what] = str(problem)
            except Exception as problem:
                raise AssertionError(f"{what}: {type(problem).__name__}: {problem}") from problem
        file.write_text(good, encoding="utf-8")
    use(folder)
    assert len(messages) > 8
    for what, message in messages.items():
        assert "\n" not in message, what
        assert len(message) < 2100, what


def test_every_kind_of_json_file_is_met(tmp_path: Path) -> None:
    """A file that is read and not among these would be mutated nowhere."""
    met = {file.name for name, make in FOLDERS.items() for file in make(tmp_path / name / name).rglob("*.json")}
    known = {"modules.json", "adapter_config.json", "legato.json", "added_tokens.json", "special_tokens_map.json"}
    assert known | {"config.json", "generation_config.json", "sentence_bert_config.json"} <= met
    assert json.dumps(sorted(met)).count("index.json") == 1
