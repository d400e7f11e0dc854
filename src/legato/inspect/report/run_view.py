"""The course of a run: the rows of its metrics.jsonl, as they are there, for a file and for a page that follows it.

    report.views["run"] = run_view(run_of("runs/x"))

A row is a step, a kind (train, valid, layers) and figures. They stay JSON: float16 would not be the file's numbers.
Rows of the kind `samples` have texts that the model wrote, {"step": 500, "kind": "samples", "texts": […]}, and belong
to the validation of the same step. Nothing here writes to a run.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from legato.errors import FolderError, LegatoError
from legato.input_files import open_file, path_of
from legato.runs.run_folder import CONFIG, MetricsLine, RunFolder
from legato.schema import parse_json

CHUNK: Final = 4 << 20  # bytes of metrics.jsonl that are read at once
MOST_ROWS: Final = 4000  # of training, in a file; validations are all there
MOST_TEXTS, LONGEST_TEXT = 20, 4000  # samples of a validation, and characters of each

Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """Rows of metrics.jsonl, and where the next ones begin."""

    rows: list[Row]
    file: str  # tells a file from the one that takes its place, as where a run is resumed
    begin: int  # the byte at which these rows begin
    after: int  # … and the next ones
    more: bool  # whether there are more already


def run_of(place: str | Path) -> Path | None:
    """The run folder that a path names, or whose best or last model it names; None: there is no run."""
    folder = path_of(place, error=FolderError)
    for run in (folder, folder.parent) if folder.name in ("best", "last") else (folder,):
        if (run / CONFIG).is_file() and not (run / "config.json").exists():
            return run
    return None


def about_run(run: Path) -> dict[str, Any]:
    """What the view says of a run, by its settings."""
    settings: dict[str, Any] = {}
    with suppress(LegatoError):  # they are of no use then, and the rows still are
        settings = RunFolder(run).settings
    model, train = settings.get("model"), settings.get("train")
    steps = train.get("steps") if isinstance(train, dict) else None
    name = model.get("name") if isinstance(model, dict) else None
    return {
        "folder": str(run),
        "task": _text(settings.get("task")),
        "model": _text(name),
        "steps": steps if isinstance(steps, int) and steps > 0 else None,
    }


def read_rows(run: Path, after: int = 0, file: str = "", most: int = CHUNK) -> Rows:
    """The whole rows behind byte `after`; from the first one, where the file is not the one that `after` is of."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return Rows([], "", 0, 0, False)
    with open_file(path, error=FolderError) as opened:
        found = os.fstat(opened.fileno())
        name = f"{found.st_dev:x}-{found.st_ino:x}"
        begin = after if name == file and 0 <= after <= found.st_size else 0
        opened.seek(begin)
        text = opened.read(most)
    whole = text.rfind(b"\n") + 1  # what is behind it is being written
    if not whole and len(text) == most:  # no row of ours is so long
        whole = len(text)
    rows = [row for line in text[:whole].split(b"\n") if (row := _row(line, path)) is not None]
    return Rows(rows, name, begin, begin + whole, bool(whole) and begin + len(text) < found.st_size)


def run_view(run: Path, most: int = MOST_ROWS) -> dict[str, Any]:
    """A run as a file shows it; of very many rows of training, `most`."""
    rows: list[Row] = []
    part = read_rows(run)
    while part.rows or part.more:
        rows += part.rows
        if not part.more:
            break
        part = read_rows(run, part.after, part.file)
    every, left = 1, set[int]()
    for kind in ("train", "layers"):
        numbers = [number for number, row in enumerate(rows) if row["kind"] == kind]
        every = max(every, each := max(1, math.ceil(len(numbers) / most)))
        left |= set(numbers) - set(numbers[::-1][::each])  # the last one stays
    return {**about_run(run), "every": every, "rows": [row for number, row in enumerate(rows) if number not in left]}


def _row(line: bytes, path: Path) -> Row | None:
    """A line that is a report; its numbers as they are, those that are not finite as null."""
    try:
        read: Row = {**parse_json(line, MetricsLine, str(path), loose=True)}
    except FolderError:
        return None
    row: Row = {"step": read.pop("step"), "kind": read.pop("kind")}
    texts = read.pop("texts", None)
    for name, value in read.items():
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            row[name] = value if value is None or math.isfinite(value) else None
    if row["kind"] == "samples" and isinstance(texts, list):
        row["texts"] = [str(text)[:LONGEST_TEXT] for text in texts[:MOST_TEXTS]]
    return row


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
