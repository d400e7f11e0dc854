"""BPE-dropout: plain BPE at one end, bytes at the other, and pure draws between."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batches_compared import same
from legato.data.batching.batches import BatchShape, mix_seed
from legato.data.batching.pair_batches import PairBatches
from legato.data.text import bpe_dropout
from legato.data.text.bpe_dropout import VARIANTS, BpeDropout, WordSymbols
from legato.data.text.tokenizers import NAMES, Tokenizer, TokenizerConfig
from legato.errors import ConfigError, DataError

PROSE = (
    "The quick brown fox jumps over the lazy dog. It didn't stop there:\n\n  twice more, and again!\n"
    "Später kam die Füchsin — «bonjour», said she; Σίσυφος rolled 1,234 stones. 漢字漢字 漢字 aaaaaaaa\n"
) * 20


def made(name: str = "bpe", **more: Any) -> Tokenizer:
    size = 420 if name in ("bpe", "unigram", "wordpiece") else None
    return Tokenizer.train(TokenizerConfig(name=name, size=size, **more), [PROSE])


PLAIN, LOWER = made(), made(lowercase=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
LIKELY = st.lists(
    st.sampled_from(
        [*"aZé漢1,.'\n\t \r\u3000\x1c", "'s", "  ", "\n\n", "<eos>", "👍🏽", "aaa", " the", "Füchsin", "fox"]
    ),
    max_size=60,
).map("".join)


def one_row(dropout: BpeDropout, words: WordSymbols, row: int, epoch: int) -> list[int]:
    found: list[int] = dropout.draw(words, np.array([row]), epoch)[0].tolist()
    return found


def encoded(tokenizer: Tokenizer, text: str, p: float, seed: int = 0, epoch: int = 0) -> list[int]:
    dropout = BpeDropout(tokenizer, p, seed)
    return one_row(dropout, dropout.read([text], "source"), 0, epoch)


# --- the ends of the scale -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [PLAIN, LOWER], ids=["plain", "lowercase"])
@given(text=TEXT | LIKELY)
@settings(max_examples=150, deadline=None)
def test_without_dropout_it_is_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert encoded(tokenizer, text, 0.0) == tokenizer.encode(text).tolist()


@pytest.mark.parametrize("text", ["<2de> fox", "a<2de>  fox <eos> b"])
def test_marks_that_a_text_spells_are_text(text: str) -> None:
    tokenizer = PLAIN.with_special_tokens(["<2de>"])
    assert encoded(tokenizer, text, 0.0) == PLAIN.encode(text).tolist()


@given(text=TEXT | LIKELY)
@settings(max_examples=80, deadline=None)
def test_dropping_everything_leaves_single_bytes(text: str) -> None:
    pieces = PLAIN.pieces
    assert pieces is not None
    assert [pieces[i] for i in encoded(PLAIN, text, 1.0)] == [bytes([byte]) for byte in text.encode()]


@given(text=TEXT | LIKELY, p=st.floats(0, 1), epoch=st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_whatever_is_drawn_reads_as_the_text(text: str, p: float, epoch: int) -> None:
    assert PLAIN.decode(encoded(PLAIN, text, p, epoch=epoch)) == text


def test_nothing_gives_no_ids() -> None:
    assert encoded(PLAIN, "", 0.5) == []


# --- the algorithm ---------------------------------------------------------------------------------


def one_by_one(word: list[int], merges: dict[tuple[int, int], tuple[int, int]], p: float, seed: int) -> list[int]:
    """Algorithm 1 as it is written, with the draws that the fast way makes."""
    ids = list(word)
    for step in itertools.count():
        best: tuple[int, int] | None = None
        for place, pair in enumerate(itertools.pairwise(ids)):
            number = np.array([(seed + (step << 32) + place) % 2**64], dtype=np.uint64)
            chance = int(bpe_dropout._scatter(number)[0]) / 2**64
            if pair in merges and chance >= p and (best is None or merges[pair] < merges[tuple(ids[best[1] :][:2])]):
                best = merges[pair][0], place
        if best is None:
            return ids
        ids[best[1] : best[1] + 2] = [merges[tuple(ids[best[1] :][:2])][1]]
    raise AssertionError


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5])
def test_all_cuts_made_together_are_those_made_one_by_one(p: float) -> None:
    dropout = BpeDropout(PLAIN, p, 3)
    words = dropout.read([PROSE[:190]], "source")
    dropout.draw(words, np.array([0]), 0)
    model = json.loads(PLAIN.library.to_str())["model"]
    ids = model["vocab"]
    merges = {(ids[a], ids[b]): (rank, ids[a + b]) for rank, (a, b) in enumerate(model["merges"])}
    for word, number in dropout._numbers.items():
        for variant in range(dropout.variants):
            base = np.array([mix_seed(3, word)], dtype=np.uint64) + np.uint64(variant)
            seed = int(bpe_dropout._scatter(base)[0])
            expected = one_by_one([ids[letter] for letter in str(word)], merges, p, seed)
            assert dropout._cuts.gather(np.array([number * dropout.variants + variant])).tolist() == expected


@pytest.mark.slow
def test_a_merge_is_dropped_as_often_as_asked() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="bpe", size=258), ["ab ab ab"])
    whole = [len(encoded(tokenizer, "ab", 0.3, seed)) == 1 for seed in range(1500)]
    assert np.mean(whole) == pytest.approx(0.7, abs=0.04)


def test_a_word_is_cut_in_many_ways() -> None:
    dropout = BpeDropout(PLAIN, 0.3, 0)
    words = dropout.read(["Füchsin"], "source")
    assert 5 < len({tuple(one_row(dropout, words, 0, epoch)) for epoch in range(300)}) <= VARIANTS


def test_more_dropout_gives_more_tokens() -> None:
    counts = [len(encoded(PLAIN, PROSE, p)) for p in (0.0, 0.1, 0.3, 0.6, 1.0)]
    assert counts == sorted(set(counts))


# --- purity ----------------------------------------------------------------------------------------

LINES = PROSE.split("\n")[:4] * 3


@pytest.mark.slow
@given(
    asked=st.lists(st.tuples(st.lists(st.integers(0, 11), max_size=6), st.integers(0, 5)), min_size=1, max_size=6),
    seed=st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_a_draw_depends_on_nothing_that_was_drawn_before(asked: list[tuple[list[int], int]], seed: int) -> None:
    used = BpeDropout(PLAIN, 0.2, seed)
    words = used.read(LINES, "source")
    for rows, epoch in asked:
        fresh = BpeDropout(PLAIN, 0.2, seed)
        fresh.read(["other words", *LINES[::-1]], "target")  # words met in another order
        ids, lengths = used.draw(words, np.array(rows, dtype=np.int64), epoch)
        expected = [one_row(fresh, fresh.read(LINES, "source"), row, epoch) for row in rows]
        assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == (expected or [[]])
        assert lengths.tolist() == list(map(len, expected))


def test_a_draw_is_the_same_in_every_process() -> None:
    # Written down: a run may be resumed by another process, under another version of Python.
    tokenizer = Tokenizer.train(TokenizerConfig(name="bpe", size=258), ["ab ab ab"])
    tokens = [tokenizer.token(i) for i in encoded(tokenizer, "ab.ab.ab.ab.ab.ab", 0.5, seed=1, epoch=2)]
    assert "|".join(tokens) == "a|b|.|ab|.|ab|.|ab|.|ab|.|ab"


@pytest.mark.parametrize("change", ["seed", "epoch", "side", "sentence"])
def test_every_part_of_the_seed_changes_the_draw(change: str) -> None:
    def drawn(seed: int = 0, epoch: int = 0, side: str = "source", row: int = 0) -> list[int]:
        dropout = BpeDropout(PLAIN, 0.2, seed)
        return one_row(dropout, dropout.read([PROSE, PROSE], side), row, epoch)

    other = {"seed": {"seed": 1}, "epoch": {"epoch": 1}, "side": {"side": "target"}, "sentence": {"row": 1}}[change]
    assert drawn() != drawn(**other)  # type: ignore[arg-type]


# --- in batches ------------------------------------------------------------------------------------


def test_tags_and_ends_stand_as_they_are() -> None:
    dropout = BpeDropout(PLAIN, 0.5, 0)
    words = dropout.read(["fox", ""], "source", before=[7, 8], after=[PLAIN.eos_id])
    first, second = (one_row(dropout, words, row, 0) for row in (0, 1))
    assert (first[0], first[-1], PLAIN.decode(first[1:-1])) == (7, PLAIN.eos_id, "fox")
    assert second == [8, PLAIN.eos_id]


def test_batches_of_fresh_ids_are_a_pure_function_of_the_step() -> None:
    def batches() -> PairBatches:
        dropout = BpeDropout(PLAIN, 0.3, 5)
        read = {
            "source": dropout.read(LINES, "source", after=[PLAIN.eos_id]),
            "target": dropout.read(LINES, "target"),
        }
        stored = [PLAIN.encode(line) for line in LINES]
        ended = [[*ids.tolist(), PLAIN.eos_id] for ids in stored]
        return PairBatches(
            ended,
            stored,
            BatchShape(batch_tokens=200, seed=5),
            start=PLAIN.eos_id,
            eos=PLAIN.eos_id,
            draw=lambda pairs, epoch, side: dropout.draw(read[side], pairs, epoch),
        )

    used = batches()
    seen = set()
    for step in (9, 0, 4, 9):
        here, there = used.at(step), batches().at(step)
        assert same(here, there)
        seen.add(here.tokens)
    assert len(seen) > 1


# --- what is wrong with it -------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bpe"])
def test_other_tokenizers_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^BPE-dropout leaves out merges of tokenizer=bpe; tokenizer={name} has none"
    ):
        BpeDropout(made(name), 0.1, 0)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(p: float) -> None:
    with pytest.raises(ConfigError, match="is no probability; set it between 0 and 1"):
        BpeDropout(PLAIN, p, 0)


def test_added_tokens_that_text_can_spell_are_refused(tmp_path: Path) -> None:
    PLAIN.save(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    tokenizer.library.add_tokens(["fox"])
    with pytest.raises(ConfigError, match="added tokens"):
        BpeDropout(tokenizer, 0.1, 0)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(DataError, match="half a surrogate pair"):
        BpeDropout(PLAIN, 0.1, 0).read(["a\ud800"], "source")
