"""Learning-rate schedules: a share of `train.lr` for each step.

All but `plateau` are functions of the step alone; `plateau` also remembers how often the validation
loss has stopped falling. Warm-up multiplies any of them by a line from 0 to 1.

A run that is made longer takes the schedule of its new length from where it stands, so that what it does is a
function of its settings and the step still, and it resumes to the same bits. Where `cosine` or `linear` had come
down, or a warm-up's share of the steps grows, the rate jumps: there is no going on from the rate that was left, which
may be zero. `lengthened` says so, with both rates.
"""

from __future__ import annotations

import math

from legato.training.config import TrainConfig


class Schedule:
    """The learning rate at each step, `lr(step)`, the first step being 0."""

    def __init__(self, config: TrainConfig, steps: int) -> None:
        self.config, self.steps = config, steps
        if config.warmup is None:
            self.warmup = min(1000, steps // 10)
        else:  # so many steps, or that share of all
            share = 0 < config.warmup < 1
            self.warmup = round(config.warmup * steps) if share else int(config.warmup)
        self.cut = 1.0  # plateau: the product of the cuts so far
        self.bad = 0  # plateau: validations since the last gain

    def lr(self, step: int) -> float:
        config = self.config
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        return config.rate * warm * self._share(step)

    def _share(self, step: int) -> float:
        config = self.config
        if config.schedule == "plateau":
            return self.cut
        if config.schedule == "inverse-sqrt":
            # Peaks at lr when warm-up ends, as in "Attention Is All You Need", section 5.3.
            return math.sqrt(max(self.warmup, 1) / max(step + 1, self.warmup, 1))
        if config.schedule == "constant":
            return 1.0
        done = min(1.0, max(0, step - self.warmup) / max(1, self.steps - self.warmup))
        falling = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return config.lr_final + (1 - config.lr_final) * falling

    def validated(self, improved: bool) -> None:
        """Tell the plateau schedule how a validation went."""
        self.bad = 0 if improved else self.bad + 1
        if self.config.schedule == "plateau" and self.bad > self.config.plateau_patience:
            self.cut *= self.config.plateau_factor
            self.bad = 0


def resolve_steps(config: TrainConfig, steps_per_epoch: int) -> int:
    """The steps of a run."""
    if config.steps is not None:
        return config.steps
    return max(1, config.min_steps, math.ceil((config.epochs or 10) * steps_per_epoch))


def resolve_validate_every(config: TrainConfig, steps: int, steps_per_epoch: int) -> int:
    """The steps between validations of a run of so many steps."""
    if config.validate_every is not None:
        return config.validate_every
    often = max(steps_per_epoch, math.ceil(config.min_steps / 20))  # of small data, several passes
    return max(1, min(often, math.ceil(steps / 4)))


def lengthened(before: Schedule, after: Schedule, step: int) -> str | None:
    """What to say of the learning rate where a run of another length goes on at `step`; None where it stays."""
    if math.isclose(before.lr(step), after.lr(step), rel_tol=0.01):
        return None
    return (
        f"the learning rate goes from {before.lr(max(step - 1, 0)):.3g} to {after.lr(step):.3g} here, for "
        f"train.schedule={after.config.schedule} now ends at step {after.steps:,}, not at {before.steps:,}"
    )
