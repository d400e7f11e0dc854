"""Clipping and AdamW's step on a CPU beside PyTorch's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from legato.nn.kernels.library import training_library
from legato.training import update
from legato.training.update import clip_and_step

needs_library = pytest.mark.skipif(training_library() is None, reason="there is no compiler")
SHAPES = ((1,), (7,), (3, 5), (70, 1000), (64,))


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in SHAPES]


def adamw(given: list[nn.Parameter]) -> torch.optim.AdamW:
    groups = [{"params": given[:3], "weight_decay": 0.1}, {"params": given[3:], "weight_decay": 0.0, "lr": 0.02}]
    return torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.99), eps=1e-8, fused=True)


def draw_gradients(given: list[nn.Parameter], step: int) -> None:
    torch.manual_seed(step)
    for number, parameter in enumerate(given):
        parameter.grad = None if number == step else torch.randn_like(parameter)  # one is left out at each step


def steps(limit: float, count: int = 4) -> tuple[list[nn.Parameter], torch.optim.AdamW, list[Tensor]]:
    given = parameters()
    optimizer, norms = adamw(given), []
    for step in range(count):
        draw_gradients(given, step)
        norms.append(clip_and_step(optimizer, given, limit))
    return given, optimizer, norms


@needs_library
@pytest.mark.parametrize("limit", [0.5, math.inf])
def test_steps_are_pytorchs(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, ours, norms = steps(limit)
    monkeypatch.setattr(update, "_is_ours", lambda *_: False)
    others, theirs, expected = steps(limit)
    torch.testing.assert_close(torch.stack(norms), torch.stack(expected), rtol=1e-5, atol=0)
    for one, other in zip(mine, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        for slot in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(ours.state[one][slot], theirs.state[other][slot], rtol=1e-4, atol=1e-7)


@needs_library
def test_the_number_of_threads_changes_no_bit() -> None:
    before, made = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            given, _, norms = steps(0.5)
            made.append([*given, *norms])
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))


@needs_library
def test_gradients_stay_and_what_is_not_finite_shows() -> None:
    given = parameters()
    optimizer = adamw(given)
    draw_gradients(given, 1)
    kept = [None if p.grad is None else p.grad.clone() for p in given]
    clip_and_step(optimizer, given, 0.1)
    for parameter, other in zip(given, kept, strict=True):
        assert parameter.grad is None or (other is not None and torch.equal(parameter.grad, other))
    given[0].grad = torch.tensor([math.nan])
    assert clip_and_step(optimizer, given, 0.1).isnan()
    assert given[3].isnan().all()


def test_others_have_pytorchs_step() -> None:
    def ours(optimizer: torch.optim.Optimizer, given: list[nn.Parameter]) -> bool:
        draw_gradients(given, len(given))
        return update._is_ours(optimizer, given)

    given = parameters()
    assert ours(adamw(given), given) == (training_library() is not None)
    assert not ours(torch.optim.SGD(given, lr=0.1), given)
    assert not ours(torch.optim.AdamW(given, amsgrad=True), given)
    restored = adamw(given)
    for parameter in given:
        means = {name: torch.zeros_like(parameter, dtype=torch.float64) for name in ("exp_avg", "exp_avg_sq")}
        restored.state[parameter] = {"step": torch.zeros(()), **means}  # as a checkpoint of somebody's may have them
    assert not ours(restored, given)
    half = [nn.Parameter(p.detach().bfloat16()) for p in given]
    assert not ours(torch.optim.AdamW(half), half)
    turned = [nn.Parameter(torch.randn(3, 4).t())]
    assert not ours(torch.optim.AdamW(turned), turned)
