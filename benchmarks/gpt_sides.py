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
