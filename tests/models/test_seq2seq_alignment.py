"""Where the recurrent encoder–decoder looks, and what it shows of its inside."""

from __future__ import annotations

import pytest
import torch

from legato.errors import LegatoError
from legato.nn.capture import record
from tiny_seq2seq import (
    FEW,
    SOURCES,
    Kind,
    attentive_kinds,
    batch_of,
    build,
    close,
    every_kind,
    few_kinds,
    started,
    tokens,
)


@attentive_kinds
def test_alignments_sum_to_one_over_the_real_source_words_and_are_zero_on_padding(kind: Kind) -> None:
    weights = build(kind).align(batch_of(SOURCES, tokens(4, 5)))
    assert weights.shape == (4, 5, 6)
    for row, source in enumerate(SOURCES):
        close(weights[row, :, : len(source)].sum(-1), torch.ones(5, dtype=torch.float64))
        assert not weights[row, :, len(source) :].any()


def test_a_model_without_attention_has_nothing_to_align() -> None:
    with pytest.raises(LegatoError, match="this model has no attention, so there is nothing to align"):
        build(FEW[-1]).align(batch_of(SOURCES, tokens(4, 5)))


def test_uneven_looks_at_a_source_cost_what_they_cost_without_its_padding() -> None:
    model, ids = build(attention_penalty=0.5).train(), tokens(4, 5)
    alone = [model(batch_of([source], ids[row : row + 1])) for row, source in enumerate(SOURCES)]
    together = model(batch_of(SOURCES, ids)).auxiliary["attention"]
    close(together, torch.stack([output.auxiliary["attention"] for output in alone]).mean())


@every_kind
def test_the_written_out_equations_equal_the_fused_kernels(kind: Kind) -> None:
    model = build(kind)
    batch = batch_of(SOURCES, tokens(4, 5))
    with record():
        written = model(batch).hidden
    close(written, model(batch).hidden)


@attentive_kinds
def test_the_weights_that_are_shown_are_those_of_the_alignment(kind: Kind) -> None:
    model = build(kind)
    batch = batch_of(SOURCES, tokens(4, 5))
    with record() as trace:
        model(batch)
    (weights,) = trace["decoder.attention.weights"]
    close(weights, model.align(batch))


@few_kinds
def test_encoder_and_decoder_show_their_states(kind: Kind) -> None:
    model = build(kind)
    with record() as trace:
        hidden = model(batch_of(SOURCES, tokens(4, 5))).hidden
    assert len(trace[f"encoder.{kind.cell}.1.hidden"]) == 6
    assert len(trace[f"decoder.{kind.cell}.1.hidden"]) == 5
    assert (f"encoder.{kind.cell}.0.reverse.hidden" in trace) == kind.bidirectional
    assert trace["encoder.memory"][0].shape == (4, 6, 8)
    close(trace["decoder.attentional"][0], hidden.detach())


def test_a_step_shows_where_each_hypothesis_looks() -> None:
    model = build()
    state, _ = started(model)
    state.reorder(torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    with record() as trace, torch.no_grad():
        model.step(tokens(1, 8)[0], state)
    (weights,) = trace["decoder.attention.weights"]
    assert weights.shape == (8, 1, 6)
    assert (weights > 0).sum(-1).flatten().tolist() == [4, 4, 6, 6, 1, 1, 3, 3]
