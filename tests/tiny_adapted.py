"""Small published models to adapt, adapted ones, and what they say of a few tokens."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.folders.loaded import Loaded
from legato.folders.model_folder import load_model, save_model
from legato.folders.shards import save_weights
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS, PUBLISHED
from legato.training.adapt import AdaptConfig, Base, adapt
from tiny_published import byte_level, write

SPECIAL_TOKENS = {"eos_token": "<|endoftext|>", "pad_token": "<s>", "cls_token": "<s>", "sep_token": "</s>"}
IDS = torch.tensor([[5, 17, 60, 8, 91, 33], [44, 7, 7, 120, 19, 250]])
SMALL = {"layers": 2, "width": 16, "heads": 2, "feedforward": 32, "length": 32}


def published_folder(folder: Path, name: str, **config: Any) -> Path:
    """A random model in Hugging Face's form, with a tokenizer."""
    folder.mkdir(parents=True)
    library = byte_level()
    library.save(str(folder / "tokenizer.json"))
    write(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL_TOKENS})
    model = MODELS.get(name)
    torch.manual_seed(0)
    module = model(validate(model.Config, {"name": name, **SMALL, **config}), Sizes(library.get_vocab_size()))
    shake(module)
    form = PUBLISHED.get(module.published)
    entries, tensors = form.save(module)
    save_weights(tensors, folder)
    about = {"model_type": form.model_type, "architectures": [form.architecture], "pad_token_id": 3}
    if module.can_generate:
        about |= {"bos_token_id": 0, "eos_token_id": 0}
    write(folder / "config.json", {**about, **entries})
    return folder


def published_folders(
    make_folder: pytest.TempPathFactory,
    names: Iterable[str],
    own: dict[str, dict[str, Any]] | None = None,
    **config: Any,
) -> dict[str, Path]:
    """One of each; `own` is what some alone are configured with."""
    root = make_folder.mktemp("bases")
    return {name: published_folder(root / name, name, **config, **(own or {}).get(name, {})) for name in names}


@torch.no_grad()
def shake(module: nn.Module, spread: float = 0.2) -> None:
    """Make what is trainable differ from how it started, so that it counts."""
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter) * spread)


def adapted(base: Path, *, head: HeadSpec | None = None, **settings: Any) -> tuple[Any, Loaded]:
    """The model in `base`, with a head where asked for, adapted and as if trained."""
    loaded = load_model(base)
    before = Base.of(str(base), loaded)
    model = loaded.module if head is None else ModelWithHead(loaded.module, head)
    adapt(model, validate(AdaptConfig, settings), before)
    shake(model)
    return model.eval(), loaded


def saved(folder: Path, model: Any, loaded: Loaded, task: str = "lm", **about: Any) -> Path:
    folder.mkdir(parents=True)
    save_model(folder, model, loaded.processors, task=task, about={"published": True, **about}, card="# a card\n")
    return folder


@torch.no_grad()
def answer(model: Any) -> Tensor:
    """Logits: of the head where there is one, else of the next or the masked words."""
    output = model(Batch(Inputs(IDS)))
    return output.logits if output.logits is not None else model.readout(output.hidden)
