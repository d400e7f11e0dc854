"""Whether a model fits into this machine, asked before it is made.

A width of a hundred thousand is allowed, and mostly a slip: the system may grant the memory and end the program
when it is used. So one that looks large is first made without its numbers (on PyTorch's `meta` device) and counted.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

from legato.errors import ConfigError
from legato.models.base import ModelConfig, Sizes, measure

LARGE: Final = 2048  # of any size in a model's settings, from which on it is counted
LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def machine_memory() -> int | None:
    """Bytes of memory that this machine, or the container, has; None where the system does not say."""
    found = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in LIMITS:
        try:
            found.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # "max", where there is no limit
            continue
    return min((size for size in found if size > 0), default=None)


def refuse_too_large(model: Any, config: ModelConfig, sizes: Sizes, *, trained: bool) -> None:
    """Refuse a model whose weights, and gradients where all are `trained`, are more than there is memory."""
    held = machine_memory()
    told = [value for value in config.model_dump().values() if isinstance(value, int)]
    if held is None or max([*told, 0]) < LARGE:
        return
    parameters = measure(model, config, sizes)
    needed = 4 * parameters * (2 if trained else 1)
    if needed > held:
        raise ConfigError(
            f"model={config.name} would have {parameters:,} parameters, which take {needed / 2**30:,.0f} GiB to "
            f"train, and this machine has {held / 2**30:,.0f}; lower model.width, model.layers, model.length or "
            "tokenizer.size"
        )
