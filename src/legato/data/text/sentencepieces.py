"""Published Marian vocabularies: two sentencepiece models and one table of numbers.

source.spm, target.spm     cut the text of either side into pieces
vocab.json                 numbers the pieces of both (target_vocab.json: those of the target, where apart)

Such a folder gives two tokenizers, one for each side. Pieces that the table lacks are `<unk>`; a language
tag such as `>>fra<<` is a special token, which no text turns into.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.data.text.any_tokenizer import AnyTokenizer, Ids
from legato.data.text.libraries import LARGEST, clear_of_panics
from legato.data.text.published_tokenizers import TokenNumber
from legato.data.text.vocabularies import PAD, UNK
from legato.errors import DataError
from legato.input_files import read_bytes
from legato.schema import parse_json

END: Final = "</s>"
FILES: Final = ("source.spm", "target.spm", "vocab.json")
TARGET_TABLE: Final = "target_vocab.json"


class SentencePieceTokenizer(AnyTokenizer):
    """One side of a Marian vocabulary."""

    name = "sentencepiece"
    lowercase = False
    spaced = True
    ends_text = True
    pieces: list[bytes] | None = None  # the library alone knows

    def __init__(self, model: bytes, table: dict[str, int], files: dict[str, bytes]) -> None:
        """`model` is the side's sentencepiece file; `files` all that belongs to both sides, to save again."""
        import sentencepiece

        self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._model, self._files = model, files
        self._number(table, "the vocabulary")
        self.eos_id = table[END]
        self.unk_id: int | None = table.get(UNK)
        self.pad_id: int | None = table.get(PAD)
        tags = [index for token, index in table.items() if token.startswith(">>") and token.endswith("<<")]
        self.special_ids = frozenset({self.eos_id, *tags, *([] if self.pad_id is None else [self.pad_id])})

    def encode_many(self, texts: Iterable[str]) -> Iterator[Ids]:
        for text in texts:
            with clear_of_panics("the sentencepiece model failed on a text"):
                pieces = self._processor.encode(text, out_type=str)
            found = [self._vocabulary.get(piece, self.unk_id) for piece in pieces]
            if None in found:
                raise DataError("the text holds a piece that the vocabulary lacks, and it has no <unk>")
            yield np.array(found, dtype=np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens leave no trace, nor does `<unk>`, as elsewhere."""
        pieces = [self._tokens[index] for index in ids if index not in self.special_ids and index != self.unk_id]
        with clear_of_panics("the sentencepiece model failed to write a text"):
            return str(self._processor.decode_pieces(pieces)).replace("▁", " ").strip()

    def token(self, index: int) -> str:
        """One token as a person reads it."""
        return self._tokens[index].replace("▁", " ")

    def fingerprint(self) -> str:
        return hashlib.sha256(self._model + json.dumps(self._vocabulary, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path, **_: Any) -> None:
        """Write the files of both sides."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            (folder / name).write_bytes(content)


def is_marian_vocabulary(folder: Path) -> bool:
    """Whether a folder has such a vocabulary, be it whole or not."""
    there = any((folder / name).is_file() for name in ("source.spm", "target.spm"))
    return there and not (folder / "tokenizer.json").is_file()


def load_marian_vocabulary(folder: Path) -> tuple[SentencePieceTokenizer, SentencePieceTokenizer]:
    """The tokenizers of the source and the target."""
    for name in FILES:
        if not (folder / name).is_file():
            raise DataError(f"{folder} lacks {name}; a Marian vocabulary is {', '.join(FILES)}")
    kept = [*FILES, *(n for n in (TARGET_TABLE, "tokenizer_config.json") if (folder / n).is_file())]
    files = {name: read_bytes(folder / name, LARGEST) for name in kept}
    tables = [_table(folder, name, files) for name in ("vocab.json", TARGET_TABLE) if name in files]
    sides = []
    for name, table in zip(("source.spm", "target.spm"), (tables[0], tables[-1]), strict=True):
        with clear_of_panics(f"{folder / name} is not a sentencepiece model"):
            sides.append(SentencePieceTokenizer(files[name], table, files))
    source, target = sides
    source.partner, target.partner = target, source
    return source, target


def _table(folder: Path, name: str, files: dict[str, bytes]) -> dict[str, int]:
    try:
        table = parse_json(files[name], dict[str, TokenNumber], str(folder / name), error=DataError)
    except DataError as problem:
        raise DataError(f"{folder / name} is no vocabulary: it should number every piece ({problem})") from None
    if END not in table:
        raise DataError(f"{folder / name} is no vocabulary: it should number every piece, {END} among them")
    return table
