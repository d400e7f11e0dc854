"""`legato serve`: models behind an HTTP API that OpenAI's clients speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from legato.cli.imports import importing
from legato.cli.printing import print_note
from legato.cli.widths import Dtype, Quantize
from legato.errors import ConfigError, brief

if TYPE_CHECKING:
    from legato.serving.indexes import ServedIndexes


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…",
            help="Model folders, run folders, GGUF files or names on the hub; NAME=MODEL is called NAME.",
        ),
    ],
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FOLDER",
            help="A LoRA adapter that shares the model, asked for by its name; may be repeated. Of several models "
            "MODEL/NAME=FOLDER says whose it is, where its own files do not.",
        ),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PLACE", help="An index that chats may name, to answer from its sources; may be repeated."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines ask.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="LEGATO_API_KEY", help="A key that clients have to send; may be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="The origin of a page elsewhere that may ask; may be repeated.")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Texts that a model writes side by side.")] = 64,
    max_queue: Annotated[int, typer.Option(min=0, help="Texts that wait for it; more are refused with 429.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest text that may be asked for.")] = 4096,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 8 << 20,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a request may take.")] = 600.0,
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="A line of JSON for each request, without texts.")
    ] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Read the models, open the port, say what would be served, and stop.")
    ] = False,
    device: Annotated[str, typer.Option()] = "auto",
    dtype: Dtype = "float32",
    quantize: Quantize = None,
) -> None:
    """Serve models over HTTP, as OpenAI's API: point a client of it at http://localhost:8000/v1.

    [dim]legato serve runs/chat --port 8000[/dim]
    [dim]legato serve chat=runs/chat search=org/encoder --api-key secret --host 0.0.0.0[/dim]
    [dim]legato serve base=org/name --adapter polite=runs/polite --adapter terse=runs/terse[/dim]
    [dim]legato serve runs/chat --index docs=runs/index[/dim]
    """
    from legato.folders.finding import check_place
    from legato.registry import require_extra

    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require_extra("serve", module)
    named = [_named(each) for each in models]
    for _, place in named:
        check_place(place)
    if any(not key for key in api_key or ()):
        raise ConfigError("--api-key is empty; leave it out, or give a key")
    with importing():
        from legato.loading import load
        from legato.serving.adapters import adapter_place, with_adapters
        from legato.serving.models import Served, ServedModels
        from legato.serving.server import serve
    indexes = _opened(index or (), device)
    adapters = [adapter_place(each) for each in adapter or ()]
    for each in adapters:
        check_place(each.place)
    served = [
        (
            place,
            Served(
                name or _name_of(place),
                load(place, device, dtype=dtype, quantize=quantize),
                rows=max_rows,
                queue=max_queue,
                patience=timeout,
                most_tokens=max_tokens,
            ),
        )
        for name, place in named
    ]
    serve(
        ServedModels(with_adapters(served, adapters)),
        print_note,
        host=host,
        port=port,
        keys=tuple(api_key or ()),
        origins=frozenset(origin.lower() for origin in allow_origin or ()),
        body=max_body,
        log=log,
        check=check,
        indexes=indexes,
    )


def _opened(given: Sequence[str], device: str) -> ServedIndexes:
    """The indexes by their names."""
    from legato.rag import open_index
    from legato.serving.indexes import ServedIndexes

    opened = {}
    for each in given:
        name, equals, place = each.partition("=")
        if not equals or not place or not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"--index {brief(each)}: write NAME=PLACE; a name is of letters, digits, - and _")
        if name in opened:
            raise ConfigError(f"two indexes are called '{name}'; name one of them otherwise")
        opened[name] = open_index(place, device=device)
    return ServedIndexes(opened)


def _named(given: str) -> tuple[str | None, str]:
    """A name and a place; a place alone may hold '=' in a path."""
    name, equals, place = given.partition("=")
    if equals and name and place and not set(name) & set("/\\."):
        return name, place
    return None, given


def _name_of(place: str) -> str:
    """What a model is called: the last part of a path, all of a hub's name."""
    from pathlib import Path

    path = Path(place)
    if path.exists():
        path = path.resolve()
        return path.parent.name if path.name in ("best", "last") else path.name.removesuffix(".gguf")
    return place.partition("@")[0]
