"""JSON files that hold one object, as a model folder's do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from legato.errors import FolderError
from legato.schema import to_json


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(to_json(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    value = read_any_json(path)
    if not isinstance(value, dict):
        raise FolderError(f"{path} should hold a JSON object")
    return value


def read_json_if_there(path: Path) -> dict[str, Any]:
    """Nothing where there is no such file."""
    return read_json(path) if path.is_file() else {}


def read_any_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent} is no model folder: it has no {path.name}") from None
    except OSError as problem:
        raise FolderError(f"{path} cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise FolderError(f"{path} is not valid JSON: {problem}") from None
