"""Writing JSON files that hold one object, as a model folder's do; `legato.schema` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from legato.schema import to_json


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(to_json(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
