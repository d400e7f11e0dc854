"""A GGUF file as a model: weights, tokenizer and chat template are all in it."""

from __future__ import annotations

from pathlib import Path

from legato.data.processors import Processors
from legato.errors import DataError, FolderError
from legato.folders.chat_template import ChatTemplate
from legato.folders.gguf import families
from legato.folders.gguf.header import read_header
from legato.folders.gguf.token_entries import ends_of, read_tokenizer
from legato.folders.loaded import Loaded
from legato.folders.special_tokens import published_ends
from legato.models.base import ModelConfig, SequenceModel
from legato.models.building import MOST_TENSORS, sketch


def load_gguf(path: Path, *, sketched: bool = False, narrow: bool = False) -> Loaded:
    """The model in a file; `sketched`: its shapes, and `Loaded.put_into` reads the weights; `narrow`: as they lie."""
    header = read_header(path)
    architecture, config = families.read_config(header)  # first, since it says what the file is
    try:
        tokenizer, roles = read_tokenizer(header)
    except DataError as problem:
        raise FolderError(str(problem)) from None
    rows = header.tensors[families.EMBEDDING].shape[0]
    if tokenizer.size > rows:
        raise FolderError(f"{path}: the tokenizer has {tokenizer.size} tokens, the model only {rows}")

    def read(into: SequenceModel | None = None) -> SequenceModel:
        return families.load_module(header, architecture, config, into, narrow=narrow and not sketched)

    module = sketch(read, MOST_TENSORS) if sketched else read()
    module.eval()
    chat = None
    if tokenizer.template is not None:
        tokens = {f"{role}_token": token for role, token in roles.items()}
        chat = ChatTemplate(tokenizer.template, f"the chat template in {path}", tokens)
    ends = published_ends({"eos_token_id": ends_of(header, tokenizer)}, module, tokenizer)
    about = {"published": True, "ends": list(ends)}  # as of every model that others made
    return Loaded(
        path, module, Processors(tokenizer), "lm", about, ends=ends, chat=chat, read_into=read if sketched else None
    )


def read_gguf_config(path: Path) -> ModelConfig:
    """The settings of the model in a file."""
    return families.read_config(read_header(path))[1]
