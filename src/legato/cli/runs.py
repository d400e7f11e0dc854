"""`legato runs`: the runs that there are, and what they take on the disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from legato.cli.imports import importing
from legato.cli.printing import show
from legato.cli.words import STYLE, LazyCommands, VerbCommand
from legato.errors import ConfigError, brief, suggest

if TYPE_CHECKING:
    from legato.runs.history import RunRecord

Folder = Annotated[str, typer.Argument(metavar="[FOLDER]", help="Where the runs are.")]
Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders.")]
AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON.")]


class _RunsGroup(TyperGroup):
    """`legato runs` alone, or with a folder, lists."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = LazyCommands(COMMANDS, _command)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if not ctx.resilient_parsing and first not in (*COMMANDS, "-h", "--help"):
            near = suggest(first, COMMANDS) if first and not os.path.exists(first) else ""
            if near.startswith("did you mean"):
                raise ConfigError(f"legato runs has no '{brief(first)}', and no folder is called so; {near}")
            args = ["list", *args]
        return super().parse_args(ctx, args)


command = typer.Typer(name="runs", cls=_RunsGroup, **STYLE)


@command.callback()
def root() -> None:
    """List runs, show one, find the best, and free the disk of what they no longer need.

    [dim]legato runs[/dim]
    [dim]legato runs show runs/x[/dim]
    [dim]legato runs prune runs/x[/dim]
    """


def _command(name: str) -> Any:
    alone = typer.Typer(**STYLE)
    alone.command(name, cls=VerbCommand)(COMMANDS[name])
    return typer.main.get_command(alone)


def list_command(
    folder: Folder = "runs",
    sort: Annotated[str, typer.Option(help="date, name, task, score, size, state or steps.")] = "date",
    as_json: AsJson = False,
) -> None:
    """List the runs under a folder: what they are, what they reached, and what they take on the disk.

    [dim]legato runs[/dim]
    [dim]legato runs experiments --sort score[/dim]
    """
    from legato.input_files import path_of
    from legato.schema import to_json

    with importing():
        from legato.runs.history import list_runs
    records = list_runs(path_of(folder), sort)
    if as_json:
        print(to_json([record.to_json() for record in records]))
        return
    if not records:
        print(f"{folder} holds no runs; legato train makes one")
        return
    columns = ("run", "task", "model", "state", "steps", "best score", "started (UTC)", "size")
    show(columns, map(_cells, records), right=(4, 7))


def _cells(record: RunRecord) -> list[str]:
    started = record.started[:16].replace("T", " ")
    texts = [str(record.path), record.task, record.model, record.state, f"{record.steps:,}", record.score_text]
    return [*texts, started, size_text(record.size)]


def size_text(size: int) -> str:
    """Bytes as people read them.

    >>> size_text(1500), size_text(2_500_000)
    ('1.5 kB', '2.5 MB')
    """
    value, unit = float(size), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{size} bytes" if unit == "bytes" else f"{value:.3g} {unit}"


def show_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")], as_json: AsJson = False
) -> None:
    """Show a run: the settings that differ from the defaults, its scores, its data, its time and its checkpoints.

    [dim]legato runs show runs/x[/dim]
    """
    from legato.evaluation.metrics import printed_scores
    from legato.schema import to_json

    with importing():
        from legato.registry import TASKS
        from legato.runs.history import details
    report = details(_run_path(run))
    if as_json:
        print(to_json(report.to_json()))
        return
    record = report.record
    state = f"{record.task}, {record.model}, {record.state}, {record.steps:,} steps"
    print(f"{record.path}: {state}, started {report.started}")
    if report.scores:
        rows = printed_scores(TASKS.get(record.task).metrics, report.scores, ".4g").items()
        show(("score", "value"), rows, right=(1,))
    show(("setting", "value", "default"), [(key, *pair) for key, pair in report.settings.items()])
    show(("", ""), report.facts.items())


def best_command(
    folder: Folder = "runs",
    task: Annotated[str | None, typer.Option(help="Of this task alone.")] = None,
    as_json: AsJson = False,
) -> None:
    """Name the best run of each task, among those that are scored on the same data.

    [dim]legato runs best --task classification[/dim]
    """
    from legato.input_files import path_of
    from legato.schema import to_json

    with importing():
        from legato.runs.history import best_runs, list_runs
    best = best_runs(list_runs(path_of(folder)), task)
    if as_json:
        print(to_json([{**record.to_json(), "among": count} for record, count in best]))
        return
    if not best:
        print(f"{folder} holds no run{f' of {task}' if task else ''} with a score")
        return
    rows = [(str(record.path), record.task, record.score_text, f"{count:,}") for record, count in best]
    show(("best run", "task", "score", "of runs on the same data"), rows, right=(3,))


def prune_command(
    runs: Runs,
    keep: Annotated[
        str, typer.Option(help="The checkpoints to keep: best,last, or one of them, or none.")
    ] = "best,last",
    as_json: AsJson = False,
) -> None:
    """Delete checkpoints, which only going on needs; the models best and last stay, and so does a run that trains.

    [dim]legato runs prune runs/x[/dim]
    [dim]legato runs prune runs/x runs/y --keep none[/dim]
    """
    from legato.schema import to_json

    names = [] if keep == "none" else [name.strip() for name in keep.split(",")]
    if strange := [name for name in names if name not in ("best", "last")]:
        raise ConfigError(f"--keep {brief(strange[0])}: write best,last, or one of them, or none")
    paths = [_run_path(run) for run in runs]
    with importing():
        from legato.runs.history import prune
    for path in paths:
        count, size = prune(path, names)
        if as_json:
            print(to_json({"run": str(path), "checkpoints": count, "bytes": size}))
        else:
            print(f"{path}: {count:,} checkpoint{'s' * (count != 1)} deleted, {size:,} bytes freed")


def delete_command(
    runs: Runs,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete runs whole, with their models, after a question; never one that trains.

    [dim]legato runs delete runs/x runs/y[/dim]
    """
    from legato.schema import to_json

    paths = list(dict.fromkeys(_run_path(run) for run in runs))
    with importing():
        from legato.runs.history import delete, folder_size
    if not yes:
        if not (sys.stdin and sys.stdin.isatty()):
            raise ConfigError("nobody can be asked without a terminal; add --yes to delete the runs all the same")
        size = size_text(sum(map(folder_size, paths)))
        if not typer.confirm(f"Delete {', '.join(map(str, paths))} ({size})?"):
            return
    for path in paths:
        freed = delete(path)
        if as_json:
            print(to_json({"run": str(path), "bytes": freed}))
        else:
            rest = "; files that are not the run's stay there" if path.exists() else ""
            print(f"{path}: deleted, {freed:,} bytes freed{rest}")


def _run_path(name: str) -> Any:
    """The folder of a run, which it has to be."""
    from legato.errors import FolderError
    from legato.input_files import near_path, path_of

    path = path_of(name)
    if not (path / "config.yaml").is_file():
        near = near_path(path, folder=True)
        hint = "legato runs lists those that there are" if near is None else f"did you mean '{near}'?"
        raise FolderError(f"{brief(name)} is no run: it has no config.yaml; {hint}")
    return path


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "list": list_command,
    "show": show_command,
    "best": best_command,
    "prune": prune_command,
    "delete": delete_command,
}
