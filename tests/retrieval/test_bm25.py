"""BM25 against its formula, the stemmer, and fusion."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.retrieval.bm25 import BM25, K1, B, PostingsBuilder, best_of, merge_postings, terms_of
from legato.retrieval.fusion import reciprocal_rank_fusion
from legato.retrieval.stemmer import stem

TEXTS = ["the cat sat", "a dog and a cat", "dogs bark, dogs run", "nothing here"]


def scorer(texts: list[str]) -> tuple[BM25, dict[str, list[tuple[np.ndarray, np.ndarray]]]]:
    builder = PostingsBuilder()
    for number, text in enumerate(texts):
        builder.add(number, terms_of(text))
    lengths = np.array([len(terms_of(text)) for text in texts])
    return BM25(lengths), {term: [posting] for term, posting in builder.postings().items()}


def test_a_score_is_the_formulas() -> None:
    model, postings = scorer(TEXTS)
    scores = model.scores(Counter(terms_of("dogs")), postings)
    lengths = [2, 2, 4, 2]  # cat sat | dog cat | dog bark dog run | noth here
    idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    norm = [K1 * (1 - B + B * length / 2.5) for length in lengths]
    assert scores.tolist() == pytest.approx([0, idf * 1 / (1 + norm[1]), idf * 2 / (2 + norm[2]), 0])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *(("caresses", "caress"), ("ponies", "poni"), ("cats", "cat"), ("feed", "feed"), ("plastered", "plaster")),
        *(("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"), ("hopping", "hop"), ("falling", "fall")),
        *(("filing", "file"), ("happy", "happi"), ("conditional", "condit"), ("vietnamization", "vietnam")),
        *(("triplicate", "triplic"), ("goodness", "good"), ("revival", "reviv"), ("adoption", "adopt")),
        *(("probate", "probat"), ("rate", "rate"), ("controll", "control"), ("roll", "roll"), ("zürich", "zürich")),
    ],
)
def test_stems_are_those_of_porters_paper(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_text_in_any_script_has_terms() -> None:
    assert terms_of("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert terms_of("日本") == ["日", "本"]
    assert terms_of("Vitamin D, the cat's") == ["vitamin", "d", "cat"]


@given(st.lists(st.text("abc ", min_size=1, max_size=12), min_size=2, max_size=12), st.integers(1, 11), st.data())
def test_segments_and_deletions_change_no_score(texts: list[str], cut: int, data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(texts) - 1), max_size=len(texts) - 1))
    lengths = np.array([0 if n in gone else len(text.split()) for n, text in enumerate(texts)])
    parts = []
    for numbers in (range(min(cut, len(texts))), range(cut, len(texts))):
        builder = PostingsBuilder()
        for number in numbers:
            builder.add(number, texts[number].split())
        parts.append(builder.postings())
    held: dict[str, list] = {}
    for part in parts:
        for term, posting in part.items():
            held.setdefault(term, []).append(posting)
    model, question = BM25(lengths), Counter(texts[0].split())
    merged = {term: [posting] for term, posting in merge_postings(parts, lengths).items()}
    whole = PostingsBuilder()
    for number, text in enumerate(texts):
        if number not in gone:
            whole.add(number, text.split())
    alone = {term: [posting] for term, posting in whole.postings().items()}
    expected = model.scores(question, alone)
    assert np.allclose(model.scores(question, held), expected)
    assert np.allclose(model.scores(question, merged), expected)


def test_of_equals_the_first_is_best() -> None:
    assert [n for n, _ in best_of(np.array([0.0, 1.0, 2.0, 1.0, 1.0]), 3)] == [2, 1, 3]
    assert [n for n, _ in best_of(np.array([3.0, 1.0, 2.0]), 3, np.array([1, 2, 9]))] == [2, 1]


def test_what_both_rankings_hold_is_first() -> None:
    fused = reciprocal_rank_fusion({"words": [1, 2, 3], "vectors": [4, 3, 5]})
    assert fused[0] == (3, pytest.approx(1 / 63 + 1 / 62))
    heavy = reciprocal_rank_fusion({"words": [1], "vectors": [2]}, {"words": 0.5, "vectors": 2.0})
    assert [number for number, _ in heavy] == [2, 1]
