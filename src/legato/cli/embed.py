"""`legato embed`: texts, or pictures, to vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from legato.cli.imports import importing
from legato.cli.printing import notes
from legato.cli.widths import Dtype, Quantize

if TYPE_CHECKING:
    from legato.tasks.embedding.embed_files import Vectors


def command(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file or a name on the hub.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts; left out: --file, or standard input.")
    ] = None,
    file: Annotated[str | None, typer.Option(help="One text a line; '-' for standard input.")] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(help="A picture in the place of texts, or a folder, a .tar, a list or a table of them."),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(help="last, first (the embeddings), second-to-last, sum-last-4, concat-last-4, sum-all or mix."),
    ] = "last",
    pool: Annotated[
        str | None,
        typer.Option(
            help="mean, cls (the first token), last or max; none: a vector for each token (.jsonl, .npz).",
            show_default="the encoder's own, else mean",
        ),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--no-normalize", help="To length one.", show_default="the encoder's own, else no"),
    ] = None,
    out: Annotated[str | None, typer.Option(help="A file .npy, .npz, .jsonl or .tsv; left out: printed.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts side by side.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Dtype = "float32",
    quantize: Quantize = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one line of JSON a text; with --out, one that says what was written."),
    ] = False,
) -> None:
    """A vector for each text: of sentence encoders as they are meant, of other models from any of their layers.

    [dim]legato embed MODEL --file texts.txt --out vectors.npy[/dim]
    [dim]legato embed MODEL --file texts.txt --layers concat-last-4 --pool cls --out vectors.npz[/dim]
    [dim]legato embed MODEL "a dog runs" --json[/dim]
    [dim]legato embed MODEL --image photos/ --out vectors.npz[/dim]

    Of a model of pictures and texts (CLIP), the vectors of both lie in one space. Any other that reads pictures gives
    the vector that a head for classes would read.

    Texts beyond what the model reads are cut, and a note says how many. A mix of layers weighs all alike, but where a
    model has learned its own weights. Row N of an .npy is line N of the file; an .npz holds "vectors" and "texts", or
    "images".
    """
    from legato.cli.lines import Lines, Meter, Texts
    from legato.errors import DataError
    from legato.folders.finding import check_place
    from legato.schema import to_json

    if texts and file is not None:
        raise DataError("give texts or --file, not both")
    if image and (texts or file is not None):
        raise DataError("give texts or --image, not both")
    if image and (layers != "last" or pool is not None):
        raise DataError("--layers and --pool are for texts; leave them out with --image")
    check_place(model)
    with importing():
        from legato.loading import load
        from legato.tasks.embedding.embed_files import embed_to_file, embedded, ending_of
        from legato.tasks.embedding.text_vectors import TextVectors
        from legato.tasks.file_inputs import refuse_files
    ending = None if out is None else ending_of(out, pool)
    many: list[Any]
    if image:
        from legato.tasks.embedding.picture_vectors import PictureVectors
        from legato.tasks.picture_inputs import read_pictures

        held = load(model, device, dtype=dtype, quantize=quantize)
        vectors: Vectors = PictureVectors.of(held.loaded, normalise=bool(normalize))
        many = [picture for place in image for picture in read_pictures(place).texts]
    else:
        source: Texts | Lines = Texts(texts) if texts else Lines(None if file in (None, "-") else file)
        many = [text for block in source.blocks(4096) for text in block]
        if source.spoilt:
            bad = f"{source.unit} {source.spoilt}"
            Meter(False).note(f"legato: note: {bad} is not valid UTF-8; bad bytes were replaced")
        where = "text" if texts else f"{file or 'standard input'}, line"
        for number, text in enumerate(many, start=1):
            if not text.strip():
                raise DataError(f"{where} {number} is empty, and nothing has no vector; remove it")
        if not many:
            raise DataError(f"{file or 'standard input'} holds no text; give at least one line")
        if texts:
            refuse_files(texts, "legato embed", "to read its lines: --file {}")
        held = load(model, device, dtype=dtype, quantize=quantize)
        vectors = TextVectors.of(held.loaded, layers=layers, pool=pool, normalize=normalize)
    with Meter(enabled=not texts, printed=out is None) as meter, notes(meter.note):
        if out is not None:
            shape = embed_to_file(vectors, many, out, pool, batch_size, meter.advance)
            told = {"out": out, "images" if image else "texts": len(many), "width": shape, "format": ending}
            wide = f"{len(many):,} × {shape:,}" if pool != "none" else f"{len(many):,} texts, {shape:,} wide"
            print(to_json(told) if as_json else f"{wide} numbers in {out}")
            return
        for line in embedded(vectors, many, pool, batch_size, as_json=as_json):
            print(line)
