"""Legato: train, adapt, look inside and serve sequence models.

    import legato
    result = legato.train("lm", {"data.train": "a.txt", "model": "lstm"}, out="runs/x")
    model = legato.load("runs/x")
    model.generate("The ", search="sample", top_p=0.9)

Importing the package imports no PyTorch; its parts are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Model", "compare", "load", "train"]

if TYPE_CHECKING:
    from legato.comparing import compare
    from legato.model import Model, load
    from legato.run import train

_HOMES = {
    "Model": "legato.model",
    "load": "legato.model",
    "train": "legato.run",
    "compare": "legato.comparing",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'legato' has no attribute '{name}'")
