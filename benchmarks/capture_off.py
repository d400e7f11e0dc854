"""What the possibility to look inside costs where nobody looks: the share of a training step.

    python benchmarks/capture_off.py

Blocks ask `capturing()`, call `capture(…)` and open a `scope(…)` whether anybody looks or not. Here the calls of one
step are counted, a call is timed by itself, and both are set beside the step's time (forward and backward; without
the optimiser, so the share is larger than in training). A step recorded as a CUDA graph makes none of these calls.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import timeit
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from legato.data.batching.batch import Batch, Inputs
from legato.models.base import SequenceModel, Sizes
from legato.nn import capture as primitive
from legato.registry import MODELS
from legato.runs.config import check, settings_for
from legato.tasks.lm.job import next_token_loss

ASKED = ("capturing", "capture", "scope")
VOCABULARY = 512


def made(name: str, width: int, layers: int) -> SequenceModel:
    settings = {"data.train": "builtin:stdlib", "model": name, "model.width": width, "model.layers": layers}
    torch.manual_seed(0)
    return MODELS.get(name)(check(settings_for("lm", settings)).model, Sizes(VOCABULARY)).train()


def step_of(model: SequenceModel, rows: int, length: int) -> Callable[[], None]:
    ids = torch.randint(0, VOCABULARY, (rows, length + 1))
    batch = Batch(Inputs(ids[:, :-1]), targets=ids[:, 1:])

    def step() -> None:
        model.zero_grad(set_to_none=True)
        next_token_loss(model, batch, None).total.backward()

    return step


def counted(step: Callable[[], None]) -> Counter[str]:
    """How often a step asks, in every module that imported one of the three."""
    calls: Counter[str] = Counter()
    kept: list[tuple[Any, str, Any]] = []

    def counting(name: str, ordinary: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*given: Any) -> Any:
            calls[name] += 1
            return ordinary(*given)

        return ask

    for module in [module for name, module in sys.modules.items() if name.startswith("legato.")]:
        for name in ASKED:
            if module is not primitive and getattr(module, name, None) is getattr(primitive, name):
                kept.append((module, name, getattr(module, name)))
                setattr(module, name, counting(name, getattr(module, name)))
    try:
        step()
    finally:
        for module, name, ordinary in kept:
            setattr(module, name, ordinary)
    return calls


def entered() -> None:
    with primitive.scope("x"):
        pass


def seconds_of_a_call() -> dict[str, float]:
    tensor, times = torch.zeros(1), 200_000
    ways = {
        "capturing": primitive.capturing,
        "capture": lambda: primitive.capture("x", tensor, "unit"),
        "scope": entered,
    }
    return {name: min(timeit.repeat(way, number=times, repeat=5)) / times for name, way in ways.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="elman,lstm,gru,gpt2,llama")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    each = seconds_of_a_call()
    print("a call:", ", ".join(f"{name} {1e9 * value:.0f} ns" for name, value in each.items()))
    print(f"{'model':8}{'calls':>7}{'they take':>12}{'the step':>12}{'share':>9}")
    for name in given.models.split(","):
        step = step_of(made(name, given.width, given.layers), given.rows, given.length)
        calls = counted(step)
        taken = sum(each[kind] * count for kind, count in calls.items())
        times = []
        for _ in range(given.steps):
            began = time.perf_counter()
            step()
            times.append(time.perf_counter() - began)
        fastest = min(times)
        print(f"{name:8}{calls.total():7}{1e6 * taken:9.1f} µs{1e3 * fastest:9.2f} ms{taken / fastest:9.3%}")
        print(json.dumps({"model": name, "calls": dict(calls), "seconds": taken, "step": fastest}))


if __name__ == "__main__":
    main()
