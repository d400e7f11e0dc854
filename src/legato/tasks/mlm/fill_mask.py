"""Guessing the words that somebody hid: `legato predict MODEL "He ate the cake <mask> the fork."`

A text may be hidden in several places; each is guessed with all others hidden, too. What a person writes is cut by
the tokenizer's own rules around the mask, so that the rest of the text is what it would be without.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from legato.data.batching.batch import Batch
from legato.data.batching.masking import Frame
from legato.data.text.libraries import Library
from legato.data.text.tokenizers import AnyTokenizer
from legato.evaluation.mlm import guess
from legato.folders.finite_scores import check_finite
from legato.models.base import SequenceModel
from legato.tasks.predictions import Answer, Prediction

WRITTEN = ("<mask>", "[MASK]")  # what people may write, whatever the tokenizer calls it
ROWS = 32

Array = np.ndarray[Any, np.dtype[Any]]


class MaskReader:
    """Texts to ids, with the mask in the places where it is written."""

    def __init__(self, tokenizer: AnyTokenizer) -> None:
        assert tokenizer.mask_id is not None
        self.mask = tokenizer.mask_id
        self.name = tokenizer.token_name(tokenizer.mask_id)
        self._library, self._ids = _mask_alone(tokenizer.library, self.name)  # type: ignore[attr-defined]

    def read(self, text: str) -> Array:
        for written in WRITTEN:
            text = text.replace(written, self.name)
        ids = np.array(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int64)
        return self._ids[ids]


def _mask_alone(library: Any, mask: str) -> tuple[Any, Array]:
    """A copy that finds the mask in a text and no other special token: whatever else a text spells, it is text.

    Added tokens have other ids in the copy where special tokens before them are gone; the array has the first ones.
    """
    spec = json.loads(library.to_str())
    kept = [token for token in spec["added_tokens"] if token["content"] == mask or not token["special"]]
    vocabulary = spec["model"]["vocab"]  # Unigram's numbers are the places in its list
    top = max(vocabulary.values(), default=-1) + 1 if isinstance(vocabulary, dict) else len(vocabulary)
    ids = {token["content"]: token["id"] for token in kept}
    for token in kept:  # those behind the vocabulary must follow it without a gap
        if token["id"] >= top:
            token["id"] = top
            top += 1
    spec["added_tokens"] = kept
    copy = Library.parse(json.dumps(spec), library.source)
    first = np.arange(max(copy.get_vocab(with_added_tokens=True).values()) + 1)
    for name, number in ids.items():
        first[copy.token_to_id(name)] = number
    return copy, first


@dataclass
class MaskFiller:
    """A model and its tokenizer, asked for hidden words."""

    model: SequenceModel
    tokenizer: AnyTokenizer

    def __post_init__(self) -> None:
        self.frame = Frame.of(self.tokenizer)
        self.reader = MaskReader(self.tokenizer)

    def predict(self, texts: Sequence[str], nbest: int) -> list[Prediction]:
        """The likeliest words of each hidden place, best first."""
        found = [Prediction(text) for text in texts]
        read: dict[int, Array] = {}
        for number, text in enumerate(texts):
            ids = self.reader.read(text)
            problem = self.problem(ids)
            if problem is None:
                read[number] = ids
            else:
                found[number].problem = problem
        order = sorted(read, key=lambda number: len(read[number]))
        for start in range(0, len(order), ROWS):
            chosen = order[start : start + ROWS]
            for number, answers in zip(chosen, self._guess([read[i] for i in chosen], nbest), strict=True):
                found[number].answers = answers
        return found

    def problem(self, ids: Array) -> str | None:
        """Why nothing can be guessed, if so."""
        if self.reader.mask not in ids:
            return 'the text hides nothing: write <mask> for a word, as in "He ate the cake <mask> the fork."'
        max_length = self.model.max_length
        if max_length is not None and len(ids) + 2 > max_length:
            return f"the text has {len(ids) + 2} tokens with [CLS] and [SEP]; this model reads at most {max_length}"
        return None

    def _guess(self, texts: list[Array], nbest: int) -> list[list[Answer]]:
        inputs = self.frame.rows(texts)
        hidden = [torch.nonzero(row == self.reader.mask).flatten() for row in inputs.token_ids]
        batch = Batch(inputs, positions=pad_sequence(hidden, batch_first=True))
        likely = guess(self.model, batch)[..., : self.tokenizer.size]  # (B, N, V)
        likely[..., list(self.tokenizer.special_ids)] = -1.0  # no word, so no answer
        top = likely.topk(min(nbest, self.tokenizer.size - len(self.tokenizer.special_ids)))
        check_finite(top.values, self.model)  # a softmax is whole or not a number at all
        return [
            [
                Answer(self._word(int(token)), float(share), {"mask": number + 1, "probability": float(share)})
                for number in range(len(columns))
                for token, share in zip(top.indices[row, number], top.values[row, number], strict=True)
            ]
            for row, columns in enumerate(hidden)
        ]

    def _word(self, token: int) -> str:
        """A token as a person reads it, without the space that it brings; a space alone stays one."""
        name = self.tokenizer.token(token)
        return name.removeprefix("Ġ").removeprefix("▁").strip() or name
