"""Scoring without a state: every token once, each from enough of the text before it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.evaluation import lm as language
from legato.evaluation.lm import sliding_loss
from legato.models import base
from legato.models.base import SequenceModel, Sizes
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.recurrent import RecurrentConfig, RecurrentModel
from legato.nn.adapters.lora import LowRank, Part
from legato.nn.losses import vocabulary as losses
from legato.nn.losses.vocabulary import chunked_nll

V = 17


def gpt(length: int = 16) -> SequenceModel:
    torch.manual_seed(0)
    return GPT2Model(GPT2Config(layers=2, width=8, heads=2, length=length), Sizes(V)).eval()


def text(length: int) -> Tensor:
    return torch.randint(V, (length,), generator=torch.Generator().manual_seed(1))


class Echo:
    """Stands for a model whose hidden states are the tokens themselves."""

    device = torch.device("cpu")

    def __call__(self, batch: Batch) -> Any:
        return type("Out", (), {"hidden": batch.inputs.ids.unsqueeze(-1).float()})


@given(count=st.integers(2, 60), context=st.integers(1, 20), share=st.floats(0.01, 1), rows=st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_every_token_is_scored_once_with_enough_before_it(count: int, context: int, share: float, rows: int) -> None:
    stride = max(1, int(context * share))
    seen: dict[int, int] = {}

    def noted(hidden: Tensor, targets: Tensor) -> tuple[Tensor]:
        for row, first in zip(targets.tolist(), hidden[:, 0, 0].int().tolist(), strict=True):
            for target in row:
                if target != IGNORE:
                    assert target not in seen
                    seen[target] = target - first  # tokens it was predicted from
        return (torch.zeros(()),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "CHUNK", rows * context)
        echo = Echo()
        echo.nll = noted  # type: ignore[attr-defined]
        sliding_loss(echo, torch.arange(count), context, stride)  # type: ignore[arg-type]
    assert sorted(seen) == list(range(1, count))
    assert all(before >= min(token, context - stride + 1) for token, before in seen.items())


def test_a_text_that_fits_is_one_forward_pass() -> None:
    model, ids = gpt(), text(13)
    with torch.no_grad():
        expected = model.nll(model(Batch(Inputs(ids[None, :-1]))).hidden, ids[None, 1:])[0]
    assert sliding_loss(model, ids, 16, 8) == pytest.approx(float(expected))


def test_windows_side_by_side_score_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = gpt(), text(100)
    together = sliding_loss(model, ids, 16, 5)
    monkeypatch.setattr(language, "CHUNK", 1)
    assert sliding_loss(model, ids, 16, 5) == pytest.approx(together)


def test_a_stride_of_one_sees_as_much_as_can_be() -> None:
    model, ids = gpt(), text(40)
    total = 0.0
    for t in range(1, 40):
        before = ids[max(0, t - 16) : t]
        with torch.no_grad():
            total -= float(model.readout(model(Batch(Inputs(before[None]))).hidden[0, -1]).log_softmax(-1)[ids[t]])
    assert sliding_loss(model, ids, 16, 1) == pytest.approx(total, rel=1e-5)


# --- one loss for all ------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["gpt2", "lstm"])
def test_many_logits_are_scored_in_chunks_with_the_same_result(
    kind: str, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gpt().train() if kind == "gpt2" else RecurrentModel(RecurrentConfig(width=8), Sizes(V))
    hidden = torch.randn(3, 5, 8, requires_grad=True)
    targets = text(15).view(3, 5).clone()
    targets[1, 3:] = IGNORE
    parameters = [hidden, model.output.weight]
    calls = []
    monkeypatch.setattr(base, "chunked_nll", lambda *given: calls.append(1) or chunked_nll(*given, chunk=60))
    at_once = model.nll(hidden, targets, smoothing)
    assert not calls
    monkeypatch.setattr(losses, "MANY", {"cpu": 10})
    monkeypatch.setattr(losses, "MANY_FOR_KERNELS", 10)
    in_chunks = model.nll(hidden, targets, smoothing)
    assert calls
    for one, other in zip(at_once, in_chunks, strict=True):
        torch.testing.assert_close(one, other)
    expected, found = (torch.autograd.grad(loss[0], parameters) for loss in (at_once, in_chunks))
    torch.testing.assert_close(found, expected)


def test_a_model_with_a_readout_of_its_own_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(GPT2Model):
        def readout(self, hidden: Tensor) -> Tensor:
            return super().readout(hidden) * 2

    monkeypatch.setattr(losses, "MANY", {"cpu": 1})
    monkeypatch.setattr(losses, "MANY_FOR_KERNELS", 1)
    model = Own(GPT2Config(layers=1, width=8, heads=2), Sizes(V)).eval()
    hidden, targets = torch.randn(4, 8), text(4)
    expected = torch.nn.functional.cross_entropy(model.readout(hidden), targets, reduction="sum")
    torch.testing.assert_close(model.nll(hidden, targets)[0], expected)


def test_a_last_layer_that_is_more_than_a_product_is_never_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt()
    assert model.plain_output is model.output
    hidden, targets = torch.randn(3, 5, 8), text(15).view(3, 5)
    adapter = LowRank(8, model.output.out_features, [Part("head", 0, model.output.out_features)], 2, 1.0)
    with torch.no_grad():
        adapter.up[0].normal_()
    before = model.nll(hidden, targets)[0]
    model.output.low_rank = adapter  # type: ignore[assignment]
    assert model.plain_output is None
    at_once = model.nll(hidden, targets)[0]
    monkeypatch.setattr(losses, "MANY", {"cpu": 0})
    monkeypatch.setattr(losses, "MANY_FOR_KERNELS", 0)
    torch.testing.assert_close(model.nll(hidden, targets)[0], at_once)
    assert abs(float((at_once - before).detach())) > 1
    model.output.low_rank = None  # type: ignore[assignment]
    seen = model.output.register_forward_hook(lambda *_: None)
    assert model.plain_output is None
    seen.remove()
    assert model.plain_output is model.output
