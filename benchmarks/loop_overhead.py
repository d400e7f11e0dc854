"""What the training loop costs: the same LSTM language model trained by Legato and by a bare loop.

    python benchmarks/loop_overhead.py [--device cuda] [--rounds 8]

Both sides train the 2 × 650 LSTM of Zaremba et al. (2014), untied, on the same ids in batches of
20 × 35 with the state carried, by clipped SGD in float32 without dropout. The bare loop is as short as
PyTorch allows: `torch.nn.LSTM`, no checkpoints, no reports, no checks. Rounds of both sides alternate,
so that a change of clock or of load meets both alike. On a GPU Legato replays its steps as a CUDA graph;
two more sides show it without the graph, and with its default precision there, bf16. The last line
printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from legato.data.cache import cached_ids, cached_tokenizer
from legato.data.formats.text import read_text
from legato.data.text.tokenizers import TokenizerConfig
from legato.registry import MODELS, TASKS
from legato.runs.config import check, settings_for
from legato.runs.run_folder import RunFolder
from legato.runs.train import plan_of
from legato.training.devices import choose_device, describe
from legato.training.display import Display
from legato.training.loop import Trainer

ROWS, WINDOW, WIDTH, LAYERS, VOCABULARY = 20, 35, 650, 2, 10_000
TOKENIZER = {"name": "word", "size": VOCABULARY}


def bare(device: torch.device) -> Iterator[int]:
    """The shortest loop: yields the tokens of each step."""
    text = read_text("builtin:stdlib")
    tokenizer = cached_tokenizer(TokenizerConfig.model_validate(TOKENIZER), text)
    ids = torch.from_numpy(cached_ids(text, tokenizer).astype("int64")).to(device)
    length = (len(ids) - 1) // ROWS
    inputs, targets = ids[: ROWS * length].view(ROWS, length).t(), ids[1 : ROWS * length + 1].view(ROWS, length).t()
    torch.manual_seed(0)
    embedding = nn.Embedding(tokenizer.size, WIDTH).to(device)
    lstm = nn.LSTM(WIDTH, WIDTH, LAYERS).to(device)
    output = nn.Linear(WIDTH, tokenizer.size).to(device)
    parameters = [*embedding.parameters(), *lstm.parameters(), *output.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    state: tuple[Tensor, Tensor] | None = None
    start = 0
    while True:
        if start + WINDOW > length:
            start, state = 0, None
        x, y = inputs[start : start + WINDOW], targets[start : start + WINDOW]
        hidden, state = lstm(embedding(x), state)
        state = (state[0].detach(), state[1].detach())
        loss = nn.functional.cross_entropy(output(hidden).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        start += WINDOW
        yield ROWS * WINDOW


def legato(device: torch.device, **settings: object) -> Iterator[int]:
    """Legato's loop, with the reports that it makes every `log_every` steps."""
    given = {
        "data.train": "builtin:stdlib",
        "data.window": WINDOW,
        "data.forget": 0,
        "tokenizer": "word",
        "tokenizer.size": VOCABULARY,
        "model": "lstm",
        "model.layers": LAYERS,
        "model.width": WIDTH,
        "model.tied": False,
        "model.dropout": 0,
        "train.batch_tokens": ROWS * WINDOW,
        "train.optimizer": "sgd",
        **settings,
    }
    config = check(settings_for("lm", given))
    job = TASKS.get("lm").prepare(plan_of(config, device), lambda text: None)
    model = MODELS.get("lstm")(config.model, job.sizes).to(device).train()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        run.open_events(0)
        trainer = Trainer(model, job, config.train, run, seed=0, device=device, display=Display(quiet=True))
        mark = time.monotonic()
        while True:
            trainer._update()
            if trainer.step % config.train.log_every == 0:
                mark = trainer._report(mark)
            yield ROWS * WINDOW


def timed(steps: Iterator[int], count: int, device: torch.device) -> float:
    """Tokens a second over `count` steps."""
    started = time.perf_counter()
    tokens = sum(next(steps) for _ in range(count))
    if device.type == "cuda":
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    device = choose_device(options.device)
    gpu = device.type == "cuda"
    torch.set_float32_matmul_precision("high")
    steps = 100 if gpu else 5
    sides: dict[str, Callable[[], Iterator[int]]] = {
        "bare": lambda: bare(device),
        "legato": lambda: legato(device, **{"train.precision": "float32"}),
    }
    if gpu:
        sides["legato_without_graph"] = lambda: legato(device, **{"train.precision": "float32", "train.graph": False})
        sides["legato_bf16"] = lambda: legato(device)
    running = {name: make() for name, make in sides.items()}
    for side in running.values():
        timed(side, 10 if gpu else 2, device)  # warm up
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in running.items():
            speeds[name].append(timed(side, steps, device))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, values in speeds.items():
        print(f"{name:16s} {medians[name]:12,.0f} tokens/s   (from {min(values):,.0f} to {max(values):,.0f})")
    ratios = {f"{name}_over_bare": medians[name] / medians["bare"] for name in sides if name != "bare"}
    for name, ratio in ratios.items():
        print(f"{name.replace('_', ' ')}: {ratio:.3f}")
    about = {"benchmark": "loop_overhead", "device": describe(device), "torch": torch.__version__}
    print(json.dumps({**about, **{f"{k}_tokens_per_second": round(v) for k, v in medians.items()}, **ratios}))


if __name__ == "__main__":
    main()
