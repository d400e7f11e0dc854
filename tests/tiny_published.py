"""Folders as others publish them, small enough for a test: no key of ours, their tokenizers, random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from legato.config import validate
from legato.folders.shards import LARGEST, save_weights
from legato.models.base import Sizes
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.published.gpt2 import GPT2

TEXT = ["the cat sat on the mat, hello world", "the dog ran and saw one more cat by the rain"] * 5
END = "<|endoftext|>"
SPECIAL_TOKENS = [END, "<|im_start|>", "<|im_end|>", "<s>", "</s>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_level(marks: list[str] = SPECIAL_TOKENS) -> Any:
    """A library tokenizer of GPT-2's kind."""
    library: Any = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=marks, show_progress=False),
    )
    return library


def gpt2_folder(
    folder: Path, *, length: int = 64, largest: int = LARGEST, template: str | None = None, **config: Any
) -> Path:
    """GPT-2 as Hugging Face writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    library = byte_level()
    library.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": END}
    if template is not None:
        settings["chat_template"] = template
    write(folder / "tokenizer_config.json", settings)
    torch.manual_seed(0)
    sizes = Sizes(library.get_vocab_size())
    module = GPT2Model(validate(GPT2Config, {"layers": 2, "width": 16, "heads": 2, "length": length}), sizes)
    with torch.no_grad():  # as they are at first, all logits would be nearly the same
        module.embedding.weight.mul_(20)
    entries, tensors = GPT2.save(module)
    save_weights(tensors, folder, largest)
    write(folder / "config.json", {"model_type": "gpt2", **entries, "eos_token_id": 0, "bos_token_id": 0, **config})
    return folder


def write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def change(file: Path, **entries: Any) -> None:
    write(file, {**json.loads(file.read_text(encoding="utf-8")), **entries})
