"""Batches made ahead by a thread are those that are made when they are asked for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from batches_compared import same
from legato.data.batching.ahead import AHEAD, Ahead
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.batches import Windows, WindowShape
from legato.errors import DataError


class Noted:
    """Batches that note which steps were made, and by whom."""

    steps_per_epoch = tokens_per_step = 4

    def __init__(self, device: str = "cpu", fails_at: int = -1) -> None:
        self.made: list[int] = []
        self.by: set[str] = set()
        self.device, self.fails_at = device, fails_at

    def at(self, step: int) -> Batch:
        if step == self.fails_at:
            raise DataError(f"nothing at {step}")
        self.made.append(step)
        self.by.add(threading.current_thread().name)
        return Batch(Inputs(torch.full((1, 2), step, device=self.device)))


def test_whatever_the_order_a_step_has_its_batch() -> None:
    def batches() -> Windows:
        return Windows(np.arange(200) % 50, WindowShape(rows=2, window=5, seed=3))

    ahead, plain = Ahead(batches(), 100, pin=False), batches()
    for step in [0, 1, 2, 3, 30, 31, 5, 6, 99, 98]:
        assert same(ahead.at(step), plain.at(step))
    ahead.close()
    assert same(ahead.at(7), plain.at(7))
    ahead.close()


def test_steps_are_made_once_by_one_thread_before_they_are_asked_for_and_none_behind_the_last() -> None:
    noted = Noted()
    ahead = Ahead(noted, 6, pin=False)
    assert int(ahead.at(0).inputs.token_ids[0, 0]) == 0
    assert ahead.at(1) is not None
    ahead._pool.submit(lambda: None).result()  # type: ignore[union-attr]
    assert noted.made == list(range(2 + AHEAD))
    for step in range(2, 6):
        ahead.at(step)
    ahead._pool.submit(lambda: None).result()  # type: ignore[union-attr]
    assert noted.made == list(range(6))
    assert len(noted.by) == 2  # the first one told where they are made
    ahead.close()


def test_what_is_made_on_a_device_is_made_by_the_caller() -> None:
    noted = Noted("meta")
    ahead = Ahead(noted, 9, pin=False)
    for step in range(4):
        ahead.at(step)
    assert noted.made == [0, 1, 2, 3]
    assert noted.by == {threading.current_thread().name}


def test_what_later_turns_out_to_be_made_on_a_device_is_left_to_the_caller() -> None:
    noted = Noted()
    ahead = Ahead(noted, 9, pin=False)
    ahead.at(0)
    noted.device = "meta"
    assert ahead.at(1).inputs.token_ids.is_meta
    ahead.settle()
    assert not ahead._on_host
    before = set(noted.by)
    assert ahead.at(5).inputs.token_ids.is_meta
    assert noted.by == before
    assert noted.made[-1] == 5
    ahead.close()


def test_it_rests_when_it_is_told() -> None:
    noted = Noted()
    ahead = Ahead(noted, 9, pin=False)
    ahead.at(0)
    ahead.at(1)
    ahead.settle()
    assert noted.made == list(range(2 + AHEAD))
    ahead.close()


def test_an_error_comes_at_its_step() -> None:
    ahead = Ahead(Noted(fails_at=3), 9, pin=False)
    for step in range(3):
        ahead.at(step)
    with pytest.raises(DataError, match="nothing at 3"):
        ahead.at(3)
    assert ahead.at(4) is not None
    ahead.close()


def test_memory_that_cannot_be_pinned_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("no CUDA")

    monkeypatch.setattr("legato.data.batching.ahead._pinned", refuse)
    ahead = Ahead(Noted(), 9, pin=True)
    assert [int(ahead.at(step).inputs.token_ids[0, 0]) for step in range(5)] == [0, 1, 2, 3, 4]
    assert not ahead.pin
    ahead.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_batches_for_a_gpu_lie_in_pinned_memory() -> None:
    ahead = Ahead(Noted(), 9, pin=True)
    ahead.at(0)
    assert ahead.at(1).inputs.token_ids.is_pinned()
    ahead.close()
