"""Weights of another width: read straight into it, made narrow, or kept narrow in a folder of our own form.

A folder of quantised weights is in our own form (`model_type` legato-llama and so on), whatever family the model is
of: no published form has these blocks (nn/quantized.py). Its config.json says so under "quantization_config".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from legato.errors import ConfigError, FolderError, brief, suggest
from legato.models.base import SequenceModel
from legato.models.model_with_head import body_of
from legato.nn.quantized import BITS, GROUP, QuantizedLinear, hold_layers, is_quantized, quantize_layers

METHOD: Final = "legato"


@contextmanager
def made_in(dtype: torch.dtype) -> Iterator[None]:
    """What is made here has parameters of this width."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def check_width(quantize: str | None) -> None:
    if quantize is not None and quantize not in BITS:
        raise ConfigError(f"quantize={brief(quantize)}: {suggest(quantize, BITS)}")


def make_narrow(module: SequenceModel, quantize: str, where: Path) -> None:
    """Bring the matrices of a model to so many bits, in place; a task's own head stays as it is."""
    check_width(quantize)
    body = body_of(module)
    held = width_of(body)
    if held == quantize:
        return
    if held is not None:
        raise FolderError(f"{where} holds {held} weights, which cannot become {quantize}; take the original model")
    if module.adapter is not None:
        raise FolderError(f"{where} holds an adapter: merge it first, with: legato export {where} --to hf")
    if not quantize_layers(body, quantize):
        raise ConfigError(
            f"quantize={quantize}: the model in {where} has no matrix that could be so: those of {GROUP} inputs "
            "and 16 outputs or more can, of linear layers and tables of tokens"
        )


def width_of(module: SequenceModel) -> str | None:
    """int8 or int4, of a model whose matrices are narrow."""
    bits = {part.bits for part in module.modules() if isinstance(part, QuantizedLinear)}
    return next((name for name, number in BITS.items() if bits and number == min(bits)), None)


def entries_of(module: SequenceModel) -> dict[str, Any]:
    """What config.json says of a quantised model; nothing of others."""
    if not is_quantized(module):
        return {}
    width = width_of(module)
    bits = 8 if width is None else BITS[width]  # a model may have narrow tables alone
    return {"quantization_config": {"quant_method": METHOD, "bits": bits, "group_size": GROUP}}


def hold(module: SequenceModel, tensors: Mapping[str, Tensor], said: Any, where: Path) -> None:
    """Give a model the narrow matrices of its folder, whose config.json says this, as they lie in the file."""
    method = said.get("quant_method") if isinstance(said, dict) else None
    if method != METHOD:
        raise FolderError(f"{where}: quantised by '{brief(str(method))}', which Legato does not read")
    if said.get("group_size") != GROUP or said.get("bits") not in BITS.values():
        raise FolderError(f"{where}/config.json: 'quantization_config' should say bits 8 or 4, in groups of {GROUP}")
    try:
        hold_layers(module, tensors)
    except ValueError as problem:
        raise FolderError(f"{where}: {problem}") from None
