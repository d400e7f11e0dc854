"""Printing: tables as wide as the terminal, and uncut where the output is a file or a pipe; warnings as notes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from legato.config import Described

WIDE = 240  # characters a line, where nobody's terminal says otherwise


def show(table: Table) -> None:
    """Print the table, or its rows one below the other where no line is wide enough to leave its words whole."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=None if sys.stdout.isatty() else WIDE)
    needed = 1
    for column in table.columns:
        cells = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
        column.min_width = max(cell.minimum for cell in cells)  # its longest word
        needed += column.min_width + 3
    if needed <= console.width:
        console.print(table)
    else:
        _show_rows(console, table)


def _show_rows(console: Console, table: Table) -> None:
    """Each row with its first cell on a line of its own, and the others below, behind the names of their columns."""
    from rich.padding import Padding

    if table.title:
        console.print(table.title)
    first, *others = table.columns
    for head, *cells in zip(first.cells, *(column.cells for column in others), strict=True):
        console.print(head, style="bold", overflow="fold")
        for column, cell in zip(others, cells, strict=True):
            if cell:
                name = f"{column.header}: " if column.header else ""
                console.print(Padding(f"[dim]{name}[/dim]{cell}", (0, 0, 0, 2)), overflow="fold")
    if table.caption:
        console.print(table.caption, style="italic", overflow="fold")


def settings_table(settings: Sequence[Described]) -> Table:
    """Settings with their defaults, what they mean and what they may be."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("setting", "default", "meaning")
    for setting in settings:
        meaning = [escape(setting.meaning)] + ([f"[dim]{escape(setting.values)}[/dim]"] if setting.values else [])
        table.add_row(escape(setting.key), escape(setting.default), "\n".join(meaning))
    return table


def print_note(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def notes(say: Callable[[str], None] = print_note) -> Iterator[None]:
    """Warnings as lines of `say`; texts that were cut are counted over all of them, and told once, at the end."""
    from legato.errors import TextsCut

    cut: list[TextsCut] = []

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        if isinstance(message, TextsCut):
            cut.append(message)
        else:
            say(f"legato: note: {message}")

    with warnings.catch_warnings():
        # What a library has silenced by its words stays so: cuDNN gathers the weights of a recurrent net itself.
        silenced = [words.pattern for action, words, *_ in warnings.filters if action == "ignore" and words]
        warnings.simplefilter("default", UserWarning)
        for words in silenced:
            warnings.filterwarnings("ignore", words)
        warnings.simplefilter("always", TextsCut)
        warnings.showwarning = show_warning
        yield
    if cut:
        say(f"legato: note: {TextsCut(sum(some.count for some in cut), cut[0].most)}")
