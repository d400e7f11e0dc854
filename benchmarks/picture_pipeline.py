"""Whether pictures come as fast as a device trains on them: the share of a step's time that it waits.

    python benchmarks/picture_pipeline.py --root DATA --encoder MODEL [--device cuda] [--workers usual,2,4,8,16]
    python benchmarks/picture_pipeline.py --root DATA --encoder MODEL --device cpu --set train.batch_rows=4 \\
        --steps 3 --warm 1 --rounds 1 --workers usual,1

DATA holds the data that the recipe names, and MODEL is an image encoder that it begins with; left out where the
recipe has none. Model, batches and loop are those of `legato train RECIPE data.root=DATA from.encoder=MODEL`. The
pipelines:

- *usual*: what these settings do here. Pictures that fit into memory are decoded once, before the first step, and
  kept on the GPU; Flickr8k's do;
- *a number*: nothing is kept, and so many worker processes (`data.workers`) decode the pictures of the next steps,
  as they do for data that does not fit; 0 decodes them in the loop itself.

Measured for each, in the median round, over the same steps:

1. a step, fed by the pipeline;
2. a step, its batch lying on the device already: the device's own pace;
3. the pipeline alone, with nobody training: pictures a second until they are on the device, and per process.

The idle share is 1 − (2) / (1): what feeding adds to a step, be it decoding, copying or the loop's own work. A stream
of workers begins anew for each measurement, and its first `--warm` steps do not count. Pictures are changed
(`data.augment`) on the device, which is in (1) and (2), not in (3). The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from unittest import mock

import torch
from recipe_runs import (
    Held,
    about,
    measure_training,
    model_of,
    prepare_device,
    recipe_parser,
    run_benchmark,
    run_settings,
    trainer_of,
)
from sides import finish
from torch import Tensor

from legato.data.batching import picture_batches
from legato.data.batching.batch import Batch
from legato.data.batching.batches import Batches
from legato.registry import TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from legato.training.devices import describe

USUAL = "usual"


class Alone(NamedTuple):
    """A pipeline that nobody trains with."""

    first: float  # seconds until there is a batch
    speed: float  # pictures a second after it


def pixels_in(batch: Batch) -> Tensor:
    """The pictures of a batch, whatever the model reads them as."""
    values = [part.values for part in (batch.source, batch.images, batch.inputs) if part is not None]
    return next(pixels for pixels in values if pixels is not None)


def pipeline(recipe: str, settings: Mapping[str, Any], workers: str, device: torch.device) -> Batches:
    """The batches of a run that keeps no pixels."""
    config = check(settings_for(recipe, {**settings, "data.workers": workers}))
    with mock.patch.object(picture_batches, "KEPT", 0):
        batches: Batches = TASKS.get(config.task).prepare(plan_of(config, device), lambda text: None).batches
    return batches


def measure_alone(batches: Batches, first: Batch, options: argparse.Namespace, device: torch.device) -> Alone:
    """Steps that are made and put onto the device, and that is all; `first` is what step 0 has to be."""
    started = time.perf_counter()
    begun = batches.at(0).to(device)
    finish(device)
    waited = time.perf_counter() - started
    if not torch.equal(pixels_in(begun), pixels_in(first)):
        raise SystemExit("the pipelines give different pictures, so this is no comparison")
    for step in range(1, options.warm + 1):
        batches.at(step).to(device)
    finish(device)
    count, started = 0, time.perf_counter()
    for step in range(options.warm + 1, options.warm + 1 + options.steps):
        count += len(pixels_in(batches.at(step).to(device)))
    finish(device)
    return Alone(waited, count / (time.perf_counter() - started))


def measure(options: argparse.Namespace) -> None:
    device = prepare_device(options.device)
    settings = run_settings(options, {} if options.encoder is None else {"from.encoder": options.encoder})
    config = check(settings_for(options.recipe, settings))
    names = options.workers.split(",")
    count = options.warm + options.steps

    started = time.perf_counter()
    plan = plan_of(config, device)
    job = TASKS.get(config.task).prepare(plan, lambda text: None)
    prepared = time.perf_counter() - started
    usual: Batches = job.batches
    model = model_of(config, plan, job, device)
    own: dict[str, list[float]] = {name: [] for name in names}
    fed: dict[str, list[float]] = {name: [] for name in names}
    alone: dict[str, list[Alone]] = {name: [] for name in names}
    with trainer_of(config, model, job, device) as trainer:
        held = Held(usual, count, device)
        for _ in range(2 if device.type == "cuda" else 1):  # shapes are recorded when they come a second time
            measure_training(trainer, held, options)
        for _ in range(options.rounds):
            for name in names:
                # Each has batches of its own: with the last of them its workers end.
                batches = usual if name == USUAL else pipeline(options.recipe, settings, name, device)
                alone[name].append(measure_alone(batches, held.at(0), options, device))
                batches = usual if name == USUAL else pipeline(options.recipe, settings, name, device)
                fed[name].append(measure_training(trainer, batches, options))
                del batches
                own[name].append(measure_training(trainer, held, options))  # at once, so that the clock is the same

    pace = statistics.median(seconds for each in own.values() for seconds in each)
    pixels = pixels_in(held.at(0))
    print(f"{config.task}, {len(pixels)} pictures {tuple(pixels.shape[1:])} a step, {describe(device)}")
    print(f"made ready in {prepared:.1f} s; the device's own pace: {1000 * pace:.2f} ms a step")
    print(f"{'':47s}{'alone:':>12s}{'the same':>12s}")
    spread = f"{'from':>6s} to {'':6s}"
    print(f"{'workers':10s}{'ms a step':>10s}{'idle':>8s}   {spread}{'pictures/s':>12s}{'a worker':>12s}")
    figures: dict[str, dict[str, Any]] = {}
    for name in names:
        shares = sorted(100 * (1 - mine / step) for mine, step in zip(own[name], fed[name], strict=True))
        step, share = statistics.median(fed[name]), statistics.median(shares)
        speed = statistics.median(one.speed for one in alone[name])
        each = speed if name == USUAL else speed / max(1, int(name))
        figures[name] = {
            "step_ms": round(1000 * step, 3),
            "own_ms": round(1000 * statistics.median(own[name]), 3),
            "idle_percent": round(share, 2),
            "idle_percent_of_rounds": [round(one, 2) for one in shares],
            "alone_pictures_per_second": round(speed, 1),
            "alone_pictures_per_second_each": round(each, 1),
            "first_batch_seconds": round(statistics.median(one.first for one in alone[name]), 3),
        }
        spread = f"{shares[0]:6.1f} to {shares[-1]:6.1f}"
        print(f"{name:10s}{1000 * step:10.2f}{share:7.1f}%   {spread}{speed:12,.0f}{each:12,.0f}")
    run: dict[str, Any] = {"batch_rows": len(pixels), "graphs": len(trainer.recordings.graphs)}
    run |= {"prepared_seconds": round(prepared, 2), "own_ms": round(1000 * pace, 3)}
    print(json.dumps({**about("picture_pipeline", options, device), **run, **figures}))


def main() -> None:
    parser = recipe_parser(__doc__, recipe="captioning/flickr8k-lstm-attention", steps=100, warm=20)
    parser.add_argument("--encoder", help="an image encoder to begin with (from.encoder)")
    parser.add_argument(
        "--workers", default="usual,2,4,8,16", help="numbers of them, or 'usual', with commas between"
    )
    options = parser.parse_args()
    for name in options.workers.split(","):
        if name != USUAL and not name.isdecimal():
            raise SystemExit(f"--workers: '{name}' is neither a number nor '{USUAL}'")
    run_benchmark(measure, options)


if __name__ == "__main__":
    main()
