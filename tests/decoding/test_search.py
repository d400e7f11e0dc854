"""The search, over models whose probabilities are known: what it finds, alone and in batches, and what it refuses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel, TableState, from_seed, from_table, logprobs_of
from tiny_searches import EOS, OK, PROMPTS, YES, assert_same, lecture, options, tokens_of
from torch import Tensor

from legato.decoding import SearchOptions, search
from legato.decoding.candidates import Candidates, Chooser
from legato.decoding.frontier import Frontier
from legato.errors import LegatoError

# What each search finds


def test_greedy_finds_yes_yes_with_probability_a_fifth():
    [[found]] = search(lecture(), [[EOS]], options(), eos=EOS)
    assert found.tokens == [YES, YES]
    assert math.exp(found.logprob) == pytest.approx(0.20)


def test_a_beam_of_two_finds_ok_ok_with_probability_028():
    [[found]] = search(lecture(), [[EOS]], options("beam", beams=2, length_penalty=0), eos=EOS)
    assert found.tokens == [OK, OK]
    assert math.exp(found.logprob) == pytest.approx(0.28)


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.6, 1.0]))
@settings(max_examples=30, deadline=None)
def test_a_beam_of_one_is_greedy_search(seed: int, penalty: float):
    beam = options("beam", beams=1, length_penalty=penalty)
    greedy = options(length_penalty=penalty)
    for left, right in zip(
        search(from_seed(seed), PROMPTS, beam, eos=EOS),
        search(from_seed(seed), PROMPTS, greedy, eos=EOS),
        strict=True,
    ):
        assert_same(left, right)


@given(st.integers(0, 1000), st.integers(2, 4), st.integers(1, 3), st.sampled_from([0.0, 0.6, 1.0]))
@settings(max_examples=30, deadline=None)
def test_a_beam_wide_enough_is_exhaustive_search(seed: int, vocabulary: int, most: int, penalty: float):
    model = from_seed(seed, vocabulary)
    everything = []
    for length in range(most + 1):
        for words in itertools.product(range(1, vocabulary), repeat=length):
            produced = (*words, EOS) if length < most else words
            score = sum(logprobs_of(model, [1], produced)) / len(produced) ** penalty
            everything.append((score, list(words)))
    everything.sort(reverse=True)
    wide = options("beam", beams=max(vocabulary**most, 3), nbest=3, max_tokens=most, length_penalty=penalty)
    [found] = search(model, [[1]], wide, eos=EOS)
    assert [h.tokens for h in found] == [words for _, words in everything[:3]]
    assert [h.score for h in found] == pytest.approx([score for score, _ in everything[:3]], abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0])
def test_stopping_when_nothing_can_improve_does_not_change_what_is_found(
    penalty: float, monkeypatch: pytest.MonkeyPatch
):
    beam = options("beam", beams=4, nbest=2, length_penalty=penalty)
    early_model, late_model = from_seed(13), from_seed(13)
    early = search(early_model, PROMPTS, beam, eos=EOS)
    monkeypatch.setattr(Frontier, "_settled", lambda *_: False)
    late = search(late_model, PROMPTS, beam, eos=EOS)
    assert tokens_of(early) == tokens_of(late)
    assert sum(early_model.batches) <= sum(late_model.batches)


def test_equal_scores_go_to_lower_tokens():
    model = from_table(6, {}, otherwise=[1 / 6] * 6)
    [found] = search(model, [[1]], options("beam", beams=3, nbest=3, max_tokens=2), eos=None)
    assert [h.tokens for h in found] == [[0, 0], [0, 1], [0, 2]]


def test_the_n_best_are_sorted_and_distinct():
    for found in search(from_seed(3), PROMPTS, options("beam", beams=5, nbest=5), eos=EOS):
        scores = [h.score for h in found]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(h.tokens) for h in found}) == len(found)


def test_of_two_ends_of_the_same_tokens_the_likelier_counts():
    model = from_table(4, {(): [0.2, 0.3, 0.5, 0.0]}, otherwise=[0.25] * 4)
    wide = options("beam", beams=3, nbest=3, length_penalty=0)
    [found] = search(model, [[3]], wide, eos=0, stop_tokens=[1])
    assert [math.exp(h.logprob) for h in found if h.tokens == []] == pytest.approx([0.3])


def test_a_long_hypothesis_that_will_score_better_is_waited_for():
    # Ending at once scores log 0.5; going on costs log 0.4 once, shared in the end by five tokens.
    table = {(): [0.5, 0.4, 0.1], (1,) * 4: [1.0, 0.0, 0.0]}
    model = from_table(3, table, otherwise=[0.0, 1.0, 0.0])
    [[found]] = search(model, [[1]], options("beam", beams=3), eos=EOS)
    assert found.tokens == [1] * 4


def test_a_prompt_is_done_once_as_many_hypotheses_closed_as_there_are_beams():
    model = from_table(2, {}, otherwise=[0.5, 0.5])
    search(model, [[1]], options("beam", beams=3, nbest=3), eos=EOS)
    assert len(model.batches) == 2


def test_unlikely_hypotheses_that_end_early_do_not_stop_the_search():
    # The model is sure of 2 2 2 2 and the end; whatever else it may say ends at once.
    sure = [0.04, 0.03, 0.93]
    table = {(2,) * length: sure for length in range(4)} | {(2,) * 4: [0.98, 0.01, 0.01]}
    model = from_table(3, table, otherwise=[0.98, 0.01, 0.01])
    [[found]] = search(model, [[1]], options("beam", beams=4), eos=EOS)
    assert found.tokens == [2] * 4


def test_an_end_among_the_candidates_does_not_narrow_the_beam():
    table = {(): [0.4, 0.3, 0.2, 0.1], (2,): [0.0, 0.0, 0.0, 1.0]}
    model = from_table(4, table, otherwise=[0.25] * 4)
    [found] = search(model, [[1]], options("beam", beams=2, nbest=2, max_tokens=2, length_penalty=0), eos=EOS)
    assert [h.tokens for h in found] == [[], [2, 3]]


@pytest.mark.parametrize("kind", ["greedy", "beam", "sample", "beam-sample"])
def test_log_probabilities_are_those_of_the_model(kind: str):
    model = from_seed(4)
    for prompt, found in zip(PROMPTS, search(model, PROMPTS, options(kind), eos=EOS), strict=True):
        for hypothesis in found:
            produced = [*hypothesis.tokens, EOS] if hypothesis.finished else hypothesis.tokens
            expected = logprobs_of(model, prompt, produced)
            assert hypothesis.token_logprobs == pytest.approx(expected, abs=1e-5)
            assert hypothesis.logprob == pytest.approx(sum(expected), abs=1e-5)
            assert hypothesis.score == pytest.approx(sum(expected) / len(produced), abs=1e-5)


def test_filters_shape_the_draw_and_not_the_log_probabilities():
    model = from_seed(4)
    [[found]] = search(model, [[1]], options("sample", temperature=0.5, top_p=0.8), eos=None)
    assert found.token_logprobs == pytest.approx(logprobs_of(model, [1], found.tokens), abs=1e-5)


def test_a_repetition_penalty_leaves_no_token_said_twice():
    # Negative logits are multiplied, so a large enough penalty pushes what was said below all else.
    model = from_seed(2, vocabulary=8)
    [[found]] = search(model, [[1, 2]], options(repetition_penalty=1e6, max_tokens=6), eos=None)
    assert sorted([1, 2, *found.tokens]) == list(range(8))


def test_what_a_beam_gains_by_a_token_is_penalised_and_its_log_probability_is_not():
    chooser = Chooser(SearchOptions(search="beam", beams=2, repetition_penalty=2.0), ends=[], suppress=[])
    logits, seen = torch.tensor([[2.0, 1.0, 0.0]] * 2), torch.tensor([[True, False, False]] * 2)
    found = Candidates.of(chooser(logits, torch.tensor([[0.0, -torch.inf]]), torch.tensor([1]), seen=seen).numpy())
    assert found.tokens[0, :3].tolist() == [0, 1, 2]
    torch.testing.assert_close(torch.from_numpy(found.gains[0, :3]), torch.tensor([1.0, 1.0, 0.0]).log_softmax(0))
    torch.testing.assert_close(torch.from_numpy(found.logprobs[0, :3]), logits[0].log_softmax(0))


def test_a_repetition_penalty_follows_each_beam():
    model = from_seed(2, vocabulary=8)
    strict = options("beam", beams=3, nbest=3, repetition_penalty=1e6, max_tokens=6)
    [found] = search(model, [[1, 2]], strict, eos=None)
    assert [sorted(h.tokens) for h in found] == [[0, 3, 4, 5, 6, 7]] * 3


# Batches


@pytest.mark.parametrize(
    "chosen",
    [
        options(),
        options("beam", nbest=3),
        options(repetition_penalty=1.3),
        options("beam", repetition_penalty=1.3),
    ],
    ids=["greedy", "beam", "greedy-penalty", "beam-penalty"],
)
def test_a_batch_of_sixteen_prompts_equals_sixteen_singles(chosen: SearchOptions):
    batch = search(from_seed(5), PROMPTS, chosen, eos=EOS)
    for prompt, found in zip(PROMPTS, batch, strict=True):
        assert_same(found, search(from_seed(5), [prompt], chosen, eos=EOS)[0])


@pytest.mark.parametrize("kind", ["sample", "beam-sample"])
def test_a_drawn_batch_equals_singles_with_the_same_seed(kind: str):
    batch = search(from_seed(5), PROMPTS, options(kind, nbest=2, seed=100), eos=EOS)
    for found, prompt in zip(batch, PROMPTS, strict=True):
        assert_same(found, search(from_seed(5), [prompt], options(kind, nbest=2, seed=100), eos=EOS)[0])


def test_prompts_that_are_done_leave_the_batch():
    # The first prompt goes on for ever, the others end at once.
    model = TableModel(3, lambda history: [0.0, 1.0, 0.0] if history[0] == 1 else [1.0, 0.0, 0.0])
    search(model, [[1], *[[2]] * 15], options(max_tokens=5), eos=EOS)
    assert model.batches == [1, 1, 1, 1]


def test_rows_that_stay_in_place_are_not_reordered():
    model = from_seed(5)
    search(model, PROMPTS, options(), eos=None)
    assert model.state.reorders == []


def test_no_prompt_gives_no_result():
    assert search(lecture(), [], options(), eos=EOS) == []


# Streaming


def test_tokens_of_a_single_row_are_told_one_by_one_in_order():
    told: list[tuple[int, int]] = []
    found = search(from_seed(11), PROMPTS, options(), eos=EOS, on_token=lambda *pair: told.append(pair))
    for row, [hypothesis] in enumerate(found):
        assert [token for where, token in told if where == row] == hypothesis.tokens
    assert [row for row, _ in told] != sorted(row for row, _ in told)  # as they come, not prompt by prompt


def test_tokens_of_beams_are_told_once_settled():
    told: list[tuple[int, int]] = []
    found = search(from_seed(11), PROMPTS, options("beam"), eos=EOS, on_token=lambda *pair: told.append(pair))
    for row, [hypothesis] in enumerate(found):
        assert [token for where, token in told if where == row] == hypothesis.tokens


# Bad input


def test_an_empty_prompt_is_an_error():
    with pytest.raises(LegatoError, match="prompt 2 is empty; a prompt needs at least one token"):
        search(lecture(), [[EOS], []], options(), eos=EOS)


def test_a_token_outside_the_vocabulary_is_an_error():
    with pytest.raises(LegatoError, match="prompt 1 holds a token outside the model's vocabulary of 3"):
        search(lecture(), [[7]], options(), eos=EOS)


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(kind: str, bad: float):
    model = TableModel(3, lambda history: [0.2, 0.3, 0.5] if len(history) < 3 else [0.2, bad, 0.5])
    with pytest.raises(LegatoError, match=r"not finite \(prompt 1, token 3\)"):
        search(model, [[1]], options(kind), eos=None)


def test_half_precision_logits_are_scored_in_float32():
    class Half(TableModel):
        def logits(self, state: TableState) -> Tensor:
            return super().logits(state).bfloat16()

    model = Half(4, lambda history: [0.1, 0.2, 0.3, 0.4])
    [[found]] = search(model, [[1]], options(max_tokens=1), eos=None)
    rounded = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().bfloat16()
    # In bfloat16 it would differ in the third digit; the last bit of a float32 is the machine's.
    assert found.logprob == pytest.approx(float(rounded.float().log_softmax(-1)[3]), rel=1e-6)


@pytest.mark.parametrize("how", [{"search": "beam"}, {"search": "beam-sample"}, {"search": "sample"}, {}])
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_logits_may_be_a_part_of_a_wider_table(how: dict[str, Any], penalty: float) -> None:
    """As those of a model whose readout has more rows than its vocabulary."""

    class Padded(TableModel):
        def logits(self, state: Any) -> torch.Tensor:
            logits = super().logits(state)
            return torch.cat([logits, torch.full((len(logits), 3), torch.nan)], -1)[:, : self.vocabulary]

    plain = from_seed(4)
    options = SearchOptions(max_tokens=6, repetition_penalty=penalty, **how)
    padded = Padded(plain.vocabulary, plain.probabilities)
    assert search(padded, [[1], [2]], options, eos=0) == search(plain, [[1], [2]], options, eos=0)
