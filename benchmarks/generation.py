"""What the benchmarks of writing share: prompts, what writes, rounds of all sides in turn and their table.

A side's share of the machine is of what it would write if a step took no longer than to read its weights once, or to
multiply them with every row, whichever takes longer, as fast as PyTorch does either (`machine.py`). What attention
reads and multiplies is not counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from machine import Limits

# Legato and its peers are imported by the process that needs them.

Ids = list[list[int]]
Answer = Callable[[Any], Any]
BYTES = {"float32": 4.0, "bfloat16": 2.0, "int8": 34 / 32, "int4": 18 / 32}  # a number; narrow ones share a scale
NARROW = {"int8": "int8", "q8_0": "int8", "int4": "int4", "q4_0": "int4"}  # by how a side's name ends


class Shape(NamedTuple):
    device: str
    dtype: str
    threads: int
    tokens: int  # to write


class Weights(NamedTuple):
    """The numbers that every step reads."""

    layers: int
    readout: int

    def bytes(self, side: str, dtype: str) -> float:
        width = NARROW.get(side.rpartition("-")[2], dtype)
        readout = "int8" if width == "int4" else width  # what tokens are read out of has 8 bits at least
        return BYTES[width] * self.layers + BYTES[readout] * self.readout

    def operations(self, rows: int) -> float:
        return 2.0 * rows * (self.layers + self.readout)


# ── what is asked ─────────────────────────────────────────────────────────────────────────────────


def add_options(parser: argparse.ArgumentParser, tokens: int, batch: int, rounds: int) -> None:
    """The options that all have."""
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tokens", type=int, default=tokens, help="to write")
    parser.add_argument("--batch", type=int, default=batch, help="prompts in the larger batch")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--warm", type=int, help="calls before the first round; left out: 4 on cuda, 1 elsewhere")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--seed", type=int, default=0)


def warm_calls(options: argparse.Namespace) -> int:
    """On CUDA the first ones compile and record."""
    return options.warm or (4 if options.device.startswith("cuda") else 1)


def prompts_of(lengths: list[int], seed: int, vocabulary: int) -> Ids:
    draw = random.Random(seed)
    return [[draw.randrange(vocabulary) for _ in range(length)] for length in lengths]


def batches_of(batch: int, seed: int, vocabulary: int) -> dict[str, Ids]:
    """One prompt of 16 tokens; and `batch` prompts of 4 to 64 tokens, in no order of length."""
    spread = [round(4 + 60 * i / max(batch - 1, 1)) for i in range(batch)]
    random.Random(seed).shuffle(spread)
    batches = {"batch 1": [16], f"batch {batch}": spread if batch > 1 else [16]}
    return {title: prompts_of(lengths, seed, vocabulary) for title, lengths in batches.items()}


# ── what a side does ──────────────────────────────────────────────────────────────────────────────


def prepare(model: Any, shape: Shape) -> Any:
    import torch

    torch.set_num_threads(shape.threads)
    torch.set_float32_matmul_precision("highest")
    return model.to(shape.device, getattr(torch, shape.dtype)).eval()


def built(make: Callable[[], Any], shape: Shape, seed: int) -> Any:
    """A model with random weights, made on its device in its dtype: nothing larger than itself is ever there."""
    import torch

    torch.manual_seed(seed)
    torch.set_default_dtype(getattr(torch, shape.dtype))
    try:
        with torch.device(shape.device):
            model = make()
    finally:
        torch.set_default_dtype(torch.float32)
    return prepare(model, shape)


def timed(write: Callable[[Any], Ids]) -> Answer:
    """From prompts to the seconds that writing takes, and what is written."""

    def answer(prompts: Any) -> tuple[float, Ids]:
        started = time.perf_counter()
        written = write(prompts)  # lists of numbers: the device has finished
        return time.perf_counter() - started, written

    return answer


def legato_writer(model: Any, shape: Shape, quantize: str | None = None) -> Callable[[Ids], Ids]:
    """Greedily, with the weights as narrow as `quantize` says."""
    from legato.decoding import SearchOptions, search

    if quantize is not None:
        from legato.nn.quantized import quantize_layers

        quantize_layers(model, quantize)
    options = SearchOptions(max_tokens=shape.tokens)
    return lambda prompts: [best[0].tokens for best in search(model, prompts, options, eos=None)]


def huggingface_writer(model: Any, shape: Shape, cache: str | None = None) -> Callable[[Ids], Ids]:
    """Greedily, prompts padded on the left. `cache="static"`: of a fixed size, for which CUDA's step is compiled."""
    import torch

    def write(prompts: Ids) -> Ids:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=shape.device)
        seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=shape.device)
        with torch.inference_mode():
            written = model.generate(
                ids,
                attention_mask=seen,
                do_sample=False,
                max_new_tokens=shape.tokens,
                min_new_tokens=shape.tokens,
                eos_token_id=None,
                pad_token_id=0,
                cache_implementation=cache,
            )
        rows: Ids = written[:, longest:].tolist()
        return rows

    return write


# ── all sides ─────────────────────────────────────────────────────────────────────────────────────


def usual_sides(legato: Callable[..., Any], huggingface: Callable[..., Any]) -> dict[str, Any]:
    """A model of ours in three widths, and a peer's with either cache."""
    return {
        "legato": legato,
        "legato-int8": partial(legato, quantize="int8"),
        "legato-int4": partial(legato, quantize="int4"),
        "huggingface": huggingface,
        "huggingface-static": partial(huggingface, cache="static"),
    }


def measure(
    sides: Mapping[str, Answer], request: Any, rounds: int, warm: int
) -> tuple[dict[str, list[float]], dict[str, Ids]]:
    """Each side's seconds in every round, and what it wrote at first."""
    written: dict[str, Ids] = {}
    for name, side in sides.items():
        written[name] = side(request)[1]
        for _ in range(warm - 1):
            side(request)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name].append(side(request)[0])
    return seconds, written


def tell_head() -> None:
    print(f"{'':12s}{'':20s}{'tokens/s':>10s}   {'from':>7s} to {'':7s} of the limit", flush=True)


def tell(
    title: str, rows: int, tokens: int, seconds: Mapping[str, list[float]], least: Callable[[str], float]
) -> dict[str, Any]:
    """Print one measurement; its figures. `least`: the seconds that a side's step takes at least."""
    count = rows * tokens
    speeds = {name: count / statistics.median(values) for name, values in seconds.items()}
    shares = {name: speed / rows * least(name) for name, speed in speeds.items()}
    for name, values in seconds.items():
        apart = f"{count / max(values):7,.0f} to {count / min(values):7,.0f}"
        print(f"{title:12s}{name:20s}{speeds[name]:10,.0f}   {apart}  {shares[name]:8.0%}", flush=True)
        title = ""
    return {
        "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "share": {name: round(share, 3) for name, share in shares.items()},
    }


def least_seconds(weights: Weights, rows: int, limits: Limits, dtype: str) -> Callable[[str], float]:
    """For `tell`."""
    return lambda name: limits.least_seconds(weights.bytes(name, dtype), weights.operations(rows), dtype)


def tell_ratios(figures: dict[str, Any], pairs: Mapping[str, list[str]]) -> None:
    """Print how many times as fast sides are as their peers, and add it to the figures as `legato_over`."""
    speeds = figures["tokens_per_second"]
    over: dict[str, dict[str, float]] = {}
    for ours, peers in pairs.items():
        found = {peer: round(speeds[ours] / speeds[peer], 3) for peer in peers if {ours, peer} <= speeds.keys()}
        if found:
            over[ours] = found
            told = ", ".join(f"{ratio:.2f} × {peer}" for peer, ratio in found.items())
            print(f"{'':12s}{ours} is {told}", flush=True)
    figures["legato_over"] = over
