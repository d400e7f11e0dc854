"""One head worked through: its queries and keys make the weights that the model itself computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from read_reports import array
from tiny_models import HEADS

from legato.inspect.heads import head_measures
from legato.inspect.report import trace_views
from legato.inspect.report.page import Report
from legato.inspect.report.trace_views import attention_view, head_view
from legato.inspect.trace import Trace
from legato.model import Model
from legato.nn.multihead import SelfAttention

TEXT = "the dog runs and the cat sleeps and the dog eats"
TRAINING_TEXT = f"{TEXT}\n" * 40
CAUSAL = ("gpt2", "llama")
RUNS: dict[str, dict[str, Any]] = {
    "gpt2": {"task": "lm", "model": "gpt2", "model.layers": 2, **HEADS},
    "llama": {"task": "lm", "model": "llama", "model.layers": 2, "model.heads": 4, "model.kv_heads": 2},
    "bert": {"task": "mlm", "model": "bert", "model.layers": 2, **HEADS},
    "lstm": {"task": "lm", "model": "lstm", "model.layers": 1},
    "transformer": {"task": "translation", "model": "transformer", "model.layers": 1, **HEADS},
}


@contextmanager
def sharpened(model: Model) -> Iterator[None]:
    """Weights after two steps are all alike: larger queries and keys make them differ."""
    layers = [part for part in model.module.modules() if isinstance(part, SelfAttention)]
    with torch.no_grad():
        before = [layer.qkv.weight.clone() for layer in layers]
        for number, layer in enumerate(layers):
            layer.qkv.weight.add_(
                torch.randn(layer.qkv.weight.shape, generator=torch.Generator().manual_seed(number))
            )
        yield
        for layer, weight in zip(layers, before, strict=True):
            layer.qkv.weight.copy_(weight)


def worked(trace: Trace) -> tuple[Report, list[dict[str, Any]]]:
    report = Report.of_trace(trace, "")
    view = head_view(report, trace, attention_view(report, trace))
    assert view is not None
    return report, view["heads"]


def softmax(scores: Any, *, causal: bool) -> Any:
    if causal:
        scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_queries_and_keys_make_the_models_own_weights(models: dict[str, Model], name: str) -> None:
    with sharpened(models[name]):
        trace = models[name].trace(TEXT)
    report, heads = worked(trace)
    assert {(each["name"], each["head"]) for each in heads} == {
        (each.name, each.head) for each in head_measures(trace)
    }  # of a small input there is room for all
    for each in heads:
        queries, keys, values = (array(report, each[part]) for part in ("queries", "keys", "values"))
        made = softmax(queries @ keys.T / math.sqrt(queries.shape[1]), causal=name in CAUSAL)
        own = trace[each["name"]].values[each["head"]]
        assert np.ptp(own) > 0.5
        np.testing.assert_allclose(made, own, atol=0.01)
        np.testing.assert_allclose(
            values, trace[each["name"].replace("weights", "values")].values[each["head"]], rtol=1e-3
        )


def test_the_sum_of_values_is_what_the_layer_hands_on(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    seen: list[torch.Tensor] = []
    layer = next(part for part in model.module.modules() if isinstance(part, SelfAttention))
    hook = layer.output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with sharpened(model):
        report, heads = worked(trace := model.trace(TEXT))
    hook.remove()
    first = sorted(
        (each for each in heads if each["name"] == "decoder.0.attention.weights"), key=lambda each: each["head"]
    )
    sums = [trace[each["name"]].values[each["head"]] @ array(report, each["values"]) for each in first]
    np.testing.assert_allclose(np.concatenate(sums, axis=1), seen[0][0].numpy(), atol=5e-3)


def test_heads_that_share_keys_have_the_same(models: dict[str, Model]) -> None:
    report, heads = worked(models["llama"].trace(TEXT))
    keys = {each["head"]: array(report, each["keys"]) for each in heads if each["name"].startswith("decoder.0.")}
    np.testing.assert_array_equal(keys[0], keys[1])
    np.testing.assert_array_equal(keys[2], keys[3])
    assert np.abs(keys[0] - keys[2]).max() > 0


def test_of_a_trace_of_some_heads_those_are_shown(models: dict[str, Model]) -> None:
    with sharpened(models["gpt2"]):
        trace = models["gpt2"].trace(TEXT, heads=[1], layers=[1])
    report, (only,) = worked(trace)
    assert (only["name"], only["head"]) == ("decoder.1.attention.weights", 0)
    queries, keys = (array(report, only[part]) for part in ("queries", "keys"))
    made = softmax(queries @ keys.T / math.sqrt(queries.shape[1]), causal=True)
    np.testing.assert_allclose(made, trace[only["name"]].values[0], atol=0.01)


def test_where_there_is_no_room_the_heads_that_do_most_come_first(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sharpened(models["gpt2"]):
        trace = models["gpt2"].trace(TEXT)
    one = 3 * trace["decoder.0.attention.queries"].values[0].size
    monkeypatch.setattr(trace_views, "MOST_HEADS", 2 * one)
    report, heads = worked(trace)
    assert len(heads) == 2
    measures = [each for each in head_measures(trace) if each.induction is not None]
    best = max(measures, key=lambda each: each.induction or 0)
    assert (heads[0]["name"], heads[0]["head"]) == (best.name, best.head)
    kept = [report.arrays[each[part]] for each in heads for part in ("queries", "keys", "values")]
    assert sum(math.prod(each.shape) for each in kept) <= 2 * one


def test_only_attention_whose_queries_were_seen_is_worked_through(models: dict[str, Model]) -> None:
    trace = models["lstm"].trace(TEXT)
    report = Report.of_trace(trace, "")
    assert attention_view(report, trace) is None
    assert head_view(report, trace, None) is None
    _, heads = worked(models["transformer"].trace("a b"))
    assert heads
    assert not [each["name"] for each in heads if "cross" in each["name"]]
    assert worked(models["gpt2"].trace(TEXT, only="weights"))[1] == []
