"""`legato serve`: models behind an HTTP API that OpenAI's clients speak."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from legato.cli.imports import importing
from legato.cli.printing import print_note
from legato.cli.widths import Dtype, Quantize
from legato.errors import ConfigError, brief


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
    max_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Texts that a model writes side by side. Default: 64 on a CPU, 256 on a GPU."),
    ] = None,
    max_queue: Annotated[int, typer.Option(min=0, help="Texts that wait for it; more are refused with 429.")] = 256,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest text that may be asked for.")] = 4096,
    max_input_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of a text that is sent; left out: 8,192, or as many as the model reads. "
            "Of characters it may have 64 times as many.",
        ),
    ] = None,
    max_prefixes: Annotated[
        int,
        typer.Option(
            min=0, help="MiB in which a model keeps what it computed of prompts, for those that begin alike; 0: none."
        ),
    ] = 512,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 8 << 20,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a request may take.")] = 600.0,
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="A line of JSON for each request, without texts.")
    ] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Read the models, open the port, say what would be served, and stop.")
    ] = False,
    fronts: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=64,
            help="Processes that take HTTP for the one that holds the models; left out, up to 4 where those continue "
            "texts on CUDA, else none.",
        ),
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Behind Ray Serve, on the cluster that RAY_ADDRESS names, else a local one.")
    ] = False,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Servers with the models, for --ray; 1 unless it is said.")
    ] = None,
    device: Annotated[str, typer.Option()] = "auto",
    dtype: Dtype = "float32",
    quantize: Quantize = None,
) -> None:
    """Serve models over HTTP, as OpenAI's API: point a client of it at http://localhost:8000/v1.

    [dim]legato serve runs/chat --port 8000[/dim]
    [dim]legato serve chat=runs/chat search=org/encoder --api-key secret --host 0.0.0.0[/dim]
    [dim]legato serve base=org/name --adapter polite=runs/polite --adapter terse=runs/terse[/dim]
    [dim]legato serve runs/chat --index docs=runs/index[/dim]
    [dim]legato serve runs/chat --ray --replicas 4[/dim]
    """
    from legato.folders.finding import check_place
    from legato.registry import require_extra

    if replicas is not None and not ray:
        raise ConfigError("--replicas is for --ray; add that, or leave it out")
    if fronts and ray:
        raise ConfigError("--fronts is for a server without Ray, which has proxies of its own; leave it out")
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require_extra("serve", module)
    ports = [each for each in models[1:] if each.isdecimal() and not os.path.exists(each)]
    if ports:
        raise ConfigError(f"'{brief(ports[0])}' is no model; for the port, type: --port {brief(ports[0])}")
    named = [_named(each) for each in models]
    for _, place in named:
        check_place(place)
    if any(not key for key in api_key or ()):
        raise ConfigError("--api-key is empty; leave it out, or give a key")
    with importing():
        from legato.serving.adapters import adapter_place
        from legato.serving.server import ServerOptions, serve
        from legato.serving.startup.spec import ServeSpec
    spec = ServeSpec(
        models=tuple((name or _name_of(place), place) for name, place in named),
        adapters=tuple(adapter_place(each) for each in adapter or ()),
        indexes=tuple(_index_places(index or ()).items()),
        device=device,
        dtype=dtype,
        quantize=quantize,
        rows=max_rows,
        queue=max_queue,
        patience=timeout,
        most_tokens=max_tokens,
        input_tokens=max_input_tokens,
        prefix_bytes=max_prefixes << 20,
    )
    for each in spec.adapters:
        check_place(each.place)
    options = ServerOptions(
        host=host,
        port=port,
        keys=tuple(api_key or ()),
        origins=frozenset(origin.lower() for origin in allow_origin or ()),
        body=max_body,
        log=log,
        check=check,
        fronts=fronts,
    )
    if ray:
        from legato.serving.startup.ray_serve import serve_with_ray

        serve_with_ray(spec, options, replicas or 1, print_note)
    else:
        serve(*spec.read(), options, print_note)


def _index_places(given: Sequence[str]) -> dict[str, str]:
    """The indexes' places by their names."""
    places: dict[str, str] = {}
    for each in given:
        name, equals, place = each.partition("=")
        if not equals or not place or not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"--index {brief(each)}: write NAME=PLACE; a name is of letters, digits, - and _")
        if name in places:
            raise ConfigError(f"two indexes are called '{name}'; name one of them otherwise")
        places[name] = place
    return places


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
