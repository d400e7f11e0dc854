"""The search, over models whose probabilities are known."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel, TableState, from_seed, from_table, logprobs_of
from torch import Tensor

from legato.config import validate
from legato.data.tokenizers import NAMES, Tokenizer, TokenizerConfig
from legato.decoding import Hypothesis, SearchOptions, cut_at_stop, search
from legato.decoding.candidates import Chance
from legato.decoding.search import Frontier
from legato.errors import LegatoError

EOS, YES, OK = 0, 1, 2

# Sixteen prompts of different lengths over five tokens.
PROMPTS = [[1 + (i * j) % 4 for j in range(1, 2 + i % 6)] for i in range(16)]


def lecture() -> TableModel:
    """The two-word tree: </s>, yes, ok."""
    table = {(): [0.1, 0.5, 0.4], (YES,): [0.3, 0.4, 0.3], (OK,): [0.1, 0.2, 0.7]}
    return from_table(3, table, otherwise=[1.0, 0.0, 0.0])


def options(kind: Any = "greedy", **more: Any) -> SearchOptions:
    return SearchOptions(search=kind, **{"max_tokens": 12, **more})


def tokens_of(found: list[list[Hypothesis]]) -> list[list[list[int]]]:
    return [[hypothesis.tokens for hypothesis in nbest] for nbest in found]


def assert_same(left: list[Hypothesis], right: list[Hypothesis]) -> None:
    assert [h.tokens for h in left] == [h.tokens for h in right]
    assert [h.finished for h in left] == [h.finished for h in right]
    assert [h.score for h in left] == pytest.approx([h.score for h in right], abs=1e-5)


# What each search finds


def test_greedy_finds_yes_yes_with_probability_a_fifth():
    [[found]] = search(lecture(), [[EOS]], options(), eos=EOS)
    assert found.tokens == [YES, YES]
    assert math.exp(found.logprob) == pytest.approx(0.20)


def test_a_beam_of_two_finds_ok_ok_with_probability_028():
    [[found]] = search(lecture(), [[EOS]], options("beam", beams=2, length_penalty=0), eos=EOS)
    assert found.tokens == [OK, OK]
    assert math.exp(found.logprob) == pytest.approx(0.28)


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
def test_a_drawn_batch_equals_singles_with_the_seeds_of_their_slots(kind: str):
    batch = search(from_seed(5), PROMPTS, options(kind, nbest=2, seed=100), eos=EOS)
    for slot, (prompt, found) in enumerate(zip(PROMPTS, batch, strict=True)):
        alone = options(kind, nbest=2, seed=100 + slot)
        assert_same(found, search(from_seed(5), [prompt], alone, eos=EOS)[0])


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


# Drawing


@pytest.mark.parametrize("kind", ["sample", "beam-sample"])
def test_the_same_seed_gives_the_same_text(kind: str):
    first, second = (search(from_seed(6), PROMPTS, options(kind, seed=1), eos=EOS) for _ in range(2))
    assert tokens_of(first) == tokens_of(second)


@pytest.mark.parametrize("kind", ["sample", "beam-sample"])
def test_another_seed_gives_another_text(kind: str):
    first, second = (search(from_seed(6), PROMPTS, options(kind, seed=seed), eos=EOS) for seed in (1, 1000))
    assert tokens_of(first) != tokens_of(second)


def test_a_longer_limit_only_continues_the_same_walks():
    short = search(from_seed(6), [[1]], options("sample", nbest=3, max_tokens=5), eos=None)[0]
    long = search(from_seed(6), [[1]], options("sample", nbest=3, max_tokens=20), eos=None)[0]
    assert {tuple(h.tokens) for h in short} == {tuple(h.tokens[:5]) for h in long}


def test_drawn_beams_are_distinct():
    for found in search(from_seed(6), PROMPTS, options("beam-sample", beams=5, nbest=5), eos=EOS):
        assert len({tuple(h.tokens) for h in found}) == len(found)


def chi_square(counts: Counter[int], probabilities: list[float]) -> float:
    total = sum(counts.values())
    return sum((counts[i] - total * p) ** 2 / (total * p) for i, p in enumerate(probabilities))


def test_walks_visit_tokens_as_often_as_their_probabilities_say():
    probabilities = [0.1, 0.2, 0.3, 0.4]
    model = from_table(4, {}, otherwise=probabilities)
    [found] = search(model, [[0]], options("sample", nbest=2000, max_tokens=1), eos=None)
    counts = Counter(h.tokens[0] for h in found)
    assert chi_square(counts, probabilities) < 16.3  # three degrees of freedom: exceeded once in a thousand


def test_drawn_beams_are_drawn_without_replacement():
    probabilities = [0.1, 0.2, 0.7]
    model = from_table(3, {}, otherwise=probabilities)
    found = search(model, [[1]] * 2000, options("beam-sample", beams=2, nbest=2, max_tokens=1), eos=None)
    pairs = Counter(frozenset(h.tokens[0] for h in nbest) for nbest in found)
    # Without replacement: p(a, b) = p_a p_b / (1 - p_a) + p_b p_a / (1 - p_b).
    sets = [(0, 1), (0, 2), (1, 2)]
    expected = [
        probabilities[a] * probabilities[b] * (1 / (1 - probabilities[a]) + 1 / (1 - probabilities[b]))
        for a, b in sets
    ]
    counts = Counter({i: pairs[frozenset(pair)] for i, pair in enumerate(sets)})
    assert chi_square(counts, expected) < 13.8  # two degrees of freedom: exceeded once in a thousand


@pytest.mark.parametrize("number", [0.0, 1 - 2**-24])
def test_a_walk_never_takes_an_impossible_token(number: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Chance, "uniform", lambda self, groups: torch.full((len(groups), 1), number))
    model = from_table(5, {}, otherwise=[0.0, 0.3, 0.4, 0.3, 0.0])
    [[found]] = search(model, [[1]], options("sample"), eos=None)
    assert found.tokens == [3 if number else 1] * 12


@pytest.mark.parametrize("sharp", [{"temperature": 1e-4}, {"temperature": 1e-40}, {"top_k": 1}, {"min_p": 1.0}])
def test_a_walk_left_one_choice_is_greedy_search(sharp: dict[str, float]):
    walk = search(from_seed(7), PROMPTS, options("sample", **sharp), eos=EOS)
    assert tokens_of(walk) == tokens_of(search(from_seed(7), PROMPTS, options(), eos=EOS))


def test_drawn_beams_near_temperature_zero_are_taken_beams():
    drawn = search(from_seed(7), PROMPTS, options("beam-sample", temperature=1e-4), eos=EOS)
    assert tokens_of(drawn) == tokens_of(search(from_seed(7), PROMPTS, options("beam"), eos=EOS))


def test_walks_of_one_prompt_are_independent():
    [found] = search(from_seed(8), [[1]], options("sample", nbest=8), eos=None)
    assert len({tuple(h.tokens) for h in found}) > 4


# Stopping


def test_a_hypothesis_cut_by_max_tokens_is_unfinished():
    [[found]] = search(lecture(), [[EOS]], options(max_tokens=2), eos=EOS)
    assert found.tokens == [YES, YES]
    assert not found.finished


def test_a_hypothesis_that_ends_is_finished_and_leaves_the_end_out():
    [[found]] = search(lecture(), [[EOS]], options(max_tokens=3), eos=EOS)
    assert found.finished
    assert found.tokens == [YES, YES]
    assert len(found.token_logprobs) == 3


def test_a_stop_token_ends_a_hypothesis_as_eos_does():
    [[found]] = search(lecture(), [[EOS]], options(), eos=None, stop_tokens=[YES])
    assert found.tokens == []
    assert found.finished
    assert math.exp(found.logprob) == pytest.approx(0.5)


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_min_tokens_forbids_the_end(kind: str):
    for found in search(from_seed(9), PROMPTS, options(kind, min_tokens=5), eos=EOS):
        assert all(len(h.tokens) >= 5 for h in found)


def test_a_model_that_can_only_end_does_so_despite_min_tokens():
    [[found]] = search(lecture(), [[EOS]], options(min_tokens=5), eos=EOS)
    assert found.tokens == [YES, YES]
    assert found.finished


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_a_stop_string_ends_a_hypothesis_at_the_token_that_completes_it(kind: str):
    def text_of(tokens: Any) -> str:
        return "".join(".ab"[token] for token in tokens)

    model = from_table(3, {(): [0.0, 1.0, 0.0], (1,): [0.0, 0.0, 1.0], (1, 2): [0.0, 1.0, 0.0]}, [0.0, 0.0, 1.0])
    [[found]] = search(model, [[1]], options(kind, stop=("ba", "c")), eos=EOS, text_of=text_of)
    assert text_of(found.tokens) == "aba"
    assert found.finished


LINE = "Das Füßchen: «naïve» 漢字 👍🏽, don't stop.\n"


def with_bytes_to_fall_back_on() -> Tokenizer:
    """As Llama's: a run of byte tokens is characters, or as many U+FFFD as it has bytes."""
    names = ["<eos>", "▁", "▁a", "a", "b", "ba", ".", *(f"<0x{byte:02X}>" for byte in "é漢👍\nx".encode())]
    vocabulary = {name: index for index, name in enumerate(dict.fromkeys(names))}
    library = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], byte_fallback=True))
    steps = tokenizers.decoders
    library.decoder = steps.Sequence(
        [steps.Replace("▁", " "), steps.ByteFallback(), steps.Fuse(), steps.Strip(" ", 1, 0)]
    )
    return Tokenizer(library, "<eos>")


@cache
def tokenizer_named(name: str) -> Tokenizer:
    if name == "byte fallback":
        return with_bytes_to_fall_back_on()
    size = 300 if name in ("bpe", "unigram", "wordpiece") else None
    return Tokenizer.train(validate(TokenizerConfig, {"name": name, "size": size}), [LINE * 9])


def holds(text: str, stops: tuple[str, ...]) -> bool:
    return any(stop in text for stop in stops)


@pytest.mark.parametrize("name", [*NAMES, "byte fallback"])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_hypothesis_ends_at_the_first_token_whose_whole_text_holds_a_stop_string(name: str, data: st.DataObject):
    tokenizer = tokenizer_named(name)
    likely = tokenizer.encode(LINE).tolist()
    every = [*range(tokenizer.size)]
    ids = data.draw(st.sampled_from([every, likely]))
    tokens = data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=60) | st.just(likely))
    text = tokenizer.decode(tokens)
    place = data.draw(st.integers(0, len(text)))
    piece = text[place : place + data.draw(st.integers(1, 4))]
    stops = (data.draw(st.text("ab. \n漢\ufffd", min_size=1, max_size=3)), *([piece] if piece else []))
    model = TableModel(tokenizer.size, lambda _: [1 / tokenizer.size] * tokenizer.size)
    chosen = options(data.draw(st.sampled_from(["greedy", "beam"])), stop=stops, max_tokens=len(tokens))
    [[found]] = search(
        model, [[0]], chosen, eos=None, text_of=tokenizer.decode, constraint=lambda prompt, made: [tokens[len(made)]]
    )
    lengths = [n for n in range(1, len(tokens) + 1) if holds(tokenizer.decode(tokens[:n]), stops)]
    assert found.tokens == tokens[: lengths[0] if lengths else None]
    assert found.finished == bool(lengths)


def test_a_stop_string_may_reach_over_empty_tokens_into_a_long_one():
    pieces, tokens = ["", "x", "yyyyyy"], [1, 0, 0, 0, 0, 2, 1]
    model = TableModel(3, lambda _: [1 / 3] * 3)
    [[found]] = search(
        model,
        [[0]],
        options(stop=("xy",), max_tokens=len(tokens)),
        eos=None,
        text_of=lambda made: "".join(pieces[token] for token in made),
        constraint=lambda prompt, made: [tokens[len(made)]],
    )
    assert found.tokens == tokens[:-1]


def test_characters_that_the_whole_text_does_not_show_are_no_stop_string():
    tokenizer = tokenizer_named("byte fallback")
    names = tokenizer.library.get_vocab()
    tokens = [names["<0xE6>"]] + [names["<0x78>"]] * 9  # a first byte without its character spoils the run
    model = TableModel(tokenizer.size, lambda _: [1 / tokenizer.size] * tokenizer.size)
    [[found]] = search(
        model,
        [[0]],
        options(stop=("x",), max_tokens=len(tokens)),
        eos=None,
        text_of=tokenizer.decode,
        constraint=lambda prompt, made: [tokens[len(made)]],
    )
    assert found.tokens == tokens
    assert not found.finished


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["sample", "beam", "beam-sample"])
def test_beams_that_change_places_stop_where_their_own_text_does(kind: str, seed: int):
    def text_of(tokens: Any) -> str:
        return "".join(["", "a", "b", "ab", "ccc"][token] for token in tokens)

    stops = ("abab", "cab")
    wide = options(kind, stop=stops, nbest=4, max_tokens=40, seed=seed)
    for found in search(from_seed(seed), PROMPTS, wide, eos=None, text_of=text_of):
        for h in found:
            assert not holds(text_of(h.tokens[:-1]), stops)
            assert h.finished == holds(text_of(h.tokens), stops)


def test_looking_for_a_stop_string_decodes_a_few_tokens_at_each_step():
    decoded: list[int] = []

    def text_of(tokens: Any) -> str:
        decoded.append(len(tokens))
        return "a" * len(tokens)

    model = from_table(2, {}, otherwise=[0.0, 1.0])
    search(model, [[1]], options(stop=("stop",), max_tokens=200), eos=EOS, text_of=text_of)
    assert max(decoded) < 10


def test_stop_strings_without_a_way_to_text_are_an_error():
    with pytest.raises(LegatoError, match="stop strings need text"):
        search(lecture(), [[EOS]], options(stop=(".",)), eos=EOS)


def test_text_is_cut_before_the_first_stop_string():
    assert cut_at_stop("one. two!", ("!", ".")) == ("one", True)
    assert cut_at_stop("one two", ("!", ".")) == ("one two", False)


# Constraints


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_a_constraint_is_obeyed(kind: str):
    def alternate(prompt: int, tokens: list[int]) -> list[int]:
        return [3, 4] if (len(tokens) + prompt) % 2 else [1, 2]

    for prompt, found in enumerate(search(from_seed(10), PROMPTS, options(kind), eos=EOS, constraint=alternate)):
        for hypothesis in found:
            assert all(token in alternate(prompt, hypothesis.tokens[:i]) for i, token in enumerate(hypothesis.tokens))


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_a_hypothesis_ends_where_the_constraint_leaves_nothing(kind: str):
    def three_at_most(prompt: int, tokens: list[int]) -> list[int]:
        return [1, 2] if len(tokens) < 3 else []

    for found in search(from_seed(10), PROMPTS, options(kind), eos=EOS, constraint=three_at_most):
        assert [len(h.tokens) for h in found] == [3]
        assert found[0].finished


def test_a_constraint_of_none_changes_nothing():
    free = search(from_seed(10), PROMPTS, options("beam"), eos=EOS, constraint=lambda prompt, tokens: None)
    assert tokens_of(free) == tokens_of(search(from_seed(10), PROMPTS, options("beam"), eos=EOS))


# What is never written, and how much may be


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_suppressed_tokens_are_never_written(kind: str):
    free = search(from_seed(10), PROMPTS, options(kind), eos=EOS)
    written = {token for found in free for hypothesis in found for token in hypothesis.tokens}
    unwanted = sorted(written)[:2]
    for found in search(from_seed(10), PROMPTS, options(kind), eos=EOS, suppress=unwanted):
        assert not {token for hypothesis in found for token in hypothesis.tokens} & set(unwanted)


@pytest.mark.parametrize("kind", ["greedy", "sample", "beam", "beam-sample"])
def test_a_limit_of_its_own_gives_a_prompt_what_it_would_get_alone(kind: str):
    limits = [2 + 3 * number for number in range(len(PROMPTS))]
    together = search(from_seed(10), PROMPTS, options(kind, max_tokens=40), eos=EOS, limits=limits)
    for number, (prompt, limit) in enumerate(zip(PROMPTS, limits, strict=True)):
        alone = search(from_seed(10), [prompt], options(kind, max_tokens=limit, seed=number), eos=EOS)
        assert tokens_of([together[number]]) == tokens_of(alone)


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
    assert found.logprob == float(rounded.float().log_softmax(-1)[3])


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
