"""How a classifier's head should pool what an encoder gives: tasks × settings × seeds, each a whole run.

    python benchmarks/pooling.py MODEL --task sst2 accuracy train.tsv dev.tsv 2,1 --task cola matthews … 4,2
    python benchmarks/pooling.py MODEL --task … --settings head.pool=auto "head.pool=mean train.lr=0.0001"

A task is its name, the figure that decides, the file to learn from, the file to score on and the columns, as numbers
from 1: the texts', then the labels'. What is not in `--settings` is as `legato train classification` has it; a tenth
of the training rows decides which model of a run is the best, and that one is scored. Runs share the device. Printed
are percent: the mean over the seeds and the standard deviation. The last line is JSON. The tables of questions and of
names that docs/log.md speaks of are made by `question_tables.py`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

POOLS = ("auto", "pooler", "first", "max", "attention")


class Task(NamedTuple):
    name: str
    figure: str
    train: str
    test: str
    columns: str


def score(model: str, task: Task, settings: str, seed: int, device: str, folder: str) -> float:
    """The figure that one run ends with, on the rows of `task.test`."""
    import torch

    import legato
    from legato.evaluation.classification import DECIDING

    torch.set_num_threads(1)
    kind = next(kind for kind, figures in DECIDING.items() if task.figure in figures)
    given: dict[str, Any] = {
        "from": model,
        "data.train": task.train,
        "data.test": task.test,
        "data.columns": [int(column) for column in task.columns.split(",")],
        "data.kind": kind,
        "data.metric": task.figure,
        "seed": seed,
        "device": device,
        "train.samples": 0,
        "train.tensorboard": False,
        "train.keep": 1,
        **dict(part.split("=", 1) for part in settings.split()),
    }
    with tempfile.TemporaryDirectory(dir=folder) as place:
        result = legato.train("classification", given, out=f"{place}/run", quiet=True)
    return float(result.metrics[f"test.{task.figure}"])


def shown(scores: list[float]) -> str:
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return f"{100 * statistics.mean(scores):.1f} ± {100 * spread:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="the folder of an encoder")
    parser.add_argument(
        "--task", nargs=5, action="append", required=True, metavar=("NAME", "FIGURE", "TRAIN", "TEST", "COLUMNS")
    )
    parser.add_argument(
        "--settings", nargs="+", default=[f"head.pool={pool}" for pool in POOLS], help="each key=value key=value …"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1, 2, … of each")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    options = parser.parse_args()
    tasks = [Task(*given) for given in options.task]
    started = time.monotonic()
    found: dict[tuple[str, str], list[Future[float]]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool,
    ):
        for task in tasks:
            for settings in options.settings:
                found[task.name, settings] = [
                    pool.submit(score, options.model, task, settings, seed, options.device, folder)
                    for seed in range(1, options.seeds + 1)
                ]
        scores = {key: [future.result() for future in futures] for key, futures in found.items()}
    width = max(map(len, options.settings)) + 2
    print(" " * width + "".join(f"{task.name:>14s}" for task in tasks), flush=True)
    for settings in options.settings:
        print(f"{settings:{width}s}" + "".join(f"{shown(scores[task.name, settings]):>14s}" for task in tasks))
    figures = {settings: {task.name: scores[task.name, settings] for task in tasks} for settings in options.settings}
    told = {"model": Path(options.model).name, "device": options.device, "seconds": time.monotonic() - started}
    print(json.dumps({"benchmark": "pooling", **told, "figures": figures}))


if __name__ == "__main__":
    main()
