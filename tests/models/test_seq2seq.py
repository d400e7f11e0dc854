"""The recurrent encoder–decoder, with and without attention: its equations, what depends on what, and learning."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions, search
from legato.models.base import Sizes
from legato.models.seq2seq import Seq2SeqConfig, Seq2SeqMemory, Seq2SeqModel
from legato.nn.attention import SCORES
from thinned import some
from tiny_seq2seq import (
    FEW,
    PROMPTS,
    SOURCES,
    Kind,
    V,
    attentive_kinds,
    batch_of,
    build,
    close,
    every_kind,
    few_kinds,
    gradients,
    memory_of,
    padded,
    tokens,
)

# --- the equations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fed", [False, True], ids=["", "fed"])
def test_the_outputs_are_what_the_equations_give_word_by_word(fed: bool) -> None:
    model = build(Kind("elman", "bilinear", fed, False), layers=1)
    weight = dict(model.named_parameters())
    embedding = weight["embedding.weight"]

    def advance(stack: str, x: Tensor, h: Tensor) -> Tensor:
        w, u, b, c = (
            weight[f"{stack}.layers.0.0.cell.{n}"] for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        return torch.tanh(w @ x + b + u @ h + c)

    h, memory = torch.zeros(8, dtype=torch.float64), []
    for word in SOURCES[0]:
        h = advance("encoder", embedding[word], h)
        memory.append(h)
    h = torch.tanh(weight["bridge.layers.0.0.weight"] @ h + weight["bridge.layers.0.0.bias"])
    attentional = torch.zeros(6, dtype=torch.float64)
    expected = []
    for word in PROMPTS[0]:
        h = advance("decoder", torch.cat([embedding[word], attentional]) if fed else embedding[word], h)
        alpha = torch.stack([h @ weight["score.weight.weight"] @ m for m in memory]).softmax(0)
        context = sum(a * m for a, m in zip(alpha, memory, strict=True))
        attentional = torch.tanh(weight["combine.weight"] @ torch.cat([context, h]))
        expected.append(embedding @ attentional + weight["output.bias"])
    hidden = model(batch_of(SOURCES[:1], torch.tensor(PROMPTS[:1]))).hidden
    close(model.readout(hidden)[0], torch.stack(expected))


def test_the_bridge_joins_both_directions_and_leaves_an_lstms_cell_unbounded() -> None:
    model = build(layers=1)
    left, right = (tuple(torch.randn(3, 4, dtype=torch.float64) for _ in range(2)) for _ in range(2))
    hidden_map, cell_map = model.bridge.layers[0]  # type: ignore[misc]
    ((hidden, cell),) = model.bridge([left, right])
    close(hidden, torch.tanh(hidden_map(torch.cat([left[0], right[0]], -1))))
    close(cell, cell_map(torch.cat([left[1], right[1]], -1)))


# --- what an output may depend on ------------------------------------------------------------------


@every_kind
def test_a_future_target_token_never_changes_an_earlier_output(kind: Kind) -> None:
    model, ids = build(kind), tokens(4, 7)
    changed = ids.clone()
    changed[:, 4] = (changed[:, 4] + 1) % V
    before, after = model(batch_of(SOURCES, ids)).hidden, model(batch_of(SOURCES, changed)).hidden
    close(after[:, :4], before[:, :4])
    assert not torch.isclose(after[:, 4], before[:, 4]).all(-1).any()


@every_kind
def test_every_source_token_changes_the_outputs(kind: Kind) -> None:
    model, ids, source = build(kind), tokens(1, 3), tokens(1, 5, seed=2)
    before = model(Batch(Inputs(ids), source=Inputs(source))).hidden
    for place in range(5):
        changed = source.clone()
        changed[0, place] = (changed[0, place] + 1) % V
        assert not torch.allclose(model(Batch(Inputs(ids), source=Inputs(changed))).hidden, before)


@every_kind
def test_padding_of_source_and_target_changes_no_output_and_no_gradient(kind: Kind) -> None:
    model = build(kind)
    together = Batch(padded(PROMPTS), source=padded(SOURCES))
    alone = [
        Batch(Inputs(torch.tensor([row])), source=Inputs(torch.tensor([source])))
        for source, row in zip(SOURCES, PROMPTS, strict=True)
    ]
    hidden = model(together).hidden
    for row, one in enumerate(alone):
        close(hidden[row, : one.inputs.ids.shape[1]], model(one).hidden[0])
    close(gradients(model, [together]), gradients(model, alone))


@few_kinds
def test_the_order_of_rows_never_matters(kind: Kind) -> None:
    model, ids, order = build(kind), tokens(4, 5), [2, 0, 3, 1]
    shuffled = model(batch_of([SOURCES[row] for row in order], ids[order])).hidden
    close(shuffled, model(batch_of(SOURCES, ids)).hidden[order])


def test_an_empty_source_gives_finite_numbers() -> None:
    for kind in FEW:
        batch = Batch(Inputs(tokens(2, 3)), source=Inputs(tokens(2, 4), lengths=torch.tensor([0, 4])))
        assert build(kind)(batch).hidden.isfinite().all()


# --- the bottleneck --------------------------------------------------------------------------------


def with_other_states(model: Seq2SeqModel, memory: Seq2SeqMemory) -> tuple[Tensor, Tensor]:
    """The logits with the memory as it is and with its states, but not the decoder's first ones, changed."""
    other = Seq2SeqMemory(torch.randn_like(memory.states), memory.lengths, memory.initial)
    with torch.no_grad():
        left, right = (model.prefill(padded(PROMPTS), model.start(4, 50, m)) for m in (memory, other))
    return left, right


def test_without_attention_only_the_encoders_last_states_matter() -> None:
    model = build(FEW[-1])
    close(*with_other_states(model, memory_of(model)))


@attentive_kinds
def test_with_attention_the_memory_matters_too(kind: Kind) -> None:
    model = build(kind)
    left, right = with_other_states(model, memory_of(model))
    assert not torch.isclose(left, right).all(-1).any()


@few_kinds
def test_the_decoder_starts_from_the_encoders_last_states(kind: Kind) -> None:
    model = build(kind)
    memory = memory_of(model)
    blank = Seq2SeqMemory(
        memory.states, memory.lengths, [tuple(part * 0 for part in layer) for layer in memory.initial]
    )
    with torch.no_grad():
        left, right = (model.prefill(padded(PROMPTS), model.start(4, 50, m)) for m in (memory, blank))
    assert not torch.isclose(left, right).all(-1).any()


# --- learning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", some([*SCORES], ["dot"]))
def test_a_few_seconds_teach_it_to_reverse_strings_that_it_has_not_seen(attention: str) -> None:
    torch.manual_seed(0)
    words = torch.tensor(list(product(range(1, 6), repeat=4)))  # every string of four letters, of five
    words = words[torch.randperm(len(words))]
    unseen, seen = words[:100], words[100:]
    config = Seq2SeqConfig(cell="gru", layers=1, width=32, attention=attention, dropout=0.0)  # type: ignore[arg-type]
    model = Seq2SeqModel(config, Sizes(6))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    mark = torch.zeros(64, 1, dtype=torch.long)  # begins and ends what is written
    for _ in range(150):
        source = seen[torch.randint(len(seen), (64,))]
        hidden = model(Batch(Inputs(torch.cat([mark, source.flip(1)], 1)), source=Inputs(source))).hidden
        target = torch.cat([source.flip(1), mark], 1)
        F.cross_entropy(model.readout(hidden).flatten(0, 1), target.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    memory = model.encode(Batch(Inputs(unseen), source=Inputs(unseen)))
    found = search(model, [[0]] * len(unseen), SearchOptions(max_tokens=6), eos=0, memory=memory)
    assert [h[0].tokens for h in found] == unseen.flip(1).tolist()
