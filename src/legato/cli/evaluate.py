"""`legato eval`: score a model on data it has not seen."""

from __future__ import annotations

import glob
import os
from typing import Annotated, Any

import typer

from legato.cli.imports import importing
from legato.cli.printing import show

KEYS = ("data", "device", "dtype", "quantize")


def command(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file or a name on the hub.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="key=value settings: data.test=FILE, data.root, device, dtype, quantize …"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Score a model on data it has not seen, with the signature of each score that has one.

    [dim]legato eval runs/x C.txt[/dim]
    [dim]legato eval runs/x data.test=C.txt --device cpu[/dim]
    [dim]legato eval runs/t "data.test=\\[test.en,test.de]"[/dim]
    [dim]legato eval runs/many data.test=test.{} "data.directions=\\[en-de,de-fr]"[/dim]

    A language model gets loss, perplexity and bits per byte, over the whole text as one stream; a masked one loss,
    perplexity and accuracy of hidden tokens and pseudo-perplexity (data.max_sentences=200 bounds its cost); a
    translation model loss, BLEU and chrF; a parser labelled brackets; a classifier accuracy, F1 and correlations,
    with a table of what was taken for what, the scores of each class and the worst errors.

    Shares such as accuracy and F1 are printed in percent, with the sign; BLEU and correlations on the same scale,
    without it. --json has them as their scorers give them.
    """
    from legato.config import joined, nested, split_words
    from legato.errors import ConfigError, brief, suggest
    from legato.evaluation.metrics import metric_of, printed_scores
    from legato.folders.finding import check_place
    from legato.registry import TASKS
    from legato.schema import to_json

    words = joined(settings or [])
    files = [word for word in words if "=" not in word and (os.path.exists(word) or glob.has_magic(word))]
    given = split_words(word for word in words if word not in files)
    # A name without a section is of the data, the only section that there is; `data=FILE` is what is scored.
    given = {
        "data.test" if key == "data" else key if key in KEYS or "." in key else f"data.{key}": value
        for key, value in given.items()
    }
    if files and "data.test" in given:
        raise ConfigError(
            f"{brief(files[0])} and data.test={brief(given['data.test'])} are both to be scored; name one"
        )
    given = nested({**given, **({"data.test": files[0] if len(files) == 1 else files} if files else {})})
    for key in given:
        if key not in KEYS:
            raise ConfigError(f"unknown key '{brief(key)}'; {suggest(key, KEYS)}")
    data: Any = given.get("data", {})
    if not isinstance(data, dict):
        raise ConfigError(f"'data' is a group of settings, such as data.test=FILE, not '{brief(data)}'")
    check_place(model)
    with importing():
        from legato.loading import load
    width = {key: str(given[key]) for key in ("dtype", "quantize") if given.get(key) is not None}
    held = load(model, str(given.get("device", "auto")), **width)
    scores = held.evaluate(**data)
    details = scores.pop("details", [])
    if as_json:
        told = [{"title": title, "columns": columns, "rows": rows} for title, columns, rows in details]
        print(to_json({"model": str(held.folder), **scores, **({"details": told} if told else {})}))
        return
    signatures = {name: scores.pop(name) for name in list(scores) if name.endswith("signature")}
    if "sha256" in scores:
        scores["sha256"] = scores["sha256"][:16]
    known = TASKS.get(held.task).metrics
    title = f"{held.folder} on {scores.pop('data')}"
    show(("figure", "value"), printed_scores(known, scores).items(), title=title, right=(1,))
    for name, value in signatures.items():  # to be copied, so each whole and on one line
        print(f"{name.replace('_', ' ')}: {value}")
    for title, columns, rows in details:
        print(f"\n{title}")
        if rows:
            of = [metric_of(known, name) for name in columns]
            numbers = [n for n in range(len(columns)) if all(isinstance(row[n], int | float) for row in rows)]
            cells = [[one.text(_cell(value)) for one, value in zip(of, row, strict=True)] for row in rows]
            show(columns, cells, right=numbers)


def _cell(value: Any) -> Any:
    """A count or a text, in one line; or a figure, which its metric prints. A column may be a class of any name."""
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, float) else " ".join(str(value).split())
