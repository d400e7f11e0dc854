"""Pieces of work in threads of their own."""

from __future__ import annotations

import threading

import pytest
import torch

from legato.nn.kernels.threads import in_threads

CPU = torch.device("cpu")


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_made_stands_in_the_order_of_the_pieces(threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert in_threads(lambda piece: piece * piece, range(7), CPU) == [0, 1, 4, 9, 16, 25, 36]
        assert in_threads(lambda piece: piece, [], CPU) == []
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_thread_has_no_others_below_it_and_an_error_comes_out() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []

    def work(piece: int) -> None:
        seen.append(torch.get_num_threads())
        if piece == 2:
            raise ValueError(f"in {threading.current_thread().name != 'MainThread'}")

    try:
        torch.set_num_threads(2)
        with pytest.raises(ValueError, match="in True"):
            in_threads(work, [1, 2], CPU)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
