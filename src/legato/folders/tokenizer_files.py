"""The tokenizers of a model folder: of what is read, and of what is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from legato.data.text.sentencepieces import is_marian_vocabulary, load_marian_vocabulary
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer
from legato.errors import DataError, FolderError

TARGET: Final = "target"  # the folder of a tokenizer of its own for what is written


def load_tokenizers(folder: Path) -> tuple[AnyTokenizer, AnyTokenizer]:
    """Those of what is read and of what is written; mostly one and the same."""
    try:
        if is_marian_vocabulary(folder):
            return load_marian_vocabulary(folder)
        tokenizer = Tokenizer.load(folder)
        own = folder / TARGET / "tokenizer.json"
        return tokenizer, Tokenizer.load(own) if own.is_file() else tokenizer
    except DataError as problem:
        raise FolderError(str(problem)) from None


def tokenizer_digest(tokenizer: AnyTokenizer) -> str:
    """A short hash of a vocabulary in its order: what tells a tokenizer from another one of its size."""
    names = "\n".join(tokenizer.token_name(index) for index in range(tokenizer.size))
    return hashlib.sha256(names.encode("utf-8", "surrogatepass")).hexdigest()[:16]
