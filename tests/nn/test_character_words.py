"""A word's vector from its letters, held against the same made word by word and window by window."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.data.text.word_bytes import vocabulary_bytes, word_bytes
from legato.nn.characters import CharacterWords, tell_spelling

WORDS = ["a", "the", "letter", "naïve", "x" * 60, "日本語"]
letters = st.text("abcé.-", min_size=1, max_size=12)


def build(width: int = 5, filters: list[int] | None = None, highways: int = 1) -> CharacterWords:
    torch.manual_seed(0)
    made = CharacterWords(width, filters or [2, 0, 3, 4], highways=highways, embedding=3).double()
    with torch.no_grad():
        made.bias.uniform_(-0.5, 0.5)
    return made


def table(words: list[str]) -> Tensor:
    return torch.from_numpy(word_bytes(words))


def no_ids(words: Tensor) -> Tensor:
    return torch.zeros(words.shape[:-1], dtype=torch.long)


def plain(model: CharacterWords, word: str) -> Tensor:
    """The equations, one window of one word at a time."""
    spelt = model.embedding.weight[torch.from_numpy(word_bytes([word])[0]).long()]  # (L, E)
    wide, size = 8, model.embedding.embedding_dim
    spelt = torch.cat([spelt, spelt.new_zeros(wide, size)])
    found = []
    for weight in model.filters:
        reach = weight.shape[1] // size
        starts = range(len(spelt) - wide + 1)
        windows = torch.stack([spelt[start : start + reach].flatten() for start in starts])
        found += [(windows @ row).max() for row in weight]
    y = F.relu(torch.stack(found) + model.bias)
    for highway in model.highways:
        gate = torch.sigmoid(F.linear(y, highway.gate.weight, highway.gate.bias))  # type: ignore[union-attr, arg-type]
        change = F.relu(F.linear(y, highway.change.weight, highway.change.bias))  # type: ignore[union-attr, arg-type]
        y = gate * change + (1 - gate) * y
    return y if model.projection is None else model.projection(y)


@pytest.mark.parametrize("highways", [0, 2])
@pytest.mark.parametrize("width", [5, 9])  # with a projection, and as wide as the filters are many
def test_all_words_at_once_equal_one_by_one(width: int, highways: int) -> None:
    model = build(width, highways=highways)
    together = model(table(WORDS), no_ids(table(WORDS)))
    torch.testing.assert_close(together, torch.stack([plain(model, word) for word in WORDS]))


@given(st.lists(letters, min_size=1, max_size=5), st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_padding_behind_words_changes_nothing(words: list[str], more: int) -> None:
    model, short = build(), table(words)
    long = F.pad(short, (0, more))
    torch.testing.assert_close(model(long, no_ids(long)), model(short, no_ids(short)))


@given(st.lists(letters, min_size=1, max_size=6), st.data())
@settings(max_examples=20, deadline=None)
def test_a_word_is_the_same_wherever_it_stands(words: list[str], data: st.DataObject) -> None:
    model = build()
    order = data.draw(st.permutations(range(len(words))))
    spelt = table(words)
    torch.testing.assert_close(model(spelt[list(order)], no_ids(spelt)), model(spelt, no_ids(spelt))[list(order)])


def test_words_told_apart_and_all_made_give_the_same_values_and_gradients() -> None:
    model, spelt = build(), table([*WORDS, *WORDS, "a"]).view(1, 13, -1)
    once = model(spelt, no_ids(spelt))
    once.sin().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()
    each = model.encode(spelt[0]).unsqueeze(0)
    each.sin().sum().backward()
    torch.testing.assert_close(once, each)
    torch.testing.assert_close(gradients, [p.grad for p in model.parameters()])


def test_what_is_no_word_is_zero() -> None:
    model = build()
    spelt = torch.zeros(2, 3, 4, dtype=torch.long)
    assert not model(spelt, no_ids(spelt)).any()


def test_padding_gets_no_vector_by_learning() -> None:
    model, spelt = build(), table(WORDS)
    model(spelt, no_ids(spelt)).sum().backward()
    assert model.embedding.weight.grad is not None
    assert not model.embedding.weight.grad[0].any()


def test_ids_are_spelt_by_the_vocabulary() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["the cat saw the dog\n"])
    model = build()
    tell_spelling(model, torch.from_numpy(vocabulary_bytes(tokenizer)))
    ids = torch.from_numpy(tokenizer.encode("dog the\n")).long().unsqueeze(0)
    expected = model(table(["dog", "the", ""]).unsqueeze(0), ids)
    torch.testing.assert_close(model(None, ids), expected)
    assert model.spelling is not None
    assert model.spelling.shape == vocabulary_bytes(tokenizer).shape


def test_the_spelling_is_in_no_file() -> None:
    model = build()
    model.spell(table(WORDS))
    assert "spelling" not in model.state_dict()


def test_untold_tokens_are_spelt_by_their_numbers() -> None:
    model, ids = build(), torch.tensor([[0, 17, 3]])
    torch.testing.assert_close(model(None, ids), model(table(["0", "17", "3"]).unsqueeze(0), ids))


def test_lower_precision_inside_stays_near() -> None:
    model, spelt = build().float(), table(WORDS)
    exact = model(spelt, no_ids(spelt))
    with torch.autocast("cpu", torch.bfloat16):
        near = model(spelt, no_ids(spelt))
    torch.testing.assert_close(near.float(), exact, rtol=0.1, atol=0.1)


def test_words_of_like_length_together_are_what_all_together_are() -> None:
    torch.manual_seed(0)
    words = CharacterWords(6, [2, 3, 4], highways=1).double()
    draw = torch.Generator().manual_seed(1)
    spelt = torch.randint(1, 259, (40, 30), generator=draw)
    lengths = torch.randint(0, 12, (40, 1), generator=draw)
    lengths[7] = 30  # one long word
    spelt *= torch.arange(30) < lengths
    apart, together = words._by_length(spelt), words._largest(spelt)
    torch.testing.assert_close(apart, together)
    expected, found = (torch.autograd.grad(y.pow(2).sum(), list(words.filters)) for y in (together, apart))
    torch.testing.assert_close(found, expected)
