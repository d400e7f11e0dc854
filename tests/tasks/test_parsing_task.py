"""The parsing task piece by piece: words, well-formed trees over any of them, scores by hand."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.formats.trees import Tree, escape, flatten, parse_trees, skeleton, unflatten
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions
from legato.decoding.constraints.trees import MAX_UNARY
from legato.errors import DataError
from legato.evaluation.parsing import BRACKET_SIGNATURE
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS
from legato.tasks.parsing.task import Parser, split_words
from tree_chains import longest_chain

GOLD: list[Tree] = list(
    parse_trees(
        "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NNS cats))) (. .))\n"
        "(S (NP (NNS birds)) (VP (VBP sing) (PP (IN in) (NP (NNS trees)))) (. .))\n"
        "(NP (NN rain))\n"
    )
)
WORDS = Tokenizer.train(TokenizerConfig(name="bpe", size=270), [" ".join(tree.words) for tree in GOLD])
SYMBOLS = Tokenizer.train(TokenizerConfig(name="word"), [" ".join(skeleton(tree)) for tree in GOLD])
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"width": 16, "layers": 1, "heads": 2, "length": 256},
    "seq2seq": {"width": 16, "layers": 1},
}


@lru_cache
def parser(name: str, seed: int = 0, length: int = 256) -> Parser:
    """An untrained parser: every tree that it writes is the constraint's doing."""
    torch.manual_seed(seed)
    model: type[SequenceModel] = MODELS.get(name)
    sized = {"length": length} if name == "transformer" else {}
    module = model(validate(model.Config, {"name": name, **SMALL[name], **sized}), Sizes(SYMBOLS.size, WORDS.size))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return Parser(module.eval(), WORDS, SYMBOLS)


def beam(beams: int, nbest: int = 1) -> SearchOptions:
    return SearchOptions(search="beam", beams=beams, nbest=nbest, length_penalty=0.0)


# ── words ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Dogs don't bark, cats do.", "Dogs do n't bark , cats do ."),
        ("dogs bark", "dogs bark"),
        ("He said: “It's the dog's (old) bone!”", "He said : “ It 's the dog 's ( old ) bone ! ”"),
        ("We'll go; they've gone.", "We 'll go ; they 've gone ."),
        ("Mr. Smith paid $3.50 at 10:30 in the U.S.", "Mr. Smith paid $3.50 at 10:30 in the U.S ."),
        ("the dog 's bone .", "the dog 's bone ."),  # apart already
        ("don't , really", "do n't , really"),
        ("He (quietly) said no .", "He ( quietly ) said no ."),
        ("f(x) and {y}[z]", "f ( x ) and { y } [ z ]"),
        ("He left...", "He left ..."),
        ("``No -- never,'' he said--twice.", "`` No -- never , '' he said -- twice ."),
        ("狗跑。", "狗跑。"),
        ("  ", ""),
        ("", ""),
    ],
)
def test_punctuation_is_split_off_as_treebanks_do(text: str, words: str) -> None:
    assert split_words(text) == words.split()


@given(st.text(st.sampled_from("ab .,:!?'\"`“”’()[]{}-…nt'sd\n"), max_size=12))
def test_what_is_split_already_stays_as_it_is(text: str) -> None:
    words = split_words(text)
    assert split_words(" ".join(words)) == words


# ── every output is a tree ────────────────────────────────────────────────────────────────────────

ANY_WORD = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=6)
AWKWARD = ["(", ")", "((", ")x(", "-LRB-", "<word>", "<eos>", "(S", ")NP", "🐶", "ﷺ", "a(b)c", "''", "…", "\u200b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=15, deadline=None)
@given(words=st.lists(st.one_of(ANY_WORD, st.sampled_from(AWKWARD)), max_size=9), seed=st.integers(0, 2))
def test_every_output_is_a_well_formed_tree_over_the_given_words(name: str, words: list[str], seed: int) -> None:
    [prediction] = parser(name, seed).predict([" ".join(words)], beam(2))
    assert prediction.problem is None
    [answer] = prediction.answers
    if "words" not in answer.more:  # nothing but white space and control characters
        assert answer.text == ""
        return
    tree = unflatten(answer.text.split(" "))
    assert tree.words == [escape(word) for word in answer.more["words"]]
    assert not any(set("()") & set(word) for word in tree.words)
    assert longest_chain(tree) <= MAX_UNARY


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("text", ["( x )", "a (b) c", ":) :(", "🐶 barks", "<word> <eos>", "(S (NP", ")", "a)b"])
def test_brackets_and_pictures_are_words_like_any_other(name: str, text: str) -> None:
    [prediction] = parser(name).predict([text], beam(3))
    [answer] = prediction.answers
    assert answer.more["words"] == split_words(text)
    tree = unflatten(answer.text.split())
    assert [word.replace("-LRB-", "(").replace("-RRB-", ")") for word in tree.words] == split_words(text)


def test_several_answers_are_different_trees_over_the_same_words() -> None:
    [prediction] = parser("transformer").predict(["the dog sees cats ."], beam(4, nbest=4))
    trees = [unflatten(answer.text.split()) for answer in prediction.answers]
    assert len(set(trees)) == 4
    assert {tuple(tree.words) for tree in trees} == {("the", "dog", "sees", "cats", ".")}
    scores = [answer.score for answer in prediction.answers]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_of_sentences_equals_single_ones(name: str, beams: int) -> None:
    texts = ["rain", "the dog sees cats .", "birds sing", "cats see birds in trees in rain .", "dogs"] * 2
    together = parser(name).predict(texts, beam(beams))
    alone = [parser(name).predict([text], beam(beams))[0] for text in texts]
    assert [p.answers[0].text for p in together] == [p.answers[0].text for p in alone]


@pytest.mark.parametrize("text", ["", "  ", "\x00\x07", "\u2028"])
def test_a_text_without_words_has_no_tree(text: str) -> None:
    [prediction] = parser("seq2seq").predict([text], beam(1))
    assert (prediction.problem, prediction.answers[0].text) == (None, "")


@pytest.mark.parametrize(
    ("word", "counted"),
    [
        ("dogs ", "48 tokens"),
        ("a ", "12 words, whose tree takes about 44 symbols (words and brackets)"),
    ],
)
def test_a_sentence_too_long_does_not_stop_the_others(word: str, counted: str) -> None:
    bad, good = parser("transformer", length=40).predict([word * 12, "rain"], beam(1))
    assert bad.answers == []
    assert bad.problem == f"the sentence has {counted}, more than the model's 40 positions; split it"
    assert unflatten(good.answers[0].text.split()).words == ["rain"]


def test_a_model_reads_brackets_as_its_trees_have_them() -> None:
    spoken, written = parser("transformer").predict(["dogs (not cats)", "dogs -LRB- not cats -RRB-"], beam(2))
    assert spoken.answers[0].text == written.answers[0].text


def test_half_a_character_does_not_stop_the_others() -> None:
    bad, good = parser("seq2seq").predict(["a \ud83d b", "rain"], beam(1))
    assert bad.problem is not None
    assert "half a surrogate pair" in bad.problem
    assert good.answers[0].text


# ── scores ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SMALL)
def test_scores_count_every_sentence_and_promise_well_formed_trees(name: str) -> None:
    scores = parser(name).score(GOLD, beam(1))
    assert (scores["sentences"], scores["skipped"], scores["well_formed"]) == (3, 0, 100.0)
    assert 0 <= scores["f1"] <= 100
    assert scores["signature"] == BRACKET_SIGNATURE


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_is_that_of_a_loop_by_hand(name: str) -> None:
    held = parser(name)
    total, count = 0.0, 0
    for tree in GOLD:
        source = torch.tensor([held.source_ids(tree.words).tolist()])
        target = [SYMBOLS.id_of(symbol) or 0 for symbol in skeleton(tree)]
        with torch.no_grad():
            hidden = held.model(
                Batch(Inputs(torch.tensor([[held.target_tokens.start, *target]])), source=Inputs(source))
            ).hidden
            logp = F.log_softmax(held.model.readout(hidden)[0], -1)
        for place, token in enumerate([*target, held.target_tokens.eos]):
            total -= float(logp[place, token])
            count += 1
    assert held.score(GOLD, beam(1))["loss"] == pytest.approx(total / count, rel=1e-5)


def test_the_right_trees_score_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    held = parser("seq2seq")
    right = iter(GOLD)
    monkeypatch.setattr(Parser, "tree", lambda *_: next(right))
    scores = held.score(GOLD, beam(1))
    assert (scores["precision"], scores["recall"], scores["f1"], scores["complete"]) == (100.0,) * 4


def test_a_label_that_the_model_does_not_know_has_no_loss_but_is_scored() -> None:
    held = parser("seq2seq")
    strange = next(parse_trees("(FRAG (NP (NN rain)))"))
    assert held.target_ids(strange) is None
    assert held.target_ids(GOLD[2]) is not None
    assert "loss" not in held.score([strange], beam(1))


def test_sentences_too_long_are_counted() -> None:
    scores = parser("transformer", length=20).score(GOLD, beam(1))
    assert (scores["sentences"], scores["too_long"]) == (1, 2)


def test_that_no_sentence_fits_is_said() -> None:
    with pytest.raises(DataError, match="no sentence fits the model's positions"):
        parser("transformer", length=20).score(GOLD[:2], beam(1))


def test_a_vocabulary_without_brackets_is_no_parsers() -> None:
    with pytest.raises(DataError, match="no brackets; was it trained for parsing"):
        Parser(parser("seq2seq").model, WORDS, WORDS)


def test_what_is_predicted_is_what_flatten_writes() -> None:
    [prediction] = parser("transformer").predict(["birds sing ."], beam(2))
    assert " ".join(flatten(unflatten(prediction.answers[0].text.split()))) == prediction.answers[0].text
