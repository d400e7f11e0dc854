"""Words as the bytes that spell them, for models that read characters (`nn/characters.py`).

    "dog"  →  BEGIN d+1 o+1 g+1 END 0 0 …

No vocabulary is needed: a word never seen is spelt like any other, in any script. A row of zeros is no word but a
special token, or padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from legato.data.batching.batches import Array
from legato.data.text.tokenizers import AnyTokenizer

PADDING: Final = 0
BEGIN: Final = 257  # before a word's bytes, which are 1 to 256
END: Final = 258  # behind them
SYMBOLS: Final = 259
MOST: Final = 50  # symbols of a word, BEGIN and END among them, as in ELMo


def word_bytes(words: Sequence[str], most: int = MOST) -> Array:
    """UTF-8 bytes, each + 1, of every word between BEGIN and END: (words, C), PADDING behind a word's end.

    C is what the longest word needs; bytes beyond `most` symbols are left out. An empty word is a row of zeros.

    >>> word_bytes(["ab", "c"]).tolist()
    [[257, 98, 99, 258], [257, 100, 258, 0]]
    """
    return _table([word.encode("utf-8", "surrogatepass") for word in words], most)


def vocabulary_bytes(tokenizer: AnyTokenizer, most: int = MOST) -> Array:
    """The same for every token of a vocabulary, (V, C): a special token is zeros, the space of a piece left out."""
    spelt = [b""] * tokenizer.size
    for index in range(tokenizer.size):
        if index not in tokenizer.special_ids and index != tokenizer.eos_id:
            piece = None if tokenizer.pieces is None else tokenizer.pieces[index].strip(b" ")
            spelt[index] = piece or tokenizer.token(index).encode("utf-8", "surrogatepass")
    return _table(spelt, most)


def _table(spelt: Sequence[bytes], most: int) -> Array:
    room = most - 2
    lengths = np.array([min(len(word), room) for word in spelt], dtype=np.int64)
    table = np.zeros((len(spelt), int(lengths.max(initial=0)) + 2 if len(spelt) else 0), dtype=np.int16)
    for row, word in enumerate(spelt):
        end = lengths[row]
        if end:
            table[row, 0] = BEGIN
            table[row, 1 : end + 1] = np.frombuffer(word, dtype=np.uint8, count=end)
            table[row, 1 : end + 1] += 1
            table[row, end + 1] = END
    return table
