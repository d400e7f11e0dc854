"""What a run remembers from step to step: cuts of the rate, patience, what was finite, what was drawn."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import legato
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.batches import Streams
from legato.errors import DivergenceError
from legato.interrupts import Stopped
from legato.models.base import SequenceModel
from legato.tasks.lm.job import LanguageJob
from legato.training import loop
from legato.training.checkpoint_files import list_checkpoints
from legato.training.checkpoints import load_checkpoint
from legato.training.job import Loss
from legato.training.loop import Trainer
from tiny_runs import read_metrics, small, weights_digest

FALLING_THEN_NOT = (5.0, 6.0, 6.0, 4.0, 4.5, 4.5, 4.5, 4.5)  # of steps 2, 4, 6 …

Script = Callable[..., None]


def train(folder: Path, name: str = "run", **changes: Any) -> Path:
    """A small run in `folder`/`name`."""
    return legato.train("lm", small(folder, **changes), out=folder / name, quiet=True).run


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Lets a test say what each validation finds; with `resumed`, those before it are already made."""

    def script(losses: Sequence[float], resumed: int = 0) -> None:
        left = iter(losses[resumed:])
        monkeypatch.setattr(LanguageJob, "validate", lambda self, model: {"loss": next(left)})

    return script


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch, scores: Script) -> Callable[..., Path]:
    """A run that is stopped after a step, in the middle of two validations, and taken up again."""

    def make(folder: Path, step: int, losses: Sequence[float], **changes: Any) -> Path:
        update = Trainer._update

        def stopping(self: Trainer) -> None:
            update(self)
            if self.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        scores(losses)
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "_update", stopping)
            with pytest.raises(Stopped):
                train(folder, "interrupted", **changes)
        scores(losses, resumed=step // changes["train__validate_every"])
        legato.train(resume=folder / "interrupted", quiet=True)
        return folder / "interrupted"

    return make


def rates(run: Path) -> dict[int, float]:
    return {line["step"]: line["lr"] for line in read_metrics(run) if line["kind"] == "train"}


# ── what a resumed run still knows ────────────────────────────────────────────────────────────────


# Two validations without gain cut the rate. Stopped after 7 steps, the run has had one cut; after 5, it has
# counted one of the two.
@pytest.mark.parametrize(("stop", "cut"), [(7, True), (5, False)])
def test_a_resumed_run_keeps_the_cuts_of_its_rate_and_the_count_towards_the_next(
    stop: int, cut: bool, tmp_path: Path, scores: Script, interrupted: Callable[..., Path]
) -> None:
    plateau = {
        "train__schedule": "plateau",
        "train__plateau_patience": 1,
        "train__plateau_factor": 0.1,
        "train__validate_every": 2,
        "train__steps": 10,
    }
    scores(FALLING_THEN_NOT)
    whole = train(tmp_path, "whole", **plateau)
    before, first, after = (rates(whole)[step] for step in (1, 6, 7))
    assert before == first == pytest.approx(10 * after)
    assert (rates(whole)[stop] < before) == cut
    resumed = interrupted(tmp_path, stop, FALLING_THEN_NOT, **plateau)
    assert rates(resumed) == rates(whole)
    assert weights_digest(resumed) == weights_digest(whole)


@pytest.mark.slow
def test_patience_goes_on_counting_after_an_interruption(
    tmp_path: Path, scores: Script, interrupted: Callable[..., Path]
) -> None:
    impatient = {"train__patience": 3, "train__validate_every": 2, "train__steps": 16}
    scores(FALLING_THEN_NOT)
    whole = train(tmp_path, "whole", **impatient)
    resumed = interrupted(tmp_path, 11, FALLING_THEN_NOT, **impatient)  # one validation without gain has been
    steps = [json.loads((run / "result.json").read_text())["steps"] for run in (whole, resumed)]
    assert steps == [14, 14]


@pytest.mark.parametrize(
    ("losses", "bad"),
    [
        ((5.0, 6.0, 6.0, 4.0), [0, 1, 2, 0]),
        ((5.0, 6.0, 4.0, 4.0), [0, 1, 0, 1]),  # the same again is no gain
        ((5.0, math.nan, 4.0, 4.5), [0, 1, 0, 1]),
    ],
)
def test_a_gain_makes_patience_begin_anew(
    losses: tuple[float, ...], bad: list[int], tmp_path: Path, scores: Script
) -> None:
    scores(losses)
    run = train(tmp_path, train__steps=4, train__validate_every=1, train__keep=9)
    kept = [load_checkpoint(place).progress["progress"] for place in list_checkpoints(run / "checkpoints")]
    assert [progress["bad"] for progress in kept[1:]] == bad


# ── what a checkpoint never holds ─────────────────────────────────────────────────────────────────


def test_a_checkpoint_between_two_reports_is_not_written_after_a_bad_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(self: LanguageJob, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        # Only what is reported: the weights stay finite, so nothing but the loss can give it away.
        found = right(self, model, batch, state)
        now.append(None)
        return Loss(found.total, found.reported * math.nan if len(now) == 3 else found.reported, found.state)

    right, now = LanguageJob.loss, list[None]()
    monkeypatch.setattr(LanguageJob, "loss", spoil)
    rhythm = {"train__log_every": 50, "train__validate_every": 50, "train__checkpoint_every": 2, "train__keep": 99}
    with pytest.raises(DivergenceError, match="the loss is nan at step 3"):
        train(tmp_path, train__steps=20, **rhythm)
    assert [place.name for place in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-0", "step-2"]


# ── what differs from step to step ────────────────────────────────────────────────────────────────


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loss of every part of every step, as it comes."""
    seen: list[float] = []
    right = LanguageJob.loss

    def noted(self: LanguageJob, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        found = right(self, model, batch, state)
        seen.append(found.reported.item())
        return found

    monkeypatch.setattr(LanguageJob, "loss", noted)
    return seen


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_differs_from_step_to_step_and_part_to_part(
    dropout: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[float]
) -> None:
    at = Streams.at

    def same_row(self: Streams, step: int) -> Batch:
        first = at(self, 0)
        assert first.targets is not None
        return Batch(
            Inputs(first.inputs.token_ids[:1].expand(self.shape.rows, -1)),
            first.targets[:1].expand(self.shape.rows, -1),
            tokens=first.tokens,
        )

    monkeypatch.setattr(Streams, "at", same_row)
    # So small a rate leaves the weights, and with them the loss, as they are but for rounding.
    still = {"train__optimizer": "sgd", "train__lr": 1e-30, "train__accumulate": 2, "train__steps": 6}
    train(tmp_path, model__dropout=dropout, **still)
    assert len(losses) == 12
    assert len(set(losses)) == (12 if dropout else 1)


@pytest.mark.slow
def test_every_step_and_part_draws_with_a_seed_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(loop, "seed_generators", lambda device, seed: seeds.append(seed))
    for seed in (0, 1):
        train(tmp_path, str(seed), seed=seed, train__accumulate=4)
    assert len(seeds) == len(set(seeds)) == 2 * 12 * 4


# ── what a stream carries ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["lstm", "window"])
@pytest.mark.parametrize(("forget", "carried"), [(0.0, True), (1 - 1e-12, False)])
def test_forgetting_decides_whether_the_loss_knows_the_window_before(
    forget: float, carried: bool, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs: list[tuple[Tensor, Tensor]] = []
    right = LanguageJob.loss

    def compared(self: LanguageJob, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        found = right(self, model, batch, state)
        if not batch.reset_all:
            assert state is not None
            pairs.append((found.reported.detach(), right(self, model, batch, None).reported.detach()))
        return found

    monkeypatch.setattr(LanguageJob, "loss", compared)
    train(tmp_path, model=model, model__dropout=0, data__forget=forget, train__steps=6)
    assert len(pairs) == 5
    for reported, fresh in pairs:
        assert torch.isclose(reported, fresh, rtol=1e-6) != carried
