"""The recurrent encoder–decoder: with and without attention, in training and while it writes."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.config import parse_words, validate
from legato.data.batch import Batch
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, LegatoError
from legato.folders.weights import put_weights, weights_of
from legato.models.base import Sizes, count_parameters, measure
from legato.models.seq2seq import Seq2SeqConfig, Seq2SeqMemory, Seq2SeqModel, Seq2SeqState, Source
from legato.nn.attention import SCORES
from legato.nn.capture import record
from legato.nn.recurrent import CELLS

V = 13
SMALL: dict[str, Any] = {"layers": 2, "width": 8, "embedding": 6, "dropout": 0.0}


class Kind(NamedTuple):
    cell: str
    attention: str
    input_feeding: bool
    bidirectional: bool

    def __str__(self) -> str:
        feeding = "-fed" if self.input_feeding else ""
        return f"{self.cell}-{self.attention}{feeding}{'-both-ways' if self.bidirectional else ''}"


KINDS = [
    Kind(*choice)
    for choice in product(CELLS, ["none", *SCORES], [False, True], [False, True])
    if not (choice[1] == "none" and choice[2])
]
# One of each cell, score and way, where the cells' differences cannot matter.
FEW = [
    Kind("lstm", "bilinear", False, True),
    Kind("gru", "mlp", True, False),
    Kind("elman", "dot", False, True),
    Kind("lstm", "none", False, False),
]
ATTENTIVE = [kind for kind in FEW if kind.attention != "none"]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
few_kinds = pytest.mark.parametrize("kind", FEW, ids=str)
attentive_kinds = pytest.mark.parametrize("kind", ATTENTIVE, ids=str)


def build(kind: Kind = FEW[0], sizes: Sizes = Sizes(V), **settings: Any) -> Seq2SeqModel:
    """A small model in double precision, with weights large enough to have opinions."""
    torch.manual_seed(0)
    made = Seq2SeqModel(validate(Seq2SeqConfig, {**SMALL, **kind._asdict(), **settings}), sizes).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2)
    return made


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    # What pads is a real word, so that reading it would show.
    return torch.tensor([r + [7] * (longest - len(r)) for r in rows]), torch.tensor([len(r) for r in rows])


SOURCES = [[3, 8, 1, 4], [9, 2, 6, 5, 11, 1], [10], [4, 4, 12]]
PROMPTS = [[3, 1, 4, 1, 5], [6], [5, 3, 5], [8, 9, 7, 9]]


def batch_of(sources: list[list[int]], ids: Tensor, **more: Any) -> Batch:
    source, lengths = padded(sources)
    return Batch(ids, source=source, source_lengths=lengths, **more)


def memory_of(model: Seq2SeqModel, sources: list[list[int]] = SOURCES) -> Seq2SeqMemory:
    with torch.no_grad():
        return model.encode(batch_of(sources, torch.zeros(len(sources), 1, dtype=torch.long)))


def logits_of(model: Seq2SeqModel, source: list[int], row: list[int]) -> Tensor:
    """What the whole forward pass over one pair, nothing padded, says after the last of `row`, (V,)."""
    with torch.no_grad():
        return model.readout(model(Batch(torch.tensor([row]), source=torch.tensor([source]))).hidden[0, -1])


def all_logits(model: Seq2SeqModel, sources: list[list[int]], rows: list[list[int]]) -> Tensor:
    return torch.stack([logits_of(model, source, row) for source, row in zip(sources, rows, strict=True)])


def started(model: Seq2SeqModel, keep: int = 0) -> tuple[Seq2SeqState, Tensor]:
    state = model.start(len(SOURCES), 50, memory_of(model), keep=keep)
    with torch.no_grad():
        return state, model.prefill(*padded(PROMPTS), state)


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
    before = model(Batch(ids, source=source)).hidden
    for place in range(5):
        changed = source.clone()
        changed[0, place] = (changed[0, place] + 1) % V
        assert not torch.allclose(model(Batch(ids, source=changed)).hidden, before)


def gradients(model: Seq2SeqModel, batches: list[Batch]) -> dict[str, Tensor]:
    """Of a loss with a weight of its own for every place that is no padding."""
    model.zero_grad()
    for batch in batches:
        hidden = model(batch).hidden
        lengths = torch.tensor([batch.ids.shape[1]] * batch.rows) if batch.lengths is None else batch.lengths
        losses = model.readout(hidden).logsumexp(-1) * torch.arange(1, hidden.shape[1] + 1)
        (losses * (torch.arange(hidden.shape[1]) < lengths.unsqueeze(1))).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_kind
def test_padding_of_source_and_target_changes_no_output_and_no_gradient(kind: Kind) -> None:
    model = build(kind)
    ids, lengths = padded(PROMPTS)
    together = batch_of(SOURCES, ids, lengths=lengths)
    alone = [
        Batch(torch.tensor([row]), source=torch.tensor([source]))
        for source, row in zip(SOURCES, PROMPTS, strict=True)
    ]
    hidden = model(together).hidden
    for row, one in enumerate(alone):
        close(hidden[row, : one.ids.shape[1]], model(one).hidden[0])
    close(gradients(model, [together]), gradients(model, alone))


@few_kinds
def test_the_order_of_rows_never_matters(kind: Kind) -> None:
    model, ids, order = build(kind), tokens(4, 5), [2, 0, 3, 1]
    shuffled = model(batch_of([SOURCES[row] for row in order], ids[order])).hidden
    close(shuffled, model(batch_of(SOURCES, ids)).hidden[order])


def test_an_empty_source_gives_finite_numbers() -> None:
    for kind in FEW:
        batch = Batch(tokens(2, 3), source=tokens(2, 4), source_lengths=torch.tensor([0, 4]))
        assert build(kind)(batch).hidden.isfinite().all()


# --- the bottleneck --------------------------------------------------------------------------------


def with_other_states(model: Seq2SeqModel, memory: Seq2SeqMemory) -> tuple[Tensor, Tensor]:
    """The logits with the memory as it is and with its states, but not the decoder's first ones, changed."""
    other = Seq2SeqMemory(torch.randn_like(memory.states), memory.lengths, memory.initial)
    with torch.no_grad():
        left, right = (model.prefill(*padded(PROMPTS), model.start(4, 50, m)) for m in (memory, other))
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
        left, right = (model.prefill(*padded(PROMPTS), model.start(4, 50, m)) for m in (memory, blank))
    assert not torch.isclose(left, right).all(-1).any()


# --- generation ------------------------------------------------------------------------------------


@every_kind
def test_cached_logits_equal_uncached_ones_for_ragged_prompts(kind: Kind) -> None:
    model = build(kind)
    state, logits = started(model)
    rows = [list(prompt) for prompt in PROMPTS]
    for new in tokens(3, 4, seed=3):
        close(logits, all_logits(model, SOURCES, rows))
        with torch.no_grad():
            logits = model.step(new, state)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)
    close(logits, all_logits(model, SOURCES, rows))


@every_kind
def test_a_second_ragged_prefill_goes_on_after_the_first(kind: Kind) -> None:
    model = build(kind)
    state, _ = started(model)
    more = [[1, 2], [3, 4, 5, 6], [2], [9, 9, 9]]
    with torch.no_grad():
        logits = model.prefill(*padded(more), state)
    close(logits, all_logits(model, SOURCES, [a + b for a, b in zip(PROMPTS, more, strict=True)]))


ORDERS = {
    "a beam each": [0, 0, 1, 1, 2, 2, 3, 3],
    "a beam each, some gone": [3, 3, 3, 1, 1, 1],
    "as it was": [0, 1, 2, 3],
    "swapped": [2, 0, 3, 1],
    "unequal": [2, 0, 0, 3, 2],
    "one left": [1],
}


def reordered(kind: Kind, rows: list[int]) -> None:
    model = build(kind)
    state, _ = started(model)
    state.reorder(torch.tensor(rows))
    new = tokens(1, len(rows), seed=5)[0]
    with torch.no_grad():
        logits = model.step(new, state)
    after = [[*PROMPTS[row], token] for row, token in zip(rows, new.tolist(), strict=True)]
    close(logits, all_logits(model, [SOURCES[row] for row in rows], after))


@pytest.mark.parametrize("order", ORDERS)
@few_kinds
def test_reordering_picks_rows_that_may_repeat_vanish_and_multiply(kind: Kind, order: str) -> None:
    reordered(kind, ORDERS[order])


@every_kind
def test_every_kind_reorders(kind: Kind) -> None:
    reordered(kind, ORDERS["a beam each, some gone"])


@few_kinds
def test_a_beam_that_widens_mixes_shrinks_and_falls_apart_stays_right(kind: Kind) -> None:
    model = build(kind)
    state, _ = started(model)
    sources, rows = [list(source) for source in SOURCES], [list(prompt) for prompt in PROMPTS]
    orders = [
        [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3],  # three hypotheses a sentence
        [2, 0, 0, 3, 4, 5, 8, 8, 6, 11, 10, 9],  # they change places
        [0, 2, 1, 9, 9, 9],  # two sentences are done
        [5, 0],  # unequal no more: one hypothesis each
        [1, 1, 0],  # as no search does
        [0, 1, 2, 2, 1, 0],
    ]
    for number, order in enumerate(orders):
        state.reorder(torch.tensor(order))
        sources, rows = [sources[row] for row in order], [list(rows[row]) for row in order]
        new = tokens(1, len(order), seed=number)[0]
        with torch.no_grad():
            logits = model.step(new, state)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)
        close(logits, all_logits(model, sources, rows))


@attentive_kinds
def test_a_prefill_of_a_widened_beam_looks_at_the_right_sentences(kind: Kind) -> None:
    model, order = build(kind), [0, 0, 1, 1, 2, 2, 3, 3]
    state, _ = started(model)
    state.reorder(torch.tensor(order))
    more = [[1, 2], [3], [4, 5, 6], [7], [8], [9, 10], [11], [12, 0, 1]]
    with torch.no_grad():
        logits = model.prefill(*padded(more), state)
    rows = [[*PROMPTS[row], *new] for row, new in zip(order, more, strict=True)]
    close(logits, all_logits(model, [SOURCES[row] for row in order], rows))


def test_hypotheses_of_a_sentence_share_its_memory() -> None:
    source = Source(torch.randn(3, 4, 5), torch.randn(3, 4, 5), None)
    states = source.states
    source.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
    source.reorder(torch.tensor([1, 0, 2, 2, 5, 4]))
    assert source.states is states
    assert source.beams == 2


def test_the_memory_of_sentences_that_are_done_is_dropped() -> None:
    source = Source(torch.randn(3, 4, 5), torch.randn(3, 4, 5), torch.ones(3, 4, dtype=torch.bool))
    states = source.states
    source.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
    source.reorder(torch.tensor([4, 5, 0, 1]))
    assert source.mask is not None
    assert torch.equal(source.states, states[[2, 0]])
    assert (len(source.keys), len(source.mask), source.beams) == (2, 2, 2)


@every_kind
def test_rewinding_gives_the_same_logits_again(kind: Kind) -> None:
    model, words = build(kind), tokens(3, 4, seed=4)
    state, _ = started(model, keep=3)
    start = state.length
    with torch.no_grad():
        once = [model.step(word, state) for word in words]
        state.rewind(start)
        again = [model.step(word, state) for word in words]
    close(again, once)


@few_kinds
def test_rewinding_after_reordering_keeps_the_new_rows(kind: Kind) -> None:
    model, order = build(kind), [3, 3, 1, 0]
    state, _ = started(model, keep=3)
    start = state.length
    with torch.no_grad():
        model.step(tokens(1, 4)[0], state)
        state.reorder(torch.tensor(order))
        state.rewind(start)
        logits = model.step(torch.tensor([1, 2, 3, 4]), state)
    rows = [[*PROMPTS[row], i + 1] for i, row in enumerate(order)]
    close(logits, all_logits(model, [SOURCES[row] for row in order], rows))


def test_a_state_cannot_go_back_further_than_it_keeps() -> None:
    model = build()
    state, _ = started(model, keep=1)
    with torch.no_grad():
        for word in tokens(2, 4):
            model.step(word, state)
    with pytest.raises(ValueError, match="cannot go back from 7 to 5"):
        state.rewind(5)


def test_the_state_counts_columns() -> None:
    model = build()
    state, _ = started(model)
    assert state.length == 5
    with torch.no_grad():
        model.step(tokens(1, 4)[0], state)
    assert state.length == 6


def test_starting_without_a_memory_says_that_one_is_needed() -> None:
    with pytest.raises(ValueError, match="reads a source"):
        build().start(4, 50)


def test_starting_with_too_few_memories_is_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match="there are 4 for 5"):
        model.start(5, 50, memory_of(model))


def test_a_batch_without_a_source_is_refused() -> None:
    with pytest.raises(ValueError, match="reads a source"):
        build()(Batch(tokens(2, 3)))


# --- the search ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["greedy", "beam", "sample", "beam-sample"])
@few_kinds
def test_searching_sources_together_equals_searching_each_alone(kind: Kind, how: Any) -> None:
    model = build(kind)
    together = search(model, PROMPTS, SearchOptions(search=how, max_tokens=8), eos=0, memory=memory_of(model))
    for row, prompt in enumerate(PROMPTS):
        # Prompt i draws with the seed + i.
        options = SearchOptions(search=how, max_tokens=8, seed=row)
        alone = search(model, [prompt], options, eos=0, memory=memory_of(model, [SOURCES[row]]))[0]
        assert [h.tokens for h in together[row]] == [h.tokens for h in alone]
        assert [h.logprob for h in together[row]] == pytest.approx([h.logprob for h in alone], abs=1e-5)


@few_kinds
def test_a_beam_of_one_is_greedy_search(kind: Kind) -> None:
    model = build(kind)
    memory = memory_of(model)
    greedy = search(model, PROMPTS, SearchOptions(max_tokens=8), eos=0, memory=memory)
    beam = search(model, PROMPTS, SearchOptions(search="beam", beams=1, max_tokens=8), eos=0, memory=memory)
    assert [[h.tokens for h in found] for found in beam] == [[h.tokens for h in found] for found in greedy]


@few_kinds
def test_greedy_search_follows_the_largest_logit(kind: Kind) -> None:
    model, row = build(kind), list(PROMPTS[0])
    found = search(model, [row], SearchOptions(max_tokens=8), eos=None, memory=memory_of(model, SOURCES[:1]))[0][0]
    for token in found.tokens:
        assert token == int(logits_of(model, SOURCES[0], row).argmax())
        row.append(token)


# --- alignment and looking inside ------------------------------------------------------------------


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


# --- parameters ------------------------------------------------------------------------------------


@every_kind
def test_every_parameter_gets_a_gradient(kind: Kind) -> None:
    found = gradients(build(kind, Sizes(V, source=9), tied=False), [Batch(tokens(3, 6), source=tokens(3, 5) % 9)])
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
    hidden = model(Batch(tokens(2, 3), source=torch.tensor([[39, 20], [14, 0]]))).hidden
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
    assert model.generates
    assert model.reads_source
    assert model.longest is None


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
    hidden = model(Batch(tokens(1, 5), source=tokens(1, 4))).hidden  # (1, T, D)
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


# --- learning --------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", SCORES)
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
        hidden = model(Batch(torch.cat([mark, source.flip(1)], 1), source=source)).hidden
        target = torch.cat([source.flip(1), mark], 1)
        F.cross_entropy(model.readout(hidden).flatten(0, 1), target.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    memory = model.encode(Batch(unseen, source=unseen))
    found = search(model, [[0]] * len(unseen), SearchOptions(max_tokens=6), eos=0, memory=memory)
    assert [h[0].tokens for h in found] == unseen.flip(1).tolist()
