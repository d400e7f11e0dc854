"""Tuning an encoder to the end: score, parameters, memory, time and file size, beside transformers and peft.

    python benchmarks/adapt_scores.py MODEL train.tsv dev.tsv [--device cuda] [--epochs 3]
    python benchmarks/adapt_scores.py MODEL train.tsv dev.tsv --sides "legato lora,peft lora"

The sides are those of `adapt.py`, and the head alone; LoRA is on every matrix of the layers here. Model, head at the
start, batches, their order, rates, warm-up and schedule are the same on both sides of a pair; what dropout draws is
not. Each side is a process of its own, one after the other. Every `--every` steps a side is scored on the dev texts,
and the best of these scores is shown, and that model kept; `transformers` keeps all of it, whatever was trained.
Seconds are from the first step to the last score, without reading and starting. The last line printed is JSON. Needs
the peers: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from adapt import (
    ALPHA,
    BETAS,
    CLIP,
    DECAY,
    RANK,
    adapt_peer,
    forget_peak,
    memory,
    peer_optimizer,
    rows_of,
    write_classifier,
)
from sides import Side, choose_sides, finish, run_apart, versions

RATES = {"full": 5e-5, "lora": 1e-3, "bitfit": 2e-3, "head": 5e-3}


class Shape(NamedTuple):
    device: str
    train: str
    dev: str
    rows: int
    epochs: float
    every: int
    seed: int


class Told(NamedTuple):
    accuracy: float
    trainable: int
    peak: float  # MiB that tensors took
    seconds: float
    size: float  # MB of the weights on disk


def settings(folder: Path, shape: Shape, adapt: str) -> dict[str, Any]:
    return {
        "data.train": shape.train,
        "data.valid": shape.dev,
        "from": str(folder),
        "adapt": adapt,
        "adapt.rank": RANK,
        "adapt.alpha": ALPHA,
        "adapt.targets": "all-linear" if adapt == "lora" else None,
        "device": shape.device,
        "seed": shape.seed,
        "train.epochs": shape.epochs,
        "train.batch_rows": shape.rows,
        "train.lr": RATES[adapt],
        "train.schedule": "linear",
        "train.weight_decay": DECAY,
        "train.beta1": BETAS[0],
        "train.beta2": BETAS[1],
        "train.clip": CLIP,
        "train.validate_every": shape.every,
        "train.checkpoint_every": 10**6,
        "train.log_every": 100,
        "train.samples": 0,
        "train.tensorboard": False,
    }


def legato_side(folder: Path, shape: Shape, adapt: str) -> Any:
    import torch

    import legato

    def answer(_: None) -> Told:
        with tempfile.TemporaryDirectory() as place:
            run = legato.train("classification", settings(folder, shape, adapt), out=f"{place}/run", quiet=True)
        peak = run.peak_memory / 2**20 or memory(torch.device(shape.device))[0]
        return Told(run.metrics["valid.accuracy"], run.trainable, peak, run.seconds, run.saved_bytes / 1e6)

    return answer


def peer_side(folder: Path, shape: Shape, adapt: str) -> Any:
    import torch
    import torch.nn.functional as F
    import transformers

    from legato.data.batching.examples import scoring_batches
    from legato.registry import TASKS
    from legato.runs.config import check, settings_for
    from legato.runs.train import plan_of
    from legato.training.schedules import Schedule

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_float32_matmul_precision("high")
    device = torch.device(shape.device)
    config = check(settings_for("classification", settings(folder, shape, "full") | {"train.lr": RATES[adapt]}))
    job = TASKS.get("classification").prepare(plan_of(config, device), lambda text: None)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).to(device)
    torch.manual_seed(shape.seed)
    model = adapt_peer(model, adapt, r".*layer\.\d+\..*(query|key|value|dense)")
    trained, optimizer = peer_optimizer(model)
    steps = round(shape.epochs * job.batches.steps_per_epoch)
    schedule = Schedule(config.train, steps)

    def accuracy() -> float:
        model.eval()
        right = total = 0
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            for _, batch in scoring_batches(job.rows["valid"]):
                inputs, labels = rows_of(batch, device)
                right += int((model(**inputs).logits.argmax(-1) == labels).sum())
                total += len(labels)
        model.train()
        return right / total

    def answer(_: None) -> Told:
        with tempfile.TemporaryDirectory() as place:
            forget_peak(device)
            model.train()
            started, best = time.monotonic(), -1.0
            for step in range(steps):
                for group in optimizer.param_groups:
                    group["lr"] = schedule.lr(step)
                inputs, labels = rows_of(job.batches.at(step), device)
                with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                    loss = F.cross_entropy(model(**inputs).logits.float(), labels)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(trained, CLIP)
                optimizer.step()
                if (step + 1) % shape.every == 0 or step + 1 == steps:
                    score = accuracy()
                    if score > best:
                        best = score
                        model.save_pretrained(f"{place}/best")
            finish(device)
            seconds = time.monotonic() - started
            size = sum(file.stat().st_size for file in Path(place).glob("best/*.safetensors")) / 1e6
        return Told(best, sum(p.numel() for p in trained), memory(device)[0], seconds, size)

    return answer


SIDES = {
    **{f"legato {adapt}": (legato_side, adapt) for adapt in RATES},
    **{f"{'peft' if adapt == 'lora' else 'transformers'} {adapt}": (peer_side, adapt) for adapt in RATES},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="the folder of an encoder")
    parser.add_argument("train", help="texts with labels: tsv, csv, jsonl or parquet")
    parser.add_argument("dev", help="the texts to score on")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--rows", type=int, default=32, help="texts a step")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--every", type=int, default=500, help="steps between scores")
    parser.add_argument("--sides", default=",".join(SIDES), help="which of the eight, with commas between")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, SIDES)
    shape = Shape(
        options.device, options.train, options.dev, options.rows, options.epochs, options.every, options.seed
    )
    told: dict[str, Told] = {}
    print(f"{'':22s}{'accuracy':>10s}{'trainable':>12s}{'MiB':>8s}{'seconds':>9s}{'MB on disk':>12s}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_classifier, options.model, options.train, folder)
        for name in chosen:
            side = Side(SIDES[name][0], folder, shape, SIDES[name][1])
            it = told[name] = side(None)
            side.process.kill()
            line = f"{100 * it.accuracy:10.2f}{it.trainable:12,d}{it.peak:8,.0f}{it.seconds:9.1f}{it.size:12.3f}"
            print(f"{name:22s}{line}", flush=True)
    figures = {name: it._asdict() for name, it in told.items()}
    with_peft = {**versions(), "peft": version("peft")}
    print(json.dumps({"benchmark": "adapt_scores", **vars(options), "versions": with_peft, "figures": figures}))


if __name__ == "__main__":
    main()
