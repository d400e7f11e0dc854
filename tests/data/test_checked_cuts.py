"""Long texts and tokenizers made elsewhere: cut only where both sides become the same ids, apart and together."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from legato.data.text import vocabularies
from legato.data.text.tokenizers import Tokenizer
from legato.data.text.vocabularies import cut_checked
from legato.errors import DataError

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def story(letters: int, seed: int) -> str:
    """Words, numbers, marks and all kinds of white space, some of it in runs."""
    draw, made = random.Random(seed), []
    while sum(map(len, made)) < letters:
        made.append(
            "".join(draw.choices("abcdeéü漢字", k=draw.randint(1, 6))) if draw.random() < 0.8 else "2024'll!?…"
        )
        made.append(draw.choice([" ", " ", " ", " ", "  ", "\n", "\n\n", " \n", "\t", ".\n", ", ", " . "]))
    return "".join(made)


def bpe(before: Any, normalizer: Any = None, **options: Any) -> Library:
    library = Library(models.BPE(**options))
    library.pre_tokenizer, library.decoder = before, decoders.Fuse()
    if normalizer is not None:
        library.normalizer = normalizer
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["</s>"], initial_alphabet=letters, show_progress=False
    )
    library.train_from_iterator(story(20_000, 1).split("\n"), trainer)
    return library


def bert() -> Library:
    library = Library(models.WordPiece(unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    marks = ["[UNK]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=marks, show_progress=False)
    library.train_from_iterator([story(20_000, 1)], trainer)
    return library


def unigram() -> Library:
    library = Library(models.Unigram())
    library.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["</s>", "<unk>"], unk_token="<unk>")
    library.train_from_iterator([story(20_000, 1)], trainer)
    return library


def llama3() -> Library:
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    return bpe(pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


KINDS = {
    "bert": bert,
    "unigram": unigram,
    "llama-3": llama3,
    "roberta": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "mistral": lambda: bpe(pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "lines": lambda: bpe(pre_tokenizers.Split("\n", "isolated")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_a_long_text_are_encoded_like_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(KINDS[kind]())
    monkeypatch.setattr(vocabularies, "PIECE", 300)
    for seed in range(3):
        text = story(5_000, seed)
        assert len(list(cut_checked(text, tokenizer._library_ids))) > 4
        if tokenizer.name == "other":
            assert tokenizer.encode(text).tolist() == tokenizer._library_ids(text)
        cut = [
            index for piece in cut_checked(text, tokenizer._library_ids) for index in tokenizer._library_ids(piece)
        ]
        assert cut == tokenizer._library_ids(text)


def test_a_text_that_cannot_be_cut_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    older = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # before every piece
    library = bpe(None, older)
    tokenizer = Tokenizer(library)
    monkeypatch.setattr(vocabularies, "PIECE", 300)
    text = "abc de " * 300
    assert list(cut_checked(text, tokenizer._library_ids)) == [text]
    assert tokenizer.encode(text).tolist() == tokenizer._library_ids(text)


def test_half_a_character_is_named_where_a_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabularies, "PIECE", 300)
    with pytest.raises(DataError, match="half a surrogate pair"):
        Tokenizer(llama3()).encode("abc de " * 60 + "\ud83d" + " abc" * 60)
