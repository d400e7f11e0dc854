"""Small models to export, and how an answer of one line is told."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from legato.config import validate
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.folders.model_folder import save_model
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS
from tiny_pairs import sentences

MADE = sentences(random.Random(4), 30)
ENGLISH, GERMAN = ([each[language] for each in MADE] for language in ("en", "de"))
JOINT = Tokenizer.train(TokenizerConfig(name="bpe", size=300), [*ENGLISH, *GERMAN]).with_special_tokens(
    ["<pad>", ">>de<<"]
)
READ = Tokenizer.train(TokenizerConfig(name="bpe", size=290), ENGLISH).with_special_tokens(["<pad>"])
WRITTEN = Tokenizer.train(TokenizerConfig(name="word"), GERMAN).with_special_tokens(["<pad>"])
TEXTS = ["A dog runs.", "The cat eats and A man sleeps.", "dog", "🐶 — 狗", "The man runs and The man runs."]
NEVER = -1e4
SMALL: dict[str, Any] = {"name": "transformer", "width": 16, "layers": 2, "heads": 2, "length": 48}


def saved(folder: Path, apart: bool = False, ends: bool = True, **settings: Any) -> Path:
    """A model on random weights that have opinions, in a folder; as a trained one it hardly thinks of marks."""
    torch.manual_seed(0)
    model: type[SequenceModel] = MODELS.get(settings.get("name", "transformer"))
    chosen = settings if "name" in settings else {**SMALL, **settings}
    read, written = (READ, WRITTEN) if apart else (JOINT, JOINT)
    sizes = Sizes(written.size, read.size if apart else None)
    module = model(validate(model.Config, chosen), sizes)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        if module.is_encoder_decoder:
            bias: Any = module.output.bias  # type: ignore[union-attr]
            bias[sorted(written.special_ids - {written.eos_id})] = NEVER
            bias[written.eos_id] = 1.0 if ends else NEVER
    folder.mkdir(parents=True)
    task = "translation" if module.is_encoder_decoder else "lm"
    save_model(folder, module, Processors(read, written), task=task, about={}, card="# card\n")
    return folder


def is_one_line(answer: tuple[Any, str, str], *parts: str) -> None:
    code, out, err = answer
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    for part in ("legato: ", *parts):
        assert part in err
