"""What BERT and its kin have in common: one stack that looks both ways, and heads that read what it leaves.

    x_t = norm(E w_t + P t + S s_t)                         the word, its place, the sentence that it is of
    h = blocks(x_1 … x_T)                                   post-norm; every token sees every other
    P(w_t | the rest) = softmax(E norm(f(W h_t)) + b)       the masked-word head; tied: E is the embedding again
    pooled = tanh(W h_1)                                    of the first token, which stands for the text
    P(next sentence) = softmax(W pooled)

Published folders often hold fewer heads than that. Which ones a model has is in its config; one that is asked for
and not there is a `LegatoError`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from legato.data.batching.batch import Batch
from legato.errors import LegatoError
from legato.models.base import BlocksConfig, SequenceModel, Sizes
from legato.nn.dropout import dropout
from legato.nn.feedforward import ACTIVATIONS, BlockShape
from legato.nn.linear import Linear
from legato.nn.positions import Learned
from legato.nn.readout import Readout, TokenEmbedding
from legato.nn.transformer import Stack, places_in, start_normal


class EncoderConfig(BlocksConfig):
    """Settings that the whole family has."""

    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_words",)
    uses_cls: ClassVar[bool] = True

    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = Field("gelu", description="of the feed-forward layers")
    length: int = Field(512, ge=1, description="tokens of the longest text")
    dropout: float = Field(0.1, ge=0, lt=1, description="on the embedded input and on what each sublayer adds")
    dropout_attention: float = Field(0.1, ge=0, lt=1, description="on attention weights")
    tied: bool = Field(True, description="read out with the embedding's weights")
    masked_words: bool = Field(True, description="whether there is a head that says which word was masked")

    @property
    def reads_both_ways(self) -> bool:
        return True

    @property
    def predicts_masked(self) -> bool:
        return self.masked_words


class EncoderModel(SequenceModel):
    """Tokens in, a state for each that knows both sides. A subclass says which parts it has beside them."""

    head_activation: ClassVar[str | None] = None  # of the masked-word head; left out: the blocks'

    output: Readout  # where there is a masked-word head

    def __init__(
        self,
        config: EncoderConfig,
        sizes: Sizes,
        *,
        eps: float,
        segments: int = 0,  # kinds of sentences; 0: their table is left out
        before: int = 0,  # rows of the position table that no token uses, at its beginning
        pooler: bool = False,
    ) -> None:
        super().__init__(config, sizes)
        width, next_sentence = config.width, config.predicts_next_sentence
        shape = BlockShape(
            width,
            config.heads,
            config.inner,
            config.activation,
            eps=eps,
            dropout=config.dropout,
            dropout_attention=config.dropout_attention,
        )
        self.before = before
        self.embedding = TokenEmbedding(sizes.vocabulary, width)
        self.positions = Learned(before + config.length, width)
        self.segments = nn.Embedding(segments, width) if segments else None
        self.embedding_norm = nn.LayerNorm(width, eps=eps)
        self.stack = Stack("encoder", config.layers, shape, causal=False)
        self.head = self.head_norm = self.pooler = self.relation = None
        self.has_readout = config.masked_words
        if config.masked_words:
            self.head = Linear(width, width)
            self.head_norm = nn.LayerNorm(width, eps=eps)
            self.output = Readout(width, sizes.vocabulary, bias=True)
        if pooler or next_sentence:
            self.pooler = Linear(width, width)
        if next_sentence:
            self.relation = Linear(width, 2)
        start_normal(self, max(0.02, width**-0.5))  # BERT's 0.02 is for wide blocks; narrow ones hardly leave it
        if config.masked_words and config.tied:
            self.output.weight = self.embedding.weight

    @property
    def has_pooler(self) -> bool:
        return self.pooler is not None

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "pooler"} if plain and self.has_pooler else super().default_head(plain)

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """(B, T) tokens, each given all others: of its own text, where several share a row."""
        tokens, documents, segments = batch.inputs.token_ids, batch.inputs.document_ids, batch.inputs.segments
        self.refuse_longer(tokens.shape[1])
        start = self.before
        at = slice(start, start + tokens.shape[1]) if documents is None else places_in(documents) + start
        x = self.embedding(tokens) + self.positions(at)  # (B, T, D)
        if self.segments is not None:
            # A model that knows one kind of sentence only, as RoBERTa does, takes all for that.
            if segments is None or self.segments.num_embeddings == 1:
                segments = tokens.new_zeros(1)
            x = x + self.segments(segments)
        x = dropout(self.embedding_norm(x), self.config.dropout, self.training)
        if every is not None:
            every.append(x)
        return self.stack(x, batch.inputs.lengths, documents=documents, every=every)

    def transform(self, hidden: Tensor) -> Tensor:
        """The masked-word head but its last layer, (…, D) to (…, D)."""
        if self.head is None or self.head_norm is None:
            raise self._without("masked-word head")
        activation = ACTIVATIONS[self.head_activation or self.config.activation]
        states: Tensor = self.head_norm(activation(self.head(hidden)))
        return states

    def pooled(self, hidden: Tensor) -> Tensor:
        """One vector for each text, (B, T, D) to (B, D)."""
        if self.pooler is None:
            raise self._without("pooler")
        return torch.tanh(self.pooler(hidden[:, 0]))

    def next_sentence(self, hidden: Tensor) -> Tensor:
        """Logits (B, 2): that the second sentence follows the first, and that it was drawn at random."""
        if self.relation is None:
            raise self._without("next-sentence head")
        logits: Tensor = self.relation(self.pooled(hidden))
        return logits

    def drop_readout(self) -> None:
        """Keep the encoder, and its pooler where it has one."""
        self.head = self.head_norm = self.relation = None
        super().drop_readout()
        self._say_heads()

    def drop_pooler(self) -> None:
        self.pooler = None
        self._say_heads()

    def _say_heads(self) -> None:
        """Let the config say which heads are left."""
        there = {"masked_words": self.has_readout, "pooler": self.has_pooler}
        there["next_sentence"] = self.relation is not None
        self.config = self.config.model_copy(update={head: there[head] for head in self.config.pretraining_heads})

    def _without(self, head: str) -> LegatoError:
        only = ": its folder holds only the encoder" if self.head is None and self.relation is None else ""
        return LegatoError(f"this {self.config.name} has no {head}{only}")
