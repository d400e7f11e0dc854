"""Printing: tables as wide as the terminal, and uncut where the output is a file or a pipe; warnings as notes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from legato.errors import TextsCut, without_controls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from legato.config import Described

WIDE = 240  # characters a line, where nobody's terminal says otherwise


def show(
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str = "",
    caption: str = "",
    right: Collection[int] = (),
) -> None:
    """Print a table, or its rows one below the other where no line is wide enough to leave its words whole.

    Columns of numbers stand at the `right`.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, "table.title") if title else None, title_justify="left")
    table.caption, table.caption_justify = Text(caption, "table.caption") if caption else None, "left"
    for place, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    needed = 1
    for column in table.columns:
        cells = [Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells)]
        column.min_width = max(cell.minimum for cell in cells)  # its longest word
        needed += column.min_width + 3
    if needed <= console.width:
        console.print(table)
    else:
        _show_narrow(console, table)


def _show_narrow(console: Console, table: Table) -> None:
    """Each row with its first cell on a line of its own, and the others below, behind the names of their columns."""
    from rich.padding import Padding
    from rich.text import Text

    if table.title:
        console.print(table.title)
    first, *others = table.columns
    for head, *cells in zip(first.cells, *(column.cells for column in others), strict=True):
        console.print(head, style="bold", overflow="fold")
        for column, cell in zip(others, cells, strict=True):
            if cell:
                name = f"{column.header}: " if column.header else ""
                told = Text.assemble((name, "dim"), cell if isinstance(cell, Text) else str(cell))
                console.print(Padding(told, (0, 0, 0, 2)), overflow="fold")
    if table.caption:
        console.print(table.caption, style="italic", overflow="fold")


def show_settings(settings: Iterable[Described]) -> None:
    """Settings with their defaults, what they mean and what they may be."""
    from rich.text import Text

    rows = [
        (one.key, one.default, Text.assemble(one.meaning, (f"\n{one.values}" if one.values else "", "dim")))
        for one in settings
    ]
    show(("setting", "default", "meaning"), rows)


def print_note(text: str) -> None:
    """A line on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def notes(say: Callable[[str], None] = print_note) -> Iterator[None]:
    """Warnings as lines of `say`, each once; texts that were cut are counted, and told of at the end."""
    cut: list[TextsCut] = []
    told: set[str] = set()

    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        if isinstance(message, TextsCut):
            cut.append(message)
        elif str(message) not in told:  # from another place, too
            told.add(str(message))
            say(f"legato: note: {without_controls(str(message))}")

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
