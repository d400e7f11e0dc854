"""Every registered model in other widths: what it computes is about what it computes in float32."""

from __future__ import annotations

import pytest
import torch
from test_looking import NAMES, batch_for

from legato.models.base import SequenceModel
from legato.nn.quantized import QuantizedCell, is_quantized, quantize_layers
from legato.nn.recurrent import Cell
from random_models import made

WIDE = {"width": 64, "embedding": 64}  # so wide that its matrices become narrow
MOST = {"bfloat16": 0.03, "float16": 0.02, "int8": 0.05, "int4": 0.4}  # how far off, of the whole
CONVOLUTIONS = {"resnet", "efficientnet-lite"}  # which have no such matrices


@torch.no_grad()
def hidden(model: SequenceModel) -> torch.Tensor:
    return model(batch_for(model)).hidden.float()


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [*MOST])
def test_a_model_of_another_width_computes_about_the_same(name: str, width: str) -> None:
    narrow = width.startswith("int")
    model = made(name, **(WIDE if narrow else {}))
    expected = hidden(model)
    if narrow:
        assert bool(quantize_layers(model, width)) == is_quantized(model) == (name not in CONVOLUTIONS)
        assert all(isinstance(part, QuantizedCell) for part in model.modules() if isinstance(part, Cell))
    else:
        model.to(getattr(torch, width))
    found = hidden(model)
    assert found.shape == expected.shape
    assert bool((found - expected).norm() <= MOST[width] * expected.norm().clamp(min=1e-6))
