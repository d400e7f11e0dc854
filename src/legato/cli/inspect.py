"""`legato inspect`: look inside a model while it reads one input."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from legato.cli.imports import importing
from legato.cli.printing import show
from legato.cli.widths import Dtype, Quantize


def command(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file or a name on the hub.")],
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="A text, or the file of a picture or a sound; a picture and a text with a tab between them.",
            show_default=False,
        ),
    ] = None,
    written: Annotated[
        str | None, typer.Option(help="What a model that writes reads back; left out: what it would write.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Which task of a model of several.")] = None,
    layers: Annotated[str | None, typer.Option(help="Numbers from 0, with commas between them.")] = None,
    heads: Annotated[str | None, typer.Option(help="Of attention, numbers from 0, with commas between them.")] = None,
    only: Annotated[str | None, typer.Option(help="A regular expression of the names to keep.")] = None,
    save: Annotated[str | None, typer.Option(help="A folder that gets the trace: safetensors and JSON.")] = None,
    html: Annotated[
        str | None, typer.Option(help="A file that gets the report: one page, which needs no network.")
    ] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help="With --html, a model whose gradients are drawn beside; may be repeated.")
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Show the studio in a browser, at an address of this machine.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="With --serve, 8765; where it is in use, the next.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="With --serve, open none.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Dtype = "float32",
    quantize: Quantize = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON with the same tables.")] = False,
) -> None:
    """Look inside: what a model computes of one text, picture or sound.

    [dim]legato inspect runs/x "The dog runs"[/dim]
    [dim]legato inspect runs/t "Ein Hund rennt" --written "A dog runs"[/dim]
    [dim]legato inspect runs/x "The dog runs" --layers 0 --only gate --save traces/dog[/dim]
    [dim]legato inspect runs/x "The dog runs" --html dog.html[/dim]
    [dim]legato inspect runs/x --serve[/dim]

    It prints what there is inside by names (gates, cells, attention weights, states), what the model would say behind
    each token, which heads look at the token before, at the first, at what followed the same token the last time,
    and where a decoder looks. The saved trace is read by legato.inspect.trace.Trace.load.

    --serve answers on this machine alone, until Ctrl-C. Of a run folder it also shows the run, while it trains, too.
    """
    if serve:
        alone = {"--heads": heads, "--only": only, "--save": save, "--html": html}
        alone |= {"--json": "" if as_json else None, "--beside": "" if beside else None}
        alone |= {"--dtype": None if dtype == "float32" else dtype, "--quantize": quantize}
        _refuse([name for name, value in alone.items() if value is not None], "goes without --serve")
        _numbers(layers, "layers")
        named = {"text": given, "written": written, "layers": layers}
        asked = {name: value for name, value in named.items() if value is not None}
        _serve(model, device, task, asked, port, no_browser)
        return
    _refuse(["--port"] * (port is not None) + ["--no-browser"] * no_browser, "is for --serve")
    if beside and html is None:
        _refuse(["--beside"], "is for --html")
    if given is None:
        raise typer.BadParameter("a text is needed, or --serve, where one can be typed", param_hint="TEXT")
    from legato.folders.finding import check_place
    from legato.input_files import path_of
    from legato.schema import to_json

    for place in (model, *(beside or [])):
        check_place(place)
    with importing():
        from legato.inspect.report.page import checked_place
        from legato.inspect.summary import summary
        from legato.loading import load
    page = None if html is None else checked_place(path_of(html))  # before what takes long
    held = load(model, device, dtype=dtype, quantize=quantize).for_task(task)
    options: dict[str, Any] = {"written": written, "only": only}
    options |= {"layers": _numbers(layers, "layers"), "heads": _numbers(heads, "heads")}
    if page is None:
        trace = held.trace(given, **options)
    else:
        from legato.inspect.report.build import named_apart, report_of
        from legato.inspect.report.run_view import run_of, run_view

        loaded = {name: load(name, device, dtype=dtype, quantize=quantize) for name in dict.fromkeys(beside or [])}
        others = named_apart(str(held.module.config.name), loaded)
        report, run = report_of(held, given, beside=others, **options), run_of(model)
        if run is not None:
            report.views["run"] = run_view(run)
        report.write_html(page)
        assert report.trace is not None
        trace = report.trace
    tables = summary(trace)
    if save is not None:
        trace.save(path_of(save))
    if as_json:
        told = [{"title": table.title, "columns": table.columns, "rows": table.rows} for table in tables]
        print(to_json({"model": str(held.folder), **trace.model, "tables": told}))
    else:
        print(f"{held.folder}: {trace!r}")
        for table in tables:
            _print_table(table)


def _print_table(table: Any) -> None:
    print(f"\n{table.title}")
    numbers = [n for n in range(len(table.columns)) if all(isinstance(row[n], int | float) for row in table.rows)]
    cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in table.rows]
    show(table.columns, cells, right=numbers)


def _serve(
    model: str, device: str, task: str | None, asked: dict[str, str], port: int | None, no_browser: bool
) -> None:
    """Show a studio that opens with what is asked."""
    from urllib.parse import urlencode

    from legato.serving.local import PORT, serve_studio
    from legato.serving.studio import Studio

    studio = Studio(model, device, task=task, given=asked.get("text"))
    fragment = f"#{urlencode(asked)}" if asked else ""

    def say(line: str) -> None:
        print(line, flush=True)

    serve_studio(studio, say, port=port or PORT, fragment=fragment, browser=not no_browser)


def _refuse(names: list[str], why: str) -> None:
    from legato.errors import ConfigError

    if names:
        raise ConfigError(f"{names[0]} {why}; leave it out")


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
