"""What the verbs that search an index have in common: filters, and how passages are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from legato.errors import ConfigError, brief, without_controls

if TYPE_CHECKING:
    from legato.retrieval.index import SearchHit

Place = Annotated[str, typer.Argument(metavar="INDEX", help="An index: a folder, or postgresql://…")]
Top = Annotated[int, typer.Option(min=1, help="How many passages.")]
Mode = Annotated[
    str | None, typer.Option(help="hybrid, vectors or words.", show_default="hybrid where the index has vectors")
]
Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", metavar="KEY=VALUE", help="Passages with this metadata only; may be repeated."),
]
Rerank = Annotated[
    str | None, typer.Option(help="A classification model that reads question and passage, and orders them anew.")
]
SHOWN = 400  # characters of a passage on a terminal


def parse_filters(words: list[str] | None) -> dict[str, list[str]]:
    """Of each key the values that it may have.

    >>> parse_filters(["language=en", "language=de"])
    {'language': ['en', 'de']}
    """
    found: dict[str, list[str]] = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--filter {brief(word)}: write KEY=VALUE")
        if any("\ud800" <= letter <= "\udfff" or letter == "\0" for letter in word):
            raise ConfigError(f"--filter {brief(word)} is no text")
        found.setdefault(key.strip(), []).append(value)
    return found


def source_line(number: int, hit: SearchHit) -> str:
    """Where a passage is from, on one line."""
    passage = hit.passage
    page = f", page {passage.page}" if passage.page is not None else ""
    under = " › ".join(part for part in (passage.title, passage.heading) if part)
    line = f"[{number}] {brief(passage.source, 200)}{page}" + (f" · {brief(under, 120)}" if under else "")
    return without_controls(line)
