"""Trading time for memory: activation checkpointing (Chen et al. 2016), one block at a time."""

from __future__ import annotations

from legato.errors import ConfigError
from legato.models.base import SequenceModel
from legato.nn.transformer import Stack


def recompute_blocks(model: SequenceModel) -> None:
    """Make every block forget its inner results and compute them again."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    if not stacks:
        raise ConfigError(f"train.recompute=true is for Transformers; model={model.config.name} has no such blocks")
    for stack in stacks:
        stack.recompute = True
