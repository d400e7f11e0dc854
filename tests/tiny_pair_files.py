"""Files of pairs to read, pairs without a file, and what reading complains of."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.text_pairs import Pairs, read_pairs
from legato.data.sources.files import FileOptions
from legato.errors import DataError


def put(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return str(path)


def both(pairs: Pairs) -> list[tuple[str, str]]:
    return list(zip(pairs.sources, pairs.targets, strict=True))


def complaint(source: str | list[str], **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        read_pairs(source, FileOptions(root=settings.pop("root", None)), **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def pairs_of(*rows: tuple[str, str], tags: list[str] | None = None) -> Pairs:
    lines = list(range(1, len(rows) + 1))
    sources, targets = [source for source, _ in rows], [target for _, target in rows]
    return Pairs(source="a.tsv", sources=sources, targets=targets, lines=lines, tags=tags)
