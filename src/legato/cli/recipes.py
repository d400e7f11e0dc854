"""`legato recipes`: the published experiments that ship with the package."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from legato.cli.imports import importing
from legato.cli.printing import show


def command(
    name: Annotated[str | None, typer.Argument(help="One recipe, printed whole.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON.")] = False,
) -> None:
    """List the recipes with the scores to expect, or print one as YAML."""
    from legato.config import to_yaml
    from legato.errors import ConfigError, brief, listed, suggest
    from legato.runs.recipes import find_recipe, list_recipes, task_named
    from legato.schema import to_json

    if name is not None:
        recipe = find_recipe(name)
        if recipe is None:
            task = task_named(name)
            of_task = [one for one in list_recipes() if one.partition("/")[0] == task]
            near = suggest(name, list_recipes())
            if of_task:
                near = f"'{brief(name)}' is a task; its recipes are {listed(of_task)}"
            raise ConfigError(f"there is no recipe '{brief(name)}'; {near}")
        print(to_json(recipe) if as_json else to_yaml(recipe), end="")
        return
    recipes = {known: find_recipe(known) or {} for known in list_recipes()}
    if as_json:
        print(to_json(recipes))
        return
    with importing():  # their tasks, which know how their figures are printed
        rows = [
            (known, recipe.get("about", ""), _expectations(recipe), recipe.get("hardware", ""))
            for known, recipe in recipes.items()
        ]
    show(("recipe", "what it is", "expect", "measured on"), rows)


def _expectations(recipe: dict[str, Any]) -> str:
    """The figures that a recipe promises, as `legato train` prints them."""
    from legato.evaluation.metrics import metric_of
    from legato.registry import TASKS
    from legato.runs.recipes import Expectation

    lines, known = [], TASKS.get(recipe["task"]).metrics
    for name, promise in recipe.get("expect", {}).items():
        metric, expectation = metric_of(known, name), Expectation(**promise)
        measured = expectation.measured
        more = "" if measured is None else f" (measured {metric.printed(measured):g}{metric.sign})"
        lines.append(f"{name} {expectation.bound(metric)}{more}")
    return "\n".join(lines)
