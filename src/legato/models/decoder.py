"""What the decoders, GPT and LLaMA, have in common: one stack that looks back, and writes from left to right."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.errors import LegatoError
from legato.models.base import SequenceModel
from legato.nn.kv_cache import KeyValueCache, right_aligned
from legato.nn.linear import pack
from legato.nn.positions import At, Learned
from legato.nn.readout import Readout, TokenEmbedding
from legato.nn.state import Output
from legato.nn.transformer import Stack, places_in


class DecoderModel(SequenceModel):
    """Tokens in, the next token out. A subclass makes the parts."""

    embedding: TokenEmbedding
    positions: Learned | None  # where they are added to the embeddings
    stack: Stack
    output: Readout
    dropout_embedding: float

    @property
    def max_length(self) -> int:
        length: int = self.config.length
        return length

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "last", "bias": False} if plain else super().default_head(plain)

    def forward(self, batch: Batch, state: None = None) -> Output:
        """(B, T) tokens, each given those before it: in its own text, where several share a row."""
        return Output(self._read(batch))

    def states(self, batch: Batch) -> list[Tensor]:
        every: list[Tensor] = []
        self._read(batch, every)
        return every

    def drop_readout(self) -> None:
        super().drop_readout()
        self.config = self.config.model_copy(update={"tied": True})  # nothing is left that differs from the embedding

    def _read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        length = batch.inputs.token_ids.shape[1]
        if length > self.max_length:
            raise LegatoError(f"a sequence of {length} tokens is too long: this model goes up to {self.max_length}")
        at = slice(0, length) if batch.inputs.document_ids is None else places_in(batch.inputs.document_ids)
        x = self._embed(batch.inputs.token_ids, at)
        if every is not None:
            every.append(x)
        return self.stack(x, documents=batch.inputs.document_ids, every=every)

    def start(self, rows: int, capacity: int, memory: Any = None) -> KeyValueCache:
        pack(self.stack, self.output)
        with torch.no_grad():
            return self.stack.start(rows, capacity, limit=self.max_length)

    def prefill(self, inputs: Inputs, state: KeyValueCache) -> Tensor:
        if inputs.lengths is None:
            return self._extend(inputs.token_ids, state)
        return self._extend(right_aligned(inputs.token_ids, inputs.lengths), state, inputs.lengths)

    def step(self, tokens: Tensor, state: KeyValueCache) -> Tensor:
        return self._extend(tokens.unsqueeze(1), state)

    @torch.no_grad()  # a cache holds no history of gradients
    def _extend(self, tokens: Tensor, state: KeyValueCache, lengths: Tensor | None = None) -> Tensor:
        """Take in (B, T) tokens, of which the last `lengths` (B,) count; logits (B, V) after the last."""
        opening = state.open(tokens.shape[1], lengths)
        x = self.stack.extend(self._embed(tokens, opening.at), opening)
        return self.output(x[:, -1])

    def _embed(self, tokens: Tensor, at: At) -> Tensor:
        """(B, T) tokens to (B, T, D), with their positions."""
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(at)
        return F.dropout(x, self.dropout_embedding, self.training)
