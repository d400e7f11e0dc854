"""Texts and runs small enough for a test, and processes that can be killed.

Processes come from a fork server that has imported PyTorch already, so that starting one takes
milliseconds. Each is a real process of its own: it can be killed, and it shares nothing with the test.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "more", "dog", "run", "by", "rain")

SMALL = {
    "model": "lstm",
    "model.width": 16,
    "model.layers": 1,
    "tokenizer": "char",
    "data.window": 16,
    "train.batch_tokens": 128,
    "train.steps": 12,
    "train.validate_every": 4,
    "train.log_every": 1,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
}


def write_text(path: Path, lines: int = 60, seed: int = 0) -> Path:
    """A file of `lines` lines of seven words."""
    draw = random.Random(seed)
    path.write_text("".join(" ".join(draw.choices(WORDS, k=7)) + "\n" for _ in range(lines)))
    return path


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a run that takes a fraction of a second, on texts in `folder`; `train__lr` is train.lr."""
    train, valid = folder / "train.txt", folder / "valid.txt"
    if not train.exists():
        write_text(train, seed=1)
        write_text(valid, lines=12, seed=2)
    texts = {"data.train": str(train), "data.valid": str(valid)}
    return {**texts, **SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}


def words(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line takes them."""
    return [f"{key}={value}" for key, value in settings.items()]


def weights_digest(run: Path) -> dict[str, str]:
    """The hash of each model that a run wrote."""
    return {
        name: hashlib.sha256((run / name / "model.safetensors").read_bytes()).hexdigest() for name in ("best", "last")
    }


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl, as far as it has been written."""
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file under `folder` with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start(arguments: list[str], log: Path, prepare: Callable[..., None] | None = None, *more: Any) -> BaseProcess:
    """`legato ARGUMENTS` in a process of its own; `prepare(*more)` is called in it first."""
    return fork(_inside, arguments, str(log), os.environ["LEGATO_CACHE"], prepare, more)


def fork(target: Callable[..., None], *args: Any) -> BaseProcess:
    """`target(*args)` in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "legato.cli",
            "legato.model",
            "legato.runs.train",
            "legato.training.loop",
            "legato.tasks.lm.task",
            "torch._dynamo",
        ]
    )
    process = context.Process(target=target, args=args)
    process.start()
    return process


def finish(process: BaseProcess, limit: float = 60) -> int:
    """Wait for a process; its exit code, negative for the signal that ended it."""
    process.join(limit)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"the process was still running after {limit} s")
    return process.exitcode


def wait_for(condition: Callable[[], Any], process: BaseProcess, limit: float = 60) -> None:
    """Wait until `condition` holds, or the process has ended."""
    end = time.monotonic() + limit
    while not condition() and process.is_alive():
        assert time.monotonic() < end, "what the test waits for never came"
        time.sleep(0.002)


def hurry() -> None:
    """Leave out what takes time and makes no difference between processes on one machine; for one of many runs."""
    import torch

    from legato.runs import provenance

    torch.set_num_threads(1)
    os.fsync = lambda handle: None  # type: ignore[assignment]  # a kill, unlike a power cut, loses no written page
    provenance._commit = lambda: None


def command(arguments: list[str], log: Path) -> int:
    """`legato ARGUMENTS` in this process; its exit code, and what it said in `log`."""
    from legato.cli import main

    before = sys.stdout, sys.stderr
    with log.open("a", buffering=1) as said:
        sys.stdout = sys.stderr = said
        sys.argv = ["legato", *arguments]
        try:
            main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 0
        finally:
            sys.stdout, sys.stderr = before
    return 0


def _inside(
    arguments: list[str], log: str, cache: str, prepare: Callable[..., None] | None, more: tuple[Any, ...]
) -> None:
    import torch

    from legato.cli import main

    torch.set_num_threads(1)
    os.environ["LEGATO_CACHE"] = cache
    sys.stdout = sys.stderr = open(log, "a", buffering=1)  # noqa: SIM115
    sys.argv = ["legato", *arguments]
    if prepare is not None:
        prepare(*more)
    main()
