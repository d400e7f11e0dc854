"""The run folder: where a run keeps its settings, its course and its models.

config.yaml        the resolved settings; running this file again repeats the run
metrics.jsonl      one line a report, in order of steps
provenance.json    versions, commit, data hashes, hardware, seed
events.out.…       TensorBoard
checkpoints/       see checkpoints.py
best/  last/       model folders
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from legato.config import read_yaml, to_yaml
from legato.errors import FolderError
from legato.folders.atomic import clear_errors, recover, write_text
from legato.input_files import read_bytes
from legato.schema import OPEN, TypedDict, parse_json, with_config
from legato.training.checkpoints import sweep

LOCK = ".lock"  # held while a process trains
STARTING = ".starting"  # there from the first moment until the first checkpoint


@with_config(OPEN)
class MetricsLine(TypedDict):
    """A report in metrics.jsonl; figures follow."""

    step: Annotated[int, Field(ge=0)]
    kind: str


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.last = path / "last"
        self._events: Any = None
        self._lock: Any = None

    def claim(self) -> None:
        """Make this process the only one that writes to the run, until `release` or its end."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            return
        with clear_errors(self.path):
            self._lock = (self.path / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            self._lock = None
            raise FolderError(f"{self.path} is being trained by another process; wait for it or stop it") from None

    def release(self) -> None:
        if self._lock is not None:
            (self.path / LOCK).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any]) -> RunFolder:
        """A new run at `path`, which must not hold one yet."""
        if (path / "config.yaml").exists():
            raise FolderError(f"{path} already holds a run; go on with resume={path}, or choose another out=…")
        if path.exists() and not path.is_dir():
            raise FolderError(f"out={path} is a file; a run needs a folder")
        run = cls(path)
        try:
            try:
                path.mkdir(parents=True, exist_ok=True)
            except OSError as problem:
                raise FolderError(f"out={path} cannot be made: {problem.strerror}") from None
            run.claim()
            write_text(path / STARTING, "")
            run.save_settings(settings)
        except Exception:
            run.withdraw()
            raise
        return run

    def withdraw(self) -> None:
        """Take back a run that never reached its first checkpoint, so that its name is free again."""
        if self.starting:
            for name in (STARTING, "config.yaml", "provenance.json"):
                (self.path / name).unlink(missing_ok=True)
        self.release()
        for folder in (self.checkpoints, self.path):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run, with whatever a kill left half-done put right."""
        if not (path / "config.yaml").exists():
            raise FolderError(f"{path} holds no run: it has no config.yaml")
        run = cls(path)
        run.claim()
        for folder in (run.best, run.last):
            recover(folder)
        sweep(run.checkpoints)
        return run

    @property
    def settings(self) -> dict[str, Any]:
        return read_yaml(self.path / "config.yaml")

    def save_settings(self, settings: dict[str, Any]) -> None:
        write_text(self.path / "config.yaml", to_yaml(settings))

    @property
    def starting(self) -> bool:
        """Whether the run was cut off before its first checkpoint, so that it can only begin again."""
        return (self.path / STARTING).exists()

    def started(self) -> None:
        (self.path / STARTING).unlink(missing_ok=True)

    def log(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and the same numbers to TensorBoard's events."""
        with (
            clear_errors(self.path / "metrics.jsonl"),
            (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps({"step": step, "kind": kind, **values}) + "\n")
        if self._events is not None:
            with clear_errors(self.path):
                for name, value in values.items():
                    if isinstance(value, int | float):
                        self._events.add_scalar(f"{kind}/{name}", value, step)

    def metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics.jsonl; one that a kill cut short, or that is no report, is left out."""
        path = self.path / "metrics.jsonl"
        lines: list[dict[str, Any]] = []
        if path.exists():
            for line in read_bytes(path, error=FolderError).split(b"\n"):
                with suppress(FolderError):
                    lines.append({**parse_json(line, MetricsLine, str(path), loose=True)})
        return lines

    def rewind(self, step: int) -> None:
        """Forget reports of steps that will be made again."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in kept))

    def open_events(self, step: int) -> None:
        """Start writing TensorBoard events; those after `step` are marked as withdrawn."""
        from torch.utils.tensorboard import SummaryWriter

        with clear_errors(self.path):
            self._events = SummaryWriter(str(self.path), purge_step=step + 1 if step else None)

    def close(self) -> None:
        if self._events is not None:
            events, self._events = self._events, None
            with clear_errors(self.path):
                events.close()
