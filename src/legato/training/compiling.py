"""Compiling the model (`train.compile`): at once, never, or when the run is long enough to earn it back.

    steps left · seconds a step · share saved  >  seconds that compiling takes

`auto` measures the seconds a step after some steps, replayed as a CUDA graph where they can be. What compiling takes,
and what it saves, are guesses from GPT-2 on an H200 (`benchmarks/train_gpt.py`). It is for Transformers on a GPU
whose batches have one shape: recurrent layers have kernels of their own, each new shape is compiled anew, and a CPU
gains little. What cannot be compiled is trained as it is, and that is said once.

While a model is scored or writes it is not the compiled one: its texts have many shapes.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Literal

import torch

from legato.errors import LegatoError, brief
from legato.models.base import SequenceModel
from legato.nn.losses.vocabulary import compile_loss
from legato.nn.transformer import Block
from legato.training.display import Display, clock

MEASURED: Final = range(4, 7)  # the updates that are timed: those before are ordinary steps, and recording one
SAVED: Final = 0.2  # share of a step's time
ONCE: Final = 20.0  # seconds of compiling anything …
BLOCK: Final = 3.0  # … and for each block, forward and backward
MARGIN: Final = 1.5  # so many times as much must be saved

Choice = Literal["auto", True, False]


def missing_compiler(device: torch.device) -> str | None:
    """What `torch.compile` lacks here; None: nothing."""
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        if torch.cuda.get_device_capability(device) < (7, 0):
            return "the GPU is too old for Triton"
    if not any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        return "there is no C compiler"
    return None


class Compilation:
    """Whether `model` is compiled, and when that happens."""

    def __init__(self, choice: Choice, model: SequenceModel, device: torch.device, display: Display) -> None:
        self.model, self.device, self.display = model, device, display
        self.blocks = sum(isinstance(module, Block) for module in model.modules())
        self.on = False
        self._waits = choice == "auto" and device.type == "cuda" and self.blocks > 0
        self._begun: float | None = None  # when the step began that is compiled
        self._updates, self._seconds, self._entered = 0, 0.0, 0.0
        if choice is True:
            self._compile()

    def _compile(self) -> None:
        self.on = True
        self.model.compile()
        compile_loss()

    @property
    def seconds(self) -> float:
        """What it would take."""
        return ONCE + BLOCK * self.blocks

    # ── steps ─────────────────────────────────────────────────────────────────────────────────

    def enter(self) -> None:
        """An update begins."""
        if self.on and self._begun is None:
            self.display.say("compiling the model, for which a step waits …")
            self._begun = time.monotonic()
        elif self._waits:
            if self._updates == MEASURED.start:
                torch.cuda.synchronize(self.device)
            self._entered = time.monotonic()

    def leave(self, left: int, one_shape: Callable[[], bool]) -> bool:
        """An update has ended, and so many are `left`; whether the model is compiled from now on."""
        if self.on and self._updates == 0:
            assert self._begun is not None
            self.display.say(f"compiled: the step took {time.monotonic() - self._begun:.0f} seconds")
        decides = False
        if self._waits and self._updates in MEASURED:
            decides = self._updates == MEASURED.stop - 1
            if decides:
                torch.cuda.synchronize(self.device)
            self._seconds += time.monotonic() - self._entered
        self._updates += 1
        if not decides:
            return False
        self._waits = False
        return one_shape() and self._decide(left * self._seconds / len(MEASURED))

    def _decide(self, remaining: float) -> bool:
        """Compile where that pays, of so many seconds to come."""
        saved = SAVED * remaining
        if saved < MARGIN * self.seconds:
            return False
        lacking = missing_compiler(self.device)
        if lacking is not None:
            self.display.say(f"the model is not compiled, which could save {clock(saved)}: {lacking}")
            return False
        self.display.say(
            f"compiling the model takes about {clock(self.seconds)} and should save {clock(saved)} of the "
            f"{clock(remaining)} left …"
        )
        self._begun = time.monotonic()
        self._updates = 0
        self._compile()
        return True

    def refuse(self, problem: Exception) -> bool:
        """Go on without, where compiling may be what failed; False: it cannot have been."""
        if not self.on or isinstance(problem, LegatoError | torch.OutOfMemoryError):
            return False
        self.on = self._waits = False
        self.model._compiled_call_impl = None
        compile_loss(False)
        self.display.warn(f"the model is not compiled, for that failed: {brief(str(problem).strip(), 200)}")
        return True

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, the model is the one that was not compiled."""
        kept = self.model._compiled_call_impl
        self.model._compiled_call_impl = None
        try:
            yield
        finally:
            self.model._compiled_call_impl = kept
