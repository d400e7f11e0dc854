"""What ends a hypothesis: end tokens, stop strings, the most tokens."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel, from_seed, from_table
from tiny_searches import EOS, PROMPTS, YES, lecture, options

from legato.config import validate
from legato.data.text.tokenizers import NAMES, Tokenizer, TokenizerConfig
from legato.decoding import cut_at_stop, search
from legato.errors import LegatoError


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
@settings(deadline=None, max_examples=25)
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
    stops = (
        data.draw(st.text("ab. \n漢\ufffd", min_size=1, max_size=3)),
        *([piece] if piece and "\0" not in piece else []),
    )
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


@pytest.mark.thinned(3)
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


def test_no_two_of_the_n_best_read_the_same():
    """Tokens 1 and 2 are both spelt `a`: the second best is the third sequence, and the search goes on to find it."""
    text = {1: "a", 2: "a", 3: "b"}

    def text_of(tokens: Any) -> str:
        return "".join(text[token] for token in tokens)

    table = {(): [0.0, 0.5, 0.3, 0.2], (1,): [1.0, 0.0, 0.0, 0.0], (2,): [1.0, 0.0, 0.0, 0.0]}
    model = from_table(4, table, [0.6, 0.2, 0.1, 0.1])
    wanted = options("beam", beams=4, nbest=2, length_penalty=0.0)
    [plain] = search(model, [[1]], wanted, eos=EOS)
    assert [hypothesis.tokens for hypothesis in plain] == [[1], [2]]
    [found] = search(model, [[1]], wanted, eos=EOS, text_of=text_of)
    assert [hypothesis.tokens for hypothesis in found] == [[1], [3]]
    assert found[0].score == plain[0].score
    [alone] = search(model, [[1]], options("beam", beams=4, length_penalty=0.0), eos=EOS, text_of=text_of)
    assert [hypothesis.tokens for hypothesis in alone] == [[1]]
