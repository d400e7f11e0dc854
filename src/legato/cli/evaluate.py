"""`legato eval`: score a model on data it has not seen."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="A model folder or a run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="key=value settings: data.test=FILE, data.root, device …", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Score a model: loss, perplexity per token and per word, bits per byte.

    [dim]legato eval runs/x data.test=C.txt[/dim]

    The whole text is read as one stream with the state carried.
    """
    from rich.console import Console
    from rich.table import Table

    from legato.config import parse_words
    from legato.errors import ConfigError, suggest
    from legato.model import load

    given = parse_words(settings or [])
    for key in given:
        if key not in ("data", "device"):
            raise ConfigError(f"unknown key '{key}'; {suggest(key, ['data', 'device'])}")
    data = given.get("data", {})
    if not isinstance(data, dict):
        raise ConfigError(f"'data' is a group of settings, such as data.test=FILE, not '{data}'")
    held = load(model, str(given.get("device", "auto")))
    scores = held.evaluate(**data)
    if as_json:
        print(json.dumps({"model": str(held.folder), **scores}))
        return
    table = Table(title=f"{held.folder} on {scores.pop('data')}", title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in scores.items():
        shown = value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
        table.add_row(name.replace("_", " "), shown[:16] if name == "sha256" else shown)
    Console().print(table)
