"""Texts of four adapters in one batch, beside the model alone and beside four models in turn.

    python benchmarks/adapters.py MODEL [--quantize int8]

Each side writes 16 texts of 32 tokens behind prompts of 32: (1) the model alone, 16 rows; (2) four LoRA adapters of
rank 16 beside it, four rows each, in one batch; (3) four whole models, each with an adapter merged, four rows each,
in turn. Weights of the adapters are random, for what they say costs the same. Sides take turns, and the median of
three counts. Reading prompts is not counted. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import legato
from legato.config import validate
from legato.decoding import SearchOptions
from legato.decoding.engine import Engine
from legato.folders.adapters.by_row import SharedBase
from legato.folders.model_folder import load_model, save_model
from legato.training.adapt import AdaptConfig, Base, adapt

ADAPTERS, ROWS, RANK, READ, TOKENS, TURNS = 4, 16, 16, 32, 32, 3


def make_adapter(base: str, folder: Path, seed: int) -> Path:
    loaded = load_model(Path(base))
    torch.manual_seed(seed)
    adapt(
        loaded.module,
        validate(AdaptConfig, {"name": "lora", "rank": RANK, "targets": ["all-linear"]}),
        Base.of(base, loaded),
    )
    with torch.no_grad():
        for parameter in loaded.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.01)
    folder.mkdir()
    save_model(folder, loaded.module, loaded.processors, task="lm", about={"published": True}, card="")
    return folder


def seconds(model: Any, adapters: list[int]) -> float:
    """What it takes to write one text for each of these adapters, side by side, once prompts are read."""
    engine = Engine(model.module)
    for number, adapter in enumerate(adapters):
        prompt = [(number + 7 * place) % 1000 + 5 for place in range(READ)]
        engine.add([prompt], SearchOptions(max_tokens=TOKENS), adapter=adapter)
    engine.step()  # reads all prompts, and writes a token
    begun = time.perf_counter()
    while engine.step():
        pass
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--quantize")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        folders = [make_adapter(given.model, Path(home) / str(number), number) for number in range(ADAPTERS)]
        base = legato.load(given.model, "cpu", quantize=given.quantize)
        shared = SharedBase(base.loaded)
        beside = [shared.put(folder).adapter for folder in folders]
        merged = [legato.load(folder, "cpu", quantize=given.quantize) for folder in folders]
        each = ROWS // ADAPTERS
        sides = {
            "base": lambda: seconds(base, [0] * ROWS),
            "adapters": lambda: seconds(base, beside * each),
            "models": lambda: sum(seconds(model, [0] * each) for model in merged),
        }
        for side in sides.values():
            side()
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(TURNS):
            for name, side in sides.items():
                times[name].append(side())
    speeds = {name: ROWS * (TOKENS - 2) / statistics.median(found) for name, found in times.items()}
    for name, speed in speeds.items():
        print(f"{name:10}{speed:8.1f} tokens/s")
    print(
        json.dumps(
            {
                "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
                "adapters_over_base": round(speeds["adapters"] / speeds["base"], 3),
                "adapters_over_models": round(speeds["adapters"] / speeds["models"], 3),
                "quantize": given.quantize,
                "threads": torch.get_num_threads(),
            }
        )
    )


if __name__ == "__main__":
    main()
