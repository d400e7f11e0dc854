"""What every model promises: one suite over all that are registered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import TEXT
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError
from legato.models.base import SequenceModel, Sizes, count_parameters, measure
from legato.nn.recurrent import CELLS
from legato.registry import MODELS
from legato.training.checkpoints import with_each

# word2vec, which has no layers, and models that read pictures have tests of their own.
TEXT_ONLY = [name for name in MODELS.names() if MODELS.get(name).processors == (TEXT,) and name != "word2vec"]
NAMES = [name for name in TEXT_ONLY if not MODELS.get(name).is_encoder_decoder]
# Those that write from left to right, and of them those that carry a state from one piece of a text to the next.
# A Transformer carries none: its texts have a longest length.
WRITERS = [name for name in NAMES if MODELS.get(name).step is not SequenceModel.step]
CARRIERS = [name for name in NAMES if MODELS.get(name).reset_state is not SequenceModel.reset_state]
V = 13
SMALL: dict[str, Any] = {"layers": 2, "width": 10, "embedding": 6, "dropout": 0.0}
SMALL_TRANSFORMER: dict[str, Any] = {"layers": 2, "width": 12, "heads": 2, "length": 64, "dropout": 0.0}
SIZES = ("layers", "width", "embedding", "context", "heads", "kv_heads", "feedforward", "length", "window")


def build(name: str, **settings: Any) -> SequenceModel:
    """A small model in double precision, with weights large enough to have opinions."""
    torch.manual_seed(0)
    model: type[SequenceModel] = MODELS.get(name)
    attends = "heads" in model.Config.model_fields
    small = SMALL_TRANSFORMER if attends else SMALL
    made = model(validate(model.Config, {"name": name, **small, **settings}), Sizes(V)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if attends:  # most of these start out tiny
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(2)
    return made


def tokens(rows: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(seed))


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def tensors(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else [t for part in state for t in tensors(part)]


def logits_of(model: SequenceModel, row: list[int]) -> Tensor:
    """What the whole forward pass says after the last of `row`, (V,)."""
    with torch.no_grad():
        return model.readout(model(Batch(Inputs(torch.tensor([row])))).hidden[0, -1])


# --- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CARRIERS)
@given(cut=st.integers(1, 11))
@settings(max_examples=8, deadline=None)
def test_two_segments_with_the_state_carried_equal_one(name: str, cut: int) -> None:
    model, ids = build(name), tokens(3, 12)
    whole = model(Batch(Inputs(ids)))
    first = model(Batch(Inputs(ids[:, :cut])))
    second = model(Batch(Inputs(ids[:, cut:])), first.state)
    close(torch.cat([first.hidden, second.hidden], 1), whole.hidden)
    close(second.state, whole.state)


@pytest.mark.parametrize("name", WRITERS)
@given(place=st.integers(1, 9), word=st.integers(1, V - 1))
@settings(max_examples=8, deadline=None)
def test_a_future_token_never_changes_an_earlier_output(name: str, place: int, word: int) -> None:
    model, ids = build(name), tokens(2, 10)
    changed = ids.clone()
    changed[:, place] = (changed[:, place] + word) % V
    before, after = model(Batch(Inputs(ids))).hidden, model(Batch(Inputs(changed))).hidden
    close(after[:, :place], before[:, :place])
    assert not torch.allclose(after[:, place], before[:, place])


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_rows_never_matters(name: str) -> None:
    model, ids, order = build(name), tokens(4, 6), torch.tensor([2, 0, 3, 1])
    close(model(Batch(Inputs(ids[order]))).hidden, model(Batch(Inputs(ids))).hidden[order])


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_output(name: str) -> None:
    model, ids, lengths = build(name), tokens(4, 9), [9, 1, 4, 7]
    together = model(Batch(Inputs(ids, lengths=torch.tensor(lengths)))).hidden
    for row, length in enumerate(lengths):
        close(together[row, :length], model(Batch(Inputs(ids[row : row + 1, :length]))).hidden[0])


@pytest.mark.parametrize("name", CARRIERS)
def test_padding_does_not_change_the_state(name: str) -> None:
    model, ids, lengths = build(name), tokens(4, 9), [9, 1, 4, 7]
    together = tensors(model(Batch(Inputs(ids, lengths=torch.tensor(lengths)))).state)
    for row, length in enumerate(lengths):
        alone = tensors(model(Batch(Inputs(ids[row : row + 1, :length]))).state)
        close([part[row] for part in together], [part[0] for part in alone])


# ELMo reads each row whole, however long.
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(CARRIERS) - {"elmo"}))
def test_a_model_without_a_state_says_how_much_it_reads_at_once(name: str) -> None:
    model = build(name)
    assert model(Batch(Inputs(tokens(2, 5)))).state is None
    assert model.max_length is not None


@pytest.mark.parametrize("name", CARRIERS)
def test_a_detached_state_carries_no_gradient(name: str) -> None:
    model = build(name)
    state = with_each(Tensor.detach, model(Batch(Inputs(tokens(2, 5)))).state)
    assert not any(part.requires_grad for part in tensors(state))


@pytest.mark.parametrize("name", CARRIERS)
def test_detaching_changes_no_value(name: str) -> None:
    state = build(name)(Batch(Inputs(tokens(2, 5)))).state
    close(with_each(Tensor.detach, state), state)


def gradient_on_earlier_words(model: SequenceModel, cut: bool) -> float:
    """How much the second segment moves the embeddings of words that only the first one holds."""
    first = model(Batch(Inputs(torch.tensor([[1, 2, 3]]))))
    state = with_each(Tensor.detach, first.state) if cut else first.state
    model(Batch(Inputs(torch.tensor([[4, 5, 6]]))), state).hidden.sum().backward()
    gradient: Tensor = model.embedding.weight.grad  # type: ignore[union-attr, assignment]
    return float(gradient[1:4].abs().sum())


@pytest.mark.parametrize("name", CELLS)
def test_gradients_are_cut_between_segments(name: str) -> None:
    assert gradient_on_earlier_words(build(name, tied=False), cut=True) == 0


@pytest.mark.parametrize("name", CELLS)
def test_gradients_flow_between_segments_that_are_not_cut(name: str) -> None:
    assert gradient_on_earlier_words(build(name, tied=False), cut=False) > 0


@pytest.mark.parametrize("name", CARRIERS)
def test_forgetting_resets_the_chosen_rows_and_no_other(name: str) -> None:
    model, ids, more = build(name), tokens(4, 6), tokens(4, 6, seed=2)
    state = model(Batch(Inputs(ids))).state
    keep = torch.tensor([True, False, True, False])
    after = model(Batch(Inputs(more)), model.reset_state(state, keep)).hidden
    close(after[keep], model(Batch(Inputs(more)), state).hidden[keep])
    close(after[~keep], model(Batch(Inputs(more))).hidden[~keep])


# --- generation ------------------------------------------------------------------------------------

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5], [8, 9, 7, 9]]


def padded(prompts: list[list[int]]) -> Inputs:
    # What pads is a real word, so that reading it would show.
    return Inputs.of(prompts, padding=7)


def started(model: SequenceModel, prompts: list[list[int]], keep: int = 0) -> tuple[Any, Tensor]:
    more = {"keep": keep} if model.config.name in CELLS and keep else {}
    state = model.start(len(prompts), 50, **more)
    with torch.no_grad():
        return state, model.prefill(padded(prompts), state)


@pytest.mark.parametrize("name", WRITERS)
def test_cached_logits_equal_uncached_ones_for_ragged_prompts(name: str) -> None:
    model = build(name)
    state, logits = started(model, PROMPTS)
    rows = [list(prompt) for prompt in PROMPTS]
    for new in tokens(6, 4, seed=3):
        close(logits, torch.stack([logits_of(model, row) for row in rows]))
        with torch.no_grad():
            logits = model.step(new, state)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)
    close(logits, torch.stack([logits_of(model, row) for row in rows]))


@pytest.mark.parametrize("name", WRITERS)
def test_a_second_prefill_goes_on_after_the_first(name: str) -> None:
    model = build(name)
    state, _ = started(model, PROMPTS)
    more = [[1, 2], [3, 4, 5, 6], [2], [9, 9, 9]]
    with torch.no_grad():
        logits = model.prefill(padded(more), state)
    close(logits, torch.stack([logits_of(model, a + b) for a, b in zip(PROMPTS, more, strict=True)]))


@pytest.mark.parametrize("name", WRITERS)
def test_reordering_picks_rows_that_may_repeat_and_vanish(name: str) -> None:
    model, rows, new = build(name), [2, 0, 0, 3, 2], torch.tensor([1, 2, 3, 4, 5])
    state, _ = started(model, PROMPTS)
    state.reorder(torch.tensor(rows))
    with torch.no_grad():
        logits = model.step(new, state)
    expected = [logits_of(model, [*PROMPTS[row], token]) for row, token in zip(rows, new.tolist(), strict=True)]
    close(logits, torch.stack(expected))


@pytest.mark.parametrize("name", WRITERS)
def test_rewinding_gives_the_same_logits_again(name: str) -> None:
    model, words = build(name), tokens(3, 4, seed=4)
    state, _ = started(model, PROMPTS, keep=3)
    start = state.length
    with torch.no_grad():
        once = [model.step(word, state) for word in words]
        state.rewind(start)
        again = [model.step(word, state) for word in words]
    close(again, once)


@pytest.mark.parametrize("name", WRITERS)
def test_rewinding_after_reordering_keeps_the_new_rows(name: str) -> None:
    model, order = build(name), torch.tensor([3, 3, 1, 0])
    state, _ = started(model, PROMPTS, keep=3)
    start = state.length
    with torch.no_grad():
        model.step(tokens(1, 4)[0], state)
        state.reorder(order)
        state.rewind(start)
        logits = model.step(torch.tensor([1, 2, 3, 4]), state)
    close(logits, torch.stack([logits_of(model, [*PROMPTS[r], i + 1]) for i, r in enumerate(order.tolist())]))


@pytest.mark.parametrize("name", WRITERS)
def test_the_state_counts_the_tokens_of_its_longest_row(name: str) -> None:
    model = build(name)
    state, _ = started(model, PROMPTS)
    assert state.length == 7
    with torch.no_grad():
        model.step(tokens(1, 4)[0], state)
    assert state.length == 8


@pytest.mark.parametrize("name", CELLS)
def test_a_recurrent_state_cannot_go_back_further_than_it_keeps(name: str) -> None:
    model = build(name)
    state, _ = started(model, PROMPTS, keep=1)
    with torch.no_grad():
        for word in tokens(2, 4):
            model.step(word, state)
    with pytest.raises(ValueError, match="cannot go back from 9 to 7"):
        state.rewind(7)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["greedy", "beam", "sample", "beam-sample"])
@pytest.mark.parametrize("name", WRITERS)
def test_searching_ragged_prompts_together_equals_searching_each_alone(name: str, kind: Any) -> None:
    model = build(name)
    for row, prompt in enumerate(PROMPTS):
        together = search(model, PROMPTS, SearchOptions(search=kind, max_tokens=8), eos=0)[row]
        alone = search(model, [prompt], SearchOptions(search=kind, max_tokens=8), eos=0)[0]
        assert [h.tokens for h in together] == [h.tokens for h in alone]
        assert [h.logprob for h in together] == pytest.approx([h.logprob for h in alone], abs=1e-5)


@pytest.mark.parametrize("name", WRITERS)
def test_a_beam_of_one_is_greedy_search(name: str) -> None:
    model = build(name)
    greedy = search(model, PROMPTS, SearchOptions(max_tokens=8), eos=0)
    beam = search(model, PROMPTS, SearchOptions(search="beam", beams=1, max_tokens=8), eos=0)
    assert [[h.tokens for h in found] for found in beam] == [[h.tokens for h in found] for found in greedy]


@pytest.mark.parametrize("name", WRITERS)
def test_greedy_search_follows_the_largest_logit(name: str) -> None:
    model, row = build(name), list(PROMPTS[0])
    found = search(model, [row], SearchOptions(max_tokens=8), eos=None)[0][0]
    for token in found.tokens:
        assert token == int(logits_of(model, row).argmax())
        row.append(token)


# --- parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_measured_without_being_made(name: str) -> None:
    model = build(name)
    assert measure(type(model), model.config, Sizes(V)) == count_parameters(model)
    assert all(p.device.type == "cpu" for p in model.parameters())


@pytest.mark.parametrize("name", WRITERS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = build(name)
    model.readout(model(Batch(Inputs(tokens(3, 6)))).hidden).logsumexp(-1).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_readout_gives_a_logit_for_every_token(name: str) -> None:
    model = build(name)
    assert model.vocabulary == V
    assert model.readout(model(Batch(Inputs(tokens(3, 6)))).hidden).shape == (3, 6, V)


@pytest.mark.parametrize("name", CELLS)
def test_tied_embeddings_are_one_tensor(name: str) -> None:
    model = build(name, tied=True)
    assert model.output.weight is model.embedding.weight  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CELLS)
def test_a_tied_embedding_is_counted_once(name: str) -> None:
    same = {"width": 8, "embedding": 8}
    tied, untied = build(name, tied=True, **same), build(name, tied=False, **same)
    assert count_parameters(untied) - count_parameters(tied) == V * 8


@pytest.mark.parametrize("name", CELLS)
def test_when_tied_the_last_layer_is_as_wide_as_the_embedding(name: str) -> None:
    for tied, width in ((True, 6), (False, 10)):
        assert build(name, tied=tied)(Batch(Inputs(tokens(2, 3)))).hidden.shape[-1] == width


def test_the_names_choose_the_cells() -> None:
    found = {name: type(build(name).stack.layers[0][0].cell) for name in CELLS}  # type: ignore[union-attr, index]
    assert found == CELLS


# --- dropout and penalties -------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_in_training_and_not_in_evaluation(name: str) -> None:
    model, batch = build(name, dropout=0.5), Batch(Inputs(tokens(3, 6)))
    assert torch.equal(model(batch).hidden, model(batch).hidden)
    model.train()
    assert not torch.equal(model(batch).hidden, model(batch).hidden)


PENALTIES = {"activation_penalty": 2.0, "temporal_penalty": 1.0}


@pytest.mark.parametrize("name", CELLS)
def test_penalties_are_there_in_training(name: str) -> None:
    output = build(name, **PENALTIES).train()(Batch(Inputs(tokens(3, 6))))
    hidden = output.hidden
    moves = hidden[:, 1:] - hidden[:, :-1]
    assert set(output.auxiliary) == {"activation", "temporal"}
    assert output.auxiliary["activation"].item() == pytest.approx(2.0 * hidden.pow(2).mean().item(), rel=1e-5)
    assert output.auxiliary["temporal"].item() == pytest.approx(moves.pow(2).mean().item(), rel=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_padding_adds_nothing_to_the_penalties(name: str) -> None:
    model = build(name, **PENALTIES).train()
    ids = tokens(2, 6)
    plain = model(Batch(Inputs(ids))).auxiliary
    longer = torch.cat([ids, tokens(2, 3, seed=9)], 1)
    padded = model(Batch(Inputs(longer, lengths=torch.tensor([6, 6])))).auxiliary
    assert {k: v.item() for k, v in padded.items()} == pytest.approx({k: v.item() for k, v in plain.items()})


@pytest.mark.parametrize("name", NAMES)
def test_there_are_no_penalties_in_evaluation(name: str) -> None:
    asked = PENALTIES if name in CELLS else {}
    assert build(name, **asked)(Batch(Inputs(tokens(3, 6)))).auxiliary == {}


# --- settings --------------------------------------------------------------------------------------


def refused(model: str, /, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(MODELS.get(model).Config, {"name": model, **settings}, "model")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("size", [0, -3])
@pytest.mark.parametrize("name", NAMES)
def test_a_size_of_nothing_is_refused(name: str, size: int) -> None:
    fields = [field for field in SIZES if field in MODELS.get(name).Config.model_fields]
    assert {"layers", "width"} <= set(fields)
    for field in fields:
        assert f"model.{field}={size} " in refused(name, **{field: size})


@pytest.mark.parametrize("p", [1.0, -0.1, "a lot"])
@pytest.mark.parametrize("name", NAMES)
def test_a_dropout_that_is_no_share_is_refused(name: str, p: Any) -> None:
    for field in (f for f in MODELS.get(name).Config.model_fields if f.startswith("dropout")):
        assert f"model.{field}={p} " in refused(name, **{field: p})


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelt_setting_gets_a_suggestion(name: str) -> None:
    assert refused(name, widht=5) == "unknown key 'model.widht'; did you mean 'width'?"


@pytest.mark.parametrize("name", NAMES)
def test_the_config_of_one_model_refuses_the_name_of_another(name: str) -> None:
    assert "model.name=transformer" in refused(name, name="transformer")


@pytest.mark.parametrize("settings", [{"width": 7}, {"width": 8, "embedding": 5}])
@pytest.mark.parametrize("name", CELLS)
def test_a_bidirectional_model_needs_even_widths(name: str, settings: dict[str, int]) -> None:
    assert "even width" in refused(name, bidirectional=True, layers=2, **settings)


# --- both sides, and few words ---------------------------------------------------------------------


@pytest.mark.parametrize("name", CELLS)
def test_a_bidirectional_model_sees_both_sides(name: str) -> None:
    model, ids = build(name, bidirectional=True), tokens(1, 9)
    before = model(Batch(Inputs(ids))).hidden[0, 4]
    for place in (3, 5):
        changed = ids.clone()
        changed[0, place] = (changed[0, place] + 1) % V
        assert not torch.allclose(model(Batch(Inputs(changed))).hidden[0, 4], before)


@pytest.mark.parametrize("name", CELLS)
def test_a_bidirectional_model_says_that_it_does_not_generate(name: str) -> None:
    assert not build(name, bidirectional=True).can_generate


@pytest.mark.parametrize("name", WRITERS)
def test_a_model_that_reads_one_way_generates(name: str) -> None:
    assert build(name).can_generate


@pytest.mark.parametrize("context", [1, 3])
def test_the_window_model_ignores_everything_beyond_its_context(context: int) -> None:
    model, ids = build("window", context=context), tokens(1, 9)
    before = model(Batch(Inputs(ids))).hidden[0, 8]
    changed = ids.clone()
    changed[0, : 9 - context] = (changed[0, : 9 - context] + 1) % V
    close(model(Batch(Inputs(changed))).hidden[0, 8], before)


@pytest.mark.parametrize("context", [1, 3])
def test_the_window_model_sees_the_first_word_of_its_context(context: int) -> None:
    model, ids = build("window", context=context), tokens(1, 9)
    changed = ids.clone()
    changed[0, 9 - context] = (changed[0, 9 - context] + 1) % V
    assert not torch.allclose(model(Batch(Inputs(changed))).hidden[0, 8], model(Batch(Inputs(ids))).hidden[0, 8])


def test_a_window_of_one_word_carries_no_state() -> None:
    model, ids = build("window", context=1), tokens(2, 6)
    first = model(Batch(Inputs(ids[:, :3])))
    assert first.state.shape == (2, 0)
    close(model(Batch(Inputs(ids[:, 3:])), first.state).hidden, model(Batch(Inputs(ids))).hidden[:, 3:])
