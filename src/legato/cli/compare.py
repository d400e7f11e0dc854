"""`legato compare`: several models under the same data and budget."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from legato.cli.completion import complete_setting
from legato.cli.imports import importing
from legato.cli.printing import print_note, show
from legato.errors import ConfigError, brief


def command(
    what: Annotated[
        list[str],
        typer.Argument(
            help="YAML files or recipes to compare; or one task and key=value settings, lists meaning one run each; "
            "or runs that are finished.",
            autocompletion=complete_setting,
        ),
    ],
    html: Annotated[
        str | None,
        typer.Option(
            help="A file that gets a report: the runs beside one another, in one page that needs no network."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show the table only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON instead of the table.")] = False,
) -> None:
    """Train several models on the same data with the same number of tokens, and tabulate them.

    [dim]legato compare lm "model=\\[elman,gru,lstm]" data.train=A.txt data.valid=B.txt train.steps=500[/dim]
    [dim]legato compare A.yaml B.yaml "seed=[1,2,3]" out=runs/ab[/dim]
    [dim]legato compare A.yaml B.yaml out=runs/ab --html ab.html[/dim]
    [dim]legato compare runs/a runs/b[/dim]

    Widths are chosen so that every model has nearly as many parameters as the first one at its own
    width, unless model.width is set or match=none; where they stay apart, a warning says so.
    "seed=[1,2,3]" repeats each and shows mean ± spread. The table, learning curves and every run are
    kept under out=…. With --html losses, scores, rates and norms of all runs are drawn over their
    steps, or over the tokens that they read, and beside them the parts of each model.
    """
    from legato.config import joined, split_words
    from legato.schema import to_json

    words = joined(what)
    names = [word for word in words if "=" not in word]
    if not names:
        raise ConfigError("what should be compared? name a task, or recipes or YAML files")
    settings = split_words(word for word in words if "=" in word)
    runs = [name for name in names if os.path.isfile(os.path.join(name, "config.yaml"))]
    if runs:
        others = [word for word in [*words, *(["--html"] if html else [])] if word not in runs]
        if others:
            raise ConfigError(
                f"{brief(runs[0])} is a run, and finished runs stand alone; leave out {brief(others[0])}"
            )
        _show_finished(runs, as_json=as_json)
        return
    with importing():
        from legato.runs.compare import compare, table_of
    page = None if html is None else _page(html, settings.get("out"))
    comparison = compare(names, settings, quiet=quiet or as_json)
    if as_json:
        print(to_json(comparison.summary()))
    else:
        columns, rows, caption = table_of(comparison)
        show(columns, rows, caption=caption, right=range(1, len(columns)))
        if comparison.plot is not None:
            print(f"curves: {comparison.plot}")
        print(f"runs and figures: {comparison.out}")
    if page is not None:  # last: whatever becomes of it, the figures are said
        from legato.inspect.report.comparison import comparison_report

        comparison_report(comparison).write_html(page)
        if not as_json:
            print(f"report: {page}")


def _show_finished(names: list[str], *, as_json: bool) -> None:
    """Print finished runs beside one another: their figures, and the settings in which they differ."""
    from legato.input_files import path_of
    from legato.schema import to_json

    with importing():
        from legato.runs.finished import compare_finished
    comparison = compare_finished([path_of(name) for name in names])
    if as_json:
        print(to_json(comparison.to_json()))
        return
    columns = [str(path) for path in comparison.paths]
    show(("", *columns), comparison.figure_rows(), right=range(1, len(columns) + 1))
    if comparison.settings:
        rows = [(key, *values) for key, values in comparison.settings.items()]
        show(("setting", *columns), rows, title="settings that differ")
    for note in comparison.notes:
        print_note(f"legato: note: {note}")


def _page(html: str, out: Any) -> Path:
    """Where the report goes, looked at before anything is trained."""
    from legato.input_files import path_of
    from legato.inspect.report.page import checked_place

    page = checked_place(path_of(html))
    if out:
        runs = path_of(str(out), error=ConfigError).absolute()
        if page.absolute() in (runs, *runs.parents):
            raise ConfigError(f"--html {page} would lie where out={out} makes a folder; name a file in it")
    return page
