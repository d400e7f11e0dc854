"""Weights of another width: read straight into it, made narrow, or kept narrow in a folder of our own form.

A folder of quantised weights is in our own form (`model_type` legato-llama and so on), whatever family the model is
of: no published form has these blocks (nn/quantized/). Its config.json says so under "quantization_config".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from legato.errors import ConfigError, FolderError, brief, suggest
from legato.models.base import SequenceModel
from legato.models.model_with_head import body_of
from legato.nn.adapters.lora import LowRank
from legato.nn.quantized import (
    BITS,
    GROUP,
    OUTPUTS,
    Narrow,
    deferring,
    hold_layers,
    quantize_layers,
    read_deferred,
)

METHOD: Final = "legato"
INSTEAD: Final = "use adapt=lora, which trains beside them, or take the original model"


@contextmanager
def made_in(dtype: torch.dtype, quantize: str | None = None) -> Iterator[None]:
    """What is made here has parameters of this width; matrices that are to be narrow wait in their files."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with nullcontext() if quantize is None else deferring(BITS[quantize] / 8 + 2 / GROUP):
            yield
    finally:
        torch.set_default_dtype(before)


def check_width(quantize: str | None) -> None:
    if quantize is not None and str(quantize) not in BITS:
        raise ConfigError(f"quantize={brief(quantize)}: {suggest(quantize, BITS)}")


def make_narrow(module: SequenceModel, quantize: str, where: Path, *, known: bool = False) -> None:
    """Bring the matrices of a model to so many bits, in place; a task's own head stays as it is.

    Those that still lie in their files are read straight into blocks, and all others as they are. `known`: what it
    was made of is to be known afterwards, by adapters that are for both.
    """
    check_width(quantize)
    _quantize(module, quantize, where, known)
    read_deferred(module)


def _quantize(module: SequenceModel, quantize: str, where: Path, known: bool) -> None:
    body = body_of(module)
    held = width_of(body)
    if known and held is not None and any(isinstance(part, LowRank) for part in body.modules()):
        raise FolderError(f"{where} is an adapter beside {held} weights: it cannot be merged into those")
    if held == quantize:
        return
    if held is not None:
        raise FolderError(f"{where} holds {held} weights, which cannot become {quantize}; take the original model")
    if module.adapter is not None:
        raise FolderError(f"{where} holds an adapter: merge it first, with: legato export {where} --to hf")
    from legato.folders.adapters.saving import digest_of  # few folders need it

    original = digest_of(module) if known else None
    if not quantize_layers(body, quantize):
        raise ConfigError(
            f"quantize={quantize}: the model in {where} has no matrix large enough: {GROUP} inputs and {OUTPUTS} "
            "outputs are the least, of linear layers, recurrent cells and embeddings; leave quantize out"
        )
    body.original = original


@torch.no_grad()
def into_memory(module: SequenceModel) -> None:
    """Copy the narrow matrices, which else lie in their file for as long as the model does.

    All other weights were copied when they were read. So nothing that happens to a file changes what a server
    answers: one that is written over would give other numbers, and one that is cut short end the process.
    """
    for part in module.modules():
        if isinstance(part, Narrow):
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.clone()


def width_of(module: SequenceModel) -> str | None:
    """int8 or int4, of a model whose matrices are narrow."""
    bits = {part.bits for part in module.modules() if isinstance(part, Narrow)}  # tables of tokens always have 8
    return next((name for name, number in BITS.items() if bits and number == min(bits)), None)


def entries_of(module: SequenceModel) -> dict[str, Any]:
    """What config.json says of a quantised model; nothing of others."""
    width = width_of(module)
    if width is None:
        return {}
    known = {} if module.original is None else {"original": module.original}
    return {"quantization_config": {"quant_method": METHOD, "bits": BITS[width], "group_size": GROUP, **known}}


def hold(module: SequenceModel, tensors: Mapping[str, Tensor], said: Any, where: Path) -> None:
    """Give a model the narrow matrices of its folder, whose config.json says this, as they lie in the file."""
    method = said.get("quant_method") if isinstance(said, dict) else None
    if method != METHOD:
        raise FolderError(f"{where}: quantised by '{brief(str(method))}', which Legato does not read")
    if said.get("group_size") != GROUP or said.get("bits") not in BITS.values():
        raise FolderError(f"{where}/config.json: 'quantization_config' should say bits 8 or 4, in groups of {GROUP}")
    module.original = said.get("original") if isinstance(said.get("original"), str) else None
    try:
        hold_layers(module, tensors)
    except ValueError as problem:
        raise FolderError(f"{where}: {problem}") from None
