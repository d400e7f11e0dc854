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
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from sides import finish
from torch import Tensor

from legato.config import split_words
from legato.data.batching import picture_batches
from legato.data.batching.batch import Batch
from legato.data.batching.batches import Batches
from legato.errors import LegatoError
from legato.models.base import SequenceModel
from legato.registry import MODELS, TASKS
from legato.runs.config import RunConfig, check, settings_for
from legato.runs.run_folder import RunFolder
from legato.runs.train import plan_of, with_head
from legato.tasks.base import Plan
from legato.training.devices import choose_device, describe
from legato.training.display import Display
from legato.training.graph import own_stream
from legato.training.loop import Trainer
from legato.training.optimizers import freeze_parts, rated_parts

USUAL = "usual"


class Held:
    """Batches that lie on the device, by their steps."""

    def __init__(self, batches: Batches, count: int, device: torch.device) -> None:
        self.steps_per_epoch, self.tokens_per_step = batches.steps_per_epoch, batches.tokens_per_step
        self.held = [batches.at(step).to(device) for step in range(count)]

    def at(self, step: int) -> Batch:
        return self.held[step]


class Alone(NamedTuple):
    """A pipeline that nobody trains with."""

    first: float  # seconds until there is a batch
    speed: float  # pictures a second after it


def pixels_in(batch: Batch) -> Tensor:
    """The pictures of a batch, whatever the model reads them as."""
    values = [part.values for part in (batch.source, batch.images, batch.inputs) if part is not None]
    return next(pixels for pixels in values if pixels is not None)


def model_of(config: RunConfig, plan: Plan, job: Any, device: torch.device) -> SequenceModel:
    """The model of a run, before its first step."""
    if config.adapt.name != "full":
        raise SystemExit(f"adapt={config.adapt.name} is not measured here; leave it out")
    torch.manual_seed(config.seed)
    model: SequenceModel = MODELS.get(config.model.name)(job.model_config, job.sizes)
    if plan.loaded is not None:
        plan.loaded.put_into(model)
    for part, loaded in plan.parts.items():
        loaded.put_into(model.parts[part])
    if job.head is not None:
        model = with_head(model, job, plan.loaded)
    job.initialise(model)
    for tower, rate in rated_parts(model, config.train):
        tower.requires_grad_(rate > 0)
    freeze_parts(model, config.train.frozen)
    return model.to(device).train()


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


def measure_training(trainer: Trainer, batches: Batches, options: argparse.Namespace) -> float:
    """Seconds a step of Legato's own loop, with the reports that it makes."""
    trainer.job.batches, trainer.step = batches, 0
    started = mark = time.monotonic()
    for step in range(options.warm + options.steps):
        if step == options.warm:
            finish(trainer.device)
            started = time.monotonic()
        trainer._update()
        if trainer.step % trainer.config.log_every == 0:
            mark = trainer._report(mark)
    finish(trainer.device)
    return (time.monotonic() - started) / options.steps


def measure(options: argparse.Namespace) -> None:
    device = choose_device(options.device)
    settings: dict[str, Any] = {"device": options.device}
    settings |= {} if options.root is None else {"data.root": options.root}
    settings |= {} if options.encoder is None else {"from.encoder": options.encoder}
    settings |= split_words(options.set)
    config = check(settings_for(options.recipe, settings))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
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
    with tempfile.TemporaryDirectory() as folder, own_stream(device) if device.type == "cuda" else nullcontext():
        run = RunFolder(Path(folder))
        trainer = Trainer(model, job, config.train, run, seed=config.seed, device=device, display=Display(quiet=True))
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
    about = {"benchmark": "picture_pipeline", **vars(options), "device": describe(device), "cores": os.cpu_count()}
    about |= {"torch": torch.__version__, "batch_rows": len(pixels), "graphs": len(trainer.graphs)}
    print(json.dumps({**about, "prepared_seconds": round(prepared, 2), "own_ms": round(1000 * pace, 3), **figures}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipe", default="captioning/flickr8k-lstm-attention", help="or a task, or a YAML file")
    parser.add_argument("--root", help="folder of the data that the recipe names (data.root)")
    parser.add_argument("--encoder", help="an image encoder to begin with (from.encoder)")
    parser.add_argument("--device", default="auto", help="cpu or cuda")
    parser.add_argument(
        "--workers", default="usual,2,4,8,16", help="numbers of them, or 'usual', with commas between"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="in a round")
    parser.add_argument("--warm", type=int, default=20, help="steps before those of a round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run")
    options = parser.parse_args()
    for name in options.workers.split(","):
        if name != USUAL and not name.isdecimal():
            raise SystemExit(f"--workers: '{name}' is neither a number nor '{USUAL}'")
    try:
        measure(options)
    except LegatoError as problem:
        raise SystemExit(str(problem)) from None


if __name__ == "__main__":
    main()
