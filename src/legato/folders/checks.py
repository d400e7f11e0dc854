"""What a folder is refused for before its weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from legato.data.processors import Processors
from legato.errors import FolderError, brief
from legato.models.base import Sizes
from legato.models.published.family import PREFIX, form_named
from legato.registry import MODELS, PUBLISHED


def refuse_what_we_lack(folder: Path, kind: str, config: dict[str, Any]) -> None:
    """Before gigabytes are read."""
    own_code = "comes with code of its own (auto_map), which is never run"
    if form_named(kind) is not None:
        if config.get("auto_map"):
            raise FolderError(f"{folder} {own_code}; Legato would take it for a plain {kind}, which it may not be")
        if config.get("quantization_config"):
            raise FolderError(
                f"{folder} holds quantised weights, which Legato does not read; take the original model"
            )
        return
    if kind.startswith(PREFIX) and kind.removeprefix(PREFIX) in MODELS:
        return
    known = ", ".join([*PUBLISHED.names(), *(PREFIX + name for name in MODELS.names())])
    brings = f" and {own_code}" if config.get("auto_map") else ""
    raise FolderError(f"{folder} holds a '{brief(kind)}', which Legato does not have{brings}; it has {known}")


def check_vocabularies(folder: Path, sizes: Sizes, processors: Processors, *, exact: bool) -> None:
    """Refuse a tokenizer of another model. Ours fit exactly; others pad their embeddings."""
    read, written = sizes.source or sizes.vocabulary, sizes.vocabulary
    for held, size in ((processors.target, written), (processors.tokenizer, read)):
        if held.size > size:
            raise FolderError(f"{folder}: the tokenizer has {held.size} tokens, the model only {size}")
        if exact and held.size < size:
            raise FolderError(f"{folder}: the tokenizer has {held.size} tokens, the model {size}; it is another's")
