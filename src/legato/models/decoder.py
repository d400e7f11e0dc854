"""What models have in common that write with a key/value cache, and of them the decoders, GPT and LLaMA.

A decoder is one stack that looks back, and writes from left to right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from legato.data.batching.batch import Batch, Inputs
from legato.models.base import SequenceModel, Sizes
from legato.nn.adapters.lora_by_row import bound_rows
from legato.nn.attention import additive
from legato.nn.block_cache import BLOCK, BlockPast, KVCache, PaddedReading, Reading
from legato.nn.capture import capturing, record
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape
from legato.nn.kernels.cuda.decoder import cuda_step
from legato.nn.kernels.cuda.decoder import paged_step as cuda_paged_step
from legato.nn.kernels.decoder import decoder_step
from legato.nn.kernels.description import StackSpec, describe
from legato.nn.kernels.paged_decoder import AT_ONCE, paged_step
from legato.nn.kv_cache import CacheSlice, KeyValueCache, right_aligned
from legato.nn.linear import pack, pack_layers, product_dtype
from legato.nn.multihead import AttentionView, SourceStates
from legato.nn.positions import At, Learned, Rotary
from legato.nn.readout import Readout, TokenEmbedding
from legato.nn.slots import CacheSlots, Slots
from legato.nn.state import Memory
from legato.nn.transformer import Stack, places_in, start_normal


class CachedModel(SequenceModel):
    """A model whose stack `writer` keeps the keys and values of what it has read."""

    @property
    def writer(self) -> Stack:
        raise NotImplementedError

    def embed_tokens(self, tokens: Tensor, at: At) -> Tensor:
        """(B, T) tokens of what is written to (B, T, D), with their positions."""
        raise NotImplementedError

    @property
    def direct_readout(self) -> nn.Linear | None:
        """The last layer, where it reads what `writer` leaves and nothing else happens; None of other models."""
        names = ("readout", "transform", "_extend")
        own = any(getattr(type(self), name) is not getattr(CachedModel, name) for name in names)
        return None if own or not self.__dict__.keys().isdisjoint(names) else self.output

    def pack(self) -> StackSpec | None:
        """Say that what writes meets the same weights many times; what the stack is made of, where that is known."""
        spec = describe(self.writer)
        if spec is None:
            pack(self.writer, self.output)
        else:
            pack_layers((*spec.products, *spec.of_sources, self.output))
        return spec

    def start(self, rows: int, capacity: int, memory: Memory | None = None) -> KeyValueCache:
        spec, readout = self.pack(), self.direct_readout
        with torch.no_grad():
            state = self.writer.start(rows, capacity, limit=self.max_length, memory=memory)
            if spec is not None and readout is not None:
                state.kernel = decoder_step(self.writer, readout, spec)
            return state

    def prefill(self, inputs: Inputs, state: KeyValueCache) -> Tensor:
        if inputs.lengths is None:
            return self._take_in(inputs.token_ids, state)
        return self._extend(right_aligned(inputs.token_ids, inputs.lengths), state, inputs.lengths)

    def step(self, tokens: Tensor, state: KeyValueCache) -> Tensor:
        return self._take_in(tokens.unsqueeze(1), state)

    def _take_in(self, tokens: Tensor, state: KeyValueCache) -> Tensor:
        """(B, T) tokens, as many of each row; logits (B, V) after the last."""
        kernel, adapters = state.kernel, bound_rows()
        if kernel is not None and (capturing() or not kernel.knows(adapters)):
            kernel = None
        logits = None
        state.check_room(tokens.shape[1])  # all of them or none
        for part in tokens.split(max(1, AT_ONCE // len(tokens)), dim=1):
            place = None if kernel is None else state.open_columns(part.shape[1])
            if kernel is None or place is None:
                return self._extend(tokens, state)  # nothing was taken in yet: all parts go the same way
            with torch.no_grad():
                x = self.embed_tokens(part, place.at)
                rotary = self.writer.rotary
                logits = kernel(x, place, None if rotary is None else rotary(place.at), adapters)
        assert logits is not None
        return logits

    def slots(self, groups: int, width: int, capacity: int, like: KeyValueCache, source_length: int) -> Slots | None:
        if like.sources is not None and isinstance(like.sources.layers[0], SourceStates):
            return None  # a memory that is looked at itself
        slots = CacheSlots(self, groups, width, capacity, like, source_length)
        slots.kernel = cuda_step(self, slots)
        return slots

    @torch.no_grad()  # a cache holds no history of gradients
    def _extend(self, tokens: Tensor, state: KeyValueCache, lengths: Tensor | None = None) -> Tensor:
        """Take in (B, T) tokens, of which the last `lengths` (B,) count; logits (B, V) after the last."""
        opening = state.open(tokens.shape[1], lengths)
        x = self.writer.extend(self.embed_tokens(tokens, opening.at), opening)
        return self.readout(x[:, -1])


@torch.no_grad()
def cross_attention_of(model: CachedModel, batch: Batch) -> Tensor:
    """The cross-attention of the last block that writes, mean over its heads, (B, T, S); zero on padding."""
    with record() as trace:
        model(batch)
    last = f"{model.writer.name}.{len(model.writer.layers) - 1}.cross.weights"
    return next(found[0] for name, found in trace.items() if name.endswith(last)).mean(1)


class DecoderModel(CachedModel):
    """Tokens in, the next token out. A subclass says what its blocks are like, and where positions are told."""

    plain_head: ClassVar[Mapping[str, Any]] = {"pool": "last", "bias": False}
    output: Readout

    def __init__(
        self,
        config: Any,
        sizes: Sizes,
        shape: BlockShape,
        *,
        dropout_embedding: float,
        rotary: Rotary | None = None,  # None: learned positions are added to the embeddings
        window: Sequence[int | None] | None = None,
    ) -> None:
        super().__init__(config, sizes)
        self.dropout_embedding = dropout_embedding
        self.embedding = TokenEmbedding(sizes.vocabulary, config.width)
        self.positions = Learned(config.length, config.width) if rotary is None else None
        self.stack = Stack("decoder", config.layers, shape, causal=True, window=window, rotary=rotary)
        self.output = Readout(config.width, sizes.vocabulary)
        start_normal(self, 0.02)
        if config.tied:
            self.output.weight = self.embedding.weight

    @property
    def writer(self) -> Stack:
        return self.stack

    def drop_readout(self) -> None:
        super().drop_readout()
        self.config = self.config.model_copy(update={"tied": True})  # nothing is left that differs from the embedding

    # --- rows that write, in a cache of blocks ------------------------------------------------------------

    def new_cache(self, blocks: int, rows: int, capacity: int) -> KVCache:
        """Room for the keys and values of rows that write (`read_rows`)."""
        shape, weight = self.stack.shape, next(self.stack.parameters())
        like = weight.new_empty(0, dtype=product_dtype(weight))
        heads = shape.kv_heads or shape.heads
        cache = KVCache(
            len(self.stack.layers), heads, shape.head_size, blocks=blocks, rows=rows, capacity=capacity, like=like
        )
        self.choose_kernel(cache)
        return cache

    def choose_kernel(self, cache: KVCache) -> None:
        """Let what is fastest for the modules and weights as they are now read the rows of a cache."""
        spec = self.pack()
        cache.kernel = cuda_paged_step(self, cache) or paged_step(self, cache, spec)

    @property
    def block_bytes(self) -> int:
        """What a block of such a cache takes."""
        shape, weight = self.stack.shape, next(self.stack.parameters())
        heads = shape.kv_heads or shape.heads
        return 2 * len(self.stack.layers) * heads * shape.head_size * BLOCK * product_dtype(weight).itemsize

    @torch.no_grad()
    def read_rows(self, tokens: Tensor, reading: Reading, cache: KVCache) -> Tensor:
        """Read the next tokens (N,) of some rows; logits (M, V) after the last of each row."""
        if cache.kernel is not None and not capturing() and cache.kernel.knows(bound_rows()):
            logits: Tensor = cache.kernel(tokens, reading, cache)
            return logits
        padded = PaddedReading.of(reading)
        views = {
            window: AttentionView(additive(padded.visible(window), cache.store.dtype))
            for window in set(self.stack.windows)
        }
        pasts: Any = [BlockPast(layer, padded.slots, padded.tables) for layer in cache.store]
        opening = CacheSlice(padded.positions, [views[window] for window in self.stack.windows], pasts, None)
        x = self.stack.extend(self.embed_tokens(tokens[padded.tokens], padded.positions), opening)
        rows = torch.arange(len(x), device=x.device)
        return self.readout(x[rows, padded.last])

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """(B, T) tokens, each given those before it: in its own text, where several share a row."""
        self.refuse_longer(batch.inputs.token_ids.shape[1])
        return self.read_vectors(self.embedding(batch.inputs.token_ids), batch.inputs.document_ids, every)

    def embed_tokens(self, tokens: Tensor, at: At) -> Tensor:
        return self._placed(self.embedding(tokens), at)

    def _placed(self, x: Tensor, at: At) -> Tensor:
        """Vectors of tokens (B, T, D) with their positions."""
        if self.positions is not None:
            x = x + self.positions(at)
        return dropout(x, self.dropout_embedding, self.training)

    # --- what stands for tokens: vectors, of which some may be no token's -------------------------------

    def read_vectors(
        self, vectors: Tensor, documents: Tensor | None = None, every: list[Tensor] | None = None
    ) -> Tensor:
        """As `read`, of vectors (B, T, D) in the place of the embedded tokens."""
        length = vectors.shape[1]
        self.refuse_longer(length)
        x = self._placed(vectors, slice(0, length) if documents is None else places_in(documents))
        if every is not None:
            every.append(x)
        return self.stack(x, documents=documents, every=every)

    @torch.no_grad()
    def prefill_vectors(self, vectors: Tensor, lengths: Tensor | None, state: KeyValueCache) -> Tensor:
        """As `prefill`, of vectors (B, T, D), padded on the right as tokens are."""
        opening = state.open(vectors.shape[1], lengths)
        aligned = vectors if lengths is None else right_aligned(vectors, lengths)
        x = self.stack.extend(self._placed(aligned, opening.at), opening)
        return self.readout(x[:, -1])
