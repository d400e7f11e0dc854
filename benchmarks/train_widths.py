"""Training a small GPT-2 in bf16 beside float32: how fast, and how well, by Legato's own loop on the same text.

    python benchmarks/train_widths.py [--device cuda] [--steps 300] [--seeds 0,1,2] [--threads 2]
    python benchmarks/train_widths.py --layers 1 --width 32 --steps 4 --seeds 0 --batch-tokens 128

A GPT-2 of 4 layers and width 384 is trained from random weights on the built-in text, with Legato's defaults but for
what is named here, once for each precision (`train.precision`) and seed; weights and order of the data are the
seed's, the same in all precisions. The precisions take turns, seed by seed, so that a change of load meets all alike.
Told are tokens a second (the median over seeds) and each seed's loss on held-out text after the last step. `bf16` has
products in bf16 under autocast and weights in float32; where a processor lacks such products it is slow, and says
nothing. A share of the machine is of what PyTorch multiplies in that precision (`machine.py`): 6 operations for each
weight and token, none for attention. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from machine import Limits, limits_side
from sides import versions

PRECISIONS = {"float32": "float32", "bf16": "bfloat16"}


def trained(options: argparse.Namespace, precision: str, seed: int, out: Path) -> Any:
    """What `legato.train` says of a run."""
    import legato

    settings = {
        "data.train": options.text,
        "model": "gpt2",
        "model.layers": options.layers,
        "model.width": options.width,
        "model.heads": max(1, options.width // 64),
        "train.steps": options.steps,
        "train.batch_tokens": options.batch_tokens,
        "train.precision": precision,
        "train.validate_every": options.steps,
        "train.samples": 0,
        "train.tensorboard": False,
        "device": options.device,
        "seed": seed,
    }
    if options.tokenizer:
        settings["tokenizer"] = options.tokenizer
    return legato.train("lm", settings, quiet=True, out=str(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--precision", default=",".join(PRECISIONS), help="which, with commas between; the first counts"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--text", default="builtin:stdlib", help="a file; its end is held out")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=384, help="a multiple of 64, one head each")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", default="0,1,2", help="with commas between")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="a step")
    parser.add_argument("--tokenizer", default=None, help="left out: Legato's default")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    options = parser.parse_args()
    chosen, seeds = options.precision.split(","), [int(seed) for seed in options.seeds.split(",")]
    if unknown := [name for name in chosen if name not in PRECISIONS]:
        raise SystemExit(f"there is no precision '{unknown[0]}'; there are {', '.join(PRECISIONS)}")

    limits: Limits = limits_side(options.threads, options.device)(None)
    print(limits.tell(), flush=True)
    speeds: dict[str, list[float]] = {name: [] for name in chosen}
    losses: dict[str, list[float]] = {name: [] for name in chosen}
    numbers = 0
    for seed in seeds:
        for name in chosen:
            with tempfile.TemporaryDirectory() as place:
                result = trained(options, name, seed, Path(place) / "run")
            speeds[name].append(result.tokens_per_second)
            losses[name].append(result.metrics["valid.loss"])
            numbers = result.parameters
            told = f"{speeds[name][-1]:10,.0f} tokens/s, loss {losses[name][-1]:.4f}"
            print(f"seed {seed:<4d}{name:10s}{told}", flush=True)

    figures: dict[str, Any] = {"tokens_per_second": {}, "share": {}, "losses": losses}
    print(f"{'':10s}{'tokens/s':>10s}   {'from':>8s} to {'':8s} of the limit   mean loss")
    for name in chosen:
        speed = statistics.median(speeds[name])
        share = 6 * numbers * speed / limits.rate(PRECISIONS[name])
        figures["tokens_per_second"][name], figures["share"][name] = round(speed, 1), round(share, 3)
        apart = f"{min(speeds[name]):8,.0f} to {max(speeds[name]):8,.0f}"
        print(f"{name:10s}{speed:10,.0f}   {apart}  {share:8.0%}       {statistics.mean(losses[name]):.4f}")
    first, *others = chosen
    figures["over"], figures["loss_difference"] = {}, {}
    for name in others:
        ratios = [mine / its for mine, its in zip(speeds[name], speeds[first], strict=True)]
        differences = [mine - its for mine, its in zip(losses[name], losses[first], strict=True)]
        figures["over"][name] = round(statistics.median(ratios), 3)
        figures["loss_difference"][name] = [round(each, 5) for each in differences]
        told = ", ".join(f"{each:+.4f}" for each in differences)
        print(f"{name} is {figures['over'][name]:.2f} × {first}; its losses differ by {told}")
    about = {"benchmark": "train_widths", **vars(options), "versions": versions(), "limits": limits.figures()}
    print(json.dumps({**about, "parameters": numbers, **figures}))


if __name__ == "__main__":
    main()
