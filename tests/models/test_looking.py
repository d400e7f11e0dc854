"""Looking inside, over every registered model: what is seen has named axes, and looking changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.models.base import SequenceModel, Sizes
from legato.nn.capture import Recording, record
from legato.registry import MODELS

NAMES = [name for name in MODELS.names() if name != "unit"]  # which is looked into task by task
AXES = {"row", "position", "seen", "source", "head", "unit"}
SMALL: dict[str, Any] = {
    "layers": 2,
    "width": 16,
    "heads": 2,
    "length": 64,
    "embedding": 8,
    "dropout": 0.0,
    "features": 8,
    "channels": 4,
    "image": 32,
    "patch": 8,
}
EYES = {"name": "vit", **{key: SMALL[key] for key in ("layers", "width", "heads", "image", "patch")}}
UNSEEN = {"window", "word2vec", "resnet", "efficientnet-lite"}  # no attention, no state that goes on


def made(name: str) -> SequenceModel:
    model: type[SequenceModel] = MODELS.get(name)
    fields = model.Config.model_fields
    given = {key: value for key, value in SMALL.items() if key in fields}
    if "encoder" in fields and not model.is_encoder_decoder and name not in ("llava", "clip"):
        given["encoder"] = EYES
    torch.manual_seed(0)
    return model(validate(model.Config, {"name": name, **given}), Sizes(20)).eval()


def batch_for(model: SequenceModel) -> Batch:
    batch = model.smallest_batch()
    if model.is_encoder_decoder and batch.source is None:
        batch.source = Inputs(torch.tensor([[1, 2, 3]]))
    return batch


@torch.no_grad()
def looked(model: SequenceModel, keep: Any = None) -> tuple[Any, Recording]:
    with record(keep) as trace:
        output = model(batch_for(model))
    return output, trace


@pytest.mark.parametrize("name", NAMES)
def test_what_is_seen_has_named_axes_and_looking_changes_nothing(name: str) -> None:
    model = made(name)
    with torch.no_grad():
        plain = model(batch_for(model))
    output, trace = looked(model)
    torch.testing.assert_close(output.hidden, plain.hidden, rtol=1e-5, atol=1e-5)
    assert bool(trace) == (name not in UNSEEN)
    for known, tensors in trace.items():
        axes = trace.axes[known]
        assert set(axes) <= AXES
        assert len(set(axes)) == len(axes)
        assert all(tensor.dim() == len(axes) for tensor in tensors)
        assert all(not tensor.requires_grad for tensor in tensors)


def test_a_filter_keeps_what_it_says() -> None:
    model = made("gpt2")
    _, every = looked(model)
    _, some = looked(model, lambda name: name.startswith("decoder.1.") and name.endswith("weights"))
    assert list(some) == ["decoder.1.attention.weights"]
    assert set(some) < set(every)
    torch.testing.assert_close(some["decoder.1.attention.weights"], every["decoder.1.attention.weights"])
