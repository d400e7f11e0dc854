"""A text from its tokens to what is sent: however its tokens come together, what is sent is the text."""

from __future__ import annotations

import itertools
import random

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from legato.data.text.tokenizers import StreamDecoder, Tokenizer
from legato.decoding import cut_at_stop
from legato.decoding.logprobs import TokenLogprob
from legato.serving.texts.text_stream import TextStream


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """As published files are: the library's bytes, merges, a special token and one that is added to the text's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: number for number, name in enumerate([*letters, "Ġa", "Ġab", "<tool_call>"])}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, [("Ġ", "a"), ("Ġa", "b")]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), byte_level])
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    library.add_tokens([" of one", "<tool_call>"])
    return Tokenizer(library)


def random_tokens(tokenizer: Tokenizer, draw: random.Random) -> list[int]:
    text = "".join(draw.choice(["é", "日", " a", " ab", "b", "\N{GRINNING FACE}", " of one"]) for _ in range(12))
    broken = [draw.randrange(tokenizer.size) for _ in range(4)]
    return [*tokenizer.encode(text).tolist(), *broken, tokenizer.eos_id, *tokenizer.encode("é").tolist()]


def parts(tokens: list[int], draw: random.Random) -> list[list[int]]:
    cuts = sorted({0, len(tokens), *(draw.randrange(len(tokens)) for _ in range(5))})
    return [tokens[begin:end] for begin, end in itertools.pairwise(cuts)]


def test_tokens_that_come_together_are_decoded_as_the_library_does(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces is None
    assert tokenizer.byte_pieces is not None
    for seed in range(100):
        draw = random.Random(seed)
        tokens = random_tokens(tokenizer, draw)
        one_by_one, together = StreamDecoder(tokenizer), StreamDecoder(tokenizer)
        whole = tokenizer.decode(tokens)
        assert "".join(map(one_by_one.push, tokens)) + one_by_one.finish() == whole
        assert "".join(map(together.push_many, parts(tokens, draw))) + together.finish() == whole


def test_what_is_sent_never_holds_a_stop_string(tokenizer: Tokenizer) -> None:
    for seed in range(100):
        draw = random.Random(seed)
        tokens = random_tokens(tokenizer, draw)
        stream = TextStream(tokenizer, [], stops := ("bab", "日 a", "aé"))
        sent = "".join(stream.push(part)[0] for part in parts(tokens, draw))
        end, stopped = cut_at_stop(stream.finish(), stops)
        assert end.startswith(sent)
        assert not stopped or sent == end


def test_a_call_of_a_tool_is_kept_back_and_what_stands_before_it_is_sent(tokenizer: Tokenizer) -> None:
    text = 'b ab <tool_call>{"name": "f"}'
    stream = TextStream(tokenizer, [], tools=True)
    assert "".join(stream.push([token])[0] for token in tokenizer.encode(text).tolist()) == "b ab"
    assert stream.finish() == text


def test_log_probabilities_go_with_the_text_of_their_tokens(tokenizer: Tokenizer) -> None:
    first, second = tokenizer.encode("é").tolist()
    stream = TextStream(tokenizer, [])
    held = [TokenLogprob(token, -1.0, []) for token in (first, second)]
    assert stream.push([first], held[:1]) == ("", None)
    assert stream.push([second], held[1:]) == ("é", held)
    assert stream.sent_logprobs == 2
