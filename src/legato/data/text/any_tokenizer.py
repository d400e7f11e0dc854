"""What every tokenizer has: ours (`tokenizers.py`), pairs of them, and those of published folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from legato.errors import DataError

Ids = np.ndarray[Any, np.dtype[np.int32]]

GAPS: Final = 1_000_000  # numbers that no token has; published vocabularies leave a few thousand


class AnyTokenizer(Protocol):
    """Text to ids and back."""

    name: str
    lowercase: bool
    size: int
    eos_id: int
    unk_id: int | None
    pad_id: int | None
    cls_id: int | None = None  # stands before a text that is read both ways
    sep_id: int | None = None  # ends such a text, and each of a pair
    mask_id: int | None = None  # stands for a word that is to be guessed
    special_ids: frozenset[int]  # what no text turns into, the EOS token among them
    follows_own_template: bool = False  # whether prompts begin as its file says, not as ours do
    partner: Any = None  # a tokenizer that is saved with this one
    _vocabulary: dict[str, int]
    _tokens: list[str]  # by their numbers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.size:,} tokens)"

    @property
    def spaced(self) -> bool: ...

    @property
    def ends_text(self) -> bool: ...

    @property
    def pieces(self) -> list[bytes] | None: ...

    @property
    def byte_pieces(self) -> list[bytes] | None:
        """The bytes that each token adds to a text, whoever made the file; None where only the library knows."""
        return self.pieces

    def encode(self, text: str) -> Ids:
        """The ids of `text`; nothing is added to it."""
        return next(iter(self.encode_many([text])))

    def encode_many(self, texts: Iterable[str]) -> Iterator[Ids]: ...

    def prompt(self, text: str) -> list[int]:
        """What stands before a continuation: `<eos>` and the text."""
        return [self.eos_id, *self.encode(text).tolist()]

    def decode(self, ids: Sequence[int]) -> str: ...

    def token(self, index: int) -> str: ...

    def token_name(self, index: int) -> str:
        """A token as the file spells it; what `id_of` takes."""
        return self._tokens[index]

    def id_of(self, token: str) -> int | None:
        """The number of a token, if there is such a token."""
        return self._vocabulary.get(token)

    @property
    def cls_and_sep(self) -> tuple[int, int]:
        """What stands around a text that is read both ways; `<eos>` where there is no token for it."""
        first, last = ((self.eos_id if index is None else index) for index in (self.cls_id, self.sep_id))
        return first, last

    def fingerprint(self) -> str: ...

    def save(
        self,
        folder: Path,
        *,
        starts: bool = False,
        ends: bool = False,
        segments: bool = False,
        ctc: bool = False,
        max_length: int | None = None,
    ) -> None: ...

    def _number(self, vocabulary: dict[str, int], where: str) -> None:
        """Take these tokens; what has no token is "". `where` they are from, a message says."""
        largest, count = max(vocabulary.values(), default=-1), len(vocabulary)
        if largest >= count + GAPS:
            raise DataError(
                f"{where} has {count:,} tokens, and numbers one of them {largest:,}: tokens are numbered from 0 on, "
                "with few gaps; number them again"
            )
        self._vocabulary, self.size = vocabulary, largest + 1
        self._tokens = [""] * self.size
        for token, index in vocabulary.items():
            self._tokens[index] = token
