"""A model of many tasks beside a model of its size for each of them alone, which has as many steps of that task.

    python examples/beside_alone.py unit/seven runs/seven data.root=data from.text=MINILM

trains runs/seven/all and runs/seven/NAME for each task of the recipe or YAML file, and prints a table of scores.
What is finished already is not trained again, and what was stopped goes on. The last words are settings for all
of them; `tasks=a,b` trains beside `all` these alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import legato
from legato.config import split_words
from legato.runs.config import settings_for
from legato.runs.train import finished_result

DECIDING = ("map_50", "accuracy", "micro_f1", "spearman")  # the first that a task has is shown


def trained(recipe: str, settings: dict[str, Any], out: Path) -> dict[str, Any]:
    """The scores of a run: made, gone on with, or there already."""
    done = finished_result(out)
    if done is None:
        begun = (out / "config.yaml").exists()
        done = legato.train(None, resume=out) if begun else legato.train(recipe, settings, out=out)
    return done.metrics


def score_of(scores: dict[str, Any], task: str) -> tuple[str, float]:
    """What decides of a task, on its test rows where it has any."""
    names = [f"{split}.{task}/{figure}" for figure in DECIDING for split in ("test", "valid")]
    name = next(name for name in names if name in scores)
    return name, 100 * scores[name]


def main(words: list[str]) -> None:
    if len(words) < 2:
        sys.exit("usage: python examples/beside_alone.py RECIPE FOLDER [tasks=a,b] [key=value …]")
    recipe, out, settings = words[0], Path(words[1]), split_words(words[2:])
    chosen = str(settings.pop("tasks", "")).split(",")
    tasks = [name for name in settings_for(recipe)["data"]["tasks"] if chosen == [""] or name in chosen]
    together = trained(recipe, settings, out / "all")
    print("| task | score | together | alone | difference |\n|---|---|--:|--:|--:|")
    for task in tasks:
        alone = trained(recipe, {**settings, "data.only": task}, out / task)
        name, one = score_of(together, task)
        other = score_of(alone, task)[1]
        print(
            f"| {task} | {name.replace(f'{task}/', '')} | {one:.2f} | {other:.2f} | {one - other:+.2f} |", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1:])
