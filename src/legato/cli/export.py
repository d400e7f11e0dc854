"""`legato export`: a model in another program's form."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder or a name on the hub.")],
    to: Annotated[str, typer.Option(help="hf, ctranslate2 or vectors.")],
    out: Annotated[
        str | None, typer.Option(help="Folder (vectors: file) to write.", show_default="MODEL-hf and so on")
    ] = None,
    quantize: Annotated[str | None, typer.Option(help="ctranslate2: int8, float16, …")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an earlier export; other files stay.")] = False,
) -> None:
    """Write a model in another form; of an adapter the whole model, merged.

    [dim]legato export runs/t --to ctranslate2 --out t-ct2[/dim]
    """
    from legato.folders.exports import export

    print(export(model, to, out=out, quantize=quantize, force=force))
