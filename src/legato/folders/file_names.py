"""Files by which a model folder is known, as Hugging Face's libraries call them."""

from __future__ import annotations

from typing import Final

WEIGHTS: Final = "model.safetensors"
MODULES: Final = "modules.json"  # of a sentence encoder: its parts
