"""Training GPT-2: Legato and Hugging Face's GPT-2 under torch.compile, the same weights and batches, side by side.

    python benchmarks/train_gpt.py [--device cuda] [--layers 12] [--width 768] [--batch 16] [--length 1024]
    python benchmarks/train_gpt.py --device cpu --layers 2 --width 64 --batch 2 --length 64 --steps 2

GPT-2 of the 124M size, from random weights on random tokens, without dropout: forward and backward pass, gradients
clipped to a norm of 1, and AdamW with decay on matrices, in every step. On a GPU the products are bf16 under
autocast and the weights float32; on a CPU all is float32. The sides:

- *legato*: Legato's own loop with the checks and reports that it makes, its steps replayed as a CUDA graph;
- *legato compiled*: the same with `train.compile=true`;
- *huggingface*: a plain loop as short as it gets around `GPT2LMHeadModel`, model and loss compiled together by
  `torch.compile`, fused AdamW.

Measured: tokens a second in the median round, and the device's peak memory. Not measured: compiling, recording, the
first steps. The loss of the first batch, in float32, must be the same on all sides, or the script fails. The last
line printed is JSON. Needs the peer: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from gpt_sides import VOCABULARY, Side, choose_sides, read_ours, read_theirs, run_apart, versions, write_model

# Legato and its peer are imported by the process that needs them.

RATE, DECAY, BETAS, CLIP = 6e-4, 0.1, (0.9, 0.95), 1.0


class Shape(NamedTuple):
    device: str
    batch: int
    length: int
    threads: int
    seed: int


def batches_of(shape: Shape) -> Any:
    """Windows of random tokens: the same on every side."""
    import numpy as np

    from legato.data.batching.batches import Windows, WindowShape

    ids = np.random.default_rng(shape.seed).integers(VOCABULARY, size=8 * shape.batch * shape.length, dtype=np.int32)
    return Windows(ids, WindowShape(rows=shape.batch, window=shape.length, seed=shape.seed, device=shape.device))


def prepare(shape: Shape) -> Any:
    """The device, with PyTorch set up for it."""
    import torch

    torch.set_num_threads(shape.threads)
    torch.set_float32_matmul_precision("high")
    return torch.device(shape.device)


def finish(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize()


def memory(device: Any) -> float:
    """Peak GiB so far: what PyTorch took of a GPU, or the whole process of the main memory."""
    import torch

    if device.type == "cuda":
        return torch.cuda.max_memory_reserved() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def legato_side(folder: Path, shape: Shape, compiled: bool) -> Any:
    import torch

    from legato.runs.run_folder import RunFolder
    from legato.tasks.lm.job import next_token_loss
    from legato.training.config import TrainConfig
    from legato.training.display import Display
    from legato.training.job import Job
    from legato.training.loop import Trainer

    device = prepare(shape)
    model = read_ours(folder).to(device).train()

    class RandomText(Job):
        """The least of a task that the loop needs."""

        batches = batches_of(shape)
        metric, lower_is_better = "loss", True

        def loss(self, model: Any, batch: Any, state: Any) -> Any:
            return next_token_loss(model, batch, state)

    config = TrainConfig(
        steps=10**6,
        batch_tokens=shape.batch * shape.length,
        lr=RATE,
        schedule="constant",
        weight_decay=DECAY,
        beta1=BETAS[0],
        beta2=BETAS[1],
        clip=CLIP,
        compile=compiled,
        tensorboard=False,
    )
    run = RunFolder(Path(tempfile.mkdtemp()))
    job: Any = RandomText()
    first = job.batches.at(0)
    with torch.no_grad():
        loss = float(model.nll(model(first).hidden, first.targets)[0]) / first.tokens
    trainer = Trainer(model, job, config, run, seed=0, device=device, display=Display(quiet=True))

    def answer(steps: int) -> tuple[float, float, float]:
        started = mark = time.monotonic()
        for _ in range(steps):
            trainer._update()
            if trainer.step % config.log_every == 0:
                mark = trainer._report(mark)
        finish(device)
        return time.monotonic() - started, memory(device), loss

    return answer


def huggingface_side(folder: Path, shape: Shape, compiled: bool) -> Any:
    import torch
    import torch.nn.functional as F

    device = prepare(shape)
    model = read_theirs(folder).to(device).train()
    batches = batches_of(shape)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)

    def loss_of(ids: Any, targets: Any) -> Any:
        logits = model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    first = batches.at(0)
    with torch.no_grad():
        loss = float(loss_of(first.inputs.ids, first.targets))
    quick = torch.compile(loss_of) if compiled else loss_of
    step = 0

    def answer(steps: int) -> tuple[float, float, float]:
        nonlocal step
        started = time.monotonic()
        for _ in range(steps):
            batch = batches.at(step)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                total = quick(batch.inputs.ids, batch.targets)
            optimizer.zero_grad(set_to_none=True)
            total.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            step += 1
        finish(device)
        return time.monotonic() - started, memory(device), loss

    return answer


SIDES = {
    "legato": (legato_side, False),
    "legato compiled": (legato_side, True),
    "huggingface": (huggingface_side, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, one head each")
    parser.add_argument("--batch", type=int, default=16, help="rows a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a row")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--warm", type=int, default=8, help="steps before the first round")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--sides", default=",".join(SIDES), help="which of the three, with commas between")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, SIDES)
    shape = Shape(options.device, options.batch, options.length, options.threads, options.seed)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_model, folder, options.layers, options.width, options.length, True, options.seed)
        sides = {name: Side(SIDES[name][0], folder, shape, SIDES[name][1]) for name in chosen}
        losses = {name: side(options.warm)[2] for name, side in sides.items()}
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        peaks: dict[str, float] = {}
        for _ in range(options.rounds):
            for name, side in sides.items():
                taken, peaks[name], _ = side(options.steps)
                seconds[name].append(taken)

    tokens = options.batch * options.length * options.steps
    speeds = {name: tokens / statistics.median(values) for name, values in seconds.items()}
    print(f"{'':18s}{'tokens/s':>12s}   {'from':>10s} to {'':10s}{'GiB':>6s}   first loss")
    for name, values in seconds.items():
        spread = f"{tokens / max(values):10,.0f} to {tokens / min(values):10,.0f}"
        print(f"{name:18s}{speeds[name]:12,.0f}   {spread}{peaks[name]:6.1f}   {losses[name]:.5f}")
    figures: dict[str, Any] = {
        "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "peak_gib": {name: round(peak, 2) for name, peak in peaks.items()},
        "first_loss": losses,
    }
    if "huggingface" in speeds:
        figures["over_huggingface"] = {
            name: round(speed / speeds["huggingface"], 3) for name, speed in speeds.items() if name != "huggingface"
        }
        for name, ratio in figures["over_huggingface"].items():
            print(f"{name} is {ratio:.2f} × huggingface")
    print(json.dumps({"benchmark": "train_gpt", **vars(options), "versions": versions(), **figures}))
    if max(losses.values()) - min(losses.values()) > 1e-2 * min(losses.values()):
        raise SystemExit("the first losses differ, so this is no comparison")


if __name__ == "__main__":
    main()
