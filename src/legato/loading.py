"""Loading a model: where it is, on which device, and how wide its weights are."""

from __future__ import annotations

from pathlib import Path

import torch

from legato.errors import warn
from legato.folders.model_folder import read_model
from legato.folders.quantized import check_width
from legato.model import Model
from legato.nn.transformer import encodes_fast
from legato.training.devices import choose_device, choose_dtype, multiplies_bf16


def load(
    place: str | Path,
    device: str | torch.device = "auto",
    *,
    dtype: str | torch.dtype = "float32",
    quantize: str | None = None,
) -> Model:
    """A model from a model folder, a run folder (its `best`, or `last`), a GGUF file, or by its name on the hub.

    `dtype` is the width of its weights: float32, bfloat16, float16, or auto, which is bfloat16 where the device
    multiplies that fast and float32 elsewhere. Encoders are fastest in float16 on some CPUs, as `legato doctor` says.
    `quantize` brings its matrices to int8 or int4.

    >>> legato.load("org/name@revision", dtype="auto")                  # doctest: +SKIP
    """
    chosen = choose_device(str(device))
    check_width(quantize)
    width = choose_dtype(str(dtype).removeprefix("torch."), chosen)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    model = Model(read_model(place, dtype=width, quantize=quantize), chosen)
    slow = width != torch.float32 and chosen.type == "cpu" and not multiplies_bf16(chosen)
    if slow and not encodes_fast(model.module, width):
        told = f"this processor has no fast products of {dtype} for this model; float32 is faster here"
        warn(told)
    return model
