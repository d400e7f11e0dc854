"""Legato: train, adapt and compare sequence models, and let them write.

    import legato
    run = legato.train("lm", train="a.txt", model="lstm", out="runs/x")
    run.model.generate("The ", search="sample", top_p=0.9)
    legato.load("runs/x")                                # the same model, later

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

__all__ = [
    "LegatoError",
    "Model",
    "Prediction",
    "TrainedRun",
    "__version__",
    "ask",
    "compare",
    "index",
    "load",
    "open_index",
    "train",
]

if TYPE_CHECKING:
    from legato.api import TrainedRun, train
    from legato.errors import LegatoError
    from legato.loading import load
    from legato.model import Model
    from legato.rag import ask, index, open_index
    from legato.runs.compare import compare
    from legato.tasks.predictions import Prediction

_HOMES = {
    "LegatoError": "legato.errors",
    "Model": "legato.model",
    "Prediction": "legato.tasks.predictions",
    "load": "legato.loading",
    "TrainedRun": "legato.api",
    "train": "legato.api",
    "compare": "legato.runs.compare",
    "index": "legato.rag",
    "open_index": "legato.rag",
    "ask": "legato.rag",
}


# Parts that people use by their dotted names (`legato.inspect.gradients`), imported when they are first used.
_PARTS = ("data", "decoding", "evaluation", "inspect", "models", "nn", "retrieval", "sklearn", "tasks", "training")


def __getattr__(name: str) -> Any:
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)  # by its name in the table
    if name in _PARTS:
        return importlib.import_module(f"legato.{name}")
    raise AttributeError(f"module 'legato' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PARTS})
