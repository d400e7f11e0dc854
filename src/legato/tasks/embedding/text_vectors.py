"""Texts as vectors: which layers of a model are read, and how the tokens' states become one.

    states h_0 … h_L = model(text)          the embedded input, and what every layer leaves
    h = combine(h_0 … h_L)                  the last, a sum, several side by side, a mix (nn/mix.py)
    v = pool(h)                             mean, first (cls), last or largest over the tokens (nn/pooling.py)

A sentence encoder says itself how its vectors are made (folders/sentence_encoder.py); of any other model the last
layer's mean is taken, unless somebody asks for more. `legato embed`, `legato.sklearn.Embedder` and the task
`embedding` all go this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch
from legato.data.batching.examples import Example, collate_examples
from legato.data.text.text_reader import TextReader
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer
from legato.errors import ConfigError, DataError, LegatoError, suggest
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.folders.sentence_encoder import SentenceEncoder
from legato.models.base import SequenceModel
from legato.models.model_with_head import ModelWithHead
from legato.nn.mix import WAYS, combine_layers

Vectors = np.ndarray[Any, np.dtype[np.float32]]
# What people call the ways to pool, and what sentence encoders' folders call them.
POOL_MODES: Final = {"mean": "mean", "cls": "cls", "first": "cls", "max": "max", "last": "lasttoken"}
TOKENS: Final = "none"  # no pooling: a vector for each token


def rows_of(texts: Sequence[str], tokenizer: AnyTokenizer, reader: TextReader, how: SentenceEncoder) -> list[Example]:
    """Each text as a model reads it: for a published model between the special tokens of its own file."""
    held = [how.before + text for text in texts] if how.before else texts
    if isinstance(tokenizer, Tokenizer) and tokenizer.follows_own_template and not reader.characters:
        framed, most = tokenizer.encode_many_with_special_tokens(held, reader.max_length), reader.max_length
        full = [text for text, ids in zip(held, framed, strict=True) if most is not None and len(ids) >= most]
        reader.cut += sum(len(tokenizer.encode_with_special_tokens(text)) > (most or 0) for text in full)
        return [Example(ids or [tokenizer.eos_id]) for ids in framed]
    return reader.texts(held)


class TextVectors:
    """Makes vectors of texts with one model, in one way."""

    def __init__(
        self, module: SequenceModel, tokenizer: AnyTokenizer, how: SentenceEncoder, layers: str = "last"
    ) -> None:
        if module.is_encoder_decoder:
            raise LegatoError(
                f"{module.config.name} reads one text and writes another, and has no vectors for a text; "
                "use an encoder, a decoder or a recurrent model"
            )
        if layers not in WAYS:
            raise ConfigError(f"there is no layers={layers}; {suggest(layers, WAYS)}")
        self.module, self.tokenizer, self.how, self.layers = module, tokenizer, how, layers
        self.body = module.body if isinstance(module, ModelWithHead) else module
        if self.body.can_generate and "cls" in how.modes:
            raise ConfigError(
                f"the first token of {module.config.name} has read nothing else, since it reads from left to right; "
                "pool by last or mean"
            )
        self.reader = TextReader.of(module.config, tokenizer, max_length=how.most)

    @classmethod
    def of(
        cls, loaded: Loaded, *, layers: str | None = None, pool: str | None = None, normalize: bool | None = None
    ) -> TextVectors:
        """What a model folder says of its vectors, with what is asked for laid over it."""
        how = loaded.sentences or SentenceEncoder()
        if pool is not None and pool != TOKENS:
            if pool not in POOL_MODES:
                raise ConfigError(f"there is no pool={pool}; {suggest(pool, [*POOL_MODES, TOKENS])}")
            how = replace(how, modes=(POOL_MODES[pool],))
        if normalize is not None:
            how = replace(how, normalise=normalize)
        return cls(loaded.module, loaded.tokenizer, how, layers or "last")

    def rows(self, texts: Sequence[str]) -> list[Example]:
        """Each text as the model reads it."""
        for number, text in enumerate(texts, start=1):
            if not isinstance(text, str):
                raise DataError(f"text {number} is no text: {text!r}")
        return rows_of(texts, self.tokenizer, self.reader, self.how)

    def states(self, batch: Batch) -> Tensor:
        """The tokens' states (B, T, D), of the layers that were chosen."""
        if self.layers == "last":
            hidden: Tensor = self.body(batch).hidden
            return hidden
        every = self.body.states(batch)
        widths = {state.shape[-1] for state in every[1:] or every}
        if self.layers == "mix":
            widths |= {every[0].shape[-1]}
        if len(widths) > 1 and self.layers not in ("first", "second-to-last", "concat-last-4"):
            wide = " and ".join(map(str, sorted(widths)))
            raise LegatoError(f"layers={self.layers} adds up layers, and this model's are {wide} wide")
        learned = self.module.mix if isinstance(self.module, ModelWithHead) else None
        if self.layers == "mix" and learned is not None:
            mixed: Tensor = learned(every)
            return mixed
        return combine_layers(every, self.layers)

    def pooled(self, batch: Batch) -> Tensor:
        """A vector for each text of a batch, (B, D)."""
        hidden = self.states(batch).float()
        lengths = batch.inputs.lengths
        if lengths is None:
            lengths = torch.full((len(hidden),), hidden.shape[1], device=hidden.device)
        return self.how.pool(hidden, lengths)

    def embed(self, texts: Sequence[str], batch_size: int = 32, done: Callable[[int], None] | None = None) -> Vectors:
        """A vector for each text, (N, D); `done` is told how many more there are after each batch."""
        found: Vectors | None = None
        for chosen, batch in self._batches(texts, batch_size):
            vectors = self.pooled(batch).cpu().numpy()
            check_finite(vectors, self.module)
            if found is None:
                found = np.empty((len(texts), vectors.shape[1]), dtype=np.float32)
            found[chosen] = vectors
            if done is not None:
                done(len(chosen))
        return np.zeros((0, self.width), dtype=np.float32) if found is None else found

    def tokens(
        self, texts: Sequence[str], batch_size: int = 32, done: Callable[[int], None] | None = None
    ) -> list[tuple[list[str], Vectors]]:
        """The tokens of each text, and a vector for each of them (T, D)."""
        found: list[Any] = [None] * len(texts)
        for chosen, batch in self._batches(texts, batch_size):
            hidden = self.states(batch).float()
            hidden = torch.nn.functional.normalize(hidden, dim=-1) if self.how.normalise else hidden
            lengths = (
                [batch.inputs.token_ids.shape[1]] * len(chosen)
                if batch.inputs.lengths is None
                else batch.inputs.lengths.tolist()
            )
            for place, row in enumerate(chosen):
                ids = batch.inputs.token_ids[place, : lengths[place]].tolist()
                names = [self.tokenizer.token(index) for index in ids]
                vectors = hidden[place, : lengths[place]].cpu().numpy()
                check_finite(vectors, self.module)
                found[row] = (names, vectors)
            if done is not None:
                done(len(chosen))
        return found

    @property
    def width(self) -> int:
        """How many numbers a vector has."""
        with torch.no_grad():
            batch = collate_examples(self.reader.texts(["a"]), pad=self.reader.padding).to(self.module.device)
            return int(self.pooled(batch).shape[1])

    def _batches(self, texts: Sequence[str], size: int) -> Any:
        """The texts' numbers and their batch; those of like length go together, so that little is padded."""
        if size < 1:
            raise ConfigError(f"a batch needs at least one text, not {size}")
        device = self.module.device
        rows = self.rows(texts)
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row].ids))
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            yield chosen, collate_examples([rows[row] for row in chosen], pad=self.reader.padding).to(device)
