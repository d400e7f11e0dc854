"""What a run shows while it goes on: a live line in a terminal, plain lines anywhere else."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from legato.data.batching.batches import TOKENS, SpeedUnit
from legato.evaluation.lm import safe_exp
from legato.training.config import TrainConfig

BAR = 12  # columns
FIRST_GAP_S, LONGEST_GAP_S = 2.0, 30.0  # between plain lines: each gap is twice the one before
LONG_RUN_S = 120.0  # whose length is said
MEASURED_S = 5.0  # of steps, from which that length follows


@dataclass
class Report:
    """The figures of the last few steps."""

    step: int
    steps: int
    loss: float
    lr: float
    norm: float
    speed: float  # tokens a second, or other positions
    memory: int  # bytes
    left: float  # seconds
    likelihood: bool = True  # whether the loss is one of tokens, so that its perplexity says something
    unit: SpeedUnit = TOKENS

    def line(self, width: int | None = None) -> str:
        """The figures in one line; beside the bar of a terminal, so many columns, without the least important."""
        digits = len(str(self.steps))
        parts = {
            "step": f"step {self.step:>{digits}}/{self.steps}",
            "loss": f"loss {self.loss:.4f}",
            "ppl": f"ppl {safe_exp(self.loss):.2f}",
            "lr": f"lr {self.lr:.2e}",
            "norm": f"norm {self.norm:.2f}",
            "speed": f"{speed_text(self.speed / self.unit.positions)} {self.unit.name}/s",
            "memory": f"{self.memory / 2**30:.2f} GiB",
            "left": f"{clock(self.left)} left",
        }
        if not self.likelihood:
            del parts["ppl"]
        if width is None:
            parts["step"] += f" ({100 * self.step // self.steps}%)"
            return "  ".join(parts.values())
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
    """Shows a run's progress on standard error; `quiet` shows warnings only, and `hear` gets what matters most.

    Where it `suggests`, its last lines are what to do with the model.
    """

    def __init__(
        self, quiet: bool = False, hear: Callable[[str], None] = lambda text: None, *, suggests: bool = True
    ) -> None:
        self.console: Console = Screen(stderr=True, soft_wrap=True, highlight=False)
        self.quiet, self.hear, self.suggests = quiet, hear, suggests
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown, self._gap = time.monotonic(), FIRST_GAP_S

    def start(self, steps: int, done: int) -> None:
        self._shown, self._gap = time.monotonic(), FIRST_GAP_S
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
        gap = "step" if validate_every == 1 else f"{validate_every:,} steps"
        every = f"validating every {gap}" if validate_every < steps else "validating at the end"
        both = config.steps is not None and config.epochs is not None
        ignored = f"; train.epochs={config.epochs:g} is ignored, for train.steps is given" if both else ""
        self.say(f"plan: {'at most ' * bool(config.patience)}{length}, {every}{ignored}")

    def is_due(self, *, soon: bool = False) -> bool:
        """Whether a report would be shown now; `soon` asks for one before a validation."""
        return not self.quiet and time.monotonic() - self._shown > (FIRST_GAP_S if soon else self._gap)

    def report(self, report: Report, *, soon: bool = False) -> None:
        if self._bar is not None and self._task is not None:
            line = report.line(self.console.width - BAR - 2)
            self._bar.update(self._task, completed=report.step, description=line)
            self._shown = time.monotonic()
        elif self.is_due(soon=soon) or (report.step == report.steps and not self.quiet):
            self._shown, self._gap = time.monotonic(), min(2 * self._gap, LONGEST_GAP_S)
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


class Forecast:
    """How long a run on a CPU takes, once its first seconds have shown it, and what would make it shorter."""

    def __init__(self, config: TrainConfig, steps: int, steps_per_epoch: int, shorter: Sequence[str] = ()) -> None:
        """`shorter` are settings that save time, beside fewer steps."""
        self.config, self.steps, self.steps_per_epoch, self.shorter = config, steps, steps_per_epoch, shorter
        self._start: tuple[int, float] | None = None  # the first step, which is no ordinary one, and its end
        self._pending = True

    def line(self, step: int, seconds: float) -> str | None:
        """What to say after that step and so many seconds of steps; None: too early, or the run is short."""
        if self._start is None:
            self._start = step, seconds
        first, start = self._start
        if not self._pending or step == first or seconds - start < MEASURED_S:
            return None
        self._pending = False
        pace = (seconds - start) / (step - first)
        remaining = pace * (self.steps - step)
        if remaining < LONG_RUN_S:
            return None
        by_epochs = self.config.steps is None and self.steps > self.steps_per_epoch
        fewer = "epochs=1" if by_epochs else f"steps={max(1, float(f'{LONG_RUN_S / pace:.1g}')):.0f}"
        ways = ", ".join([fewer, *self.shorter])
        length = f"{'at most' if self.config.patience else 'about'} {duration(remaining)}"
        return f"{length} on this CPU, without validations; shorter: {ways} or a GPU"


def duration(seconds: float) -> str:
    """About 40 seconds, 25 minutes, 3.5 hours or 2.1 days."""
    for size, unit in ((86400, "days"), (3600, "hours")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} seconds"


def speed_text(speed: float) -> str:
    """So many a second: 12,346, 48 or 0.35."""
    return f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"


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
