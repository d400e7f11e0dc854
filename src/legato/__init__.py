"""Legato: train, adapt and compare sequence models, and let them write.

    import legato
    result = legato.train("lm", {"data.train": "a.txt", "model": "lstm"}, out="runs/x")
    model = legato.load("runs/x")
    model.generate("The ", search="sample", top_p=0.9)

Importing the package imports no PyTorch; its parts are loaded when they are first used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from legato.version import __version__

# PyTorch's threads on a CPU wait for each other by spinning. When another program takes a core they spin
# against it: two small runs at once took 17 times as long as one. Waiting briefly and then sleeping costs
# nothing alone. It counts only when set before PyTorch is loaded.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__all__ = ["LegatoError", "Model", "__version__", "ask", "compare", "index", "load", "open_index", "train"]

if TYPE_CHECKING:
    from legato.errors import LegatoError
    from legato.loading import load
    from legato.model import Model
    from legato.rag import ask, index, open_index
    from legato.runs.compare import compare
    from legato.runs.train import train

_HOMES = {
    "LegatoError": "legato.errors",
    "Model": "legato.model",
    "load": "legato.loading",
    "train": "legato.runs.train",
    "compare": "legato.runs.compare",
    "index": "legato.rag",
    "open_index": "legato.rag",
    "ask": "legato.rag",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)  # by its name in the table
    raise AttributeError(f"module 'legato' has no attribute '{name}'")
