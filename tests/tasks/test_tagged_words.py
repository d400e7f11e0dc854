"""Raw text to words: as a tagger's training words were split, and never a text that is split already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legato.tasks.tagging.word_splitting import Splitting, splitting_of, word_places


def split(text: str, splitting: Splitting = "treebank") -> list[str]:
    return [text[start:end] for start, end in word_places(text, splitting)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Germany beat Brazil in Paris, France.", "Germany beat Brazil in Paris , France ."),
        ("He left Paris. Then Rome. “Why?”", "He left Paris . Then Rome . “ Why ? ”"),
        ("Mr. Smith and J. Doe (U.S. Army) met.", "Mr. Smith and J. Doe ( U.S. Army ) met ."),
        ("Anna’s dog doesn't bark in the U.S.", "Anna ’s dog does n't bark in the U.S."),
        ("am 12. Oktober 1996. Dann", "am 12. Oktober 1996 . Dann"),
        ("1,000 at 6:30", "1,000 at 6:30"),
        ("See http://a.org/b:c(d), great!!! :-)", "See http://a.org/b:c(d ) , great !!! :-)"),
        ("Mail me@a.org.", "Mail me@a.org ."),
        ("He said no. She left Amazon.com. Then", "He said no . She left Amazon.com . Then"),
        ("It (https://x.y/z) works", "It ( https://x.y/z ) works"),
        ("Paris! is fine , he said .", "Paris ! is fine , he said ."),
    ],
)
def test_punctuation_stands_apart(text: str, words: str) -> None:
    assert split(text) == words.split()


@pytest.mark.parametrize(
    "text",
    [
        "Acme Inc. , of the U.S. , can't .",
        "  The\tdog 's ( old ) ball ? ! `` No '' --",
        "EU rejects German call to boycott British lamb .",
    ],
)
@pytest.mark.parametrize("splitting", ["treebank", "punctuation", "spaces"])
def test_text_that_is_split_already_stays_as_it_is(text: str, splitting: Splitting) -> None:
    assert split(text, splitting) == text.split()


def test_endings_stay_where_the_training_words_had_them() -> None:
    assert split("Anna's dog doesn't bark, Carl.", "punctuation") == [
        "Anna's",
        "dog",
        "doesn't",
        "bark",
        ",",
        "Carl",
        ".",
    ]
    assert split("Anna's dog barks, Carl.", "spaces") == ["Anna's", "dog", "barks,", "Carl."]


@pytest.mark.parametrize(
    ("sentence", "splitting"),
    [
        ("Anna 's dog barks .", "treebank"),
        ("no , U.S. firms like Acme Inc.", "treebank"),
        ("Anna's dog don't bark !", "punctuation"),
        ("Anna barks, loudly. ", "spaces"),
        ("flights from boston to denver", "treebank"),
    ],
)
def test_the_training_words_tell_how_to_split(sentence: str, splitting: Splitting) -> None:
    assert splitting_of([sentence.split()]) == splitting


@given(st.text(alphabet="ab N.,'’\"()[]?! \n\tn't-é\u00a0", max_size=60))
def test_nothing_but_white_space_is_left_out(text: str) -> None:
    for splitting in ("treebank", "punctuation"):
        assert "".join(split(text, splitting)) == "".join(text.split())
        assert not any(set(word) & set(" \n\t\u00a0") for word in split(text, splitting))


def test_a_long_run_of_marks_is_split_without_trying_every_part_of_it() -> None:
    assert len(split("\"'(" * 50_000 + "a")) >= 50_000
