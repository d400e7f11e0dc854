"""Labelled brackets, counted by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.data.formats.trees import Tree, Word, clean, parse_trees, unflatten
from legato.errors import LegatoError
from legato.evaluation.parsing import BRACKET_SIGNATURE, bracket_scores, brackets


def gold_of(text: str) -> Tree:
    [tree] = parse_trees(text)
    return tree


def parse_of(symbols: str) -> Tree:
    return unflatten(symbols.split())


def scores(gold: str, parse: str) -> dict[str, float]:
    return bracket_scores([gold_of(gold)], [parse_of(parse)])


def constituents(children: Any) -> Any:
    labels = st.sampled_from(["S", "NP", "NP-SBJ", "PRT", "ADVP", "TOP", ""])
    return st.builds(Tree, labels, st.lists(children, min_size=1, max_size=3).map(tuple))


WORDS = st.builds(Word, st.sampled_from("ab"), st.sampled_from(["NN", ",", ".", "-NONE-"]))
TREES = constituents(st.recursive(WORDS, lambda nodes: WORDS | constituents(nodes), max_leaves=10))

DOGS = "(S (NP (DT the) (NNS dogs)) (VP (VBP chase) (NP (NNS cats))))"


# --- what a bracket is -----------------------------------------------------------------------------


def test_brackets_are_labels_over_words_and_no_parts_of_speech():
    assert brackets(gold_of(DOGS)) == Counter([("S", 0, 4), ("NP", 0, 2), ("VP", 2, 4), ("NP", 3, 4)])


@pytest.mark.parametrize("wrapper", ["", "TOP", "ROOT", "S1"])
def test_the_wrapper_is_no_bracket(wrapper: str):
    assert brackets(gold_of(f"({wrapper} {DOGS})")) == brackets(gold_of(DOGS))


def test_function_tags_and_empty_elements_do_not_count():
    decorated = DOGS.replace("(NP (NNS cats))", "(NP-OBJ=1 (NNS cats)) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))")
    assert brackets(gold_of(decorated)) == brackets(gold_of(DOGS))


def test_punctuation_takes_no_place_and_what_holds_nothing_else_is_gone():
    text = "(S (`` ``) (NP (NN a) (, ,) (NN b) (, ,)) (VP (VB c)) (PRN (: --)) (. .) ('' ''))"
    places = {0, 2, 4, 6, 7, 8}
    assert brackets(gold_of(text), places) == Counter([("S", 0, 3), ("NP", 0, 2), ("VP", 2, 3)])


# --- scores by hand --------------------------------------------------------------------------------


def test_a_perfect_parse_has_a_hundred_of_everything():
    perfect = {"precision": 100, "recall": 100, "f1": 100, "complete": 100, "sentences": 1, "skipped": 0}
    assert scores(DOGS, "(S (NP the dogs )NP (VP chase (NP cats )NP )VP )S") == perfect


def test_two_of_three_brackets_that_are_right_are_half_of_four():
    # Right: S, and NP over "the dogs". Wrong: PP over "cats", which the gold tree calls NP.
    found = scores(DOGS, "(S (NP the dogs )NP chase (PP cats )PP )S")
    assert found["precision"] == pytest.approx(100 * 2 / 3)
    assert found["recall"] == pytest.approx(100 * 2 / 4)
    assert found["f1"] == pytest.approx(100 * 4 / 7)
    assert found["complete"] == 0


def test_a_label_counts():
    found = scores(DOGS, "(S (NP the dogs )NP (VP chase (VP cats )VP )VP )S")
    assert found["precision"] == found["recall"] == found["f1"] == 75


def test_duplicates_count_as_often_as_both_sides_have_them():
    # Gold: S, NP, NP over the same word. Parse: S, NP three times: two of them right.
    found = scores("(S (NP (NP (NN a))) (VB b))", "(S (NP (NP (NP a )NP )NP )NP b )S")
    assert found["precision"] == 75
    assert found["recall"] == 100


def test_the_order_of_a_unary_chain_does_not_matter_to_its_brackets():
    # (label, start, end) says nothing of which is on top, so S over VP and VP over S are the same.
    found = scores("(FRAG (S (VP (VB go))))", "(FRAG (VP (S go )S )VP )FRAG")
    assert found["f1"] == found["complete"] == 100


def test_a_link_missing_from_a_unary_chain_costs_recall_alone():
    found = scores("(FRAG (S (VP (VB go))))", "(FRAG (VP go )VP )FRAG")
    assert found["precision"] == 100
    assert found["recall"] == pytest.approx(100 * 2 / 3)


def test_where_punctuation_is_attached_does_not_matter():
    gold = "(S (NP (NNS dogs) (, ,)) (VP (VBP bark)) (. .))"
    found = scores(gold, "(S (NP dogs )NP (VP , bark . )VP )S")
    assert found["f1"] == found["complete"] == 100


def test_the_gold_tree_says_what_is_punctuation():
    # The parse has no parts of speech; its PRN is over the gold comma alone, so it is no bracket.
    found = scores("(S (NP (NNS dogs)) (, ,) (VP (VBP bark)))", "(S (NP dogs )NP (PRN , )PRN (VP bark )VP )S")
    assert found["precision"] == found["complete"] == 100
    # A full stop that the gold tree calls a noun has its place.
    found = scores("(S (NP (NN .)) (VP (VBP bark)))", "(S (NP . bark )NP )S")
    assert found["precision"] == 50


def test_brackets_as_words_are_no_punctuation():
    gold = "(NP (NP (NN a)) (PRN (-LRB- -LRB-) (NN b) (-RRB- -RRB-)))"
    found = scores(gold, "(NP (NP a )NP -LRB- (PRN b )PRN -RRB- )NP")
    assert found["precision"] == pytest.approx(100 * 2 / 3)


def test_advp_and_prt_are_one_label():
    gold = "(VP (VB shut) (PRT (RP up)) (ADVP (RB now)))"
    found = scores(gold, "(VP shut (ADVP up )ADVP (PRT now )PRT )VP")
    assert found["f1"] == found["complete"] == 100


def test_a_corpus_is_counted_as_a_whole():
    gold = [gold_of(DOGS), gold_of("(NP (NN a))")]
    parses = [parse_of("(S the dogs chase cats )S"), parse_of("(NP a )NP")]
    found = bracket_scores(gold, parses)
    assert found["precision"] == 100
    assert found["recall"] == 40  # two of five: not the mean of a quarter and one
    assert found["f1"] == pytest.approx(200 * 0.4 / 1.4)
    assert found["complete"] == 50
    assert found["sentences"] == 2


def test_a_parse_over_another_number_of_words_is_skipped_and_counted():
    gold = [gold_of(DOGS), gold_of("(NP (NN a))")]
    parses = [parse_of("(S the dogs chase )S"), parse_of("(NP a )NP")]
    perfect = {"precision": 100, "recall": 100, "f1": 100, "complete": 100}
    assert bracket_scores(gold, parses) == {**perfect, "sentences": 1, "skipped": 1}


def test_where_nothing_can_be_scored_all_is_zero():
    found = bracket_scores([gold_of(DOGS)], [parse_of("(S a )S")])
    assert found == {"precision": 0, "recall": 0, "f1": 0, "complete": 0, "sentences": 0, "skipped": 1}


# --- properties ------------------------------------------------------------------------------------


@pytest.mark.slow
@given(TREES, TREES)
@settings(deadline=None)
def test_f1_is_the_harmonic_mean_and_all_lies_between_nothing_and_a_hundred(gold: Tree, parse: Tree):
    found = bracket_scores([gold], [parse])
    p, r = found["precision"], found["recall"]
    assert found["f1"] == pytest.approx(2 * p * r / (p + r) if p + r else 0)
    assert all(0 <= found[name] <= 100 for name in ("precision", "recall", "f1", "complete"))


@pytest.mark.slow
@given(TREES)
@settings(deadline=None)
def test_a_tree_is_a_complete_match_of_itself_and_of_its_clean_form(tree: Tree):
    assert bracket_scores([tree], [tree])["complete"] == 100
    if any(leaf.pos != "-NONE-" for leaf in tree.leaves):
        assert bracket_scores([tree], [clean(tree)])["complete"] == 100


# --- bad input -------------------------------------------------------------------------------------


def test_lists_of_different_lengths_are_an_error():
    with pytest.raises(LegatoError, match="1 gold trees and 0 predicted"):
        bracket_scores([gold_of(DOGS)], [])


def test_no_trees_are_an_error():
    with pytest.raises(LegatoError, match="no trees to score"):
        bracket_scores([], [])


def test_the_signature_names_the_rules():
    assert "rules:evalb-collins" in BRACKET_SIGNATURE
    assert "equal:ADVP=PRT" in BRACKET_SIGNATURE
