"""`legato train`: train a model, or go on with a run."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.cli.completion import complete_setting, complete_what
from legato.cli.imports import importing
from legato.cli.printing import show_settings


def command(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A task (lm, translation, …), a recipe (lm/ptb-lstm) or a YAML file.", autocompletion=complete_what
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings laid over it: key=value or --key value. A file alone is data.train.",
            autocompletion=complete_setting,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings only.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="List every setting and its default; train nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON on standard output.")] = False,
) -> None:
    """Train a model.

    [dim]legato train lm data.train=A.txt data.valid=B.txt model=lstm tokenizer=char out=runs/x train.steps=300[/dim]
    [dim]legato train translation "data.train=\\[a.en,a.de]" "data.valid=\\[b.en,b.de]" out=runs/t[/dim]
    [dim]legato train lm/ptb-lstm data.root=DATA[/dim]
    [dim]legato train classification reviews.csv from=MODEL --lr 3e-5 --epochs 3[/dim]
    [dim]legato train lm data.train=C.txt from=MODEL out=runs/y[/dim]
    [dim]legato train resume=runs/x[/dim]

    A section may be left out: lr=3e-5, train.lr=3e-5 and --lr 3e-5 are the same.
    Quote what has brackets in it: to zsh they are a pattern of file names.

    Settings people use: data.train data.valid data.test data.root data.window, model model.layers
    model.width model.dropout, tokenizer tokenizer.size, train.steps train.epochs train.batch_tokens
    train.lr train.optimizer train.schedule train.validate_every train.checkpoint_every, out resume from
    seed device. `legato train lm --keys` lists every one with its default and meaning.
    """
    from legato.runs.recipes import named_and_set, settings_for
    from legato.schema import to_json

    what, given = named_and_set([*([what] if what else []), *(settings or [])])
    asked = settings_for(what or "lm" if keys else what, given)  # a task or recipe that there is not is refused now
    with importing():
        from legato.runs.config import describe_settings
        from legato.runs.train import train
    if keys:
        show_settings(describe_settings(asked))
        return
    result = train(what, given, quiet=quiet)
    if as_json:
        figures = {k: v for k, v in vars(result).items() if k != "metrics"}
        print(to_json({**figures, "run": str(result.run), **result.metrics}))
