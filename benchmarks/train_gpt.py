"""Training GPT-2: Legato and Hugging Face's GPT-2 under torch.compile, the same weights and batches, side by side.

    python benchmarks/train_gpt.py [--device cuda] [--layers 12] [--width 768] [--batch 16] [--length 1024]
    python benchmarks/train_gpt.py --device cpu --layers 2 --width 64 --batch 2 --length 64 --steps 2

GPT-2 of the 124M size, from random weights on random tokens, without dropout: forward and backward pass, gradients
clipped to a norm of 1, and AdamW with decay on matrices, in every step. On a GPU the products are bf16 under
autocast and the weights float32; on a CPU all is float32. The sides:

- *legato*: Legato's own loop with the checks and reports that it makes, no setting but the model's and the batch's:
  steps replayed as a CUDA graph and, since the run is long, compiled by `train.compile=auto` among the first;
- *legato compiled*: the same with `train.compile=true`;
- *legato plain*: the same with `train.compile=false`;
- *huggingface*: a plain loop as short as it gets around `GPT2LMHeadModel`, model and loss compiled together by
  `torch.compile`, fused AdamW.

Measured: tokens a second in the median round, and the device's peak memory. Not measured: compiling, recording, the
first steps. The loss of the first batch, in float32, must be the same on all sides, or the script fails. The last
line printed is JSON. Needs the peer: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from gpt_sides import VOCABULARY, read_ours, read_theirs, write_model
from sides import Side, add_rounds, choose_sides, compare, legato_steps, peer_steps, prepare, run_apart, timed

# Legato and its peer are imported by the process that needs them.


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


def legato_side(folder: Path, shape: Shape, compiled: bool | str) -> Any:
    import torch

    from legato.tasks.lm.job import next_token_loss
    from legato.training.job import Job

    device = prepare(shape.device, shape.threads)
    model = read_ours(folder).to(device).train()

    class RandomText(Job):
        """The least of a task that the loop needs."""

        batches = batches_of(shape)
        metric = "loss"

        def loss(self, model: Any, batch: Any, state: Any) -> Any:
            return next_token_loss(model, batch, state)

    job = RandomText()
    first: Any = job.batches.at(0)
    with torch.no_grad():
        loss = float(model.nll(model(first).hidden, first.targets)[0]) / first.tokens
    steps = legato_steps(model, job, device, compiled, {"batch_tokens": shape.batch * shape.length})
    return timed(steps, device, loss)


def huggingface_side(folder: Path, shape: Shape, compiled: bool) -> Any:
    import torch
    import torch.nn.functional as F

    device = prepare(shape.device, shape.threads)
    model = read_theirs(folder).to(device).train()
    batches = batches_of(shape)

    def loss_of(ids: Any, targets: Any) -> Any:
        logits = model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    first = batches.at(0)
    with torch.no_grad():
        loss = float(loss_of(first.inputs.ids, first.targets))
    quick = torch.compile(loss_of) if compiled else loss_of
    steps = peer_steps(model, lambda batch: quick(batch.inputs.ids, batch.targets), batches, device)
    return timed(steps, device, loss)


SIDES = {
    "legato": (legato_side, "auto"),
    "legato compiled": (legato_side, True),
    "legato plain": (legato_side, False),
    "huggingface": (huggingface_side, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, one head each")
    parser.add_argument("--batch", type=int, default=16, help="rows a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a row")
    add_rounds(parser, SIDES)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, SIDES)
    shape = Shape(options.device, options.batch, options.length, options.threads, options.seed)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_model, folder, options.layers, options.width, options.length, True, options.seed)
        sides = {name: Side(SIDES[name][0], folder, shape, SIDES[name][1]) for name in chosen}
        compare("train_gpt", "tokens", options.batch * options.length, sides, options)


if __name__ == "__main__":
    main()
