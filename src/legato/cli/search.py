"""`legato search`: the passages that fit a question."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.cli.filters import SHOWN, Filters, Mode, Place, Rerank, Top, parse_filters, source_line
from legato.cli.imports import importing
from legato.cli.printing import print_note
from legato.errors import brief, without_controls


def command(
    index: Place,
    question: Annotated[str, typer.Argument(help="What to look for.")],
    top: Top = 5,
    mode: Mode = None,
    filters: Filters = None,
    rerank: Rerank = None,
    model: Annotated[
        str | None, typer.Option(help="The encoder, where it is not where it was.", show_default="the index's own")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a passage.")] = False,
) -> None:
    """Search an index: by words (BM25), by vectors, or by both fused.

    [dim]legato search runs/index "How is it installed?" --top 3[/dim]
    [dim]legato search runs/index "Installation" --filter language=de --mode words --json[/dim]
    """
    from legato.cli.lines import Texts
    from legato.folders.finding import check_place
    from legato.schema import to_json

    where = parse_filters(filters)
    for place in (model, rerank):
        if place is not None:
            check_place(place)
    asked = Texts([question]).texts[0]
    if mode == "words" and rerank is None:  # needs no model, and no PyTorch
        from legato.retrieval.index import Index

        held, reranker = Index.open(index), None
    else:
        with importing():
            from legato.rag import CrossEncoder, model_of, open_index
        held = open_index(index, model, device=device, words=mode == "words")
        reranker = None if rerank is None else CrossEncoder(model_of(rerank, device))
    note_incomplete(held.manifest.complete, index)
    hits = held.search(asked, top, mode=mode, where=where, reranker=reranker)
    for number, hit in enumerate(hits, start=1):
        if as_json:
            print(without_controls(to_json({"number": number, **hit.as_json()}, ensure_ascii=False)))
        else:
            text = without_controls(brief(hit.passage.text, SHOWN))
            print(f"{source_line(number, hit)}  ({hit.score:.4f})\n    {text}\n")
    if not hits:
        print_note("legato: note: nothing was found; use other words, or fewer filters")


def note_incomplete(complete: bool, place: str) -> None:
    if not complete:
        print_note(f"legato: note: {place} is not finished: run legato index --out {place} to its end")
