"""Every registered model in other widths: what it computes is about what it computes in float32."""

from __future__ import annotations

import pytest
import torch
from test_looking import NAMES, batch_for

from legato.models.base import SequenceModel
from legato.nn.quantized import quantize_layers
from random_models import made


@torch.no_grad()
def hidden(model: SequenceModel) -> torch.Tensor:
    return model(batch_for(model)).hidden.float()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("width", "most"), [("bfloat16", 0.03), ("float16", 0.02), ("int8", 0.05), ("int4", 0.4)])
def test_a_model_of_another_width_computes_about_the_same(name: str, width: str, most: float) -> None:
    model = made(name)
    expected = hidden(model)
    if width.startswith("int"):
        quantize_layers(model, width)
    else:
        model.to(getattr(torch, width))
    found = hidden(model)
    assert found.shape == expected.shape
    assert bool((found - expected).norm() <= most * expected.norm().clamp(min=1e-6))
