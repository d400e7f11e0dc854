"""The encoder–decoder Transformer: what it sees, what it keeps, how it generates."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import fuse
from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, LegatoError
from legato.models.base import Sizes, count_parameters, measure
from legato.models.transformer import TransformerConfig, TransformerModel
from legato.nn.capture import record
from legato.nn.positions import Learned

V = 13
CONFIGS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {"norm": "pre", "decoder_layers": 1},
    "learned": {"positions": "learned", "activation": "gelu"},
    "rotary": {"positions": "rotary", "norm": "pre", "activation": "swiglu"},
    "window": {"window": 3},
    "rotary window": {"positions": "rotary", "window": 2},
    "apart": {"tied": False, "shared": False},
}
SOURCES = [[3, 1, 4, 1, 5], [9], [2, 6, 5], [3, 5, 8, 9, 7, 9, 2]]
PROMPTS = [[1, 2, 3, 4], [5], [6, 7, 8, 9, 10, 11, 12], [2, 2]]
each = pytest.mark.parametrize("name", CONFIGS)


def build(name: str = "post", sizes: Sizes = Sizes(V), **asked: Any) -> TransformerModel:
    """A small model in double precision, whose biases and norms are not what they start as."""
    torch.manual_seed(0)
    small = {"layers": 2, "width": 16, "heads": 4, "length": 40, "dropout": 0.0}
    made = TransformerModel(validate(TransformerConfig, {**small, **CONFIGS[name], **asked}), sizes).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(rows: list[list[int]]) -> Inputs:
    # What pads is a real word, so that reading it would show.
    return Inputs.of(rows, padding=7)


def batch(sources: list[list[int]], targets: list[list[int]]) -> Batch:
    return Batch(padded(targets), source=padded(sources))


def alone(model: TransformerModel, source: list[int], target: list[int]) -> Tensor:
    """What the whole forward pass says after the last of `target`, (V,)."""
    with torch.no_grad():
        return model.readout(
            model(Batch(Inputs(torch.tensor([target])), source=Inputs(torch.tensor([source])))).hidden[0, -1]
        )


def started(model: TransformerModel, sources: list[list[int]], prompts: list[list[int]], room: int = 20) -> Any:
    """A state after the prompts, and the logits."""
    with torch.no_grad():
        memory = model.encode(batch(sources, prompts))
        inputs = padded(prompts)
        state = model.start(len(prompts), inputs.token_ids.shape[1] + room, memory)
        return state, model.prefill(inputs, state)


# --- what is seen ----------------------------------------------------------------------------------


@each
@given(place=st.integers(1, 7), word=st.integers(1, V - 1))
@settings(max_examples=5, deadline=None)
def test_a_future_token_never_changes_an_earlier_output(name: str, place: int, word: int) -> None:
    model, ids, source = build(name), tokens(2, 8), tokens(2, 5, seed=2)
    changed = ids.clone()
    changed[:, place] = (changed[:, place] + word) % V
    before, after = (model(Batch(Inputs(each_ids), source=Inputs(source))).hidden for each_ids in (ids, changed))
    close(after[:, :place], before[:, :place])
    assert not torch.allclose(after[:, place], before[:, place])


@each
def test_padding_never_changes_anything(name: str) -> None:
    model = build(name)
    together = model(batch(SOURCES, PROMPTS)).hidden
    for row, (source, target) in enumerate(zip(SOURCES, PROMPTS, strict=True)):
        single = model(Batch(Inputs(torch.tensor([target])), source=Inputs(torch.tensor([source])))).hidden[0]
        close(together[row, : len(target)], single)


@each
def test_what_stands_in_the_padding_never_matters(name: str) -> None:
    model, given_batch = build(name), batch(SOURCES, PROMPTS)
    before = model(given_batch).hidden
    assert given_batch.source.ids is not None
    away = torch.arange(given_batch.source.ids.shape[1]) >= given_batch.source.lengths[:, None]  # type: ignore[index]
    given_batch.source.ids = torch.where(away, 11, given_batch.source.ids)
    close(model(given_batch).hidden, before)


def test_every_source_token_matters() -> None:
    model, source = build(), tokens(1, 6)
    before = model(Batch(Inputs(tokens(1, 3)), source=Inputs(source))).hidden
    for place in range(6):
        changed = source.clone()
        changed[0, place] = (changed[0, place] + 1) % V
        assert not torch.allclose(model(Batch(Inputs(tokens(1, 3)), source=Inputs(changed))).hidden, before)


@each
def test_the_order_of_rows_never_matters(name: str) -> None:
    model, order = build(name), [2, 0, 3, 1]
    mixed = batch([SOURCES[i] for i in order], [PROMPTS[i] for i in order])
    close(model(mixed).hidden, model(batch(SOURCES, PROMPTS)).hidden[order])


def test_a_window_hides_what_is_further_away() -> None:
    model = build(window=2, layers=1)
    with record() as trace:
        model(Batch(Inputs(tokens(1, 6)), source=Inputs(tokens(1, 7))))
    for side in ("encoder", "decoder"):
        far = (torch.arange(7)[:, None] - torch.arange(7)).abs() >= 2
        weights = trace[f"{side}.0.attention.weights"][0][0, 0]
        assert not weights[far[: len(weights), : len(weights)]].any()


# --- generating ------------------------------------------------------------------------------------


@each
def test_ragged_prompts_and_steps_equal_each_row_alone(name: str) -> None:
    model = build(name)
    state, logits = started(model, SOURCES, PROMPTS)
    rows = [list(prompt) for prompt in PROMPTS]
    close(logits, torch.stack([alone(model, *pair) for pair in zip(SOURCES, rows, strict=True)]))
    for new in tokens(4, 4, seed=3):
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)
        close(model.step(new, state), torch.stack([alone(model, *pair) for pair in zip(SOURCES, rows, strict=True)]))
    assert state.length == 7 + 4


@each
@pytest.mark.parametrize("first", [PROMPTS, [[1], [2], [3], [4]]], ids=["ragged", "even"])
def test_a_second_ragged_prompt_goes_on_where_the_first_ended(name: str, first: list[list[int]]) -> None:
    model, more = build(name), [[5, 6], [7, 8, 9, 1], [2], [3, 3, 3]]
    state, _ = started(model, SOURCES, first)
    model.step(torch.tensor([1, 2, 3, 4]), state)
    logits = model.prefill(padded(more), state)
    rows = [[*a, i + 1, *b] for i, (a, b) in enumerate(zip(first, more, strict=True))]
    close(logits, torch.stack([alone(model, *pair) for pair in zip(SOURCES, rows, strict=True)]))
    logits = model.step(torch.tensor([4, 3, 2, 1]), state)
    rows = [[*row, 4 - i] for i, row in enumerate(rows)]
    close(logits, torch.stack([alone(model, *pair) for pair in zip(SOURCES, rows, strict=True)]))


ORDERS = {
    "beams": [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [1, 0, 0, 5, 4, 3, 8, 8, 8, 9, 11, 10]],
    "leaving": [[0, 0, 1, 1, 2, 2, 3, 3], [1, 1, 4, 5], [2, 3]],
    "irregular": [[2, 0, 0, 3, 2], [4, 4, 4, 1, 0, 3], [5, 2]],
    "fewer": [[3], [0, 0, 0]],
}


@pytest.mark.thinned(4)
@each
@pytest.mark.parametrize("even", [True, False], ids=["even", "ragged"])
@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
def test_rows_may_repeat_and_vanish_and_multiply(name: str, orders: list[list[int]], even: bool) -> None:
    model = build(name)
    rows = [[1, 2, 3]] * 4 if even else PROMPTS
    pairs = [(source, list(row)) for source, row in zip(SOURCES, rows, strict=True)]
    state, _ = started(model, SOURCES, rows)
    for order in orders:
        state.reorder(torch.tensor(order))
        new = tokens(1, len(order), seed=len(order))[0]
        pairs = [(pairs[row][0], [*pairs[row][1], int(token)]) for row, token in zip(order, new, strict=True)]
        close(model.step(new, state), torch.stack([alone(model, *pair) for pair in pairs]))


@each
@pytest.mark.parametrize("even", [True, False], ids=["even", "ragged"])
def test_rewinding_gives_the_same_logits_again(name: str, even: bool) -> None:
    model, words = build(name), tokens(4, 4, seed=4)
    prompts = [[1, 2, 3]] * 4 if even else PROMPTS
    state, _ = started(model, SOURCES, prompts)
    start = state.length
    once = [model.step(word, state) for word in words]
    state.reorder(torch.tensor([3, 3, 1, 0]))
    state.reorder(torch.tensor([0, 1, 2, 3]))
    state.rewind(start)
    picked = [3, 3, 1, 0]
    again = [model.step(word[picked], state) for word in words]
    close(again, [logits[picked] for logits in once])


def test_rewinding_over_a_ragged_prompt_forgets_its_padding() -> None:
    model = build()
    state, _ = started(model, SOURCES, PROMPTS)
    model.prefill(padded([[1], [2, 3], [4], [5]]), state)
    state.rewind(7)
    logits = [model.step(torch.tensor([6, 6, 6, 6]), state) for _ in range(2)][-1]
    close(logits, torch.stack([alone(model, s, [*p, 6, 6]) for s, p in zip(SOURCES, PROMPTS, strict=True)]))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["greedy", "beam", "sample"])
@each
def test_searching_sources_together_equals_searching_each_alone(name: str, kind: Any) -> None:
    model = build(name)
    memory = model.encode(batch(SOURCES, PROMPTS))
    options = SearchOptions(search=kind, max_tokens=8, seed=5)
    together = search(model, PROMPTS, options, eos=0, memory=memory)
    for row, (source, prompt) in enumerate(zip(SOURCES, PROMPTS, strict=True)):
        single = model.encode(Batch(Inputs(torch.tensor([prompt])), source=Inputs(torch.tensor([source]))))
        found = search(model, [prompt], options, eos=0, memory=single)[0]
        assert [h.tokens for h in found] == [h.tokens for h in together[row]]
        assert [h.logprob for h in found] == pytest.approx([h.logprob for h in together[row]], abs=1e-5)


@each
def test_a_beam_of_one_is_greedy_search(name: str) -> None:
    model = build(name)
    memory = model.encode(batch(SOURCES, PROMPTS))
    greedy = search(model, PROMPTS, SearchOptions(max_tokens=8), eos=0, memory=memory)
    beam = search(model, PROMPTS, SearchOptions(search="beam", beams=1, max_tokens=8), eos=0, memory=memory)
    assert [found[0].tokens for found in beam] == [found[0].tokens for found in greedy]


def test_a_wide_beam_finds_the_best_of_all_continuations() -> None:
    model, source, length = build(sizes=Sizes(3)), [1, 2, 1], 3
    memory = model.encode(Batch(Inputs(torch.tensor([[1]])), source=Inputs(torch.tensor([source]))))
    options = SearchOptions(search="beam", beams=27, max_tokens=length, length_penalty=0.0)
    found = search(model, [[1]], options, eos=None, memory=memory)[0][0]

    def score(continuation: tuple[int, ...]) -> float:
        row, total = [1], 0.0
        for token in continuation:
            total += float(alone(model, source, row).log_softmax(-1)[token])
            row.append(token)
        return total

    best = max(itertools.product(range(3), repeat=length), key=score)
    assert found.tokens == list(best)
    assert found.logprob == pytest.approx(score(best), abs=1e-5)


def test_a_memory_of_a_search_is_left_as_it_was() -> None:
    model = build()
    memory = model.encode(batch(SOURCES, PROMPTS))
    before = memory.states.clone()
    options = SearchOptions(search="beam", max_tokens=8)
    once, again = (search(model, PROMPTS, options, eos=0, memory=memory) for _ in range(2))
    close(memory.states, before)
    assert once == again


def test_generation_keeps_no_gradients() -> None:
    model = build()
    memory = model.encode(batch(SOURCES, PROMPTS))
    assert memory.states.requires_grad
    state = model.start(4, 10, memory)
    assert not model.prefill(padded(PROMPTS), state).requires_grad
    assert not model.step(torch.tensor([1, 2, 3, 4]), state).requires_grad


def test_single_precision_generation_equals_the_forward_pass() -> None:
    model = build().float()
    state, _ = started(model, SOURCES, PROMPTS)
    state.reorder(torch.arange(4).repeat_interleave(4))
    logits = model.step(torch.full((16,), 3), state)
    expected = torch.stack([alone(model, s, [*p, 3]) for s, p in zip(SOURCES, PROMPTS, strict=True)])
    torch.testing.assert_close(logits, expected.repeat_interleave(4, 0), rtol=1e-4, atol=1e-4)


def test_generation_under_autocast_follows_the_forward_pass() -> None:
    model = build().float()
    with torch.autocast("cpu", torch.bfloat16):
        state, logits = started(model, SOURCES, PROMPTS)
        assert state.open(1).pasts[0].key.dtype == torch.bfloat16
    expected = torch.stack([alone(model, s, p) for s, p in zip(SOURCES, PROMPTS, strict=True)])
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.3)


# --- looking inside --------------------------------------------------------------------------------


@each
def test_alignments_sum_to_one_over_real_source_tokens(name: str) -> None:
    weights = build(name).align(batch(SOURCES, PROMPTS))  # (B, T, S)
    assert weights.shape == (4, 7, 7)
    close(weights.sum(-1), torch.ones(4, 7, dtype=torch.float64))
    for row, source in enumerate(SOURCES):
        assert not weights[row, :, len(source) :].any()


@each
def test_looking_inside_changes_nothing(name: str) -> None:
    model, given_batch = build(name), batch(SOURCES, PROMPTS)
    before = model(given_batch).hidden
    with record() as trace:
        close(model(given_batch).hidden, before)
    assert trace["encoder.1.attention.weights"][0].shape == (4, 4, 7, 7)
    assert trace["decoder.0.cross.weights"][0].shape == (4, 4, 7, 7)
    last = model.align(given_batch)
    close(trace[f"decoder.{len(model.decoder.layers) - 1}.cross.weights"][0].mean(1), last)


def test_looking_inside_generation_changes_nothing() -> None:
    model, new = build(), torch.arange(12) % V
    logits = []
    for looking in (False, True):
        state, _ = started(model, SOURCES, PROMPTS)
        state.reorder(torch.arange(4).repeat_interleave(3))
        if looking:
            with record() as trace:
                logits.append(model.step(new, state))
        else:
            logits.append(model.step(new, state))
    close(*logits)
    assert trace["decoder.1.cross.weights"][0].shape == (12, 4, 1, 7)
    assert trace["decoder.1.attention.weights"][0].shape == (12, 4, 1, 8)


def test_written_out_equals_fused() -> None:
    model, given_batch = build(), batch(SOURCES, PROMPTS)
    before = model(given_batch).hidden
    fuse(model, False)
    close(model(given_batch).hidden, before)


# --- parameters and settings -----------------------------------------------------------------------


@each
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name)
    model.readout(model(batch(SOURCES, PROMPTS)).hidden).logsumexp(-1).square().sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@each
def test_a_model_is_measured_without_being_made(name: str) -> None:
    model = build(name)
    assert measure(TransformerModel, model.config, Sizes(V)) == count_parameters(model)


@pytest.mark.parametrize("kind", ["dropout", "dropout_attention", "dropout_activation"])
def test_dropout_acts_in_training_and_not_in_evaluation(kind: str) -> None:
    model, given_batch = build(**{kind: 0.5}), batch(SOURCES, PROMPTS)
    assert torch.equal(model(given_batch).hidden, model(given_batch).hidden)
    model.train()
    assert not torch.equal(model(given_batch).hidden, model(given_batch).hidden)


def test_the_embedding_is_shared_and_tied_as_asked() -> None:
    model = build()
    assert model.source_embedding is None
    assert model.output.weight is model.embedding.weight
    apart = build("apart")
    assert count_parameters(apart) - count_parameters(model) == 2 * V * 16


def test_a_source_that_is_numbered_apart_has_an_embedding_of_its_own() -> None:
    model = build(sizes=Sizes(V, source=29))
    assert model.source_embedding is not None
    assert model.source_embedding.weight.shape == (29, 16)
    hidden = model(Batch(Inputs(tokens(1, 3)), source=Inputs(torch.tensor([[28, 27]])))).hidden
    assert model.readout(hidden).shape == (1, 3, V)


def test_embeddings_are_scaled_by_the_root_of_the_width() -> None:
    model = build("rotary")
    ids = tokens(2, 3)
    close(model._embed(model.embedding, ids), 4 * model.embedding(ids))
    plain = build("rotary", scale=False)
    close(plain._embed(plain.embedding, ids), plain.embedding(ids))


def test_inputs_and_logits_start_out_of_size_one() -> None:
    torch.manual_seed(0)
    model = TransformerModel(TransformerConfig(layers=2, width=64, length=20), Sizes(500)).eval()
    ids = torch.randint(500, (8, 20))
    assert 0.9 < float((8 * model.embedding(ids)).std().detach()) < 1.1
    assert 0.7 < float(model.readout(model(Batch(Inputs(ids), source=Inputs(ids))).hidden).std().detach()) < 1.4


def test_pre_norm_ends_with_a_norm() -> None:
    assert build("pre").encoder.norm is not None
    assert build("pre").decoder.norm is not None
    assert build("post").encoder.norm is None


def test_sizes_left_out_are_chosen() -> None:
    assert TransformerConfig(width=64).inner == 256
    assert TransformerConfig(width=64, activation="swiglu").inner == 176  # 8/3 · 64 = 170.7, up to a multiple of 8
    assert TransformerConfig(width=48, activation="swiglu").inner == 128
    assert TransformerConfig(feedforward=7).inner == 7
    assert len(build(layers=3).decoder.layers) == 3
    assert isinstance(build("learned").positions, Learned)


@each
def test_a_sequence_beyond_the_longest_is_refused(name: str) -> None:
    model = build(name, length=5)
    short, long, six = tokens(1, 5), tokens(1, 6), torch.tensor([6])
    memory = model.encode(Batch(Inputs(short), source=Inputs(short)))
    state = model.start(1, 20, memory)
    model.prefill(Inputs(short), state)
    assert model.max_length == 5
    for act in (
        lambda: model.encode(Batch(Inputs(short), source=Inputs(long))),
        lambda: model(Batch(Inputs(long), source=Inputs(short))),
        lambda: model.prefill(Inputs(long, lengths=six), model.start(1, 20, memory)),
        lambda: model.step(torch.tensor([1]), state),
    ):
        with pytest.raises(LegatoError, match="a sequence of 6 tokens is too long: this model goes up to 5"):
            act()


def refused(**asked: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(TransformerConfig, asked, "model")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_settings_that_cannot_be_are_refused_in_one_line() -> None:
    assert refused(width=30, heads=4) == "model: heads=4 does not divide width=30"
    assert "even width, not 3" in refused(width=12, heads=4, positions="rotary")
    assert "model.window=0" in refused(window=0)
    assert "model.activation=tanh" in refused(activation="tanh")
    assert refused(head=2) == "unknown key 'model.head'; did you mean 'heads'?"
