"""How many seconds of sound a second of training reads, and for how much of it the GPU has nothing to do.

    python benchmarks/train_speech.py --root DATA [--recipe speech/an4-conformer] [--device cuda] [--seconds 60,240]
    python benchmarks/train_speech.py --recipe speech --device cpu --seconds 20 --steps 3 --warm 1 --rounds 1 \\
        --set data.train=toy:sounds

DATA holds the data that the recipe names. Model, batches and loop are those of `legato train RECIPE data.root=DATA`;
features are made of samples on the device, with the changes that the recipe asks for. For each number of seconds of
sound in a batch (`data.batch_seconds`), in the median round, over the same steps:

1. a step, fed with samples that were decoded once and kept on the device;
2. a step, fed by threads that decode the sounds of the next steps, as data that does not fit into memory is;
3. a step, its batch lying on the device already;
4. how long kernels run in a step of (1), by PyTorch's profiler, over the first few of them.

Idle shares: waiting for data is 1 − (3) / (1) and 1 − (3) / (2), and the GPU has no kernel to run for 1 − (4) / (1).
The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any
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
from torch.profiler import ProfilerActivity, profile

from legato.data.batching import sound_batches
from legato.data.batching.batches import Batches
from legato.data.batching.sound_batches import FRAME
from legato.registry import TASKS
from legato.runs.config import RunConfig, check, settings_for
from legato.runs.train import plan_of
from legato.training.devices import describe
from legato.training.loop import Trainer

PROFILED = 8  # steps: the profiler takes longer to tell than they take


def busy_seconds(trainer: Trainer, steps: int) -> float:
    """Seconds of a step in which some kernel runs."""
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(steps):
            trainer._update()
        finish(trainer.device)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in recorded.events()
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    )
    total, until = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total / 1e6 / steps


def decoded_ahead(config: RunConfig, device: torch.device) -> Batches:
    """The batches of a run that keeps no samples."""
    with mock.patch.object(sound_batches, "KEPT", 0):
        batches: Batches = TASKS.get(config.task).prepare(plan_of(config, device), lambda text: None).batches
    return batches


def measure_batches(options: argparse.Namespace, seconds: float, device: torch.device) -> dict[str, Any]:
    config = check(settings_for(options.recipe, run_settings(options, {"data.batch_seconds": seconds})))
    plan = plan_of(config, device)
    job = TASKS.get(config.task).prepare(plan, lambda text: None)
    model = model_of(config, plan, job, device)
    count = options.warm + options.steps
    kept: Batches = job.batches
    paces: dict[str, list[float]] = {"kept": [], "ahead": [], "held": []}
    with trainer_of(config, model, job, device) as trainer:
        held = Held(kept, count, device)
        read = sum(held.at(step).read or 0 for step in range(options.warm, count)) * FRAME / options.steps
        measure_training(trainer, held, options)
        for _ in range(options.rounds):
            paces["kept"].append(measure_training(trainer, kept, options))
            paces["held"].append(measure_training(trainer, held, options))
            paces["ahead"].append(measure_training(trainer, decoded_ahead(config, device), options))
        busy = None
        if device.type == "cuda":
            trainer.job.batches, trainer.step = kept, options.warm
            busy = busy_seconds(trainer, min(options.steps, PROFILED))
    pace = {name: statistics.median(each) for name, each in paces.items()}
    return {
        "sound_per_step": round(read, 2),
        **{f"{name}_ms": round(1000 * each, 3) for name, each in pace.items()},
        "sound_per_second": round(read / pace["kept"], 1),
        "sound_per_second_ahead": round(read / pace["ahead"], 1),
        "waiting_percent": round(100 * (1 - pace["held"] / pace["kept"]), 2),
        "waiting_percent_ahead": round(100 * (1 - pace["held"] / pace["ahead"]), 2),
        "busy_ms": None if busy is None else round(1000 * busy, 3),
        "idle_percent": None if busy is None else round(100 * (1 - busy / pace["kept"]), 2),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def measure(options: argparse.Namespace) -> None:
    device = prepare_device(options.device)
    print(f"{options.recipe}, {describe(device)}; idle: the GPU has nothing to do; waits: for sounds")
    print(f"{'seconds':>8s}{'ms a step':>11s}{'sound s/s':>11s}{'idle':>8s}{'waits':>8s}", end="")
    print(f"{'decoded ahead: s/s':>20s}{'waits':>8s}", flush=True)
    figures = {}
    for seconds in options.seconds.split(","):
        figures[seconds] = one = measure_batches(options, float(seconds), device)
        idle = "–" if one["idle_percent"] is None else f"{one['idle_percent']:.1f}%"
        print(f"{seconds:>8s}{one['kept_ms']:11.2f}{one['sound_per_second']:11,.0f}{idle:>8s}", end="")
        print(f"{one['waiting_percent']:7.1f}%{one['sound_per_second_ahead']:20,.0f}", end="")
        print(f"{one['waiting_percent_ahead']:7.1f}%", flush=True)
    print(json.dumps({**about("train_speech", options, device), "batches": figures}))


def main() -> None:
    parser = recipe_parser(__doc__, recipe="speech/an4-conformer", steps=50, warm=10)
    parser.add_argument("--seconds", default="60,240", help="of sound in a batch, with commas between")
    options = parser.parse_args()
    if any(not part.replace(".", "", 1).isdecimal() for part in options.seconds.split(",")):
        raise SystemExit(f"--seconds: '{options.seconds}' are no numbers with commas between them")
    run_benchmark(measure, options)


if __name__ == "__main__":
    main()
