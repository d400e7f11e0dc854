"""Words that are given apart, as the tokens of a text: which token belongs to which word.

The words are joined by spaces and cut as any text, so that they get the tokens that they would have there; where each
token stands says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from legato.data.text.tokenizers import Tokenizer

AT_ONCE = 1024  # sentences that are cut side by side


def pieces_of_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
    """The tokens of every word of every sentence; a word that would have none is unknown."""
    found: list[list[list[int]]] = []
    for start in range(0, len(sentences), AT_ONCE):
        part = [[_solid(word) for word in words] for words in sentences[start : start + AT_ONCE]]
        encodings = tokenizer.library.encode_batch([" ".join(words) for words in part], add_special_tokens=False)
        for words, encoding in zip(part, encodings, strict=True):
            found.append(_grouped(tokenizer, words, encoding))
    return found


def count_pair_template(tokenizer: Tokenizer) -> int:
    """How many special tokens the file puts around and between two texts."""
    return int(tokenizer.full_library.num_special_tokens_to_add(True))


def template_tokens(tokenizer: Tokenizer, pair: bool) -> tuple[list[int], list[int], list[int]]:
    """The special tokens that the file puts before, between and behind texts: one text, or a pair of them."""
    count = int(tokenizer.full_library.num_special_tokens_to_add(pair))
    if not count:
        return [], [], []
    for text in _samples(tokenizer):
        found = tokenizer.full_library.encode(text, text) if pair else tokenizer.full_library.encode(text)
        whose = found.sequence_ids  # None for special tokens
        if (1 if pair else 0) not in whose:
            continue
        first = [place for place, text in enumerate(whose) if text == 0]
        last = [place for place, text in enumerate(whose) if text == 1] or first
        ids = found.ids
        return ids[: first[0]], ids[first[-1] + 1 : last[0]], ids[last[-1] + 1 :]
    return tokenizer.encode_with_special_tokens(""), [], []


def _samples(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts of which one should be in the vocabulary."""
    yield "a"
    yield from (tokenizer.decode([index]) for index in range(tokenizer.size) if index not in tokenizer.special_ids)


def _grouped(tokenizer: Tokenizer, words: Sequence[str], encoding: object) -> list[list[int]]:
    """The tokens by the word that they stand in."""
    ends = list(accumulate(len(word) + 1 for word in words))  # where the next word begins, a space between
    groups: list[list[int]] = [[] for _ in words]
    word = 0
    for index, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):  # type: ignore[attr-defined]
        while word < len(words) - 1 and _middle(first, last) >= ends[word]:
            word += 1
        if words:
            groups[word].append(index)
    unknown = tokenizer.eos_id if tokenizer.unk_id is None else tokenizer.unk_id
    return [group or [unknown] for group in groups]


def _middle(first: int, last: int) -> int:
    """The last letter of a token: its first may be the space before the word."""
    return max(first, last - 1)


def _solid(word: str) -> str:
    """A word without spaces in it, which would be two."""
    return "_".join(word.split()) if len(word.split()) > 1 else word.strip() or "_"
