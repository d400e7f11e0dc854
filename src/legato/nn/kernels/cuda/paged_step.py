"""The next tokens of rows through a decoder on CUDA, with a cache in blocks (`nn/block_cache.py`).

It is what `DecoderModel.read_rows` does with the modules of a stack, its plain twin, for stacks that `description.py`
describes, without adapters. A step whose rows read one token each may be recorded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from legato.nn.adapters.lora_by_row import AdapterRows
from legato.nn.block_cache import KVCache, Reading, upload
from legato.nn.kernels.cuda.paged_attention import Tiles, attend_prompts, attend_rows, tiles_of, write_heads
from legato.nn.kernels.cuda.product import Product
from legato.nn.kernels.cuda.step import NUMBERS, Norm
from legato.nn.positions import Rotation


class Heads(NamedTuple):
    """A layer's self-attention."""

    query_norm: Any
    key_norm: Any
    window: int | None
    heads: int
    kv_heads: int
    width: int

    def __call__(
        self,
        qkv: Tensor,
        store: Tensor,
        reading: Reading,
        rotation: Rotation | None,
        tiles: Tiles | None,
        reader: Product,
    ) -> Any:
        """Queries, keys and values (N, (H + 2 · kv heads) · K) of new tokens to (N, H · K), as `reader` wants it."""
        norms, sizes = (self.query_norm, self.key_norm), (self.heads, self.kv_heads, self.width)
        if tiles is None:
            return attend_rows(qkv, store, reading, rotation, *norms, self.window, reader, *sizes)
        queries = write_heads(qkv, store, reading, rotation, *norms, *sizes)
        return attend_prompts(queries, store, reading, tiles, self.window, *sizes)


class PagedBlock:
    """The kernels of one block."""

    def __init__(self, block: Any, window: int | None, activation: str) -> None:
        number, gated = NUMBERS[activation], activation == "swiglu"
        attention = block.attention
        self.attention_norm, self.feedforward_norm = Norm(block.attention_norm), Norm(block.feedforward_norm)
        self.qkv, self.output = Product(attention.qkv), Product(attention.output)
        self.heads = Heads(
            attention.query_norm,
            attention.key_norm,
            window,
            attention.heads,
            attention.kv_heads,
            attention.head_width,
        )
        self.inner, self.outer = Product(block.feedforward.inner, number, gated), Product(block.feedforward.outer)


class PagedStep:
    """A decoder's stack and its readout."""

    def __init__(self, model: Any) -> None:
        stack = model.writer
        self.model = model
        pairs = zip(stack.layers, stack.windows, strict=True)
        self.blocks = [PagedBlock(block, window, stack.shape.activation) for block, window in pairs]
        self.norm = None if stack.norm is None else Norm(stack.norm)
        self.readout = Product(model.output)
        self.norm_first = stack.shape.norm_first
        self.rotation: Rotation | None = None
        if stack.rotary is not None:
            self.rotation = Rotation(stack.rotary.cos.float().contiguous(), stack.rotary.sin.float().contiguous())

    def knows(self, adapters: AdapterRows | None) -> bool:
        """Whether it reads rows with such adapters."""
        return adapters is None

    def __call__(self, tokens: Tensor, reading: Reading, cache: KVCache) -> Tensor:
        """Logits (M, V) after the last new token of each row."""
        x = self.model.embed_tokens(tokens[None], reading.positions[None])[0].contiguous()
        tiles = None if reading.longest == 1 else self._tiles(reading, cache)
        run = self._pre_norm if self.norm_first else self._post_norm
        return run(x, reading, cache, tiles)[:, : self.model.vocabulary]

    def _tiles(self, reading: Reading, cache: KVCache) -> Tiles:
        assert reading.on_host is not None
        heads = self.blocks[0].heads
        tiles = tiles_of(*reading.on_host, heads.heads // heads.kv_heads, cache.store.dtype, heads.width)
        return tiles._replace(places=upload(tiles.places, cache.device))

    def _pre_norm(self, x: Tensor, reading: Reading, cache: KVCache, tiles: Tiles | None) -> Tensor:
        added: Tensor | None = None
        kind = x.dtype
        for number, block in enumerate(self.blocks):
            x, y = block.attention_norm(x, added, reader=block.qkv)
            seen = block.heads(block.qkv(y, kind), cache.store[number], reading, self.rotation, tiles, block.output)
            added = block.output(seen, kind)
            x, y = block.feedforward_norm(x, added, reader=block.inner)
            added = block.outer(block.inner(y, kind))
        assert added is not None
        x, added = _last(x, reading), _last(added, reading)
        if self.norm is None:
            return self.readout(x + added)
        return self.readout(self.norm(x, added, keep=False, reader=self.readout)[1], kind)

    def _post_norm(self, x: Tensor, reading: Reading, cache: KVCache, tiles: Tiles | None) -> Tensor:
        kind = x.dtype
        for number, block in enumerate(self.blocks):
            seen = block.heads(block.qkv(x), cache.store[number], reading, self.rotation, tiles, block.output)
            x = block.attention_norm(x, block.output(seen, kind), keep=False)[1]
            x = block.feedforward_norm(x, block.outer(block.inner(x)), keep=False)[1]
        x = _last(x, reading)
        return self.readout(x if self.norm is None else self.norm(x, None)[1])


def _last(x: Tensor, reading: Reading) -> Tensor:
    """Of (N, D) the last token of each row, (M, D)."""
    return x if reading.longest == 1 else x.index_select(0, reading.starts[1:] - 1)
