"""The run folder: where a run keeps its settings, its course and its models.

config.yaml        the resolved settings; running this file again repeats the run
metrics.jsonl      one line a report, in order of steps
provenance.json    versions, commit, data hashes, hardware, seed
events.out.…       TensorBoard
data/              tables that were in memory, as parquet files: train, valid, test
checkpoints/       see checkpoints.py
best/  last/       model folders
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field

from legato.config import merge, read_yaml, to_yaml
from legato.data.sources.files import SPLITS
from legato.data.sources.memory_tables import MemoryTable
from legato.errors import FolderError, brief
from legato.folders.atomic import clear_errors, recover, write_text
from legato.folders.links import refuse_link
from legato.folders.locks import Held, hold, is_locked, let_go, remove
from legato.input_files import read_bytes
from legato.output_files import DRAWN, NEW, replacing_file
from legato.schema import OPEN, TypedDict, parse_json, to_json, with_config
from legato.training.checkpoint_files import holds_checkpoint, list_checkpoints, sweep

LOCK = ".lock"  # held while a process trains
STARTING = ".starting"  # there from the first moment until the first checkpoint
CONFIG = "config.yaml"
SMALL: Final = (STARTING, CONFIG, "provenance.json", "metrics.jsonl", "result.json")  # written at once
Tables = Mapping[str, MemoryTable]
NO_TABLES: Final[Tables] = MappingProxyType({})
TIMES: Final = 100  # that a folder is made which others take back
# What a start leaves that was killed before there was a run; all of it is made again.
BEGUN: Final = frozenset({LOCK, STARTING})


def _halves(names: Iterable[str]) -> re.Pattern[str]:
    """What a kill leaves of files with these names while they are written; older versions drew no names."""
    return re.compile(f"{re.escape(NEW)}({'|'.join(map(re.escape, names))})({DRAWN})?")


HALF_BEGUN: Final = _halves((STARTING, CONFIG))
HALF: Final = _halves(SMALL)
TABLES: Final = tuple(f"{split}.parquet" for split in SPLITS)
HALF_TABLE: Final = _halves(TABLES)


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
        self.reports = path / "metrics.jsonl"
        self.data = path / "data"
        self._events: Any = None
        self._lock: int | None = None
        self._claimed = False
        # What this process made, which is all that it may take back.
        self._made_folder = False
        self._made: list[str] = []

    def claim(self) -> None:
        """Make this process the only one that writes to the run, until `release` or its end."""
        try:
            self._claim()
        except Held:
            raise FolderError(f"{self.path} is being trained by another process; wait for it or stop it") from None

    def _claim(self) -> None:
        with clear_errors(self.path):
            self._lock, self._claimed = hold(self.path / LOCK), True

    @property
    def is_locked(self) -> bool:
        """Whether the claim keeps other processes out, for which the file system needs locks."""
        return is_locked(self._lock)

    def release(self, *, with_folder: bool = False) -> None:
        """Give up the claim, with which everything ends that this process does here, and an empty folder with it."""
        if not self._claimed:
            return
        if self._lock is not None:
            remove(self.path / LOCK, self._lock)
        if with_folder:
            with suppress(OSError):
                self.path.rmdir()
        let_go(self._lock)
        self._lock, self._claimed = None, False

    @classmethod
    def create(cls, path: Path, settings: dict[str, Any], tables: Tables = NO_TABLES) -> RunFolder:
        """A new run at `path`, which must not hold one yet, nor anything else; `tables` are its data in memory."""
        refuse_taken(path)  # before anything is touched there
        run = cls(path)
        for _ in range(TIMES):
            run._make_folder()
            with suppress(FileNotFoundError):  # whoever made the folder has just taken it back
                run.claim()
                return run._begin(settings, tables)
        raise FolderError(f"out={path} cannot be written: it is gone whenever it is made")

    @classmethod
    def create_next(cls, stem: Path, settings: dict[str, Any], tables: Tables = NO_TABLES) -> RunFolder:
        """A new run at `stem`-1, or at the next number that nobody has."""
        for number in itertools.count(1):
            run = cls(stem.with_name(f"{stem.name}-{number}"))
            if not os.path.lexists(run.path):
                run._make_folder()
            if run._made_folder:  # otherwise it is another's
                with suppress(FileNotFoundError, Held):  # somebody who named it was faster
                    run._claim()
                    break
        return run._begin(settings, tables)

    def _make_folder(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir()
            self._made_folder = True
        except OSError as problem:
            if isinstance(problem, FileExistsError) and self.path.is_dir():
                return  # another's, or one that was there
            raise FolderError(f"out={self.path} cannot be made: {problem.strerror}") from None

    def _begin(self, settings: dict[str, Any], tables: Tables) -> RunFolder:
        """What makes a claimed folder a run."""
        try:
            refuse_taken(self.path)  # again, since nobody else can change it now
            self._remove_halves()
            self.write(STARTING, "")
            for file in list(self.data.iterdir()) if self.data.is_dir() else ():  # of a start that was killed
                if _is_start_table(file.name):
                    file.unlink(missing_ok=True)
            for split, table in tables.items():
                self._write_table(split, table)
            self.save_settings(merge(settings, {"data": self.tables()}) if tables else settings)
        except Exception:
            self.withdraw()
            raise
        return self

    def withdraw(self) -> None:
        """Take back a run that never reached its first checkpoint, so that its name is free again.

        Only what this process made is removed, and only while it has the claim.
        """
        if not self._claimed:
            return
        if STARTING in self._made:
            for name in reversed([name for name in self._made if name != STARTING]):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.checkpoints.rmdir()  # it is empty, or somebody's
            with suppress(OSError):
                self.data.rmdir()
            (self.path / STARTING).unlink(missing_ok=True)  # by which the rest is known, so last
        self.release(with_folder=self._made_folder)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run, by its settings; nothing is touched before they are checked and it is claimed."""
        if not (path / CONFIG).exists():
            raise FolderError(f"{path} holds no run: it has no {CONFIG}")
        run = cls(path)
        # Nothing that training writes, replaces or removes may be a link to somewhere else.
        small = (path / name for name in SMALL)
        for place in (*small, run.best, run.last, run.checkpoints, *list_checkpoints(run.checkpoints)):
            refuse_link(place)
        return run

    def put_right(self) -> None:
        """Undo what a kill left half-done, in a run that is one by more than its settings: they may be a recipe."""
        if self.starting or holds_checkpoint(self.checkpoints):
            for folder in (self.best, self.last):
                recover(folder)
            sweep(self.checkpoints)
            self._remove_halves()

    def _remove_halves(self) -> None:
        for path in list(self.path.iterdir()):
            if HALF.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)

    def write(self, name: str, text: str) -> None:
        """Write a small file of the run's own, at once."""
        if name in BEGUN or not os.path.lexists(self.path / name):
            self._made.append(name)
        write_text(self.path / name, text)

    def _write_table(self, split: str, table: MemoryTable) -> None:
        place = self.data / f"{split}.parquet"
        with clear_errors(self.path):
            self.data.mkdir(exist_ok=True)
            with replacing_file(place) as fresh:
                table.write(fresh)
        self._made.append(str(place.relative_to(self.path)))

    def tables(self) -> dict[str, str]:
        """The files that hold the data which was in memory, by the splits."""
        return _tables_in(self.data)

    @property
    def settings(self) -> dict[str, Any]:
        """Those of config.yaml."""
        return read_settings(self.path / CONFIG)

    def save_settings(self, settings: dict[str, Any]) -> None:
        self.write(CONFIG, to_yaml(settings))

    @property
    def starting(self) -> bool:
        """Whether the run was cut off before its first checkpoint, so that it can only begin again."""
        return (self.path / STARTING).exists()

    def started(self) -> None:
        (self.path / STARTING).unlink(missing_ok=True)
        self._made.clear()  # from now on it is a run, which nothing takes back

    def log(self, step: int, kind: str, values: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl and the same numbers to TensorBoard's events."""
        with clear_errors(self.reports), self.reports.open("a", encoding="utf-8") as file:
            file.write(to_json({"step": step, "kind": kind, **values}) + "\n")
        if self._events is not None:
            with clear_errors(self.path):
                for name, value in values.items():
                    if isinstance(value, int | float):
                        self._events.add_scalar(f"{kind}/{name}", value, step)

    def metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics.jsonl; one that a kill cut short, or that is no report, is left out."""
        lines: list[dict[str, Any]] = []
        if self.reports.exists():
            for line in read_bytes(self.reports, error=FolderError).split(b"\n"):
                with suppress(FolderError):
                    lines.append({**parse_json(line, MetricsLine, str(self.reports), loose=True)})
        return lines

    def rewind(self, step: int) -> None:
        """Forget reports of steps that will be made again."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        write_text(self.reports, "".join(to_json(line) + "\n" for line in kept))

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


def read_settings(file: Path) -> dict[str, Any]:
    """The settings in a YAML file; of a run's, its tables where they lie now, beside it: a run may have moved."""
    settings, folder = read_yaml(file), file.parent
    is_run = file.name == CONFIG and any((folder / name).is_file() for name in (STARTING, "provenance.json"))
    data = settings.get("data")
    data = data if is_run and isinstance(data, dict) else {}
    copies = {
        split: table for split, table in _tables_in(folder / "data").items() if _is_table(data.get(split), split)
    }
    return merge(settings, {"data": copies}) if copies else settings


def _tables_in(folder: Path) -> dict[str, str]:
    """The files of tables in a folder, by the splits."""
    files = {split: folder / f"{split}.parquet" for split in SPLITS}
    return {split: str(file.absolute()) for split, file in files.items() if file.is_file()}


def _is_table(source: Any, split: str) -> bool:
    """Whether a source is called as a run calls a table that was in memory."""
    return isinstance(source, str) and Path(source).parts[-2:] == ("data", f"{split}.parquet")


def refuse_taken(path: Path) -> None:
    """Refuse a place for a new run that holds a run already, or anything that is not ours.

    Others may be making or taking back a run there, so all is told from one look: two would be of different moments.
    """
    try:
        with clear_errors(path), os.scandir(path) as scan:
            entries = list(scan)
            begun = [entry.name for entry in entries if _is_begun(entry)]
            if STARTING in begun:
                begun += [entry.name for entry in entries if _has_tables(entry)]
            others = sorted({entry.name for entry in entries}.difference(begun))
    except FileNotFoundError:
        if path.is_symlink():
            raise FolderError(f"out={path} is a broken link; a run needs a folder") from None
        return
    except FolderError:
        if path.exists() and not path.is_dir():
            raise FolderError(f"out={path} is a file; a run needs a folder") from None
        raise
    if CONFIG in others or (others and (path / CONFIG).exists()):  # the look itself takes a moment
        raise FolderError(f"{path} already holds a run; go on with resume={path}, or choose another out=…")
    if others:
        raise FolderError(
            f"{path} is not empty and holds no run (it has {brief(others[0])}{' and more' * (len(others) > 1)}); "
            "choose another out=… or empty it"
        )


def _is_begun(entry: os.DirEntry[str]) -> bool:
    """Whether a file is what a killed start left; of ours, those that only need to be there are empty."""
    if not entry.is_file(follow_symlinks=False):
        return False
    if entry.name in BEGUN:
        return entry.stat(follow_symlinks=False).st_size == 0
    return HALF_BEGUN.fullmatch(entry.name) is not None


def _has_tables(entry: os.DirEntry[str]) -> bool:
    """Whether a folder holds what a killed start left of tables in memory, and nothing else."""
    if entry.name != "data" or not entry.is_dir(follow_symlinks=False):
        return False
    with suppress(FileNotFoundError):  # whoever made it has just taken it back
        return all(map(_is_start_table, os.listdir(entry.path)))
    return True


def _is_start_table(name: str) -> bool:
    return name in TABLES or HALF_TABLE.fullmatch(name) is not None
