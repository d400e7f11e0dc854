"""Trees: read from brackets, cleaned, and to symbols and back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.formats.trees import (
    WORD,
    Tree,
    Word,
    bare_label,
    clean,
    fill,
    flatten,
    parse_trees,
    skeleton,
    unflatten,
    walk,
)
from legato.errors import DataError
from tree_chains import longest_chain

DOGS = "(S (NP (NNS dogs)) (VP (VBP chase) (NP (NNS cats))))"
SYMBOLS = ["(S", "(NP", "dogs", ")NP", "(VP", "chase", "(NP", "cats", ")NP", ")VP", ")S"]

WORDS = st.builds(
    Word,
    st.text("ab.é漢\u00a0$'", min_size=1, max_size=3),
    st.sampled_from(["NN", "-LRB-", "PRP$", ",", "``"]),
)
LABELS = st.sampled_from(["S", "NP", "VP", "X|Y"])


def joined(children: Any) -> Any:
    return st.builds(Tree, LABELS, st.lists(children, min_size=1, max_size=3).map(tuple))


TREES = joined(st.recursive(WORDS, lambda nodes: WORDS | joined(nodes), max_leaves=12))


def tree_of(text: str) -> Tree:
    [tree] = parse_trees(text)
    return tree


def cleaned(text: str) -> str:
    return str(clean(tree_of(text)))


# --- brackets --------------------------------------------------------------------------------------


def test_a_bracket_around_one_word_is_the_word_with_its_part_of_speech():
    verb = Tree("VP", (Word("chase", "VBP"), Tree("NP", (Word("cats", "NNS"),))))
    assert tree_of(DOGS) == Tree("S", (Tree("NP", (Word("dogs", "NNS"),)), verb))


def test_trees_may_stand_anywhere_over_lines():
    text = "((S\n  (NP\n(DT a\n)))) (X (Y b)\t)(X(Y c))\n\n"
    assert [tree.words for tree in parse_trees(text)] == [["a"], ["b"], ["c"]]


def test_a_wrapper_without_label_has_an_empty_one():
    assert tree_of(f"( {DOGS} )").label == ""


def test_a_word_alone_is_wrapped():
    assert tree_of("(NN dog)") == Tree("", (Word("dog", "NN"),))


def test_a_no_break_space_belongs_to_the_word():
    assert tree_of("(NP (CD 10\u00a0000))").words == ["10\u00a0000"]


@pytest.mark.slow
@given(TREES)
@settings(deadline=None)
def test_a_tree_written_in_brackets_reads_as_itself(tree: Tree):
    assert tree_of(str(tree)) == tree


def test_a_word_of_unknown_part_of_speech_is_written_xx():
    assert str(unflatten(SYMBOLS)) == "(S (NP (XX dogs)) (VP (XX chase) (NP (XX cats))))"


def test_brackets_in_words_are_written_as_treebanks_do():
    assert str(fill(["(X", WORD, ")X"], ["(a)"])) == "(X (XX -LRB-a-RRB-))"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "(S (NN a))\n(S (NN b)\n(S (NN c))",
            "text, line 2: unbalanced bracket: 1 not closed in the tree",
        ),
        ("(S (NN a))\n)", "text, line 2: unbalanced bracket: this one closes nothing"),
        ("(S (NN a))\n\n()", "text, line 3: empty tree; remove it"),
        ("(S)", "text, line 1: empty tree; remove it"),
        ("(S (NN a)\n (NP ) )", "text, line 2: empty constituent '(NP )'; remove it"),
        ("(S (NP dogs bark))", "text, line 1: 'dogs' has no part of speech of its own; write (XX dogs)"),
        ("(VP\n (VP chase (NP cats)))", "text, line 2: 'chase' has no part of speech of its own"),
        ("(S (NN a))\nEOF", "text, line 2: 'EOF' is in no bracket; remove it"),
    ],
)
def test_what_is_no_tree_gets_one_line_that_says_where(text: str, message: str):
    with pytest.raises(DataError) as caught:
        list(parse_trees(text))
    assert str(caught.value).startswith(message)


def test_brackets_may_nest_deeper_than_python_recurses():
    deep = 5000
    tree = clean(tree_of("(S " * deep + "(A b)" + ")" * deep))
    assert longest_chain(unflatten(flatten(tree))) == deep
    assert len(str(tree)) == deep * len("(S )") + len("(A b)")


# --- cleaning --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "bare"),
    [
        ("NP-SBJ-1", "NP"),
        ("NP=2", "NP"),
        ("S-TPC=1-2", "S"),
        ("-LRB-", "-LRB-"),
        ("-NONE-", "-NONE-"),
        ("ADVP|PRT-CLR", "ADVP|PRT"),
        ("PRP$", "PRP$"),
        ("", ""),
    ],
)
def test_a_label_loses_its_function_tags_and_indices(label: str, bare: str):
    assert bare_label(label) == bare


def test_cleaning_drops_empty_elements_and_what_is_left_empty():
    text = "( (S (NP-SBJ-1 (NNS dogs)) (VP (VBP are) (VP (VBN fed) (NP (-NONE- *-1)))) (SBAR (S (-NONE- *T*)))) )"
    assert cleaned(text) == "(S (NP (NNS dogs)) (VP (VBP are) (VP (VBN fed))))"


def test_cleaning_keeps_bracket_words():
    assert cleaned("(NP (-LRB- -LRB-) (NN a) (-RRB- -RRB-))") == "(NP (-LRB- -LRB-) (NN a) (-RRB- -RRB-))"


@pytest.mark.parametrize("wrapper", ["", "TOP", "ROOT", "S1"])
def test_cleaning_drops_the_wrapper(wrapper: str):
    assert cleaned(f"({wrapper} {DOGS})") == DOGS
    assert cleaned(f"(TOP ({wrapper} {DOGS} (NP (-NONE- 0))))") == DOGS


def test_a_wrapper_that_is_needed_becomes_top():
    assert cleaned("( (NP (NN a)) (. .))") == "(TOP (NP (NN a)) (. .))"
    assert cleaned("(NN dog)") == "(TOP (NN dog))"


def test_nothing_left_after_cleaning_is_an_error():
    with pytest.raises(DataError, match="nothing is left of the tree"):
        cleaned("( (S (NP (-NONE- *)) (VP (-NONE- *?*))) )")


@pytest.mark.slow
@given(TREES)
@settings(deadline=None)
def test_cleaning_a_clean_tree_changes_nothing(tree: Tree):
    once = clean(tree)
    assert clean(once) == once


# --- symbols ---------------------------------------------------------------------------------------


def test_a_tree_flattens_to_brackets_and_words():
    assert flatten(tree_of(DOGS)) == SYMBOLS


def test_a_skeleton_has_one_symbol_for_every_word():
    assert skeleton(tree_of(DOGS)) == f"(S (NP {WORD} )NP (VP {WORD} (NP {WORD} )NP )VP )S".split()


@pytest.mark.slow
@given(TREES)
@settings(max_examples=200, deadline=None)
def test_symbols_grow_back_into_the_tree_without_its_parts_of_speech(tree: Tree):
    again = unflatten(flatten(tree))
    assert flatten(again) == flatten(tree)
    assert {leaf.pos for leaf in again.leaves} == {""}
    assert fill(skeleton(tree), tree.words) == again


def test_any_words_fill_a_skeleton():
    words = ["(", ")NP", WORD]
    assert fill(f"(NP {WORD} {WORD} {WORD} )NP".split(), words).words == words


def test_a_word_that_would_read_as_a_bracket_does_not_flatten():
    with pytest.raises(DataError, match=r"the word '\(a' would read as a bracket"):
        flatten(fill(["(NP", WORD, ")NP"], ["(a"]))


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ("(S (NP a )VP )S", "symbol 4, ')VP': the open bracket is '(NP'"),
        ("(S (NP )NP a )S", "symbol 3, ')NP': the constituent is empty"),
        ("(S a )S b", "symbol 4, 'b': the tree is already complete"),
        ("(S a )S (S b )S", "symbol 4, '(S': the tree is already complete"),
        ("a (S b )S", "symbol 1, 'a': no bracket is open here"),
        (")S", "symbol 1, ')S': no bracket is open here"),
        ("(S (NP a", "the tree is incomplete: '(S (NP' is open"),
        ("", "there are no symbols"),
    ],
)
def test_malformed_symbols_get_one_line(symbols: str, message: str):
    with pytest.raises(DataError) as caught:
        unflatten(symbols.split())
    assert str(caught.value) == message


def test_a_skeleton_needs_as_many_words_as_it_has_places():
    with pytest.raises(DataError, match="the tree has places for 1 words, and the sentence has 2"):
        fill(["(S", WORD, ")S"], ["a", "b"])


def test_a_skeleton_holds_nothing_but_brackets_and_places():
    with pytest.raises(DataError, match="symbol 2, 'a': neither a bracket nor <word>"):
        fill(["(S", "a", ")S"], [])


# --- facts about trees -----------------------------------------------------------------------------


def test_walking_a_tree_meets_everything_in_order():
    assert "".join(step[0] if isinstance(step, tuple) else step.text for step in walk(tree_of(DOGS))) == (
        "SNPdogsNPVPchaseNPcatsNPVPS"
    )


@pytest.mark.parametrize(
    ("symbols", "longest"),
    [
        ("(S a )S", 1),
        ("(S (NP a b )NP )S", 2),
        ("(S (NP a )NP b )S", 1),
        ("(S (A (B a )B )A (C b )C )S", 2),
        ("(S (A (B (C a )C (D b )D )B )A )S", 3),
    ],
)
def test_a_chain_is_constituents_over_the_same_words(symbols: str, longest: int):
    assert longest_chain(unflatten(symbols.split())) == longest
