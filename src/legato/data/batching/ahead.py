"""Batches made by a thread while the device is at work, some steps before they are asked for.

A batch is a function of its step alone, so whoever makes it, and when, it is the same. Where there is a GPU the
thread also puts it into pinned memory, from which it is copied without anybody waiting. Batches that are made on the
GPU itself are left to the caller.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

import torch
from torch import Tensor

from legato.data.batching.batch import Batch, map_tensors, named_tensors
from legato.data.batching.batches import Batches

AHEAD: Final = 2  # steps


class Ahead:
    """`batches` up to step `stop`, each made before it is asked for if they are asked for in their order."""

    def __init__(self, batches: Batches, stop: int, *, pin: bool) -> None:
        self.batches, self.stop, self.pin = batches, stop, pin
        self.steps_per_epoch, self.tokens_per_step = batches.steps_per_epoch, batches.tokens_per_step
        self._on_host: bool | None = None  # where they are made; the first one tells
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[int, Future[Batch]] = {}

    def at(self, step: int) -> Batch:
        if self._on_host is None:
            first = self.batches.at(step)
            self._on_host = _lies_on_host(first)
            return first
        if not self._on_host:
            return self.batches.at(step)
        # One thread, so that whatever a batcher remembers has one user, who takes the steps in their order.
        pool = self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="batches")
        if step not in self._begun:
            self._forget()
        for number in range(step, max(step + 1, min(step + 1 + AHEAD, self.stop))):
            if number not in self._begun:
                self._begun[number] = pool.submit(self._make, number)
        return self._begun.pop(step).result()

    def _make(self, step: int) -> Batch:
        batch = self.batches.at(step)
        if not _lies_on_host(batch):  # as of another task than the first one
            self._on_host = False
            if torch.cuda.is_available():
                torch.cuda.current_stream().synchronize()  # this thread's, for which the caller's does not wait
            return batch
        if self.pin:
            try:
                return map_tensors(batch, _pinned)
            except RuntimeError:  # none to be had: then it is copied from where it lies
                self.pin = False
        return batch

    def settle(self) -> None:
        """Wait until the thread rests: while a CUDA graph is recorded, nobody else may ask for pinned memory."""
        wait(list(self._begun.values()))

    def _forget(self) -> None:
        for waiting in self._begun.values():
            waiting.cancel()
        self._begun = {}

    def close(self) -> None:
        """Let the thread go; it comes back when it is needed again."""
        self._forget()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _lies_on_host(batch: Batch) -> bool:
    return all(tensor.device.type == "cpu" for tensor in named_tensors(batch).values())


def _pinned(name: str, tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor
