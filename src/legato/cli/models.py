"""`legato models`: what there is to train."""

from __future__ import annotations

from typing import Annotated

import typer

from legato.cli.imports import importing
from legato.cli.printing import show, show_settings
from legato.errors import ConfigError, LegatoError


def command(
    name: Annotated[str | None, typer.Argument(help="One model, with all its settings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """List the models, or one model's settings and their defaults."""
    from legato.config import describe
    from legato.registry import MODELS, TASKS
    from legato.schema import to_json

    if name is None:
        with importing():
            rows = {known: _summary(known) for known in MODELS.names()}
        if as_json:
            print(to_json(rows))
        else:
            show(("model", "what it is"), rows.items())
        return
    if name not in MODELS and name in TASKS:
        raise ConfigError(f"'{name}' is a task; its settings: legato train {name} --keys")
    with importing():
        section = MODELS.get(name).Config
    if as_json:
        fields = {key: field for key, field in section.model_fields.items() if key != "name"}
        defaults = {key: field.get_default(call_default_factory=True) for key, field in fields.items()}
        print(to_json(defaults, default=lambda group: group.model_dump()))
        return
    print(f"model={name}")
    show_settings(row for row in describe(section, "model") if row.key != "model.name")


def _summary(name: str) -> str:
    from legato.registry import MODELS

    try:
        return str(MODELS.get(name).summary)
    except LegatoError as problem:  # another package's model must not hide ours
        return f"broken: {problem}"
