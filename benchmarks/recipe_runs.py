"""What benchmarks of a recipe's training share: options, the run's model and loop, a step's time.

They time steps of the model, the batches and the loop that `legato train RECIPE` has.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from sides import finish

from legato.config import split_words
from legato.data.batching.batch import Batch
from legato.data.batching.batches import Batches
from legato.errors import LegatoError
from legato.models.base import SequenceModel
from legato.registry import MODELS
from legato.runs.config import RunConfig
from legato.runs.run_folder import RunFolder
from legato.runs.train import with_head
from legato.tasks.base import Plan
from legato.training.devices import choose_device, describe
from legato.training.display import Display
from legato.training.graph import own_stream
from legato.training.loop import Trainer
from legato.training.optimizers import freeze_parts, rated_parts

# ── options ───────────────────────────────────────────────────────────────────────────────────────


def recipe_parser(doc: str | None, *, recipe: str, steps: int, warm: int) -> argparse.ArgumentParser:
    """The options that all have, with a benchmark's own defaults; `doc` is its docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--recipe", default=recipe, help="or a task, or a YAML file")
    parser.add_argument("--root", help="folder of the data that the recipe names (data.root)")
    parser.add_argument("--device", default="auto", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=steps, help="in a round")
    parser.add_argument("--warm", type=int, default=warm, help="steps before those of a round")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run")
    return parser


def run_settings(options: argparse.Namespace, own: dict[str, Any]) -> dict[str, Any]:
    """The run's settings: the device and the data, a benchmark's `own`, and those of --set over them."""
    root = {} if options.root is None else {"data.root": options.root}
    return {"device": options.device, **root, **own, **split_words(options.set)}


def run_benchmark(measure: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Call `measure`; an error in what it was given is said in one line."""
    try:
        measure(options)
    except LegatoError as problem:
        raise SystemExit(str(problem)) from None


def about(benchmark: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """What the JSON line says before any figures."""
    machine = {"device": describe(device), "cores": os.cpu_count(), "torch": torch.__version__}
    return {"benchmark": benchmark, **vars(options), **machine}


# ── the run ───────────────────────────────────────────────────────────────────────────────────────


def prepare_device(name: str) -> torch.device:
    """The device, with PyTorch set up for it as `legato train` does."""
    device = choose_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
    return device


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


@contextmanager
def trainer_of(config: RunConfig, model: SequenceModel, job: Any, device: torch.device) -> Iterator[Trainer]:
    """Legato's own loop, in a folder that goes when it ends."""
    with tempfile.TemporaryDirectory() as folder, own_stream(device) if device.type == "cuda" else nullcontext():
        run = RunFolder(Path(folder))
        yield Trainer(model, job, config.train, run, seed=config.seed, device=device, display=Display(quiet=True))


class Held:
    """Batches that lie on the device, by their steps."""

    def __init__(self, batches: Batches, count: int, device: torch.device) -> None:
        self.steps_per_epoch, self.tokens_per_step = batches.steps_per_epoch, batches.tokens_per_step
        self.held = [batches.at(step).to(device) for step in range(count)]

    def at(self, step: int) -> Batch:
        return self.held[step]


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
