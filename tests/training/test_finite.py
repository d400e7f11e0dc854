"""A loss or gradient that is not finite is found, dated and traced to where it began."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import legato
from legato.data.batching.batches import Streams
from legato.errors import DivergenceError
from legato.nn.recurrent import Layer
from legato.training.checkpoints import newest_good
from legato.training.divergence import NotFinite, Watch, first_bad_module
from tiny_runs import read_metrics, small


def seen(*steps: tuple[float, float]) -> Watch:
    """A watch that has seen these losses and norms, each of two tokens."""
    watch = Watch()
    for step, (loss, norm) in enumerate(steps):
        watch.see(step, torch.tensor(loss), torch.tensor(norm), 2)
    return watch


def test_a_watch_gives_the_mean_loss_of_a_token_and_the_last_norm() -> None:
    assert seen((2.0, 0.5), (4.0, 0.25)).read() == (1.5, 0.25)


def test_a_reading_starts_the_mean_afresh() -> None:
    watch = seen((2.0, 0.5))
    watch.read()
    watch.see(1, torch.tensor(8.0), torch.tensor(1.0), 2)
    assert watch.read() == (4.0, 1.0)


def test_a_check_between_readings_loses_nothing() -> None:
    watch = seen((2.0, 0.5), (4.0, 0.25))
    watch.check()
    watch.see(2, torch.tensor(6.0), torch.tensor(0.125), 2)
    assert watch.read() == (2.0, 0.125)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_loss_is_named_with_its_step(bad: float) -> None:
    with pytest.raises(NotFinite, match=f"the loss is {bad} at step 1"):
        seen((1.0, 1.0), (bad, 1.0), (math.nan, math.nan)).check()


def test_a_bad_gradient_is_named_with_its_step() -> None:
    with pytest.raises(NotFinite, match="the gradient's norm is inf at step 0"):
        seen((1.0, math.inf)).check()


def test_an_empty_watch_has_nothing_to_say() -> None:
    assert Watch().read() == (0.0, 0.0)


class RootOfZero(nn.Module):
    """Finite on the way forward; on the way back 0 · ∞ is not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(x * 0)


class Spoilt(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * math.nan


def first_bad(model: nn.Module) -> str:
    return first_bad_module(model, lambda: model(torch.ones(2, 3)).sum().backward())


def test_the_first_module_whose_output_is_bad_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), Spoilt()), nn.Linear(3, 3))
    assert first_bad(model) == "first in the output of '1.1'"


def test_a_gradient_that_is_bad_where_outputs_are_good_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), RootOfZero())
    assert first_bad(model) == "first in the gradient of '1.weight'"


def test_weights_that_are_bad_already_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    nn.init.constant_(model[1].bias, math.inf)
    assert first_bad(model) == "the weights '1.bias' were so already"


def test_looking_leaves_no_hook_behind() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Spoilt())
    first_bad(model)
    assert not any(module._forward_hooks for module in model.modules())


# ── in a run ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def nan_in_the_eighth_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second layer of every recurrent model gives NaN for batch 7, that of the eighth step, and for no other."""
    now = -1
    at, forward = Streams.at, Layer.forward

    def note(self: Streams, step: int) -> Any:
        nonlocal now
        now = step
        return at(self, step)

    def spoil(self: Layer, x: Tensor, *rest: Any) -> Any:
        y, state = forward(self, x, *rest)
        second = self.cell.weight_ih.shape[1] == 24  # the first layer reads the embedding, of 16
        return (y * math.nan if self.training and second and now == 7 else y), state

    monkeypatch.setattr(Streams, "at", note)
    monkeypatch.setattr(Layer, "forward", spoil)


def two_layers(folder: Path, **changes: Any) -> dict[str, Any]:
    shape = {"model__layers": 2, "model__width": 24, "model__embedding": 16, "train__steps": 30}
    rhythm = {"train__validate_every": 20, "train__checkpoint_every": 5, "train__log_every": 10}
    return small(folder, **{**shape, **rhythm, **changes})


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.usefixtures("nan_in_the_eighth_step")
def test_a_planted_nan_is_named_with_its_step_and_module(dropout: float, tmp_path: Path) -> None:
    with pytest.raises(DivergenceError) as found:
        legato.train("lm", two_layers(tmp_path, model__dropout=dropout), out=tmp_path / "run", quiet=True)
    assert "the loss is nan at step 8, first in the output of 'stack.layers.1.0'" in str(found.value)
    assert "the last good checkpoint is step 5" in str(found.value)


@pytest.mark.usefixtures("nan_in_the_eighth_step")
def test_the_last_good_checkpoint_is_still_there(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError):
        legato.train("lm", two_layers(tmp_path), out=tmp_path / "run", quiet=True)
    good = newest_good(tmp_path / "run" / "checkpoints", print)
    assert good.step == 5
    assert all(torch.isfinite(weight).all() for weight in good.weights.values())


@pytest.mark.usefixtures("nan_in_the_eighth_step")
def test_no_bad_figure_reaches_the_metrics(tmp_path: Path) -> None:
    settings = two_layers(tmp_path, train__log_every=1)
    with pytest.raises(DivergenceError):
        legato.train("lm", settings, out=tmp_path / "run", quiet=True)
    lines = read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert all(math.isfinite(line["loss"]) for line in lines)


@pytest.mark.usefixtures("nan_in_the_eighth_step")
def test_a_run_goes_on_from_its_last_good_checkpoint_once_the_cause_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DivergenceError):
        legato.train("lm", two_layers(tmp_path), out=tmp_path / "run", quiet=True)
    monkeypatch.undo()
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path / "legato-cache"))
    assert legato.train(resume=tmp_path / "run", quiet=True).steps == 30


@pytest.mark.usefixtures("nan_in_the_eighth_step")
def test_a_bad_step_is_explained_from_the_very_start_with_adam(tmp_path: Path) -> None:
    settings = two_layers(tmp_path, train__checkpoint_every=1000, train__validate_every=1000)
    with pytest.raises(DivergenceError, match=r"at step 8, first in the output of 'stack\.layers\.1\.0'"):
        legato.train("lm", settings, out=tmp_path / "run", quiet=True)
