"""`legato recipes`: the published experiments that ship with the package."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from legato.cli.printing import show


def command(
    name: Annotated[str | None, typer.Argument(help="One recipe, printed whole.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """List the recipes with the scores to expect, or print one as YAML."""
    import yaml
    from rich.table import Table

    from legato.errors import ConfigError, brief, suggest
    from legato.runs.train import find_recipe, list_recipes
    from legato.schema import to_json

    if name is not None:
        recipe = find_recipe(name)
        if recipe is None:
            raise ConfigError(f"there is no recipe '{brief(name)}'; {suggest(name, list_recipes())}")
        print(
            to_json(recipe) if as_json else yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True),
            end="",
        )
        return
    recipes = {known: find_recipe(known) or {} for known in list_recipes()}
    if as_json:
        print(to_json(recipes))
        return
    table = Table()
    table.add_column("recipe", no_wrap=True)  # what somebody has to type
    for column in ("what it is", "expect", "measured on"):
        table.add_column(column)
    for known, recipe in recipes.items():
        table.add_row(known, recipe.get("about", ""), _expectations(recipe), recipe.get("hardware", ""))
    show(table)


def _expectations(recipe: dict[str, Any]) -> str:
    lines = []
    for figure, bound in recipe.get("expect", {}).items():
        limit = f"≤ {bound['at_most']}" if "at_most" in bound else f"≥ {bound['at_least']}"
        measured = f" (measured {bound['measured']})" if bound.get("measured") is not None else ""
        lines.append(f"{figure} {limit}{measured}")
    return "\n".join(lines)
