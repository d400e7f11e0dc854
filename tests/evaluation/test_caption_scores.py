"""Captions' scores are pycocoevalcap's on the same words, and those worked by hand."""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import subprocess
import sys

import pytest
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider

from legato.errors import LegatoError
from legato.evaluation.captioning import METRICS, caption_details, caption_scores, caption_words
from legato.evaluation.metrics import printed_scores

DOGS = ["A dog runs on the beach .", "The brown dog is running .", "a dog"]
MEN = ["Two men talk to each other .", "Men are talking outside ."]
CAT = ["A cat sleeps ."]


def published(captions: list[str], references: list[list[str]]) -> tuple[list[float], float, list[float]]:
    """BLEU-1 to 4, CIDEr and each caption's CIDEr, times 100, by pycocoevalcap on words that are prepared."""
    truth = {n: [" ".join(caption_words(one)) for one in several] for n, several in enumerate(references)}
    written = {n: [" ".join(caption_words(caption))] for n, caption in enumerate(captions)}
    with contextlib.redirect_stdout(io.StringIO()):
        bleu, _ = Bleu(4).compute_score(truth, written)
        cider, each = Cider().compute_score(truth, written)
    return [100 * value for value in bleu], 100 * float(cider), [100 * float(value) for value in each]


def random_captions(seed: int, pictures: int, words: int, fewest: int = 1) -> tuple[list[str], list[list[str]]]:
    draw = random.Random(seed)
    vocabulary = [f"w{n}" for n in range(words)]
    often = [1 / (n + 1) for n in range(words)]

    def caption() -> str:
        return " ".join(draw.choices(vocabulary, often, k=draw.randint(fewest, 12)))

    references = [[caption() for _ in range(draw.randint(1, 5))] for _ in range(pictures)]
    near = [draw.choice(several) if draw.random() < 0.3 else caption() for several in references]
    return near, references


CASES = {
    "plain": (["a dog runs on the sand", "two men talk", "a cat"], [DOGS, MEN, CAT]),
    "identical": ([DOGS[0], MEN[0], CAT[0]], [DOGS, MEN, CAT]),
    "one reference": (["a dog on the beach", "two cats"], [DOGS[:1], CAT]),
    "one picture": (["a dog runs"], [DOGS]),
    "empty": (["", "two men talk", ""], [DOGS, MEN, CAT]),
    "all empty": (["", "."], [DOGS, MEN]),
    "empty reference": (["a dog", "", "b"], [["."], ["", "a man"], CAT]),
    "longer than all": (["a dog runs on the beach and a dog runs on the beach again and again", "x"], [DOGS, MEN]),
    "repeated": (["dog dog dog dog dog", "men men men talk talk"], [DOGS, MEN]),
    "one word": (["dog", "men", "cat"], [DOGS, MEN, ["cat"]]),
    "common to all": (["a b c", "a b c"], [["a b c"], ["a b c d"]]),
    "few words": random_captions(1, 50, 6),
    "many words": random_captions(2, 200, 300),
    "with empty ones": random_captions(3, 60, 20, fewest=0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_scores_are_those_of_pycocoevalcap(name: str):
    captions, references = CASES[name]
    bleu, cider, each = published(captions, references)
    scores = caption_scores(captions, references)
    assert [scores[f"bleu_{n}"] for n in (1, 2, 3, 4)] == pytest.approx(bleu, abs=1e-6)
    assert scores["cider"] == pytest.approx(cider, abs=1e-6)
    ((_, _, rows),) = caption_details(captions, references, [str(n) for n in range(len(captions))])
    assert [row[0] for row in rows] == pytest.approx(sorted(each)[:10], abs=1e-6)


def test_bleu_worked_by_hand():
    # Six words of which "the" may count twice, as in the second reference, and "cat" once: 3 of 6. Pairs: "the cat"
    # alone, 1 of 5. No triple. References of 5 and 7 words are as close to 6: the shorter counts, and is no penalty.
    scores = caption_scores(["the the the the the cat"], [["the cat sat down there", "the dog and the man run now"]])
    assert scores["bleu_1"] == pytest.approx(100 * 3 / 6)
    assert scores["bleu_2"] == pytest.approx(100 * math.sqrt(3 / 6 * 1 / 5))
    assert scores["bleu_3"] < 0.1
    # Two words of a reference of four.
    short = caption_scores(["the cat"], [["the cat sat down"]])
    assert (short["bleu_1"], short["bleu_2"]) == pytest.approx((100 / math.e, 100 / math.e))  # exp(1 - 4/2)


def test_cider_worked_by_hand():
    # "a" stands with both pictures and weighs nothing; "dog" and "a dog" weigh log 2. The first caption has cosines
    # of 1, 1, 0 and 0, so 10 · 2/4; the second has nothing of its reference. On average 2.5, printed 250.
    scores = caption_scores(["a dog", "a dog"], [["a dog"], ["a cat"]])
    assert scores["cider"] == pytest.approx(250)
    # Written twice, "dog" is clipped: (log 2)² / (2 log 2 · log 2), a half. "dog dog", of no reference, weighs log 2
    # as well, so that the pairs' cosine is 1/√2. A word too many costs exp(-1 / (2 · 6²)).
    cosines = 1 / 2 + 1 / math.sqrt(2)
    scores = caption_scores(["a dog dog", "a cat"], [["a dog"], ["a cat"]])
    assert scores["cider"] == pytest.approx(100 * (10 / 4 * cosines * math.exp(-1 / 72) + 5) / 2)


def test_a_caption_that_is_its_only_reference_has_all_there_is():
    captions = ["a dog runs on sand", "two men talk to others"]
    assert caption_scores(captions, [[one] for one in captions])["cider"] == pytest.approx(1000)


def test_words_are_lower_case_without_punctuation_in_any_script():
    assert caption_words("A man's T-shirt ,\n  “two” dogs…") == ["a", "mans", "tshirt", "two", "dogs"]
    assert caption_words("Ein KÄFIG; ¿qué? $5 + 3") == ["ein", "käfig", "qué", "5", "3"]
    assert caption_words("एक कुत्ता दौड़ता है।") == ["एक", "कुत्ता", "दौड़ता", "है"]  # signs of vowels stay
    assert caption_words(" . ") == []


def test_case_and_punctuation_change_no_score():
    plain = caption_scores(["a dog runs on the beach", "men talking"], [DOGS, MEN])
    assert caption_scores(["A DOG, runs on the beach!", "Men (talking)."], [DOGS, MEN]) == plain


def test_how_varied_captions_are():
    scores = caption_scores(["a dog", "A dog.", "a cat sleeps here"], [DOGS, MEN, CAT])
    assert scores["mean_length"] == pytest.approx(8 / 3)
    assert scores["reference_length"] == pytest.approx((6 + 5 + 2 + 6 + 4 + 3) / 6)
    assert scores["distinct_words"] == 5
    assert scores["unique_captions"] == pytest.approx(2 / 3)


def test_the_signatures_say_how_it_was_counted():
    scores = caption_scores(["a", "b", "c"], [DOGS, MEN, CAT])
    assert scores["bleu_signature"] == (
        "nrefs:1-3|case:lower|punctuation:none|tok:spaces|length:closest|smooth:none|as:pycocoevalcap 1.2"
    )
    assert "CIDEr-D|nrefs:2|" in str(caption_scores(["a"], [MEN])["cider_signature"])


def test_people_read_them_as_papers_print_them():
    printed = printed_scores(METRICS, {"bleu_4": 19.5, "cider": 51.25, "unique_captions": 0.5, "search": "beam 4"})
    assert printed == {"bleu 4 (beam 4)": "19.50", "cider (beam 4)": "51.25", "unique captions (beam 4)": "50.00%"}


def test_the_worst_captions_are_shown_with_their_references():
    captions = ["a dog runs", "a cow", "a cat sleeps"]
    ((title, columns, rows),) = caption_details(captions, [DOGS, MEN, CAT], ["1.jpg", "2.jpg", "3.jpg"])
    assert title == "worst captions, 3 of 3"
    assert columns == ["cider", "caption", "references", "where"]
    assert [row[1:] for row in rows] == [
        ["a cow", " / ".join(MEN), "2.jpg"],
        ["a dog runs", " / ".join(DOGS), "1.jpg"],
        ["a cat sleeps", CAT[0], "3.jpg"],
    ]
    assert rows[0][0] == 0 < rows[1][0] < rows[2][0]


def test_captions_that_do_not_fit_the_pictures_are_an_error():
    with pytest.raises(LegatoError, match="there are 1 captions and references of 2 pictures"):
        caption_scores(["a"], [DOGS, MEN])
    with pytest.raises(LegatoError, match="there are no captions to score"):
        caption_scores([], [])
    with pytest.raises(LegatoError, match="picture 2 of 2 has no reference"):
        caption_scores(["a", "b"], [DOGS, []])


def test_no_last_bit_depends_on_how_words_are_hashed():
    captions, references = random_captions(4, 10, 30, fewest=10)
    given = f"{captions}, {references}, {captions}"
    code = f"from legato.evaluation.captioning import caption_details; print(caption_details({given}))"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
