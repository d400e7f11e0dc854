"""What BERT and its kin have in common in Hugging Face's folders."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from legato.models.encoder import EncoderConfig
from legato.models.published.tensor_names import From, with_prefix

# Heads of tasks, which are left where they are: those that we know are taken off before (heads.py).
TASK_HEADS = r"^(classifier|pre_classifier|qa_outputs)\."
# Numbers 0, 1, 2, …, which older versions kept as a tensor.
COUNTERS = r"\.(position_ids|token_type_ids)$"


def ignored(config: EncoderConfig, readout: str) -> str:
    """What of a folder is not read: a readout that is the embedding again, among others."""
    return rf"{COUNTERS}|{TASK_HEADS}" + (rf"|^{readout}\.weight$" if config.tied else "")


def renamed(tensors: Mapping[str, Tensor], prefix: str, heads: str) -> dict[str, Tensor]:
    """The same tensors as they are called now: `prefix` before the body's (`with_prefix`), and the norms' old names
    made new: `gamma` is `weight` and `beta` is `bias`."""
    tensors = with_prefix(tensors, prefix, f"{heads}|{TASK_HEADS}")
    names = ((name, re.sub(r"(LayerNorm\.)gamma$", r"\1weight", name)) for name in tensors)
    return {re.sub(r"(LayerNorm\.)beta$", r"\1bias", new): tensors[name] for name, new in names}


def has(tensors: Mapping[str, Tensor], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in tensors)


def both(ours: str, *theirs: str) -> dict[str, From]:
    """The weight and the bias of a module that is made of theirs."""
    return {f"{ours}.{part}": From(tuple(f"{their}.{part}" for their in theirs)) for part in ("weight", "bias")}


def block_names(layers: int, prefix: str, block: Mapping[str, tuple[str, ...]]) -> dict[str, From]:
    """The names in all blocks, where theirs are called `prefix` and a number."""
    names: dict[str, From] = {}
    for layer in range(layers):
        for ours, theirs in block.items():
            names |= both(f"stack.layers.{layer}.{ours}", *(f"{prefix}{layer}.{their}" for their in theirs))
    return names
