"""The recurrent encoder–decoder's parameters, dropout and settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legato.config import parse_words, validate
from legato.data.batching.batch import Batch, Inputs
from legato.errors import ConfigError
from legato.folders.weights import put_weights, weights_of
from legato.models.base import Sizes, count_parameters, measure
from legato.models.seq2seq import Seq2SeqConfig, Seq2SeqModel
from tiny_seq2seq import (
    SOURCES,
    Kind,
    V,
    batch_of,
    build,
    close,
    every_kind,
    few_kinds,
    gradients,
    tokens,
)

# --- parameters ------------------------------------------------------------------------------------


@every_kind
def test_every_parameter_gets_a_gradient(kind: Kind) -> None:
    found = gradients(
        build(kind, Sizes(V, source=9), tied=False), [Batch(Inputs(tokens(3, 6)), source=Inputs(tokens(3, 5) % 9))]
    )
    missing = [
        name for name, _ in build(kind, Sizes(V, source=9), tied=False).named_parameters() if name not in found
    ]
    assert missing == []
    assert [name for name, gradient in found.items() if not gradient.any()] == []


@few_kinds
def test_a_model_is_measured_without_being_made(kind: Kind) -> None:
    model = build(kind)
    assert measure(Seq2SeqModel, model.config, Sizes(V)) == count_parameters(model)


def test_one_vocabulary_has_one_embedding() -> None:
    model = build()
    assert model.source_embedding.weight is model.embedding.weight
    assert model.output.weight is model.embedding.weight


def test_one_vocabulary_may_have_two_embeddings() -> None:
    model = build(shared=False)
    assert model.source_embedding.weight.shape == model.embedding.weight.shape
    assert model.source_embedding.weight is not model.embedding.weight
    assert count_parameters(model) - count_parameters(build()) == V * 6


def test_two_vocabularies_have_two_embeddings() -> None:
    model = build(sizes=Sizes(V, source=40))
    assert model.source_embedding.weight.shape == (40, 6)
    assert model.embedding.weight.shape == (V, 6)
    hidden = model(Batch(Inputs(tokens(2, 3)), source=Inputs(torch.tensor([[39, 20], [14, 0]])))).hidden
    assert model.readout(hidden).shape == (2, 3, V)


def test_an_untied_readout_has_weights_of_its_own_and_reads_the_full_width() -> None:
    model = build(tied=False)
    assert model.output.weight.shape == (V, 8)
    assert model(batch_of(SOURCES, tokens(4, 3))).hidden.shape == (4, 3, 8)


def test_when_tied_the_attentional_state_is_as_wide_as_the_embedding() -> None:
    assert build()(batch_of(SOURCES, tokens(4, 3))).hidden.shape == (4, 3, 6)


@pytest.mark.parametrize("shared", [True, False])
@few_kinds
def test_weights_put_into_another_model_make_it_the_same(kind: Kind, shared: bool) -> None:
    model, batch = build(kind, shared=shared), batch_of(SOURCES, tokens(4, 3))
    other = Seq2SeqModel(model.config, model.sizes).double().eval()
    put_weights(other, weights_of(model), "here")
    close(other(batch).hidden, model(batch).hidden)


@few_kinds
def test_the_model_generates_reads_a_source_and_takes_any_length(kind: Kind) -> None:
    model = build(kind)
    assert model.can_generate
    assert model.is_encoder_decoder
    assert model.max_length is None


# --- dropout ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["dropout", "dropout_embedding", "dropout_recurrent"])
@few_kinds
def test_dropout_acts_in_training_and_not_in_evaluation(kind: Kind, field: str) -> None:
    model, batch = build(kind, **{field: 0.5}), batch_of(SOURCES, tokens(4, 5))
    assert torch.equal(model(batch).hidden, model(batch).hidden)
    model.train()
    assert not torch.equal(model(batch).hidden, model(batch).hidden)


@few_kinds
def test_without_dropout_training_and_evaluation_are_the_same(kind: Kind) -> None:
    model, batch = build(kind), batch_of(SOURCES, tokens(4, 5))
    close(model(batch).hidden, model.train()(batch).hidden)


def test_a_step_by_step_decoder_drops_the_same_units_at_every_step() -> None:
    model = build(Kind("gru", "mlp", True, False), dropout=0.5).train()
    dropped = model(batch_of(SOURCES, tokens(4, 5))).hidden == 0  # (B, T, D)
    assert dropped.any()
    assert not dropped.all()
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))


def test_with_input_feeding_the_decoder_reads_what_dropout_left() -> None:
    model = build(Kind("gru", "dot", True, False), dropout=0.5).train()
    hidden = model(Batch(Inputs(tokens(1, 5)), source=Inputs(tokens(1, 4)))).hidden  # (1, T, D)
    hidden.sum().backward()
    fed = model.decoder.layers[0][0].cell.weight_ih.grad[:, 6:]  # type: ignore[union-attr, index]
    assert torch.equal(fed.any(0), hidden[0, 0] != 0)


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"width": 7}, "even width, not 7"),
        ({"attention": "none", "input_feeding": True}, "input_feeding feeds what the attention found"),
        ({"attention": "cosine"}, "model.attention=cosine"),
        ({"cell": "lstn"}, "model.cell=lstn"),
        ({"widht": 8}, "did you mean 'width'?"),
        ({"dropout": 1.0}, "model.dropout=1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Seq2SeqConfig, {"name": "seq2seq", **settings}, "model")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_none_typed_on_a_command_line_is_no_attention() -> None:
    assert validate(Seq2SeqConfig, parse_words(["attention=none"])).attention == "none"


def test_an_encoder_that_reads_one_way_may_have_an_odd_width() -> None:
    model = build(bidirectional=False, width=7)
    assert model(batch_of(SOURCES, tokens(4, 3))).hidden.shape == (4, 3, 6)
