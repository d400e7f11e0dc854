"""What a model computed of one input: names, axes, positions, guesses; saved, loaded, filtered, refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import HEADS

from legato.data.batching.batch import Batch, Inputs
from legato.errors import DataError, LegatoError
from legato.inspect.report.analysis_views import layers_view
from legato.inspect.report.page import Report
from legato.inspect.trace import Trace
from legato.model import Model

TRAINING_TEXT = "the dog runs and the cat sleeps\n" * 60
RUNS: dict[str, dict[str, Any]] = {
    "lstm": {"task": "lm", "model": "lstm", "model.layers": 2},
    "gpt2": {"task": "lm", "model": "gpt2", "model.layers": 2, **HEADS},
    "bert": {"task": "mlm", "model": "bert", "model.layers": 2, **HEADS},
    "both": {"task": "mlm", "model": "lstm", "model.layers": 1},
    "seq2seq": {"task": "translation", "model": "seq2seq", "model.layers": 1},
    "transformer": {"task": "translation", "model": "transformer", "model.layers": 2, **HEADS},
}


def same(left: Trace, right: Trace) -> None:
    assert set(left) == set(right)
    for name, captured in left.items():
        np.testing.assert_array_equal(captured.values, right[name].values)
        assert (captured.axes, captured.stream) == (right[name].axes, right[name].stream)
    assert left.positions == right.positions
    assert (left.guesses, left.written, left.model) == (right.guesses, right.written, right.model)


@pytest.mark.parametrize("name", ["lstm", "gpt2", "bert", "both"])
def test_a_text_has_its_tokens_and_each_tensor_its_positions(models: dict[str, Model], name: str) -> None:
    trace = models[name].trace("the dog runs")
    names = trace.positions["input"].names
    assert [token.strip() for token in names if token.strip() in ("the", "dog", "runs")] == ["the", "dog", "runs"]
    assert trace.positions["input"].kind == "token"
    for known, captured in trace.items():
        assert captured.values.ndim == len(captured.axes)
        for axis, size in zip(captured.axes, captured.values.shape, strict=True):
            there = trace.positions_of(known, axis)
            assert there is None or there.count == size
    assert "tensors" in repr(trace)


def test_gates_and_guesses_of_a_recurrent_model(models: dict[str, Model]) -> None:
    model = models["lstm"]
    trace = model.trace("the dog runs")
    gate = trace["lstm.1.forget_gate"]
    assert gate.axes == ("position", "unit")
    assert ((gate.values > 0) & (gate.values < 1)).all()
    count = trace.positions["input"].count
    assert len(trace.guesses) == count == len(trace.written or ())
    ids = torch.tensor([model.prompt_ids("the dog runs")])
    with torch.no_grad():
        hidden = model.module(Batch(Inputs(ids))).hidden
        shares = model.module.readout(hidden)[0, -1].softmax(-1)
    assert trace.guesses[-1][0][1] == pytest.approx(float(shares.max()), rel=1e-4)
    assert [share for _, share in trace.guesses[-1]] == sorted((s for _, s in trace.guesses[-1]), reverse=True)


def test_what_reads_backwards_stands_where_it_reads(models: dict[str, Model]) -> None:
    one, other = (models["both"].trace(text) for text in ("the dog runs", "the cat runs"))
    places = [i for i, token in enumerate(one.positions["input"].names) if token.strip() == "runs"]
    back = "lstm.0.reverse.hidden"
    np.testing.assert_allclose(one[back].values[places], other[back].values[places], atol=1e-6)  # seen before it
    assert np.abs(one[back].values[0] - other[back].values[0]).max() > 1e-6


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_a_translator_reads_what_it_writes(models: dict[str, Model], name: str) -> None:
    model = models[name]
    text = "a b"
    trace = model.trace(text)
    own = {"seq2seq": "decoder.attention.weights", "transformer": "decoder.1.cross.weights"}[name]
    weights = trace[own]
    assert weights.axes[-2:] == ("position", "source")
    assert weights.stream == "target"
    np.testing.assert_allclose(weights.values.sum(-1), 1, rtol=1e-4)
    source, target = trace.positions["source"], trace.positions["target"]
    assert weights.values.shape[-2:] == (target.count, source.count)
    forced = model.trace(text, written=model.predict([text])[0])
    same(trace, forced)
    shorter = model.trace(text, written="")
    assert shorter.positions["target"].count == 1


def test_a_trace_is_saved_and_loaded(models: dict[str, Model], tmp_path: Path) -> None:
    trace = models["transformer"].trace("a b")
    trace.save(tmp_path / "t")
    same(Trace.load(tmp_path / "t"), trace)
    models["gpt2"].trace("the dog").save(tmp_path / "u")
    (tmp_path / "t" / "trace.safetensors").write_bytes((tmp_path / "u" / "trace.safetensors").read_bytes())
    with pytest.raises(DataError, match="are of two traces"):
        Trace.load(tmp_path / "t")
    (tmp_path / "t" / "trace.safetensors").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no file of a trace"):
        Trace.load(tmp_path / "t")


def test_layers_heads_and_names_are_chosen(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    whole, part = model.trace("the dog runs"), model.trace("the dog runs", layers=[1], heads=[1], only="weights")
    assert list(part) == ["decoder.1.attention.weights"]
    weights = whole["decoder.1.attention.weights"].values
    np.testing.assert_allclose(part["decoder.1.attention.weights"].values, weights[1:], atol=1e-6)
    with pytest.raises(LegatoError, match="has the heads 0 to 1, and not all of"):
        model.trace("the dog", heads=[2])
    with pytest.raises(LegatoError, match="is no regular expression"):
        model.trace("the dog", only="(")
    with pytest.raises(LegatoError, match=r"has nothing of that name, or in these layers; it has .*lstm.0.cell"):
        models["lstm"].trace("the dog", only="attention")
    with pytest.raises(LegatoError, match=r"has nothing of that name, or in these layers; it has .* and \d+ more"):
        model.trace("the dog", layers=[1], only="none")
    with pytest.raises(LegatoError, match=r"gpt2\S* has the layers 0 to 1, and not 7, 99$"):
        model.trace("the dog", layers=[99, 1, 7])
    with pytest.raises(LegatoError, match=r"has no attention there, whose heads could be chosen; it has .*cell"):
        models["lstm"].trace("the dog", heads=[0])


def test_a_trace_of_another_model_is_told_from_ones_own(models: dict[str, Model], tmp_path: Path) -> None:
    models["lstm"].trace("the dog").save(tmp_path / "t")
    trace = Trace.load(tmp_path / "t")
    trace.check_model(models["lstm"].loaded)
    with pytest.raises(LegatoError, match=r"the trace is of .*lstm.*, another model than .*gpt2.*; trace this one"):
        trace.check_model(models["gpt2"].loaded)
    with pytest.raises(LegatoError, match="another model"):
        layers_view(Report.of_trace(trace, ""), trace, model=models["gpt2"])


def test_a_trace_of_other_weights_of_the_same_shape_is_another_models(
    models: dict[str, Model], tmp_path: Path
) -> None:
    loaded = models["lstm"].loaded
    other = replace(loaded, module=copy.deepcopy(loaded.module))
    with torch.no_grad():
        next(other.module.parameters()).add_(1e-3)
    models["lstm"].trace("the dog").save(tmp_path / "t")
    trace = Trace.load(tmp_path / "t")
    trace.check_model(replace(loaded, module=copy.deepcopy(loaded.module)))
    with pytest.raises(LegatoError, match="another model"):
        trace.check_model(other)
    del trace.model["weights"]  # as traces were saved before
    trace.check_model(other)


def test_what_cannot_be_looked_at_is_refused_in_a_line(models: dict[str, Model]) -> None:
    with pytest.raises(DataError, match="there is no text to look at; give one"):
        models["lstm"].trace(" ")
    with pytest.raises(DataError, match="reads text, and int is none"):
        models["lstm"].trace(3)
    with pytest.raises(DataError, match=r"tokens, and .* reads 16 at most; shorten it"):
        models["gpt2"].trace("the dog " * 20)
    with pytest.raises(DataError, match=r"tokens, and .* at most; shorten it"):
        models["bert"].trace("the dog " * 400)
    with pytest.raises(LegatoError, match="leave out what is written"):
        models["gpt2"].trace("the dog", written="runs")
    with pytest.raises(LegatoError, match=r"this trace has no 'lstm.1.forget_gat'; did you mean"):
        models["lstm"].trace("the dog")["lstm.1.forget_gat"]
