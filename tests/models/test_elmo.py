"""ELMo: two language models that never see what they guess, and layers for a task to mix."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.text.word_bytes import word_bytes
from legato.errors import LegatoError
from legato.models.base import Sizes
from legato.models.elmo import ElmoConfig, ElmoModel
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.nn.capture import record
from legato.nn.recurrent import Layer

V, E = 11, 6
WORDS = [["the", "cat", "sat", "down", "today"], ["rain", "fell"], ["a", "dog", "ran", "off"]]


def build(**changes: Any) -> ElmoModel:
    torch.manual_seed(0)
    small = {"layers": 2, "width": 7, "embedding": E, "filters": 2, "reach": 3, "dropout": 0.0, **changes}
    return ElmoModel(validate(ElmoConfig, small), Sizes(V)).double().eval()


def batch_of(rows: list[list[str]], width: int | None = None) -> Batch:
    """Rows of words, padded with words that must not count."""
    width = width or max(map(len, rows))
    padded = [[*row, *["junk"] * (width - len(row))] for row in rows]
    spelt = torch.from_numpy(word_bytes([word for row in padded for word in row])).long()
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    return Batch(
        Inputs(ids, characters=spelt.view(len(rows), width, -1), lengths=torch.tensor([len(row) for row in rows]))
    )


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def test_there_is_a_state_of_the_words_and_one_of_each_layer() -> None:
    model = build()
    states = model.states(batch_of(WORDS))
    assert [tuple(state.shape) for state in states] == [(3, 5, 2 * E)] * 3
    close(states[0][..., :E], states[0][..., E:])
    close(model(batch_of(WORDS)).hidden, states[-1])


@given(place=st.integers(0, 4))
@settings(max_examples=10, deadline=None)
def test_each_direction_sees_its_own_side_only(place: int) -> None:
    model, row = build(), list(WORDS[0])
    changed = [*row[:place], "other", *row[place + 1 :]]
    before, after = (model.states(batch_of([words]))[1:] for words in (row, changed))
    for old, new in zip(before, after, strict=True):
        differs = (old - new).abs().amax(-1)[0] > 1e-9  # either half
        forwards = (old - new)[0, :, :E].abs().amax(-1) > 1e-9
        backwards = (old - new)[0, :, E:].abs().amax(-1) > 1e-9
        assert forwards.tolist() == [t >= place for t in range(5)]
        assert backwards.tolist() == [t <= place for t in range(5)]
        assert differs.all()


def test_padding_changes_nothing() -> None:
    model = build()
    together = model.states(batch_of(WORDS, width=8))
    for number, row in enumerate(WORDS):
        alone = model.states(batch_of([row]))
        close([state[number, : len(row)] for state in together], [state[0] for state in alone])


def test_rows_without_lengths_are_full() -> None:
    model, batch = build(), batch_of([WORDS[0]])
    full = Batch(Inputs(batch.inputs.ids, characters=batch.inputs.characters))
    close(model.states(full), model.states(batch))


@pytest.mark.parametrize("embedding", [None, E])
def test_the_layers_are_those_of_plain_lstms_with_sums(embedding: int | None) -> None:
    model, batch = build(embedding=embedding), batch_of([WORDS[0]])
    x = model.embed(batch)
    sides = []
    for direction, words in ((model.forwards, x), (model.backwards, x.flip(0))):
        for depth, layer in enumerate(direction.layers):
            cell = cast(Layer, layer).cell
            plain = torch.nn.LSTM(words.shape[-1], cell.width).double()
            for name, value in cell.named_parameters():
                getattr(plain, f"{name}_l0").data.copy_(value)
            y = plain(words)[0]
            y = direction.projections[depth](y) if len(direction.projections) else y
            words = y + words if depth else y
        sides.append(words)
    expected = torch.cat([sides[0], sides[1].flip(0)], dim=-1).transpose(0, 1)
    close(model(batch).hidden, expected)


def test_one_direction_alone_is_half_of_the_model() -> None:
    model, batch = build(), batch_of([WORDS[0]])
    before, behind = model.halves(model(batch).hidden)
    close(model.one_way(reverse=False)(batch).hidden, before)
    turned = batch_of([WORDS[0][::-1]])
    close(model.one_way(reverse=True)(turned).hidden.flip(1), behind)


def test_a_direction_carries_its_state_along_a_stream() -> None:
    way, row = build().one_way(reverse=False), WORDS[0]
    whole = way(batch_of([row])).hidden
    first = way(batch_of([row[:2]]))
    second = way(batch_of([row[2:]]), first.state)
    close(torch.cat([first.hidden, second.hidden], 1), whole)


def test_the_readout_guesses_the_next_word() -> None:
    model = build()
    hidden = model(batch_of(WORDS)).hidden
    close(model.readout(hidden), F.linear(hidden[..., :E], model.output.weight, model.output.bias))


def test_words_seen_and_written_out_give_the_same() -> None:
    model, batch = build(), batch_of(WORDS)
    fused = model.states(batch)
    with record() as trace:
        close(model.states(batch), fused)
    assert {"forward.0.forget_gate", "backward.1.cell"} <= set(trace)


def test_it_writes_no_text() -> None:
    assert not build().can_generate


def test_without_its_readout_it_still_has_states_but_guesses_nothing() -> None:
    model = build()
    states = model.states(batch_of(WORDS))
    model.drop_readout()
    close(model.states(batch_of(WORDS)), states)
    with pytest.raises(LegatoError):
        model.readout(states[-1])


def test_every_parameter_gets_a_gradient() -> None:
    model = build()
    before, behind = model.halves(model(batch_of(WORDS)).hidden)
    (model.output(before).logsumexp(-1) + model.output(behind).logsumexp(-1)).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.slow
def test_a_frozen_body_learns_a_task_through_its_mix() -> None:
    """The tag of a word is whether "rain" stands behind it: only the backward model's states can tell."""
    torch.manual_seed(0)
    body = ElmoModel(validate(ElmoConfig, {"width": 24, "filters": 4, "reach": 3, "dropout": 0}), Sizes(V))
    model = ModelWithHead(body, HeadSpec(kind="tags", outputs=2, layers="mix", dropout=0.0))
    model.body.requires_grad_(False)
    frozen = {name: value.clone() for name, value in model.body.state_dict().items()}
    rows = [["the", "rain", "fell"], ["the", "cat", "fell"], ["a", "big", "rain"], ["a", "big", "dog"]]
    batch = batch_of(rows)
    batch.positions = torch.arange(3).expand(4, 3)
    tags = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0]])
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.2)

    def loss() -> Tensor:
        logits = model(batch).logits
        assert logits is not None
        return F.cross_entropy(logits.flatten(0, 1), tags.flatten())

    first = float(loss().detach())
    for _ in range(60):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
    assert float(value.detach()) < 0.3 * first
    assert model.mix is not None
    assert model.mix.weights.detach().abs().max() > 0.01
    assert all(torch.equal(value, frozen[name]) for name, value in model.body.state_dict().items())
