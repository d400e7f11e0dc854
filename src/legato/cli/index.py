"""`legato index`: make documents searchable."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.cli.imports import importing
from legato.cli.printing import notes
from legato.cli.widths import Dtype
from legato.errors import ConfigError


def command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...",
            help="Files, patterns and folders: text, Markdown, HTML, PDF, csv, tsv, jsonl, parquet; left out: what "
            "the index is of.",
        ),
    ] = None,
    out: Annotated[str, typer.Option(help="The index: a folder, or postgresql://…")] = "",
    model: Annotated[
        str | None,
        typer.Option(
            help="An encoder: a model folder, a run folder or a name on the hub.",
            show_default="the index's own, else words alone",
        ),
    ] = None,
    chunk_size: Annotated[
        int | None,
        typer.Option(help="Words of a passage; 0 leaves documents whole.", show_default="160"),
    ] = None,
    overlap: Annotated[
        int | None, typer.Option(help="Words that neighbouring passages share.", show_default="30")
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="Of a table, the column that holds the text.", show_default="text, …"),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(help="Take a file or folder out, named as search shows it; may be repeated."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Dtype = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as one line of JSON.")] = False,
) -> None:
    """Make documents searchable, or bring their index up to date: what changed is read anew, what is gone leaves.

    [dim]legato index docs/ --model org/encoder --out runs/index[/dim]
    [dim]legato index --out runs/index[/dim]
    [dim]legato index passages.jsonl --chunk-size 0 --out postgresql://localhost/db#passages[/dim]
    """
    from legato.cli.lines import Meter
    from legato.folders.finding import check_place
    from legato.schema import to_json

    if not out:
        raise ConfigError("name the index: --out runs/index, or --out postgresql://…")
    if remove and files:
        raise ConfigError("give files, or --remove, not both")
    if model is not None:
        check_place(model)
    from legato.retrieval.documents import document_places

    document_places(files or ())
    if remove:
        from legato.retrieval.index import Index

        report = Index.open(out).remove(remove)
    else:
        with importing():
            from legato.rag import index
        with Meter(enabled=True, unit="passages") as meter, notes(meter.note):
            made = index(
                files or (),
                out=out,
                model=model,
                chunk_size=chunk_size,
                overlap=overlap,
                column=column,
                device=device,
                dtype=dtype,
                progress=meter.advance,
            )
            assert made.report is not None
            report = made.report
    if as_json:
        print(to_json({"out": out, **report.as_json()}))
        return
    changes = {"added": report.added, "changed": report.changed, "removed": report.removed}
    counts = ", ".join(f"{count:,} {what}" for what, count in changes.items() if count)
    unread = f"; {report.unread:,} not read" if report.unread else ""
    totals = f"{report.documents:,} documents, {report.passages:,} passages"
    print(f"{out}: {totals} ({counts or 'nothing has changed'}){unread}")
