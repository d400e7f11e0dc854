"""How texts, pairs and words become rows, for encoders and for the others."""

import itertools

import pytest
import tokenizers

from legato.data.text.text_reader import TextReader, cut_longest_first
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig

TEXTS = ["the cat sat on the mat", "unbelievable cats sat", "naïve Zürich — 東京 cat"]


def trained(name: str) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name=name, size=300, masked=name == "wordpiece"), TEXTS)  # type: ignore[arg-type]


def test_an_encoder_has_marks_around_a_text() -> None:
    tokenizer = trained("wordpiece")
    reader = TextReader(tokenizer, adds_special_tokens=True, segments=True)
    row = reader.texts(["the cat"])[0]
    assert row.ids == [tokenizer.cls_id, *tokenizer.encode("the cat").tolist(), tokenizer.sep_id]
    pair = reader.pairs([("the cat", "sat")])[0]
    assert pair.ids.count(tokenizer.sep_id) == 2  # type: ignore[arg-type]
    assert pair.segments is not None
    assert pair.segments.count(1) == len(tokenizer.encode("sat")) + 1


def test_others_have_none() -> None:
    tokenizer = trained("bpe")
    reader = TextReader(tokenizer)
    assert reader.texts(["the cat"])[0].ids == tokenizer.encode("the cat").tolist()
    assert reader.texts([""])[0].ids == [tokenizer.eos_id]
    assert reader.pairs([("the", "cat")])[0].ids.count(tokenizer.eos_id) == 1


def test_a_pair_that_is_spelt_has_its_mark_in_the_middle_also_behind_a_mark() -> None:
    plain = trained("word")
    eos = plain.eos_id
    for tokenizer, before in ((plain, []), (plain.with_template(([eos], []), ([eos], [eos], [])), [eos])):
        row = TextReader(tokenizer, characters=True).pairs([("the cat", "sat on")])[0]
        words = [tokenizer.id_of(word) for word in ("the", "cat", "sat", "on")]
        assert row.ids == [*before, *words[:2], eos, *words[2:]]
        assert row.characters is not None
        assert row.characters.any(1).tolist() == [*[False] * len(before), True, True, False, True, True]


@pytest.mark.parametrize("name", ["wordpiece", "bpe", "unigram", "char", "byte", "word"])
@pytest.mark.parametrize("adds_special_tokens", [True, False])
def test_a_words_tokens_begin_where_it_says(name: str, adds_special_tokens: bool) -> None:
    tokenizer = trained(name)
    words = ["the", "unbelievable", "cat", "Zürich", "東京", "…", "sat"]
    row = TextReader(tokenizer, adds_special_tokens=adds_special_tokens).words(words)
    assert row.positions is not None
    assert len(row.positions) == len(words)
    assert row.positions == sorted(set(row.positions))
    bounds = [*row.positions, len(row.ids) - adds_special_tokens]
    for word, start, end in zip(words, row.positions, bounds[1:], strict=True):
        if tokenizer.unk_id not in row.ids[start:end]:
            assert tokenizer.decode(row.ids[start:end]).strip() == word


def test_words_that_do_not_fit_are_absent() -> None:
    tokenizer = trained("wordpiece")
    row = TextReader(tokenizer, max_length=6, adds_special_tokens=True).words(
        ["the", "cat", "sat", "on", "the", "mat"]
    )
    assert row.positions is not None
    assert len(row.ids) <= 6
    assert len(row.positions) < 6


@pytest.mark.parametrize(
    ("a", "b", "room", "expected"),
    [(3, 3, 10, (3, 3)), (8, 2, 6, (4, 2)), (2, 8, 6, (2, 4)), (8, 8, 6, (3, 3)), (8, 8, 7, (3, 4))],
)
def test_the_longer_of_a_pair_gives_way(a: int, b: int, room: int, expected: tuple[int, int]) -> None:
    first, second = cut_longest_first(list(range(a)), list(range(b)), room)
    assert (len(first), len(second)) == expected


def test_a_pair_is_cut_as_the_library_cuts_it() -> None:
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for a, b, room in itertools.product(range(9), range(9), range(1, 13)):
        library.enable_truncation(room, strategy="longest_first")
        kept = library.encode(" ".join("a" * a), " ".join("a" * b)).sequence_ids
        first, second = cut_longest_first(list(range(a)), list(range(b)), room)
        assert (len(first), len(second)) == (kept.count(0), kept.count(1))


def test_another_template_takes_effect_also_after_the_first_was_used() -> None:
    tokenizer = trained("bpe")
    alone = tokenizer.encode_with_special_tokens("a cat")
    eos = tokenizer.eos_id
    changed = tokenizer.with_template(([eos], [eos]), ([eos], [eos], [eos]))
    assert changed.encode_with_special_tokens("a cat") == [eos, *tokenizer.encode("a cat").tolist(), eos]
    assert tokenizer.encode_with_special_tokens("a cat") == alone
