"""`legato compare`: several models under the same data and budget."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.cli.printing import show
from legato.errors import ConfigError


def command(
    what: Annotated[
        list[str],
        typer.Argument(
            help="YAML files or recipes to compare; or one task and key=value settings, lists meaning one run each."
        ),
    ],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the table only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of the table.")] = False,
) -> None:
    """Train several models on the same data with the same number of tokens, and tabulate them.

    [dim]legato compare lm "model=\\[elman,gru,lstm]" data.train=A.txt data.valid=B.txt train.steps=500[/dim]
    [dim]legato compare A.yaml B.yaml "seed=[1,2,3]" out=runs/ab[/dim]

    Widths are chosen so that every model has nearly as many parameters as the first one at its own
    width, unless model.width is set or match=none. "seed=[1,2,3]" repeats each and shows mean ± spread.
    The table, learning curves and every run are kept under out=….
    """
    from legato.config import split_words
    from legato.runs.compare import compare, table_of
    from legato.schema import to_json

    names = [word for word in what if "=" not in word]
    if not names:
        raise ConfigError("what should be compared? name a task, or recipes or YAML files")
    comparison = compare(names, split_words(word for word in what if "=" in word), quiet=quiet or as_json)
    if as_json:
        print(to_json(comparison.summary()))
        return
    columns, rows, caption = table_of(comparison)
    show(columns, rows, caption=caption, right=range(1, len(columns)))
    print(f"curves: {comparison.plot}\nruns and figures: {comparison.out}")
