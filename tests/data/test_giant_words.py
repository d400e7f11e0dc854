"""Words of very many letters: vocabularies are trained on their parts, and all others as before."""

from __future__ import annotations

import random

import pytest

from legato.data.text import vocabularies
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.data.text.vocabularies import LONGEST_WORD, _shortened, assemble

NAMES = sorted(LONGEST_WORD)
LETTERS = "".join(random.Random(0).choices("abcdefghij", k=20_000))
GIANTS = {
    "letters": f"the cat {LETTERS} sat",
    "one letter": "a" * 20_000,
    "blanks": "the cat" + " " * 20_000 + "sat",
    "lines": "the cat" + "\n" * 20_000 + "sat",
    "digits": "1" * 20_000,
    "marks": "the " + "!" * 20_000,
    "letters of another script": "猫" * 20_000,
    "capitals": "THE " + "İ" * 20_000,
}
ORDINARY = {
    "prose": "the cat sat on the mat\n" * 200,
    "Chinese without spaces": "猫坐在垫子上，狗在雨里跑。" * 200,
    "a table in one line": ",".join(f'"key{number}":{number}' for number in range(200)),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("text", GIANTS.values(), ids=GIANTS)
@pytest.mark.parametrize("name", NAMES)
def test_no_word_that_is_trained_on_is_longer_than_it_may_be(name: str, text: str, lowercase: bool) -> None:
    rules = assemble(name, lowercase)
    parts = _shortened(text, rules, name)
    assert "".join(parts) == (rules.normalizer.normalize_str(text) if lowercase and len(parts) > 1 else text)
    read = [part if rules.normalizer is None else rules.normalizer.normalize_str(part) for part in parts]
    words = [end - start for part in read for _, (start, end) in rules.pre_tokenizer.pre_tokenize_str(part)]
    assert max(words, default=0) <= LONGEST_WORD[name]


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_a_text_of_ordinary_words_is_trained_on_as_it_is(name: str, text: str) -> None:
    assert _shortened(text, assemble(name, False), name) == [text]


@pytest.mark.parametrize("name", NAMES)
def test_a_giant_word_takes_nothing_from_the_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vocabularies.LONGEST_WORD, name, 1000)
    config = TokenizerConfig(name=name, size=400)
    text = "the cat sat on the mat " * 300 + LETTERS[:5000] + " and more"
    tokenizer = Tokenizer.train(config, [text])
    assert tokenizer.decode(tokenizer.encode("the cat sat on the mat")).strip() == "the cat sat on the mat"
    if name != "unigram":  # which weighs all substrings
        assert len(tokenizer.encode("the cat sat")) <= 4
    again = Tokenizer.train(config, [text])
    assert again.fingerprint() == tokenizer.fingerprint()
