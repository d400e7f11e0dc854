"""Under the constraint nothing but trees can be written, and every tree can."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_model import TableModel, from_seed

from legato.data.formats.trees import WORD, Open, Tree, Word, skeleton, unflatten, walk
from legato.decoding import SearchOptions, search
from legato.decoding.constraints.trees import TreeConstraint, TreeState
from legato.errors import LegatoError
from tree_chains import longest_chain

EOS = 0
LABELS = ["S", "NP", "VP"]
OPENS = {label: 1 + i for i, label in enumerate(LABELS)}
CLOSES = {label: 4 + i for i, label in enumerate(LABELS)}
WORD_ID = 7
SYMBOLS = ["", *(f"({label}" for label in LABELS), *(f"){label}" for label in LABELS), WORD]
VOCABULARY = len(SYMBOLS) + 1  # with one token that no tree has

Allowed = Callable[[list[int]], Collection[int]]


def constituents(children: Any) -> Any:
    return st.builds(Tree, st.sampled_from(LABELS), st.lists(children, min_size=1, max_size=3).map(tuple))


WORDS = st.just(Word("a"))
TREES = constituents(st.recursive(WORDS, lambda nodes: WORDS | constituents(nodes), max_leaves=15))


def rules(max_tokens: int, max_unary: int = 5, kind: type[TreeConstraint] = TreeConstraint) -> TreeConstraint:
    return kind(OPENS, CLOSES, WORD_ID, EOS, max_tokens, max_unary)


def tokens_of(tree: Tree) -> list[int]:
    return [SYMBOLS.index(symbol) for symbol in skeleton(tree)]


def tree_of(tokens: list[int]) -> Tree:
    return unflatten(SYMBOLS[token] for token in tokens)


def can_write(allowed: Allowed, tokens: list[int]) -> bool:
    return all(token in allowed(tokens[:i]) for i, token in enumerate(tokens))


def written(allowed: Allowed, tokens: tuple[int, ...] = ()) -> Iterator[list[int]]:
    """Everything that can be written, whatever is chosen."""
    choices = allowed(list(tokens))
    assert choices, tokens
    for token in choices:
        if token == EOS:
            yield list(tokens)
        else:
            yield from written(allowed, (*tokens, token))


def check(tokens: list[int], words: int, max_tokens: int, max_unary: int) -> None:
    tree = tree_of(tokens)
    assert len(tree.words) == words
    assert len(tokens) < max_tokens  # the end token has its place
    assert longest_chain(tree) <= max_unary


# What can be written


@pytest.mark.slow
@given(st.integers(1, 12), st.integers(0, 60), st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=200, deadline=None)
def test_a_random_walk_ends_in_a_tree_over_its_words(words: int, room: int, max_unary: int, seed: int):
    max_tokens = words + 3 + room
    allowed, draw = rules(max_tokens, max_unary).for_sentence(words), random.Random(seed)
    eager = draw.random() < 0.5  # to open brackets, as long as that is allowed
    tokens: list[int] = []
    while True:
        choices = sorted(allowed(tokens))
        choices = [token for token in choices if token in OPENS.values() and eager] or choices
        token = draw.choice(choices)
        if token == EOS:
            break
        tokens.append(token)
    assert choices == [EOS]
    check(tokens, words, max_tokens, max_unary)


@pytest.mark.slow
@given(TREES)
@settings(max_examples=200, deadline=None)
def test_every_tree_can_be_written_with_no_more_room_than_it_needs(tree: Tree):
    tokens = tokens_of(tree)
    allowed = rules(len(tokens) + 1, longest_chain(tree)).for_sentence(len(tree.words))
    assert can_write(allowed, [*tokens, EOS])


@given(TREES)
@settings(max_examples=100, deadline=None)
def test_a_tree_with_less_room_or_a_lower_limit_of_towers_cannot_be_written(tree: Tree):
    tokens, words, tower = tokens_of(tree), len(tree.words), longest_chain(tree)
    if len(tokens) >= words + 3:
        assert not can_write(rules(len(tokens), tower).for_sentence(words), [*tokens, EOS])
    if tower > 1:
        assert not can_write(rules(len(tokens) + 1, tower - 1).for_sentence(words), [*tokens, EOS])


def every_tree(words: int, max_unary: int) -> list[tuple[str, ...]]:
    """All trees of one label, made from the bottom up."""

    def rows(count: int) -> Iterator[tuple[int, tuple[str, ...]]]:
        """What `count` words may be cut into: how many pieces, and their symbols."""
        if count == 0:
            yield 0, ()
        for first in range(1, count + 1):
            pieces = [(WORD,)] if first == 1 else []
            pieces += every_tree(first, max_unary) if first < words else []
            for more, rest in rows(count - first):
                yield from ((more + 1, (*piece, *rest)) for piece in pieces)

    level = [("(S", *inside, ")S") for pieces, inside in rows(words) if pieces > 1 or words == 1]
    found = list(level)
    for _ in range(max_unary - 1):
        level = [("(S", *tree, ")S") for tree in level]
        found += level
    return found


@pytest.mark.parametrize("words", [1, 2, 3])
@pytest.mark.parametrize("max_unary", [1, 2, 3])
@pytest.mark.parametrize("room", [0, 3, 6, 9])
def test_exactly_the_trees_that_keep_the_rules_can_be_written(words: int, max_unary: int, room: int):
    max_tokens = words + 3 + room
    one_label = TreeConstraint({"S": 1}, {"S": 4}, WORD_ID, EOS, max_tokens, max_unary)
    found = [tuple(SYMBOLS[token] for token in tokens) for tokens in written(one_label.for_sentence(words))]
    expected = [tree for tree in every_tree(words, max_unary) if len(tree) < max_tokens]
    assert sorted(found) == sorted(expected)


def test_a_bracket_is_closed_by_its_own_label():
    allowed = rules(20).for_sentence(2)
    assert CLOSES["NP"] in allowed([OPENS["S"], OPENS["NP"], WORD_ID])
    assert CLOSES["S"] not in allowed([OPENS["S"], OPENS["NP"], WORD_ID])


def test_the_root_stays_open_until_all_words_are_in():
    allowed = rules(20).for_sentence(2)
    assert CLOSES["S"] not in allowed([OPENS["S"], WORD_ID])
    assert set(allowed([OPENS["S"], WORD_ID, WORD_ID])) == {CLOSES["S"]}
    assert set(allowed([OPENS["S"], WORD_ID, WORD_ID, CLOSES["S"]])) == {EOS}


def test_a_tower_that_is_too_high_must_get_another_word_before_it_closes():
    allowed = rules(30, max_unary=2).for_sentence(3)
    tokens = [OPENS["S"], OPENS["NP"], OPENS["VP"], WORD_ID, CLOSES["VP"], CLOSES["NP"]]
    assert CLOSES["S"] not in allowed(tokens)
    assert WORD_ID in allowed(tokens)


def test_a_word_that_a_tower_further_up_will_need_is_kept_for_it():
    allowed = rules(30, max_unary=2).for_sentence(2)
    tokens = [OPENS["S"], OPENS["NP"], OPENS["VP"], WORD_ID]
    assert set(allowed(tokens)) == {CLOSES["VP"]}  # a second word in VP would leave none for S


def test_nothing_follows_the_end():
    allowed = rules(20).for_sentence(1)
    assert set(allowed([OPENS["S"], WORD_ID, CLOSES["S"], EOS])) == set()


# Histories


class Counting(TreeConstraint):
    """Counts the tokens it reads."""

    read = 0

    def after(self, state: TreeState, token: int) -> TreeState:
        self.read += 1
        return super().after(state, token)


def test_a_step_reads_one_token_of_each_beam():
    counting = rules(150, kind=Counting)
    allowed = counting.for_sentence(30)
    asked: set[tuple[int, ...]] = set()

    def constraint(_: int, tokens: list[int]) -> Collection[int]:
        asked.add(tuple(tokens))
        return allowed(tokens)

    search(
        from_seed(1, VOCABULARY), [[1]], SearchOptions(search="beam", max_tokens=150), eos=EOS, constraint=constraint
    )
    assert counting.read == len(asked - {()})


@given(TREES, st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_answer_does_not_depend_on_what_was_asked_before(tree: Tree, draw: random.Random):
    tokens = tokens_of(tree)
    one = rules(len(tokens) + 5)
    often = one.for_sentence(len(tree.words))
    lengths = [draw.randrange(len(tokens) + 1) for _ in range(20)]
    if longest_chain(tree) <= one.max_unary:
        for length in lengths:
            once = one.for_sentence(len(tree.words))
            assert often(tokens[:length]) == once(tokens[:length])


def test_a_history_that_was_not_allowed_is_refused():
    with pytest.raises(ValueError, match="token 2 of the tree, 4, was not allowed there"):
        rules(20).for_sentence(1)([OPENS["S"], CLOSES["S"]])


# Through the search


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["greedy", "beam", "sample", "beam-sample"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_search_finds_is_a_tree_over_its_own_words(kind: Any, seed: int):
    sentences = [1, 2, 5, 9, 14]
    one = rules(max_tokens=45, max_unary=3)
    allowed = [one.for_sentence(words) for words in sentences]
    options = SearchOptions(search=kind, max_tokens=45, nbest=1 if kind == "greedy" else 4, seed=seed)
    found = search(
        from_seed(seed, VOCABULARY),
        [[1 + i] for i in range(len(sentences))],
        options,
        eos=EOS,
        constraint=lambda prompt, tokens: allowed[prompt](tokens),
    )
    for words, hypotheses in zip(sentences, found, strict=True):
        assert hypotheses
        for hypothesis in hypotheses:
            assert hypothesis.finished
            check(hypothesis.tokens, words, 45, 3)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("favourite", range(VOCABULARY))
@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_a_model_that_says_the_same_for_ever_writes_a_tree(favourite: int, kind: Any):
    weights = [0.93 if token == favourite else 0.07 / (VOCABULARY - 1) for token in range(VOCABULARY)]
    allowed = rules(max_tokens=40).for_sentence(8)
    [[found]] = search(
        TableModel(VOCABULARY, lambda _: weights),
        [[1]],
        SearchOptions(search=kind, max_tokens=40),
        eos=EOS,
        constraint=lambda _, tokens: allowed(tokens),
    )
    assert found.finished
    check(found.tokens, 8, 40, 5)
    assert {step.label for step in walk(tree_of(found.tokens)) if isinstance(step, Open)} <= set(LABELS)


# Bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"open_ids": {}, "close_ids": {}}, "a tree needs labels"),
        ({"close_ids": {"S": 4}}, "each label both an opening and a closing bracket"),
        ({"word_id": 1}, "must be different tokens"),
        ({"max_unary": 0}, "max_unary=0: it is 1 at least"),
    ],
)
def test_rules_that_do_not_fit_get_one_line(settings: dict[str, Any], message: str):
    fitting = {"open_ids": OPENS, "close_ids": CLOSES, "word_id": WORD_ID, "eos": EOS, "max_tokens": 20}
    with pytest.raises(LegatoError, match=message):
        TreeConstraint(**{**fitting, **settings})


def test_a_sentence_that_does_not_fit_gets_one_line():
    with pytest.raises(LegatoError, match="max_tokens=20 is too few for a tree over 18 words, which takes 21"):
        rules(20).for_sentence(18)
    with pytest.raises(LegatoError, match="no tree over a sentence without words"):
        rules(20).for_sentence(0)
    assert rules(20).for_sentence(17)([])
