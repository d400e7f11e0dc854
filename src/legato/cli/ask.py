"""`legato ask`: answer a question from documents, with the sources."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from legato.cli.filters import Filters, Mode, Place, Rerank, Top, parse_filters, source_line
from legato.cli.imports import importing
from legato.cli.printing import print_note
from legato.cli.search import note_incomplete
from legato.cli.widths import Dtype, Quantize
from legato.errors import without_controls


def command(
    index: Place,
    question: Annotated[str, typer.Argument(help="What to answer.")],
    model: Annotated[str, typer.Option(help="A model that writes, or a qa model for a passage's own words.")],
    top: Top = 5,
    mode: Mode = None,
    filters: Filters = None,
    rerank: Rerank = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 256,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Dtype = "float32",
    quantize: Quantize = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON: the answer and its sources.")] = False,
) -> None:
    """Answer a question from an index, with numbered sources; a note says where none holds what the answer says.

    [dim]legato ask runs/index "How is it installed?" --model org/chat[/dim]
    [dim]legato ask runs/index "Who wrote it?" --model runs/qa --json[/dim]
    """
    from legato.cli.lines import Texts
    from legato.folders.finding import check_place
    from legato.schema import to_json

    where = parse_filters(filters)
    for place in (model, rerank):
        if place is not None:
            check_place(place)
    asked = Texts([question]).texts[0]
    with importing():
        from legato.rag import ask, model_of, open_index
    held = open_index(index, device=device, words=mode == "words")
    note_incomplete(held.manifest.complete, index)
    writer = model_of(model, device, dtype=dtype, quantize=quantize)
    began = False

    def emit(piece: str) -> None:
        nonlocal began
        began = began or bool(piece)
        sys.stdout.write(without_controls(piece))
        sys.stdout.flush()

    def silent(piece: str) -> None:
        pass

    try:
        found = ask(
            held,
            asked,
            writer,
            top=top,
            mode=mode,
            where=where,
            rerank=rerank,
            max_tokens=max_tokens,
            emit=silent if as_json else emit,
            device=device,
        )
    finally:  # what went wrong is said on a line of its own
        if began:
            sys.stdout.write("\n")
    if as_json:
        print(without_controls(to_json(found.as_json(), ensure_ascii=False)))
        return
    if not found.answered:
        if not began:
            print(without_controls(found.text))
        print_note("legato: note: the sources hold no answer")
    if found.invalid:
        print_note(f"legato: note: the answer cites sources that there are not: {found.invalid}")
    if found.answered and not found.citations:
        print_note("legato: note: no source holds what the answer says; do not rely on it")
    if found.cited_by == "overlap":
        print_note("legato: note: the model cited no source; marked are those that hold its words")
    print("\nSources:")
    for number, hit in enumerate(found.hits, start=1):
        print(f"{'*' if number in found.citations else ' '} {source_line(number, hit)}")
