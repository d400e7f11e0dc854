"""The runs under a folder: what each is and reached, which is best, and what may be removed of them.

A run that is being trained has its lock, by which it is known here; nothing of it is removed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from legato.config import read_yaml
from legato.errors import ConfigError, FolderError, LegatoError, brief, suggest
from legato.evaluation.metrics import Metric, Metrics, metric_of
from legato.folders.links import refuse_link
from legato.folders.locks import is_held
from legato.registry import TASKS
from legato.runs.run_folder import CONFIG, LOCK, SMALL, RunFolder, read_settings
from legato.schema import fields_of, fit, read_json_if_there
from legato.training.checkpoint_files import (
    holds_checkpoint,
    is_checkpoint,
    list_checkpoints,
    remove_checkpoint,
    step_of,
)

DEPTH: Final = 4  # folders below the one that is looked through
EVENTS: Final = "events.out.tfevents*"
State = Literal["running", "finished", "stopped", "unreadable"]


@dataclass(frozen=True)
class RunRecord:
    """A run as a list of runs shows it."""

    path: Path
    task: str
    model: str
    state: State
    steps: int
    score: float | None  # the best, of the figure that is named next
    metric: str  # `valid.accuracy`
    started: str  # in UTC, as ISO 8601 has it
    size: int  # bytes on the disk
    valid: str = ""  # the hash of what it is scored on
    figure: Metric = field(default=Metric(""), repr=False)  # what the task says of the score

    @property
    def score_text(self) -> str:
        """The score with its name and unit."""
        if self.score is None:
            return ""
        text = self.figure.text(self.score, ".4g")
        unit = " %" if self.figure.unit and not text.endswith("%") else ""
        return f"{self.metric.replace('.', ' ').replace('_', ' ')} {text}{unit}"

    @property
    def rank(self) -> float:
        """The score with its sign, so that more is better; runs without one come last."""
        if self.score is None:
            return float("-inf")
        return self.score if self.figure.better == "up" else -self.score

    def to_json(self) -> dict[str, Any]:
        return {**{name: value for name, value in vars(self).items() if name != "figure"}, "path": str(self.path)}


SORTS: Final[dict[str, Callable[[RunRecord], Any]]] = {
    "date": lambda run: run.started,
    "name": lambda run: str(run.path),
    "score": lambda run: (run.task, run.metric, -run.rank),
    "size": lambda run: -run.size,
    "state": lambda run: run.state,
    "steps": lambda run: -run.steps,
    "task": lambda run: (run.task, str(run.path)),
}


def list_runs(folder: Path, sort: str = "date") -> list[RunRecord]:
    """The runs under a folder, or the one that it is."""
    if sort not in SORTS:
        raise ConfigError(f"--sort {brief(sort)}: {suggest(sort, SORTS)}")
    if not folder.is_dir():
        raise FolderError(f"there is no folder {folder}; name one that holds runs: legato runs FOLDER")
    return sorted(map(read_record, _run_folders(folder, DEPTH)), key=SORTS[sort])


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / CONFIG).is_file():
        yield folder
    elif depth:
        with suppress(OSError), os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            for name in names:
                if not name.startswith("."):
                    yield from _run_folders(folder / name, depth - 1)


def read_record(path: Path) -> RunRecord:
    """What a run's files say of it."""
    try:
        settings = read_yaml(path / CONFIG)
        result = read_json_if_there(path / "result.json", dict[str, Any], loose=True)
        origin = read_json_if_there(path / "provenance.json", dict[str, Any], loose=True)
        reports = RunFolder(path).metrics()
    except LegatoError:
        return RunRecord(path, "", "", "unreadable", 0, None, "", _date(path), folder_size(path))
    task, model = settings.get("task"), settings.get("model")
    name = model.get("name", "") if isinstance(model, Mapping) else model
    state: State = "running" if is_held(path / LOCK) else "finished" if result else "stopped"
    valid = [line for line in reports if line["kind"] == "valid"]
    figures = {f"valid.{key}": value for key, value in (valid[-1] if valid else {}).items()}
    figures = result["metrics"] if isinstance(result.get("metrics"), dict) else figures
    metrics = _metrics(task, origin.get("metrics"))
    metric = _headline(figures, metrics)
    figure = metric_of(metrics, metric)
    scores = [line.get(figure.name) for line in valid] if not result else [figures.get(metric)]
    numbers = [float(score) for score in scores if isinstance(score, int | float)]
    best = max if figure.better == "up" else min
    data = origin.get("data")
    return RunRecord(
        path=path,
        task=str(task or ""),
        model=str(name or ""),
        state=state,
        steps=max((line["step"] for line in reports), default=0),
        score=best(numbers, default=None),
        metric=metric if numbers else "",
        started=str(origin.get("started") or _date(path)),
        size=folder_size(path),
        valid=str(data.get("valid") or "") if isinstance(data, Mapping) else "",
        figure=figure,
    )


def _metrics(task: Any, noted: Any) -> Metrics:
    """A run's figures: as it noted them, so that no task is imported, which takes seconds; else those of its task."""
    if noted is not None:
        with suppress(FolderError):
            return tuple(Metric(**one) for one in fit(noted, list[fields_of(Metric)], "metrics"))  # type: ignore[misc]
    return TASKS.get(task).metrics if isinstance(task, str) and task in TASKS else ()


def _headline(figures: Mapping[str, Any], metrics: Iterable[Metric]) -> str:
    """The figure by which runs of a task are told apart: its first headline of validation that is no loss."""
    names = [f"valid.{metric.name}" for metric in metrics if metric.headline and metric.name != "loss"]
    return next((name for name in names if name in figures), "valid.loss")


def _date(path: Path) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+0000", time.gmtime((path / CONFIG).stat().st_mtime))


def folder_size(folder: Path) -> int:
    """Bytes of the files in a folder; of what a link leads to, none."""
    return sum(
        os.lstat(os.path.join(place, name)).st_size
        for place, _, names in os.walk(folder)
        for name in names
        if os.path.lexists(os.path.join(place, name))
    )


def best_runs(runs: Iterable[RunRecord], task: str | None = None) -> list[tuple[RunRecord, int]]:
    """The best run of each task and data that it was scored on, and of how many."""
    if task is not None and task not in TASKS:
        raise ConfigError(f"--task {brief(task)} is no task; {suggest(task, TASKS.names())}")
    groups: dict[tuple[str, str, str], list[RunRecord]] = {}
    for run in runs:
        if run.score is not None and task in (None, run.task):
            groups.setdefault((run.task, run.metric, run.valid), []).append(run)
    return [(max(group, key=lambda run: run.rank), len(group)) for group in groups.values()]


def changed_settings(settings: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The settings of a run that differ from the defaults of its task and model, each with the default."""
    from legato.runs.config import flat

    now = flat({key: value for key, value in settings.items() if key not in ("about", "hardware", "expect")})
    usual = flat(_defaults(settings))
    usual |= {"data.train": None, "from": None}
    return {key: (str(value), str(usual.get(key))) for key, value in now.items() if value != usual.get(key)}


def _defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run of the same task, model and data has where nothing else is set."""
    data, adapt = settings.get("data") or {}, settings.get("adapt") or {}
    named = {
        "task": settings["task"],
        "model": {"name": settings["model"]["name"]},
        "data": {"train": data.get("train")},
    }
    begun = {**named, "from": settings.get("from"), "adapt": {"name": adapt.get("name", "full")}}
    from legato.runs.config import check, dump

    tried = (
        begun,
        {**begun, "data": data},
        named,
        {**named, "data": data},
    )  # the model that it went on from may be gone
    for one in tried:
        with suppress(LegatoError):
            return dump(check(one))
    return {}


@contextmanager
def _claimed(path: Path) -> Iterator[RunFolder]:
    """A run that nobody trains meanwhile."""
    refuse_link(path)
    run = RunFolder.open(path)
    if not (run.reports.is_file() or (path / "provenance.json").is_file() or holds_checkpoint(run.checkpoints)):
        raise FolderError(f"{path} holds a {CONFIG}, but nothing that training wrote; nothing is removed there")
    run.claim()
    try:
        if not run.is_locked and not (path / "result.json").is_file():
            raise FolderError(
                f"{path} is not finished, and may be in training: there are no file locks here, which would tell; "
                "when nothing trains it any longer, remove the folder by hand"
            )
        yield run
    finally:
        run.release()


def prune(path: Path, keep: Sequence[str]) -> tuple[int, int]:
    """Remove checkpoints of a run but those to keep: `best`, `last`. How many went, and their bytes.

    The models `best` and `last` stay in any case. Without a checkpoint a run cannot go on.
    """
    with _claimed(path) as run:
        checkpoints = list(filter(is_checkpoint, list_checkpoints(run.checkpoints)))
        if not checkpoints:
            return 0, 0
        if keep:  # a damaged one is not the last to go on from
            from legato.training.checkpoints import newest_good

            whole = newest_good(run.checkpoints, lambda problem: None).step
            checkpoints.sort(key=lambda place: (step_of(place) == whole, step_of(place)))
        spared = {checkpoints[-1]} if "last" in keep else set()
        if "best" in keep:
            progress = read_json_if_there(checkpoints[-1] / "progress.json", dict[str, Any], loose=True)
            best = (progress.get("progress") or {}).get("best_step")
            spared |= {place for place in checkpoints if step_of(place) == best}
        size = count = 0
        for place in checkpoints:
            if place not in spared:
                bytes_before = folder_size(place)
                remove_checkpoint(place)
                size += bytes_before - (folder_size(place) if place.exists() else 0)
                count += 1
        return count, size


def delete(path: Path) -> int:
    """Remove what training writes of a run, and its folder where nothing else is in it. How many bytes that were."""
    size = folder_size(path)
    with _claimed(path) as run:
        for place in filter(is_checkpoint, list_checkpoints(run.checkpoints)):
            remove_checkpoint(place)
        for model in (run.best, run.last):
            if (model / "config.json").is_file() and not model.is_symlink():
                shutil.rmtree(model, ignore_errors=True)
        for table in run.tables().values():
            Path(table).unlink(missing_ok=True)
        for folder in (run.checkpoints, run.data):
            with suppress(OSError):
                folder.rmdir()
        others = (run.path / name for name in SMALL if name != CONFIG)
        for file in (*others, *run.path.glob(EVENTS), run.path / CONFIG):  # by which it is a run, until the end
            file.unlink(missing_ok=True)
    with suppress(OSError):
        path.rmdir()
    return size - (folder_size(path) if path.exists() else 0)


@dataclass(frozen=True)
class RunDetails:
    """A run as `legato runs show` shows it."""

    record: RunRecord
    scores: dict[str, Any]
    settings: dict[str, tuple[str, str]]  # those that differ from the defaults, with these
    facts: dict[str, str]  # what else its files say

    @property
    def started(self) -> str:
        return f"{self.record.started[:16].replace('T', ' ')} UTC"

    def to_json(self) -> dict[str, Any]:
        settings = {key: {"value": value, "default": default} for key, (value, default) in self.settings.items()}
        return {**self.record.to_json(), "scores": self.scores, "settings": settings, "facts": self.facts}


def details(path: Path) -> RunDetails:
    """What a run's files say of it."""
    settings = read_settings(path / CONFIG)
    result = read_json_if_there(path / "result.json", dict[str, Any], loose=True)
    origin = read_json_if_there(path / "provenance.json", dict[str, Any], loose=True)
    record = read_record(path)
    if record.task not in TASKS or not record.model:
        raise FolderError(f"{path}/{CONFIG} names no task and model that there are; it is no run of Legato's")
    checkpoints = list_checkpoints(path / "checkpoints")
    hashes = origin.get("data") if isinstance(origin.get("data"), Mapping) else {}
    data = {f"data {split}": f"sha256 {digest[:16]}" for split, digest in (hashes or {}).items()}
    counts = {name: f"{result[name]:,}" for name in ("parameters", "trainable", "tokens") if name in result}
    seconds = {"time": f"{result['seconds']:,.1f} s"} if "seconds" in result else {}
    machine = {name: str(origin[name]) for name in ("device", "torch", "legato", "commit") if origin.get(name)}
    sizes = ", ".join(f"{place.name} ({folder_size(place):,} bytes)" for place in checkpoints) or "none"
    facts = {**data, **counts, **seconds, "checkpoints": sizes, "size": f"{record.size:,} bytes", **machine}
    scores = result.get("metrics")
    scores = scores if isinstance(scores, dict) else {record.metric: record.score} if record.metric else {}
    return RunDetails(record, scores, changed_settings(settings), facts)
