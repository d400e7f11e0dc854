"""Prediction over a large file by many workers, on Ray: `legato predict MODEL --file F --ray --out G`.

The rows are cut into blocks in their order. A worker, an actor with the model, predicts a block; each block's answers
are a file of their own in `G.parts` until all are there, and then become G, row by row as without Ray. Whoever is
killed and started again makes what is missing. A worker that dies is started anew and gets its block once more.

`G.parts/job.json` says what the parts are of, so that those of another job are never put together with these.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from legato.errors import ConfigError, DataError, LegatoError
from legato.folders.shards import stamps_of
from legato.model import Model
from legato.output_files import replacing_file
from legato.registry import require_extra
from legato.schema import to_json

KINDS: Final = (".jsonl", ".parquet")
AHEAD: Final = 2  # blocks that a worker has at once, so that it waits for none
TRIES: Final = 3  # times that a worker or a block is begun anew


@dataclass(frozen=True)
class RayJob:
    """What is predicted, with what, and where it goes."""

    model: str
    file: str
    out: Path
    block: int  # rows
    task: str | None = None  # of a model of several
    options: dict[str, Any] = field(default_factory=dict)
    loading: dict[str, Any] = field(default_factory=dict)  # device, dtype, quantize

    @property
    def parts(self) -> Path:
        return self.out.with_name(f"{self.out.name}.parts")

    def digest(self, held: Model) -> str:
        """What tells this job's parts from another's: its options, and the model and the file as they are now."""
        stamps = {} if held.folder.is_file() else stamps_of(held.folder)
        weights = [[file.name, *stamp[1:]] for file, stamp in sorted(stamps.items())]
        said = {name: str(value) for name, value in asdict(self).items() if name != "out"}
        told = os.stat(self.file)
        return to_json({**said, "weights": weights, "size": told.st_size, "changed": told.st_mtime_ns})


class Worker:
    """A process with the model."""

    def __init__(self, job: RayJob) -> None:
        from legato.loading import load

        model = load(job.model, **job.loading)
        self.model = model if job.task is None else model.for_task(job.task)
        self.options = job.options

    def predict(self, block: list[Any]) -> list[str]:
        """A line of JSON for each row, as `legato predict --json` prints it."""
        return [
            to_json(prediction.as_json(), ensure_ascii=False)
            for prediction in self.model.predictions(block, **self.options)
        ]


def check_out(out: str) -> Path:
    """The file that gets the answers, if it is one that can."""
    path = Path(out)
    if path.suffix not in KINDS:
        raise ConfigError(f"--out {out}: the answers are written to a .jsonl or a .parquet")
    if not path.parent.is_dir():
        raise DataError(f"there is no folder {path.parent} for --out")
    return path


def predict_with_ray(
    blocks: Iterable[list[Any]], job: RayJob, held: Model, advance: Callable[[int], object] = lambda rows: None
) -> tuple[int, list[tuple[int, str]]]:
    """Let workers predict all blocks of rows; how many rows there were, and what was wrong with which.

    `held` is the model here, which says what the job is of; `advance` hears of rows that are done.
    """
    ray = require_extra("ray", "ray")
    _open_parts(job, job.digest(held))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    begun = not ray.is_initialized()
    if begun:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        count = _predict_missing(ray, blocks, job, str(held.device.type), advance)
    finally:
        if begun:
            ray.shutdown()
    lines = (line for number in range(count) for line in _lines(_part(job, number)))
    rows = 0
    problems: list[tuple[int, str]] = []
    with replacing_file(job.out) as fresh:
        write = _write_parquet if job.out.suffix == ".parquet" else _write_jsonl
        for row in write(fresh, lines):
            rows += 1
            if "problem" in row:
                problems.append((rows, str(row["problem"])))
    shutil.rmtree(job.parts)
    return rows, problems


def _open_parts(job: RayJob, digest: str) -> None:
    said = job.parts / "job.json"
    if said.is_file() and said.read_text(encoding="utf-8") != digest:
        raise DataError(
            f"{job.parts} holds answers of another job: its model, its file or its options were others; delete it, "
            "or name another --out"
        )
    job.parts.mkdir(exist_ok=True)
    with replacing_file(said) as fresh:
        fresh.write_text(digest, encoding="utf-8")


def _part(job: RayJob, number: int) -> Path:
    return job.parts / f"{number:08d}.jsonl"


def _predict_missing(
    ray: Any, blocks: Iterable[list[Any]], job: RayJob, device: str, advance: Callable[[int], object]
) -> int:
    """Have a part for each block; how many blocks there are."""
    on_gpu = device == "cuda"
    places = int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1)) or 1
    actor = ray.remote(num_cpus=0 if on_gpu else 1, num_gpus=int(on_gpu), max_restarts=TRIES, max_task_retries=TRIES)
    make = actor(Worker).remote
    workers: list[Any] = []
    busy: dict[Any, tuple[int, int, int]] = {}  # by answer: the block, its rows, and whose it is
    count = 0

    def settle(most: int) -> None:
        """Write down answers until no more than so many are still to come."""
        while len(busy) > most:
            ready, _ = ray.wait(list(busy), num_returns=1)
            number, rows, _ = busy.pop(ready[0])
            with replacing_file(_part(job, number)) as fresh:
                fresh.write_text("".join(f"{line}\n" for line in _answer(ray, ready[0], number)), encoding="utf-8")
            advance(rows)

    for number, block in enumerate(blocks):
        count = number + 1
        if _part(job, number).is_file():
            advance(len(block))
            continue
        if len(workers) < places:
            workers.append(make(job))
        settle(AHEAD * len(workers) - 1)
        loads = [sum(owner == place for _, _, owner in busy.values()) for place in range(len(workers))]
        owner = loads.index(min(loads))
        busy[workers[owner].predict.remote(block)] = number, len(block), owner
    settle(0)
    return count


def _answer(ray: Any, answer: Any, number: int) -> Sequence[str]:
    """What a worker made of a block; what it refused is said as it said it."""
    try:
        lines: Sequence[str] = ray.get(answer)
    except ray.exceptions.RayTaskError as problem:
        if isinstance(problem.cause, LegatoError):
            raise problem.cause from None
        raise
    except ray.exceptions.RayActorError as problem:
        if isinstance(cause := getattr(problem, "cause", None), LegatoError):
            raise cause from None
        raise LegatoError(
            f"block {number} of rows: its worker died {TRIES + 1} times; is there enough memory for the model?"
        ) from None
    return lines


def _lines(part: Path) -> Iterator[str]:
    with part.open(encoding="utf-8") as file:
        yield from file


def _write_jsonl(path: Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line)
            yield json.loads(line)


def _write_parquet(path: Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The same rows as a table, whose columns are what the rows have."""
    rows = [json.loads(line) for line in lines]
    columns = dict.fromkeys(name for row in rows for name in row)  # a table's are not the first row's alone
    pq.write_table(pa.Table.from_pylist([dict.fromkeys(columns) | row for row in rows]), path)
    yield from rows
