"""Untouched settings beside a small grid of them, on small data sets: what the tables of defaults were chosen by.

    python benchmarks/defaults_sets.py …                                       the sets (see there)
    python benchmarks/defaults_grid.py SETS WEIGHTS OUT.jsonl pictures,texts   the runs, each a line of OUT.jsonl
    python benchmarks/defaults_grid.py --table OUT.jsonl                       the table

WEIGHTS holds efficientnet-lite0, minilm, and a conformer that was trained to recognize the speech of the set an4. A
run that OUT.jsonl has is not made again. Each run keeps the checkpoint that is best on its set's validation rows, and
its figure is of the test rows; the best of a grid is the best there, too, so it is an upper bound.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

Settings = dict[str, Any]
METRICS = {"tagging": "test.f1"}  # others: test.accuracy


class Grid(NamedTuple):
    """A model on some sets, and the settings to compare with none."""

    task: str
    sets: str
    base: Settings  # of all its runs, the untouched one, too
    grid: list[Settings]


def rates(rates: str, epochs: str, **more: Any) -> list[Settings]:
    """Every rate with every number of epochs."""
    return [
        {"lr": float(rate), "epochs": int(count), **more} for rate, count in product(rates.split(), epochs.split())
    ]


VIEWS = {"data.augment.flip": True, "data.augment.crop": 0.5}
TUNED_PICTURES = [
    *rates("3e-4 1e-3 1e-4", "10"),
    *rates("3e-4 1e-3 1e-4", "10", min_steps=300),
    *rates("3e-4 1e-4", "10", min_steps=300, head_lr=3e-3),
    *rates("3e-4", "30", **VIEWS),
    *rates("3e-4 1e-3", "30"),
    *rates("3e-4", "10", layer_decay=0.8),
]
HEAD = [
    *rates("1e-3", "3"),
    *rates("1e-3 3e-3 1e-2", "10"),
    *rates("1e-3 5e-3", "10", min_steps=300),
    *rates("3e-3 1e-2", "30"),
]
SCRATCH_PICTURES = [*rates("1e-3 3e-4", "20 60"), *rates("3e-3", "20"), *rates("1e-3", "20", min_steps=1000)]
TUNED_TEXTS = [
    *rates("1e-4", "3 10"),
    *rates("5e-5", "3", min_steps=500),
    *rates("1e-4", "3", min_steps=500, head_lr=1e-3),
]
SCRATCH_TEXTS = "sst2-1000 sst2-4000 articles-600"
PICTURES = "cifar-1000 cifar-200 cells shapes photos"
SOUNDS = "readers sexes speakers tones"
TEXTS = "sst2-200 sst2-1000 sst2-4000 cola-2000 mrpc-1000 articles-600"
NAMES = "names-300 names-2000"
IMAGE, AUDIO, TEXT = "image-classification", "audio-classification", "classification"
GRIDS = {
    "pictures": Grid(IMAGE, PICTURES, {"from": "efficientnet-lite0"}, TUNED_PICTURES),
    "pictures-norms": Grid(
        IMAGE,
        PICTURES,
        {"from": "efficientnet-lite0", "train.frozen": []},  # its batch norms are tuned
        [*rates("1e-4", "3"), *TUNED_PICTURES],
    ),
    "pictures-head": Grid(IMAGE, PICTURES, {"from": "efficientnet-lite0", "adapt": "head"}, HEAD),
    "pictures-resnet": Grid(
        IMAGE, "cifar-1000 cells shapes", {"model": "resnet", "model.image": 64}, SCRATCH_PICTURES
    ),
    "sounds": Grid(
        AUDIO,
        SOUNDS,
        {"from": "conformer"},
        [*rates("1e-4 3e-4 1e-3", "10 30"), *rates("3e-4 1e-3", "10", min_steps=300)],
    ),
    "sounds-head": Grid(AUDIO, SOUNDS, {"from": "conformer", "adapt": "head"}, HEAD),
    "sounds-conformer": Grid(
        AUDIO,
        SOUNDS,
        {"model": "conformer"},
        [
            *rates("3e-4 1e-3 3e-3", "90"),
            *rates("1e-3", "30", min_steps=500),
            *rates("1e-3", "30", min_steps=800),
        ],
    ),
    "sounds-deepspeech": Grid(AUDIO, SOUNDS, {"model": "deepspeech"}, rates("1e-3 3e-4", "30 90")),
    "texts": Grid(TEXT, TEXTS, {"from": "minilm"}, TUNED_TEXTS),
    "texts-head": Grid(TEXT, TEXTS, {"from": "minilm", "adapt": "head"}, HEAD),
    "texts-lora": Grid(
        TEXT,
        TEXTS,
        {"from": "minilm", "adapt": "lora"},
        rates("1e-3", "10"),
    ),
    "texts-lstm": Grid(TEXT, SCRATCH_TEXTS, {"model": "lstm"}, rates("1e-3 3e-3 3e-4", "10 30")),
    "texts-bert": Grid(TEXT, SCRATCH_TEXTS, {"model": "bert"}, rates("3e-4 1e-4 1e-3", "10 30")),
    "names": Grid(
        "tagging",
        NAMES,
        {"from": "minilm"},
        [*rates("1e-4 3e-4 1e-3", "5 15"), *rates("1e-4 3e-4", "5", min_steps=500)],
    ),
    "names-head": Grid("tagging", NAMES, {"from": "minilm", "adapt": "head"}, rates("5e-3 1e-2", "5 15 30")),
}


class Run(NamedTuple):
    """One training run of the grids."""

    model: str  # a name of GRIDS
    data: str
    settings: Settings
    seed: int

    @property
    def key(self) -> str:
        return json.dumps([self.model, self.data, self.settings, self.seed])


def every_run(names: str, seeds: int, only: str | None, untouched: bool) -> Iterator[Run]:
    """The runs of some grids: seed by seed, and of each setting by setting."""
    for seed, name in product(range(seeds), names.split(",")):
        grid = GRIDS[name]
        for settings in [{}] if untouched else [{}, *grid.grid]:
            for data in grid.sets.split():
                if only is None or data in only.split(","):
                    yield Run(name, data, settings, seed)


def train(run: Run, options: argparse.Namespace) -> Settings:
    """Its figures."""
    import legato

    grid, folder = GRIDS[run.model], options.sets / run.data
    base = {
        key: str(options.weights / value) if key.startswith("from") else value for key, value in grid.base.items()
    }
    chosen = {key if "." in key else f"train.{key}": value for key, value in run.settings.items()}
    quiet = {"train.tensorboard": False, "train.samples": 0, "train.compile": False, "data.workers": 0}
    quiet["train.checkpoint_every"] = 1_000_000  # nobody resumes these
    if grid.task in (TEXT, "tagging"):
        del quiet["data.workers"]
    if options.steps:
        chosen = {
            **{key: value for key, value in chosen.items() if key != "train.epochs"},
            "train.steps": options.steps,
        }
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        files = {f"data.{split}": str(next(folder.glob(f"{split}.*"))) for split in ("train", "valid", "test")}
        settings = {
            **base,
            **files,
            **quiet,
            **chosen,
            "seed": run.seed,
            "device": options.device,
            "out": f"{out}/run",
        }
        made = legato.train(grid.task, settings, quiet=True)
    test = {key: value for key, value in made.metrics.items() if key.startswith("test.") and isinstance(value, float)}
    return {"steps": made.steps, "seconds": round(time.monotonic() - begin, 1), **test}


def work(runs: Any, results: Any, options: argparse.Namespace) -> None:
    """A worker: the runs of a queue, one after the other, until the time is up."""
    sys.path += options.path
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    for run in iter(runs.get, None):
        if time.time() > options.until:
            continue
        try:
            figures = train(run, options)
        except Exception as problem:  # one run's: the others go on
            figures = {"error": f"{type(problem).__name__}: {problem}"[:300]}
        results.put((run, figures))
    results.put(None)


def run_all(options: argparse.Namespace) -> None:
    """Make the runs that the file does not have, by several processes."""
    done = set()
    if options.out.exists():
        done = {json.loads(line)["key"] for line in options.out.read_text().splitlines() if '"error"' not in line}
    runs = [
        run for run in every_run(options.grids, options.seeds, options.only, options.untouched) if run.key not in done
    ]
    options.until = time.time() + options.minutes * 60
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(), context.Queue()
    for run in [*runs, *[None] * options.workers]:
        queue.put(run)
    workers = [context.Process(target=work, args=(queue, results, options)) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    working, count = len(workers), 0
    with options.out.open("a") as file:
        while working:
            result = results.get()
            if result is None:
                working -= 1
                continue
            run, figures = result
            count += 1
            line = {"key": run.key, **run._asdict(), **figures}
            print(json.dumps(line), file=file, flush=True)
            print(f"{count}/{len(runs)}", run.model, run.data, run.settings, figures, flush=True)


def with_error(values: Collection[float]) -> str:
    """The mean of some seeds, with its standard error where there are several."""
    error = f" ± {stdev(values) / math.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{error}" if values else ""


def table(path: Path) -> None:
    """Print, for each model and set, the untouched figure, the grid's best and its settings; and all in a matrix.

    The difference of the two is taken seed by seed.
    """
    figures: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    steps: dict[tuple[str, str, str], int] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        metric = METRICS.get(GRIDS[line["model"]].task, "test.accuracy")
        if metric in line:
            settings = " ".join(f"{key}={value:g}" for key, value in line["settings"].items())
            figures[line["model"], line["data"]][settings][line["seed"]] = 100 * line[metric]
            steps[line["model"], line["data"], settings] = line["steps"]
    print("| model | set | untouched | grid's best | with | points behind |\n|---|---|---:|---:|---|---:|")
    for (model, data), by_settings in figures.items():
        best = max(by_settings, key=lambda settings: mean(by_settings[settings].values()))
        bare, top = by_settings.get("", {}), by_settings[best]
        behind = [top[seed] - figure for seed, figure in bare.items() if seed in top]
        columns = [with_error(bare.values()), with_error(top.values()), best or "untouched", with_error(behind)]
        print(f"| {model} | {data} | {' | '.join(columns)} |")
    for model in dict.fromkeys(model for model, _ in figures):
        sets = [data for name, data in figures if name == model]
        rows = dict.fromkeys(settings for data in sets for settings in sorted(figures[model, data]))
        print(f"\n| {model} | {' | '.join(sets)} | mean |\n|---|{'---:|' * (len(sets) + 1)}")
        for settings in rows:
            cells = [figures[model, data].get(settings, {}).values() for data in sets]
            shown = " | ".join(
                f"{with_error(values)} ({steps.get((model, data, settings), 0)})"
                for values, data in zip(cells, sets, strict=True)
            )
            total = f"{mean(map(mean, cells)):.1f}" if all(cells) else ""
            print(f"| {settings or 'untouched'} | {shown} | {total} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", type=Path, metavar="OUT.jsonl", help="print the table, and train nothing")
    parser.add_argument("sets", type=Path, nargs="?")
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("grids", nargs="?", default="pictures", help=f"of {', '.join(GRIDS)}")
    parser.add_argument("--only", help="sets, with commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after so many")
    parser.add_argument("--steps", type=int, help="of every run: a trial")
    parser.add_argument("--untouched", action="store_true", help="no grid")
    options = parser.parse_args()
    if options.table:
        table(options.table)
    else:
        options.path = list(sys.path)
        run_all(options)


if __name__ == "__main__":
    main()
