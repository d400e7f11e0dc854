"""A small model of every kind, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from legato.config import validate
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS

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


def made(name: str, vocabulary: int = 20, **sizes: Any) -> SequenceModel:
    """With other `sizes` than the small ones, of those that the model has."""
    model: type[SequenceModel] = MODELS.get(name)
    fields = model.Config.model_fields
    given = {key: value for key, value in {**SMALL, **sizes}.items() if key in fields}
    if "encoder" in fields and not model.is_encoder_decoder and name not in ("llava", "clip"):
        given["encoder"] = EYES
    torch.manual_seed(0)
    return model(validate(model.Config, {"name": name, **given}), Sizes(vocabulary)).eval()


def surer(name: str, vocabulary: int = 20, **sizes: Any) -> SequenceModel:
    """The same in float64 and with larger weights: no two tokens are nearly as likely."""
    model = made(name, vocabulary, **sizes).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model
