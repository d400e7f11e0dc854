"""What a folder's own key says of a task's head: its shape, and the labels that it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from legato.config import validate
from legato.errors import ConfigError, FolderError
from legato.models.headed import HeadShape


def head_shape(about: dict[str, Any], file: Path) -> HeadShape | None:
    """The shape of the head; None where there is none. `file` is where `about` was read."""
    if about.get("head") is None:
        return None
    try:
        shape = validate(HeadShape, about["head"], "legato.head")
    except ConfigError as problem:
        raise FolderError(f"{file}: {problem}") from None
    labels = about.get("labels")
    if labels is None or shape.kind == "spans":
        return shape
    if labels and len(labels) != shape.outputs:
        raise FolderError(f"{file}: there are {len(labels)} labels, but the head has {shape.outputs} outputs")
    return shape
