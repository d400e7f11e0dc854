"""Finished runs beside one another: their figures, and the settings in which they differ. Nothing is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from legato.config import read_yaml
from legato.errors import ConfigError, FolderError
from legato.evaluation.metrics import Metrics, metric_of
from legato.registry import TASKS
from legato.runs.config import flat
from legato.runs.run_folder import CONFIG
from legato.runs.train import Result, finished_result
from legato.schema import read_json_if_there

# What is told of each run beside its scores, and how it is shown.
COUNTS: Final[dict[str, Callable[[Any], str]]] = {
    "parameters": "{:,}".format,
    "trainable": "{:,}".format,
    "steps": "{:,}".format,
    "tokens": "{:,}".format,
    "seconds": "{:,.1f}".format,
    "saved_bytes": "{:,}".format,
}


@dataclass(frozen=True)
class FinishedComparison:
    """Runs of one task, with what they reached."""

    paths: list[Path]
    results: list[Result]
    metrics: Metrics
    settings: dict[str, list[str]]  # those that differ, with the value of each run
    notes: list[str] = field(default_factory=list)

    @property
    def scores(self) -> list[str]:
        """The scores that people compare, of which at least one run has each."""
        names = dict.fromkeys(name for result in self.results for name in result.metrics)
        return [name for name in names if metric_of(self.metrics, name).headline]

    def figure_rows(self) -> list[list[str]]:
        """A row for each figure, with the text of each run."""
        rows = []
        for name in self.scores:
            metric = metric_of(self.metrics, name)
            texts = [metric.text(result.metrics.get(name, "–"), ".4g") for result in self.results]
            rows.append([name.replace(".", " ").replace("_", " "), *texts])
        counts = [
            [name.replace("_", " "), *(show(vars(r)[name]) for r in self.results)] for name, show in COUNTS.items()
        ]
        return [*rows, *counts]

    def to_json(self) -> dict[str, Any]:
        runs = [
            {"run": str(path), **{name: vars(result)[name] for name in COUNTS}, "metrics": result.metrics}
            for path, result in zip(self.paths, self.results, strict=True)
        ]
        return {"runs": runs, "settings": self.settings, "notes": self.notes}


def compare_finished(paths: Sequence[Path]) -> FinishedComparison:
    """Finished runs of one task; of another one, or unfinished, is a mistake.

    >>> compare_finished([Path("runs/a"), Path("runs/b")]).settings                      # doctest: +SKIP
    {'train.lr': ['0.001', '0.003']}
    """
    if len(set(paths)) < 2:
        raise ConfigError(f"there is only one run to compare, {paths[0]}; name two or more")
    every = [read_yaml(path / CONFIG) for path in paths]
    tasks = [str(settings.get("task")) for settings in every]
    for path, task in zip(paths, tasks, strict=True):
        if task != tasks[0]:
            raise ConfigError(f"{path} is of {task} and {paths[0]} of {tasks[0]}; compare runs of one task")
    results = []
    for path in paths:
        result = finished_result(path)
        if result is None:
            raise FolderError(f"{path} is not finished; go on with it first: legato train resume={path}")
        results.append(result)
    values = [flat(settings) for settings in every]
    keys = sorted({key for one in values for key in one})
    rows = {key: [str(one.get(key, "–")) for one in values] for key in keys}
    differing = {key: row for key, row in rows.items() if len(set(row)) > 1 and key != "out"}
    notes = []
    if len(set(_scored_on(paths))) > 1:
        notes.append("they are scored on different data, so their scores do not tell which is better")
    return FinishedComparison(list(paths), results, TASKS.get(tasks[0]).metrics, differing, notes)


def _scored_on(paths: Iterable[Path]) -> list[str]:
    """The hashes of the data that runs are scored on."""
    origins = [read_json_if_there(path / "provenance.json", dict[str, Any], loose=True) for path in paths]
    return [str((origin.get("data") or {}).get("valid")) for origin in origins]
