"""What a run shows while it goes on: a live line in a terminal, plain lines anywhere else."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from legato.evaluation.lm import safe_exp
from legato.training.config import TrainConfig

BAR = 12  # columns


@dataclass
class Report:
    """The figures of the last few steps."""

    step: int
    steps: int
    loss: float
    lr: float
    norm: float
    speed: float  # tokens a second
    memory: int  # bytes
    left: float  # seconds
    likelihood: bool = True  # whether the loss is one of tokens, so that its perplexity says something

    def line(self, width: int = 1000) -> str:
        """The figures in one line; in a narrow terminal the less important ones are left out."""
        digits = len(str(self.steps))
        parts = {
            "step": f"step {self.step:>{digits}}/{self.steps}",
            "loss": f"loss {self.loss:.4f}",
            "ppl": f"ppl {safe_exp(self.loss):.2f}",
            "lr": f"lr {self.lr:.2e}",
            "norm": f"norm {self.norm:.2f}",
            "speed": f"{self.speed:,.0f} tok/s",
            "memory": f"{self.memory / 2**30:.2f} GiB",
            "left": f"{clock(self.left)} left",
        }
        if not self.likelihood:
            del parts["ppl"]
        for least in ("norm", "lr", "memory", "ppl"):
            if least in parts and len("  ".join(parts.values())) > width:
                del parts[least]
        return "  ".join(parts.values())


class Screen(Console):
    """A console that falls silent once nobody reads it, as after `2>&1 | head`: a run goes on unwatched.

    So it does where the terminal has gone, until the signal of that has made it save its work.
    """

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # nobody else shall fail on it: warnings, the last line


class Display:
    """Shows a run's progress on standard error; `quiet` shows warnings only, and `hear` gets what matters most."""

    def __init__(self, quiet: bool = False, hear: Callable[[str], None] = lambda text: None) -> None:
        self.console: Console = Screen(stderr=True, soft_wrap=True, highlight=False)
        self.quiet, self.hear = quiet, hear
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown = 0.0

    def start(self, steps: int, done: int) -> None:
        if self.quiet or not self.console.is_terminal:
            return
        self._bar = Progress(
            BarColumn(bar_width=BAR), TextColumn("{task.description}"), console=self.console, transient=True
        )
        self._task = self._bar.add_task("starting", total=steps, completed=done)
        self._bar.start()

    def plan(self, config: TrainConfig, steps: int, per_epoch: int, validate_every: int) -> None:
        """Say how long the run will be."""
        epochs = steps / per_epoch
        passes = f"{epochs:,.1f}".removesuffix(".0") if epochs >= 1 else f"{epochs:.2g}"
        length = f"{steps:,} step{'s' * (steps > 1)}, {passes} epoch{'s' * (passes != '1')}"
        every = f"validating every {validate_every:,}" if validate_every < steps else "validating at the end"
        both = config.steps is not None and config.epochs is not None
        ignored = f"; train.epochs={config.epochs:g} is ignored, for train.steps is given" if both else ""
        self.say(f"plan: {'at most ' * bool(config.patience)}{length}, {every}{ignored}")

    def report(self, report: Report) -> None:
        if self._bar is not None and self._task is not None:
            line = report.line(self.console.width - BAR - 2)
            self._bar.update(self._task, completed=report.step, description=line)
        elif not self.quiet and (time.monotonic() - self._shown > 2 or report.step == report.steps):
            self._shown = time.monotonic()
            self.say(report.line())

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self.console.print(text, markup=False, emoji=False)

    def tell(self, text: str) -> None:
        """A line that stays, and that somebody who shows a run in their own way wants, too."""
        self.hear(text) if self.quiet else self.say(text)

    def warn(self, text: str) -> None:
        """A line that stays, quiet or not."""
        self.console.print("[yellow]warning:[/yellow]", end=" ")
        self.console.print(text, markup=False, emoji=False)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def clock(seconds: float) -> str:
    """0:42, 12:05 or 3:07:00."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
    return f"{whole // 60}:{whole % 60:02d}"


def memory_used(device: torch.device) -> int:
    """Bytes this process holds at most: the GPU's where there is one, else resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
