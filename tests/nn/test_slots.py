"""States of fixed shapes: a place in which nobody writes harms nobody, and forgets what was in it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from random_models import surer

V, CAPACITY = 23, 12
LONG, SHORT = [[3, 8, 1, 4, 9, 2, 7]], [[5, 6]]


def begun(model: Any, tokens: list[list[int]]) -> Any:
    """A state that has read tokens, which are its source, too."""
    inputs = Inputs.of(tokens, torch.device("cpu"))
    memory = model.encode(Batch(inputs, source=inputs)) if model.is_encoder_decoder else None
    state = model.start(1, len(tokens[0]) + 8, memory)
    model.prefill(inputs, state)
    return state


def group(logits: Tensor, number: int, width: int) -> Tensor:
    return logits.view(-1, width, V)[number, 0]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "llama", "lstm", "transformer", "seq2seq", "window"])
@torch.no_grad()
def test_a_place_serves_one_after_another(name: str, width: int) -> None:
    model: Any = surer(name, V)
    like = begun(model, LONG)
    slots = model.slots(2, width, CAPACITY, like, 8)
    swapped = torch.tensor([1, 0, 3, 2]) if width == 2 else None
    slots.put(torch.tensor([1]), like)
    for _ in range(CAPACITY + 3):  # longer than there is room: the places are nobody's by then
        found = slots.step(torch.full((2 * width,), 7), swapped)
    assert found.isfinite().all()
    slots.put(torch.tensor([1]), begun(model, SHORT))
    alone = begun(model, SHORT)
    for token in (4, 2, 11, 1):
        expected = model.step(torch.tensor([token]), alone)[0]
        found = slots.step(torch.full((2 * width,), token), None)
        torch.testing.assert_close(group(found, 1, width), expected)
    slots.reset()
    slots.put(torch.tensor([0]), begun(model, SHORT))
    alone = begun(model, SHORT)
    torch.testing.assert_close(
        group(slots.step(torch.full((2 * width,), 4), None), 0, width), model.step(torch.tensor([4]), alone)[0]
    )
