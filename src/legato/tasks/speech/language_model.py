"""Shallow fusion: what a language model thinks of a transcript, while CTC's search looks for it.

    score(y) = log p(y | sound) + λ log p(y) + β |y|          (Gulcehre et al. 2015; β for each token)

A language model of the same tokens is asked for every next one. One of words, beside tokens that are characters or
pieces of words, is asked when a word ends: at what begins with a space, and at the end of the transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.data.text.tokenizers import AnyTokenizer
from legato.decoding.speech.ctc import Fusion
from legato.errors import ConfigError
from legato.folders.loaded import Loaded
from legato.folders.model_folder import read_model
from legato.nn.pooling import pool

UNKNOWN: Final = -20.0  # log probability of a token that the language model does not have
REMEMBERED: Final = 20_000  # histories whose next words are kept


class LanguageModel:
    """Log probabilities of what follows a prefix of CTC's tokens."""

    def __init__(self, loaded: Loaded, tokenizer: AnyTokenizer, outputs: int) -> None:
        """`tokenizer` is that of CTC's tokens, of which there are `outputs`, the blank included."""
        self.module, self.own, self.tokenizer, self.outputs = loaded.module.eval(), loaded.target, tokenizer, outputs
        if not self.module.can_generate or self.module.is_encoder_decoder or not self.module.has_readout:
            raise ConfigError(f"{loaded.folder} is no language model that writes; give one of legato train lm")
        self.start = loaded.start
        ordinary = [token for token in range(tokenizer.size) if token not in tokenizer.special_ids]
        same = {token: self.own.id_of(tokenizer.token_name(token)) for token in ordinary}
        self.by_words = self.own.name == "word" and tokenizer.name != "word"
        known = {token: number for token, number in same.items() if number is not None}
        if not self.by_words and len(known) < len(ordinary) / 2:
            raise ConfigError(
                f"{loaded.folder} knows {len(known)} of the {len(ordinary)} tokens that are written here; train it "
                f"with tokenizer=word, or with tokenizer={tokenizer.name} on such texts"
            )
        self.from_tokens, self.to_tokens = list(known), list(known.values())
        self.number_of = known
        self.begins_word = [token for token in ordinary if tokenizer.token(token)[:1].isspace()]
        self.remembered: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, prefixes: list[list[int]]) -> Tensor:
        """N prefixes to log probabilities of what follows each, (N, V + 1); of the end at the EOS token."""
        return self._of_words(prefixes) if self.by_words else self._of_tokens(prefixes)

    def _of_tokens(self, prefixes: list[list[int]]) -> Tensor:
        unknown = self.own.unk_id
        found = self._next([[self.number_of.get(token, unknown or 0) for token in prefix] for prefix in prefixes])
        made = torch.full((len(prefixes), self.outputs), UNKNOWN)
        made[:, self.from_tokens] = found[:, self.to_tokens]
        made[:, self.tokenizer.eos_id] = found[:, self.own.eos_id]
        return made

    def _of_words(self, prefixes: list[list[int]]) -> Tensor:
        made = torch.zeros(len(prefixes), self.outputs)
        texts = [self.tokenizer.decode(prefix) for prefix in prefixes]
        numbers = [[int(number) for number in ids] for ids in self.own.encode_many(texts)]
        whole = self._next(numbers)
        open_rows = [row for row, text in enumerate(texts) if text and not text[-1].isspace() and numbers[row]]
        before = self._next([numbers[row][:-1] for row in open_rows]) if open_rows else whole[:0]
        last = torch.zeros(len(prefixes))
        for row, found in zip(open_rows, before, strict=True):
            last[row] = found[numbers[row][-1]]
        made[:, self.begins_word] = last[:, None]
        made[:, self.tokenizer.eos_id] = last + whole[:, self.own.eos_id]
        return made

    @torch.no_grad()
    def _next(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Log probabilities of what follows each of these of the language model's own tokens, (N, V)."""
        most = self.module.max_length
        keys = [tuple(row if most is None else row[-(most - 1) :] if most > 1 else ()) for row in rows]
        new = [key for key in dict.fromkeys(keys) if key not in self.remembered]
        if len(self.remembered) + len(new) > REMEMBERED:
            self.remembered.clear()
            new = list(dict.fromkeys(keys))
        if new:
            inputs = Inputs.of([[self.start, *key] for key in new], self.module.device, self.own.eos_id)
            hidden = self.module(Batch(inputs)).hidden
            logits = self.module.readout(pool(hidden, inputs.lengths, "last"))
            for key, row in zip(new, logits.float().log_softmax(-1).cpu(), strict=True):
                self.remembered[key] = row
        return torch.stack([self.remembered[key] for key in keys])


def fusion_with(
    place: str | None, weight: float, length_bonus: float, tokenizer: AnyTokenizer, outputs: int, device: torch.device
) -> Fusion | None:
    """What a language model adds to CTC's search; None where there is neither that nor a bonus for length."""
    if place is None:
        return Fusion(length_bonus=length_bonus) if length_bonus else None
    loaded = read_model(place)
    loaded.module.to(device)
    return Fusion(LanguageModel(loaded, tokenizer, outputs), weight, length_bonus, tokenizer.eos_id)
