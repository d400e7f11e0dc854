"""What benchmarks of Legato beside its peers share: a process for each, rounds in turn, a table of speeds.

Each side runs in a process of its own, so that none meets another's threads, memory or settings, and rounds of all
sides alternate, so that a change of clock or of load meets all alike.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

# Legato and its peers are imported by the process that needs them.

RATE, DECAY, BETAS, CLIP = 6e-4, 0.1, (0.9, 0.95), 1.0  # of AdamW, where whole models are trained


STATIC = "-static"  # at the end of a side's name: its cache has a fixed size, and CUDA's step is compiled for it


# ── processes ─────────────────────────────────────────────────────────────────────────────────────


def choose_sides(wanted: str, known: Collection[str]) -> list[str]:
    """The sides named with commas between; each will have a process that begins with nothing of this one."""
    chosen = wanted.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"there is no side '{unknown[0]}'; there are {', '.join(known)}")
    if any(name.startswith("huggingface") for name in known):
        require_transformers()
    multiprocessing.set_start_method("spawn")
    return chosen


def require_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise SystemExit('transformers is not installed; the peers come with: pip install -e ".[bench]"')


Answer = Callable[[Any], Any]


def serve(connection: Connection, make: Callable[..., Answer], *given: Any) -> None:
    """A side's process: requests in, answers out."""
    answer = make(*given)
    with suppress(EOFError, BrokenPipeError):  # nobody asks any more, or waits for the answer
        while True:
            connection.send(answer(connection.recv()))


class Side:
    """A process that answers when asked. `make(*given)` is called there, and what it returns is asked."""

    def __init__(self, make: Callable[..., Answer], *given: Any) -> None:
        self.connection, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=serve, args=(other, make, *given), daemon=True)
        self.process.start()
        other.close()

    def __call__(self, request: Any) -> Any:
        self.connection.send(request)
        try:
            return self.connection.recv()
        except EOFError:
            raise SystemExit("a side failed; its error is above") from None

    def close(self) -> None:
        """End the process, which gives its memory back, that of a device too."""
        self.connection.close()
        self.process.join()


def start_sides(sides: dict[str, Any], chosen: Iterable[str], start: Callable[[str], Any]) -> None:
    """Start the chosen sides among `sides` that are not there, and those anew that compile for one shape.

    What has compiled for one shape compiles something more general, and slower, for the next; a process that begins
    with nothing does not.
    """
    for name in chosen:
        if name in sides and not name.endswith(STATIC):
            continue
        if name in sides:
            sides.pop(name).close()
        sides[name] = start(name)


def run_apart(work: Callable[..., None], *given: Any) -> None:
    """Call `work` in a process of its own, which gives its memory back."""
    maker = multiprocessing.Process(target=work, args=given)
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit("the model could not be written; the error is above")


def versions(*more: str) -> dict[str, str]:
    """Of PyTorch, and of those peers that are installed."""
    from importlib.metadata import version

    names = ("torch", "transformers", *more)
    return {name: version(name) for name in names if importlib.util.find_spec(name) is not None}


# ── what a side does ──────────────────────────────────────────────────────────────────────────────


class Round(NamedTuple):
    """What a side answers after some steps."""

    seconds: float
    peak: float  # GiB so far
    loss: float  # of the first batch, before any step


def prepare(device: str, threads: int) -> Any:
    """The device, with PyTorch set up for it."""
    import torch

    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high")
    return torch.device(device)


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


def timed(make_steps: Callable[[int], None], device: Any, loss: float) -> Callable[[int], Round]:
    """From a number of steps to what making them takes."""

    def answer(steps: int) -> Round:
        started = time.monotonic()
        make_steps(steps)
        finish(device)
        return Round(time.monotonic() - started, memory(device), loss)

    return answer


def legato_steps(
    model: Any, job: Any, device: Any, compiled: bool | str, batch: Mapping[str, int]
) -> Callable[[int], None]:
    """Legato's own loop, with the reports that it makes; `batch` is what settings say of a batch's size.

    `compiled` is what `train.compile` is set to.
    """
    from legato.runs.run_folder import RunFolder
    from legato.training.config import TrainConfig
    from legato.training.display import Display
    from legato.training.loop import Trainer

    settings = {
        "steps": 10**6,
        "lr": RATE,
        "schedule": "constant",
        "weight_decay": DECAY,
        "beta1": BETAS[0],
        "beta2": BETAS[1],
        "clip": CLIP,
        "compile": compiled,
        "tensorboard": False,
    }
    config = TrainConfig.model_validate({**settings, **batch})
    run = RunFolder(Path(tempfile.mkdtemp()))
    trainer = Trainer(model, job, config, run, seed=0, device=device, display=Display(quiet=True))

    def make_steps(steps: int) -> None:
        mark = time.monotonic()
        for _ in range(steps):
            trainer._update()
            if trainer.step % config.log_every == 0:
                mark = trainer._report(mark)

    return make_steps


def peer_steps(model: Any, loss_of: Callable[[Any], Any], batches: Any, device: Any) -> Callable[[int], None]:
    """A plain loop as short as it gets around a model that is not Legato's, with the same optimiser."""
    import torch

    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, fused=True)
    step = 0

    def make_steps(steps: int) -> None:
        nonlocal step
        for _ in range(steps):
            batch = batches.at(step)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = loss_of(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            step += 1

    return make_steps


# ── all sides ─────────────────────────────────────────────────────────────────────────────────────


def add_rounds(parser: argparse.ArgumentParser, sides: Iterable[str]) -> None:
    """The options of what is measured, and how often."""
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--warm", type=int, default=16, help="steps before the first round")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--sides", default=",".join(sides), help="which of them, with commas between")
    parser.add_argument("--seed", type=int, default=0)


def compare(
    benchmark: str, unit: str, per_step: int, sides: Mapping[str, Callable[[int], Round]], options: argparse.Namespace
) -> None:
    """Rounds of all sides in turn, and a table of their speeds; a step has `per_step` of the `unit`."""
    losses = {name: side(options.warm).loss for name, side in sides.items()}
    rounds: dict[str, list[Round]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, side in sides.items():
            rounds[name].append(side(options.steps))

    speeds: dict[str, float] = {}
    peaks: dict[str, float] = {}
    print(f"{'':18s}{unit + '/s':>12s}   {'from':>10s} to {'':10s}{'GiB':>6s}   first loss")
    for name, made in rounds.items():
        each = sorted(per_step * options.steps / one.seconds for one in made)
        speeds[name], peaks[name] = statistics.median(each), made[-1].peak
        spread = f"{each[0]:10,.0f} to {each[-1]:10,.0f}"
        print(f"{name:18s}{speeds[name]:12,.0f}   {spread}{peaks[name]:6.1f}   {losses[name]:.5f}")
    figures: dict[str, Any] = {
        f"{unit}_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "peak_gib": {name: round(peak, 2) for name, peak in peaks.items()},
        "first_loss": losses,
    }
    if "huggingface" in speeds:
        figures["over_huggingface"] = {
            name: round(speed / speeds["huggingface"], 3) for name, speed in speeds.items() if name != "huggingface"
        }
        for name, ratio in figures["over_huggingface"].items():
            print(f"{name} is {ratio:.2f} × huggingface")
    print(json.dumps({"benchmark": benchmark, **vars(options), "versions": versions(), **figures}))
    if max(losses.values()) - min(losses.values()) > 1e-2 * min(losses.values()):
        raise SystemExit("the first losses differ, so this is no comparison")
