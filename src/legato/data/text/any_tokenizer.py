"""What every tokenizer has: ours (`tokenizers.py`), pairs of them, and those of published folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Ids = np.ndarray[Any, np.dtype[np.int32]]


class AnyTokenizer(Protocol):
    """Text to ids and back."""

    name: str
    lowercase: bool
    size: int
    eos_id: int
    unk_id: int | None
    pad_id: int | None
    cls_id: int | None  # stands before a text that is read both ways
    sep_id: int | None  # ends such a text, and each of a pair
    mask_id: int | None  # stands for a word that is to be guessed
    special_ids: frozenset[int]  # what no text turns into, the EOS token among them
    follows_own_template: bool  # whether prompts begin as its file says, not as ours do

    @property
    def spaced(self) -> bool: ...

    @property
    def ends_text(self) -> bool: ...

    @property
    def pieces(self) -> list[bytes] | None: ...

    @property
    def partner(self) -> Any: ...  # a tokenizer that is saved with this one

    def encode(self, text: str) -> Ids: ...

    def encode_many(self, texts: Iterable[str]) -> Iterator[Ids]: ...

    def prompt(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token(self, index: int) -> str: ...

    def token_name(self, index: int) -> str: ...

    def id_of(self, token: str) -> int | None: ...

    def fingerprint(self) -> str: ...

    def save(
        self,
        folder: Path,
        *,
        starts: bool = False,
        ends: bool = False,
        segments: bool = False,
        max_length: int | None = None,
    ) -> None: ...
