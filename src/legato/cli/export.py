"""`legato export`: a model in another program's form."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file or a name on the hub.")],
    to: Annotated[str, typer.Option(help="hf, legato (quantised), ctranslate2, gguf or vectors.")],
    out: Annotated[
        str | None, typer.Option(help="Folder (gguf, vectors: file) to write.", show_default="MODEL-hf and so on")
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(help="legato: int8, int4; ctranslate2: int8, float16, …; gguf: f32, f16, q8_0, q4_0."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an earlier export; other files stay.")] = False,
) -> None:
    """Write a model in another form; of an adapter the whole model, merged.

    [dim]legato export runs/t --to ctranslate2 --out t-ct2[/dim]
    [dim]legato export runs/g --to gguf --quantize q8_0[/dim]
    [dim]legato export runs/g --to legato --quantize int8[/dim]
    """
    from legato.folders.exports import export

    print(export(model, to, out=out, quantize=quantize, force=force))
