"""GPT-2, LLaMA and relatives without a folder around them: their entries and tensors, and what they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.errors import FolderError
from legato.models.base import SequenceModel
from legato.registry import PUBLISHED

V = 37  # words


def written(model: SequenceModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config.json and the tensors beside it."""
    entries, tensors = PUBLISHED.get(str(model.published)).save(model)
    return {"model_type": model.published, **entries}, tensors


def adopt(config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    return PUBLISHED.get(config["model_type"]).load(config, tensors, "folder").eval()


def logits(model: SequenceModel) -> Tensor:
    ids = torch.randint(V, (2, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.readout(model(Batch(Inputs(ids))).hidden)


def complaint(config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """The one line that says why they are refused."""
    with pytest.raises(FolderError) as caught:
        adopt(config, tensors)
    assert "\n" not in str(caught.value)
    return str(caught.value)
