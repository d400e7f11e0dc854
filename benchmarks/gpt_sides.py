"""What the GPT-2 benchmarks share: one model for all sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 50_257


def write_model(folder: Path, layers: int, width: int, length: int, tied: bool, seed: int) -> None:
    """A GPT-2 with random weights, as Hugging Face keeps it."""
    import torch
    from safetensors.torch import save_file

    from legato.models.base import Sizes
    from legato.models.gpt2 import GPT2Config, GPT2Model
    from legato.models.published.gpt2 import GPT2

    torch.manual_seed(seed)
    config = GPT2Config(layers=layers, width=width, heads=max(1, width // 64), length=length, dropout=0, tied=tied)
    entries, tensors = GPT2.save(GPT2Model(config, Sizes(VOCABULARY)))
    about = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **entries}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(about), encoding="utf-8")
    kept = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def read_ours(folder: Path) -> Any:
    """The model in `folder` as a `GPT2Model`."""
    from safetensors.torch import load_file

    from legato.models.published.gpt2 import GPT2

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return GPT2.load(config, load_file(folder / "model.safetensors"), str(folder))


def read_theirs(folder: Path) -> Any:
    """The same model as a `GPT2LMHeadModel`."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.GPT2LMHeadModel.from_pretrained(folder)


def write_ctranslate2(folder: Path) -> None:
    """The same model for CTranslate2, beside it. Its tokens are `t0`, `t1` and so on."""
    import ctranslate2
    import tokenizers
    import transformers

    target = folder.with_name("ctranslate2")
    names = {f"t{number}": number for number in range(VOCABULARY)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="t0"))
    ends = {"unk_token": "t0", "bos_token": "t0", "eos_token": "t0"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **ends).save_pretrained(folder)
    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(target))
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    (target / "config.json").write_text(json.dumps({**config, "unk_token": "t0"}), encoding="utf-8")


def write_gguf(folder: Path, file: Path, quantize: str) -> None:
    """The same model for llama.cpp."""
    import gguf

    from legato.folders.gguf.families import architecture_for, entries_of, tensors_of
    from legato.folders.gguf.writing import QUANTIZED, _write

    model = read_ours(folder)
    architecture = architecture_for(model)
    entries = {
        **entries_of(model, architecture),
        "general.type": "model",
        "general.file_type": QUANTIZED[quantize],
        **({"general.quantization_version": 2} if quantize.startswith("q") else {}),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{number}" for number in range(VOCABULARY)],
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    _write(gguf, file, architecture.name, entries, tensors_of(model, architecture), quantize)
