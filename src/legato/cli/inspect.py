"""`legato inspect`: look inside a model while it reads one input."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.cli.printing import show


def command(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder or a name on the hub.")],
    given: Annotated[str, typer.Argument(metavar="TEXT", help="A text, or the file of a picture or a sound.")],
    written: Annotated[
        str | None, typer.Option(help="What a model that writes reads back; left out: what it would write.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Numbers from 0, with commas between them.")] = None,
    heads: Annotated[str | None, typer.Option(help="Of attention, numbers from 0, with commas between them.")] = None,
    only: Annotated[str | None, typer.Option(help="A regular expression of the names to keep.")] = None,
    save: Annotated[str | None, typer.Option(help="A folder that gets the trace: safetensors and JSON.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON with the same tables.")] = False,
) -> None:
    """Look inside: what a model computes of one text, picture or sound.

    [dim]legato inspect runs/x "The dog runs"[/dim]
    [dim]legato inspect runs/t "Ein Hund rennt" --written "A dog runs"[/dim]
    [dim]legato inspect runs/x "The dog runs" --layers 0 --only gate --save traces/dog[/dim]

    It prints what there is inside by names (gates, cells, attention weights, states), what the model would say behind
    each token, which heads look at the token before, at the first, at what followed the same token the last time,
    and where a decoder looks. The saved trace is read by legato.inspect.trace.Trace.load.
    """
    from legato.input_files import path_of
    from legato.inspect.summary import summary
    from legato.model import load
    from legato.schema import to_json

    held = load(model, device)
    trace = held.trace(
        given, written=written, layers=_numbers(layers, "layers"), heads=_numbers(heads, "heads"), only=only
    )
    tables = summary(trace)
    if save is not None:
        trace.save(path_of(save))
    if as_json:
        told = [{"title": table.title, "columns": table.columns, "rows": table.rows} for table in tables]
        print(to_json({"model": str(held.folder), **trace.model, "tables": told}))
        return
    print(f"{held.folder}: {trace!r}")
    for table in tables:
        print(f"\n{table.title}")
        numbers = [n for n in range(len(table.columns)) if all(isinstance(row[n], int | float) for row in table.rows)]
        cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in table.rows]
        show(table.columns, cells, right=numbers)


def _numbers(given: str | None, what: str) -> list[int] | None:
    from legato.errors import ConfigError, brief

    if given is None:
        return None
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise ConfigError(
            f"--{what} '{brief(given)}': numbers from 0 with commas between them are wanted, such as 0,3"
        )
    return [int(part) for part in parts]
