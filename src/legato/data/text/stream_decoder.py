"""Text from token ids that come one at a time, as a model writes them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from legato.data.text.any_tokenizer import AnyTokenizer


class StreamDecoder:
    """Text from ids that come one at a time; half a character is held back until it is whole.

    `after` are ids that come before and are not shown, a prompt: they decide whether the first new
    token is preceded by a space. All that `push` and `finish` give, joined, is what `decode` gives.
    """

    def __init__(self, tokenizer: AnyTokenizer, after: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._starts = tokenizer.spaced
        self._shown: list[int] = []  # for files made elsewhere: the last ids that were shown
        self._held: list[int] = []  # and those that were not yet
        for index in after:
            self.push(index)

    def push(self, index: int) -> str:
        """Take one id; give the text that is now certain."""
        if self._tokenizer.pieces is None:
            return self._push_by_library(int(index))
        piece = self._tokenizer.pieces[index]
        if self._starts and piece:
            piece, self._starts = piece.removeprefix(b" "), False
        if piece == b"\n" and not self._tokenizer.ends_text:
            self._starts = True
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """What was held back, with U+FFFD for a character that never became whole."""
        return self._reveal() + self._utf8.decode(b"", final=True)

    def _push_by_library(self, index: int) -> str:
        self._held.append(index)
        whole = self._tokenizer.decode([*self._shown, *self._held])
        return "" if whole.endswith("\ufffd") else self._reveal()

    def _reveal(self) -> str:
        if not self._held:
            return ""
        before = self._tokenizer.decode(self._shown)
        whole = self._tokenizer.decode([*self._shown, *self._held])
        # A few ids of context are enough for the library to place spaces.
        self._shown, self._held = [*self._shown, *self._held][-8:], []
        return whole[len(before) :]
