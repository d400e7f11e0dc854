"""Rows that only fill a batch up change neither the loss nor any gradient, in any task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.batches import BatchShape
from legato.data.batching.examples import Example, ExampleBatches
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from legato.tasks.classification.classifier import losses
from legato.tasks.qa.answerer import span_losses
from legato.tasks.tagging.task import tagging_loss

BODIES: dict[str, dict[str, Any]] = {
    "lstm": {"width": 8, "layers": 1, "bidirectional": True, "tied": False, "dropout": 0},
    "window": {"width": 8, "embedding": 4, "around": True, "dropout": 0},
    "bert": {"width": 8, "heads": 2, "layers": 1, "length": 16, "dropout": 0, "dropout_attention": 0},
    "gpt2": {"width": 8, "heads": 2, "layers": 1, "length": 16, "dropout": 0, "dropout_embedding": 0},
}
LENGTHS = (5, 4, 3)


def classes(kind: str) -> Callable[[Any, Batch], Tensor]:
    return lambda model, batch: losses(kind, model(batch).logits, batch.labels).sum()  # type: ignore[arg-type]


def tags(model: Any, batch: Batch) -> Tensor:
    return tagging_loss(model, batch, smoothing=0.0 if model.crf is not None else 0.1).total


def spans(model: Any, batch: Batch) -> Tensor:
    assert batch.spans is not None
    assert int((batch.spans[:, 0] != IGNORE).sum()) == len(LENGTHS)
    return span_losses(model(batch).logits, batch).sum()


TASKS: dict[str, tuple[dict[str, Any], Callable[[int], dict[str, Any]], Callable[[Any, Batch], Tensor]]] = {
    "classes": ({"kind": "classes", "outputs": 3}, lambda row: {"label": row}, classes("classes")),
    "multilabel": ({"kind": "classes", "outputs": 2}, lambda row: {"label": [1.0, row % 2]}, classes("multilabel")),
    "regression": ({"kind": "classes", "outputs": 1}, lambda row: {"label": row / 2}, classes("regression")),
    "tags": ({"kind": "tags", "outputs": 3}, lambda row: {"positions": [0, 2], "targets": [row, 1]}, tags),
    "crf": (
        {"kind": "tags", "outputs": 3, "crf": True},
        lambda row: {"positions": [0, 1], "targets": [row, 2]},
        tags,
    ),
    "spans": ({"kind": "spans", "outputs": 2}, lambda row: {"span": (0, row)}, spans),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("task", TASKS)
def test_rows_that_fill_a_batch_teach_nothing(task: str, body: str) -> None:
    shape, label, loss = TASKS[task]
    kind = MODELS.get(body)
    torch.manual_seed(0)
    made = kind(kind.Config(name=body, **BODIES[body]), Sizes(20))
    model = ModelWithHead(made, HeadSpec(**shape, dropout=0, pool="mean" if shape["kind"] == "classes" else "auto"))
    rows = [Example(list(range(3, 3 + length)), **label(number)) for number, length in enumerate(LENGTHS)]
    found = []
    for alike in (False, True):
        batch = ExampleBatches(rows, BatchShape(batch_tokens=64, batch_rows=7, seed=0, fixed_shape=alike)).at(0)
        assert (batch.rows, batch.fixed_shape) == ((7, True) if alike else (3, False))
        model.zero_grad()
        total = loss(model, batch)
        total.backward()
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
        found.append((batch.tokens, total.detach(), torch.cat([grad.flatten() for grad in grads])))
    (counted, plain, slope), (counted_too, filled, slope_too) = found
    assert counted == counted_too
    torch.testing.assert_close(filled, plain)
    torch.testing.assert_close(slope_too, slope, rtol=1e-4, atol=1e-6)
