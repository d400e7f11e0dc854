"""Runners that are kept with a model, so that its next search finds what was recorded."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import torch

from legato.decoding.requests import Setting
from legato.decoding.runner import Runner
from legato.decoding.sampler import Sampler
from legato.errors import LegatoError
from legato.memory import available
from legato.nn.block_cache import BLOCK, KVCache

SHARE: Final = 0.85  # of the memory that is free, for blocks
SERVED: Final = 0.5  # the same where requests come and go, as other models may


def blocks_for(tokens: int) -> int:
    """Blocks that so many tokens of a row take."""
    return -(-tokens // BLOCK)


class _Kept:
    """The runner of a model that nobody uses."""

    def __init__(self) -> None:
        self.free: tuple[Hashable, Runner] | None = None
        self.lock = threading.Lock()

    def take(self, key: Hashable) -> Runner | None:
        with self.lock:
            kept, self.free = self.free, None
        return kept[1] if kept is not None and kept[0] == key else None

    def give(self, key: Hashable, runner: Runner) -> None:
        with self.lock:
            self.free = key, runner

    def __reduce__(self) -> Any:
        return _Kept, ()  # a copy of the model has a runner of its own


@contextmanager
def runner_for(setting: Setting, computed: Hashable, rows: int, blocks: int, least: int) -> Iterator[Runner]:
    """A runner for so many rows, with so many blocks where memory allows, and no fewer than `least`."""
    model = setting.model
    # With the model, which it refers to: what refers to itself alone is collected.
    kept: _Kept = model.__dict__.setdefault("_runners", _Kept())
    weights = tuple((part.data_ptr(), part.dtype) for part in chain(model.parameters(), model.buffers()))
    barred = tuple(setting.ends), tuple(setting.suppress), tuple(setting.suppress_first), setting.normalised
    key = weights, computed, barred, setting.recorded, torch.is_autocast_enabled(model.device.type)
    rows = 1 << (rows - 1).bit_length()
    capacity = model.max_length or BLOCK << (least - 1).bit_length()
    runner = kept.take(key)
    most = most_blocks(model, SHARE if setting.rows is None else SERVED, runner)
    blocks = min(1 << (blocks - 1).bit_length(), rows * blocks_for(capacity), most)
    if runner is not None and not _fits(runner.cache, rows, blocks, capacity):
        # As large as both calls want it, or calls by turns would make one after the other.
        rows, capacity = max(rows, runner.cache.rows), max(capacity, runner.cache.capacity)
        blocks = max(blocks, runner.cache.blocks)
        runner = None  # its memory is given back first
    if runner is None:
        with torch.inference_mode(False):
            runner = _made(setting, rows, capacity, blocks, least)
    if runner.cache.blocks < min(least, blocks_for(capacity)):
        there = runner.cache.blocks * model.block_bytes / 2**30
        raise LegatoError(
            f"a text of {least * BLOCK:,} tokens needs {least * model.block_bytes / 2**30:.1f} GiB of memory for its "
            f"keys and values, and there are {there:.1f}; ask for fewer tokens"
        )
    yield runner  # after an exception it is not kept: what the device has done is not known
    if setting.recorded:
        runner.reset()
        kept.give(key, runner)


def _fits(cache: KVCache, rows: int, blocks: int, capacity: int) -> bool:
    return cache.rows >= rows and cache.blocks >= blocks and cache.capacity >= capacity


def most_blocks(model: Any, share: float, runner: Runner | None = None) -> int:
    """Blocks that a share of the memory holds."""
    device = model.device
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = available() or 1 << 40
    own = 0 if runner is None else runner.cache.store.nbytes
    return int(share * (free + own)) // model.block_bytes


def _made(setting: Setting, rows: int, capacity: int, blocks: int, least: int) -> Runner:
    model = setting.model
    while True:
        try:
            cache = model.new_cache(blocks, rows, capacity)
            break
        except torch.OutOfMemoryError:
            if blocks // 2 < max(least, 1):
                raise
            torch.cuda.empty_cache()
            blocks //= 2
    sampler = Sampler(
        rows,
        model.vocabulary,
        setting.ends,
        setting.suppress,
        setting.suppress_first,
        setting.normalised,
        model.device,
    )
    return Runner(model, cache, sampler, setting.recorded)
