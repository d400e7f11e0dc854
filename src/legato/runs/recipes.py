"""What a run is asked for by: a task's name, a recipe of the package or a YAML file. It imports no PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import model_validator

from legato.config import Section, merge, nested, parse_words, read_yaml
from legato.errors import ConfigError, brief, suggest
from legato.input_files import path_of
from legato.registry import TASKS

if TYPE_CHECKING:
    from legato.evaluation.metrics import Metric

RECIPES: Final = Path(str(resources.files("legato"))) / "recipes"


class Expectation(Section):
    """A figure that a recipe promises: a bound, and what was measured when it was written."""

    at_most: float | None = None
    at_least: float | None = None
    measured: float | None = None

    @model_validator(mode="after")
    def _is_bounded(self) -> Expectation:
        if self.at_most is None and self.at_least is None:
            raise ValueError("an expectation has a bound; write at_most or at_least")
        return self

    def met(self, value: float) -> bool:
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)

    def bound(self, metric: Metric) -> str:
        """The bound as it is printed."""
        if self.at_most is not None:
            return f"≤ {metric.printed(self.at_most):g}"
        return f"≥ {metric.printed(self.at_least or 0.0):g}"


def settings_for(what: str | None, words: Iterable[str] | Mapping[str, Any] = ()) -> dict[str, Any]:
    """The unchecked settings of a task's name, a recipe or a YAML file, with `words` laid over them."""
    over = nested(words) if isinstance(words, Mapping) else parse_words(words)
    if what is None:
        return over
    if what in TASKS:
        return merge({"task": what}, over)
    recipe = find_recipe(what)
    if recipe is not None:
        return merge(recipe, over)
    if what.endswith((".yaml", ".yml")):
        return merge(read_yaml(path_of(what, error=ConfigError)), over)
    near = suggest(what, [*TASKS.names(), *list_recipes()])
    if not near.startswith("did you mean"):
        near = f"{suggest(what, TASKS.names())}; legato recipes lists the recipes"
    raise ConfigError(f"'{brief(what)}' is no task, recipe or YAML file; {near}")


def list_recipes() -> list[str]:
    """The names of the recipes in the package, such as `lm/ptb-lstm`."""
    return sorted(f"{file.parent.name}/{file.stem}" for file in RECIPES.glob("*/*.yaml"))


def find_recipe(name: str) -> dict[str, Any] | None:
    return read_yaml(RECIPES / f"{name}.yaml") if name in list_recipes() else None
