"""Printing a table: as wide as the terminal, and uncut where the output is a file or a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 240  # characters a line, where nobody's terminal says otherwise


def show(table: Table) -> None:
    """Print the table."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDE).print(table)
