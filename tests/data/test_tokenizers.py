"""Tokenizers: what goes in comes out, the fast way equals the library's, and files keep their form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from legato.config import validate
from legato.data.text import tokenizers, vocabularies
from legato.data.text.tokenizers import NAMES, StreamDecoder, Tokenizer, TokenizerConfig
from legato.errors import ConfigError, DataError

PROSE = (
    "The quick brown fox jumps over the lazy dog. It didn't stop there:\n\n  twice more, and again!\n"
    "Später kam die Füchsin — «bonjour», said she; Σίσυφος rolled 1,234 stones.\n"
) * 20
STRANGE = (
    "plain words\n",
    "",
    " ",
    "\n\n",
    "  two  spaces \n and a tab\t.",
    "emoji 👩‍👩‍👧‍👦 👍🏽 🇩🇪",
    "combining e\u0301 a\u0308\u0323 \u0915\u094d\u0937",
    "controls \x00\x01\x1c\x1d\x1e\x1f\x7f\x85 end",
    "spaces \u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000 and none \u200b\u180e\ufeff end",
    "unknown 漢字 ֍ \U0010ffff",
    "carriage\r\nreturn",
    "spelt <eos> and <unk> and a<eos>b",
    "▁ ##x Ġ Ċ �",
    "ΑΣ ΣΑΣ İstanbul ẞ",
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
LIKELY = st.lists(st.sampled_from([*"aZé漢1,.'\n\t \r\u3000\x1c", "'s", "  ", "\n\n", "<eos>", "👍"]), max_size=80)


def made(name: str, **more: object) -> Tokenizer:
    size = 400 if name in ("bpe", "unigram", "wordpiece") else None
    config = validate(TokenizerConfig, {"name": name, "size": size, **more})
    return Tokenizer.train(config, [PROSE])


TRAINED = {(name, lowercase): made(name, lowercase=lowercase) for name in NAMES for lowercase in (False, True)}


@pytest.fixture(params=NAMES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TRAINED[request.param, False]


# --- what every one of them does -------------------------------------------------------------------


def test_it_knows_its_own_name(tokenizer: Tokenizer) -> None:
    assert TRAINED[tokenizer.name, False] is tokenizer
    assert not tokenizer.lowercase


def test_ids_are_integers_of_four_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("The fox").dtype == np.int32
    assert tokenizer.encode("").dtype == np.int32


def test_ids_lie_in_the_vocabulary(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROSE + "漢")
    assert ids.min() >= 0
    assert ids.max() < tokenizer.size


def test_nothing_is_added_to_a_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_id not in tokenizer.encode("The quick fox")


def test_nothing_gives_no_ids(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("")) == 0


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", STRANGE)
def test_the_fast_way_equals_the_library(name: str, text: str, lowercase: bool) -> None:
    tokenizer = TRAINED[name, lowercase]
    assert tokenizer.encode(text).tolist() == tokenizer._library_ids(text)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=60)
@given(text=TEXT)
def test_the_fast_way_equals_the_library_on_any_text(name: str, text: str) -> None:
    for lowercase in (False, True):
        tokenizer = TRAINED[name, lowercase]
        assert tokenizer.encode(text).tolist() == tokenizer._library_ids(text)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=60)
@given(parts=LIKELY, size=st.integers(1, 9))
def test_pieces_encode_like_the_whole(name: str, parts: list[str], size: int) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabularies, "PIECE", size)
        assert TRAINED[name, False].encode(text).tolist() == TRAINED[name, False]._library_ids(text)


def test_more_pieces_than_a_batch_keep_their_order(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabularies, "PIECE", 10)
    monkeypatch.setattr(tokenizers, "BATCH", 3)
    assert tokenizer.encode(PROSE).tolist() == tokenizer._library_ids(PROSE)


def test_many_texts_encode_like_each_alone(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "BATCH", 3)
    texts = ["one fox", "", "two\ndogs", "x", "", ""]
    together = [ids.tolist() for ids in tokenizer.encode_many(texts)]
    assert together == [tokenizer.encode(text).tolist() for text in texts]


def test_a_long_text_is_cut_only_between_words() -> None:
    pieces = list(vocabularies.cut("aa bb  cc\ndd", vocabularies.BEFORE_BLANK, size=1))
    assert pieces == ["aa", " bb", "  cc", "\ndd"]


def test_training_again_gives_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    assert made(tokenizer.name).fingerprint() == tokenizer.fingerprint()


def test_a_setting_changes_the_fingerprint(tokenizer: Tokenizer) -> None:
    assert TRAINED[tokenizer.name, True].fingerprint() != tokenizer.fingerprint()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ["a", ".", "ab ba\n"])
def test_a_tiny_text_is_enough_to_train(name: str, text: str) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name=name), [text])  # type: ignore[arg-type]
    assert tokenizer.decode(tokenizer.encode(text)).strip() == text.strip()


def test_half_a_surrogate_pair_is_refused() -> None:
    for name in ("byte", "char", "bpe"):
        with pytest.raises(DataError, match="surrogate"):
            TRAINED[name, False].encode("a\ud800")


# --- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["byte", "bpe"])
@settings(deadline=None)
@given(text=TEXT)
def test_any_text_comes_back(name: str, text: str) -> None:
    tokenizer = TRAINED[name, False]
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(deadline=None)
@given(text=st.text(sorted(set(PROSE)), max_size=80))
def test_seen_characters_come_back(text: str) -> None:
    tokenizer = TRAINED["char", False]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_decoding_equals_the_library(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(PROSE)
    assert tokenizer.decode(ids) == tokenizer.library.decode(ids.tolist(), skip_special_tokens=False)


def test_words_come_back_with_single_spaces() -> None:
    tokenizer = TRAINED["word", False]
    assert tokenizer.decode(tokenizer.encode(" The  quick \n brown fox\n")) == "The quick\nbrown fox\n"


def test_the_end_of_text_leaves_no_trace_in_it() -> None:
    for name in ("byte", "char", "bpe", "unigram", "wordpiece"):
        tokenizer = TRAINED[name, False]
        ids = tokenizer.encode("The dog")
        assert tokenizer.ends_text
        assert tokenizer.eos_id == 0
        assert tokenizer.decode([0, *ids, 0]) == "The dog"


def test_lowercase_lowers() -> None:
    for name in NAMES:
        tokenizer = TRAINED[name, True]
        assert tokenizer.decode(tokenizer.encode("The FOX")) == "the fox"


# --- each by itself --------------------------------------------------------------------------------


def test_bytes_are_257_and_never_unknown() -> None:
    tokenizer = TRAINED["byte", False]
    assert tokenizer.size == 257
    assert tokenizer.unk_id is None
    assert tokenizer.encode("é").tolist() == [0xC3 + 1, 0xA9 + 1]


def test_characters_not_seen_are_unknown() -> None:
    tokenizer = TRAINED["char", False]
    assert tokenizer.size == len(set(PROSE)) + 2
    assert tokenizer.encode("a漢\U0010ffff").tolist()[1:] == [tokenizer.unk_id] * 2


def test_rare_characters_can_be_left_out() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="char", min_count=2), ["aab"])
    assert tokenizer.size == 3
    assert tokenizer.encode("ab").tolist() == [2, tokenizer.unk_id]


def test_words_are_ordered_by_count_and_then_by_alphabet() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["b b a c\n"])
    assert [tokenizer.token(index) for index in range(tokenizer.size)] == ["b", "<eos>", "a", "c", "<unk>"]


def test_a_closed_vocabulary_is_kept_as_it_is() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), [" the <unk> of N \n <unk> N \n"])
    assert tokenizer.size == len({"the", "<unk>", "of", "N", "<eos>"})
    assert tokenizer.unk_id == tokenizer.encode("<unk>")[0]


def test_a_newline_is_the_end_of_a_line_of_words() -> None:
    tokenizer = TRAINED["word", False]
    assert not tokenizer.ends_text
    assert tokenizer.encode("fox\nfox\n").tolist()[1::2] == [tokenizer.eos_id] * 2
    assert tokenizer.decode([tokenizer.eos_id]) == "\n"


def test_words_can_be_limited_in_number_and_by_count() -> None:
    text = "a a a b b c\n"
    sizes = [
        Tokenizer.train(TokenizerConfig(name="word", **limits), [text]).size  # type: ignore[arg-type]
        for limits in ({}, {"min_count": 2}, {"size": 3}, {"size": 1})
    ]
    assert sizes == [5, 4, 3, 2]


def test_bpe_knows_every_byte() -> None:
    tokenizer = TRAINED["bpe", False]
    assert tokenizer.unk_id is None
    assert 257 < tokenizer.size <= 400


def test_a_text_of_the_end_token_is_not_the_end_token() -> None:
    for name in ("byte", "char", "bpe", "unigram", "wordpiece"):
        assert TRAINED[name, False].eos_id not in TRAINED[name, False].encode("a <eos> b")


def test_pieces_of_words_mark_how_they_go_on() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="wordpiece", size=4), ["ab ab ab"])
    ids = tokenizer.encode("abb a")
    assert [tokenizer.token(index) for index in ids] == ["a", "##b", "##b", "a"]
    assert tokenizer.decode(ids) == "abb a"


def test_tokens_read_as_text() -> None:
    byte, bpe, unigram = (TRAINED[name, False] for name in ("byte", "bpe", "unigram"))
    assert byte.token(0) == "<eos>"
    assert byte.token(ord("\n") + 1) == "\n"
    assert byte.token(0xE2 + 1) == "<0xE2>"
    assert "".join(bpe.token(index) for index in bpe.encode("The quick\nfox")) == "The quick\nfox"
    assert "".join(unigram.token(index) for index in unigram.encode("The quick")) == " The quick"


# --- one token after another -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(data=st.data())
def test_a_stream_gives_what_decoding_gives(name: str, data: st.DataObject) -> None:
    tokenizer = TRAINED[name, False]
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1), max_size=40))
    stream = StreamDecoder(tokenizer)
    assert "".join([stream.push(index) for index in ids]) + stream.finish() == tokenizer.decode(ids)


def test_half_a_character_is_held_back() -> None:
    tokenizer = TRAINED["byte", False]
    stream = StreamDecoder(tokenizer)
    assert [stream.push(index) for index in tokenizer.encode("a€b")] == ["a", "", "", "€", "b"]


def test_a_character_that_never_ends_is_shown_at_the_end() -> None:
    tokenizer = TRAINED["byte", False]
    stream = StreamDecoder(tokenizer)
    assert stream.push(tokenizer.encode("€")[0]) == ""
    assert stream.finish() == "\ufffd"


def test_a_stream_after_a_prompt_keeps_its_space() -> None:
    for name in ("word", "unigram", "wordpiece"):
        tokenizer = TRAINED[name, False]
        prompt, rest = tokenizer.encode("The quick"), tokenizer.encode("fox")
        stream = StreamDecoder(tokenizer, after=prompt)
        assert "".join(stream.push(index) for index in rest) + stream.finish() == " fox"


# --- files -----------------------------------------------------------------------------------------


def test_a_saved_tokenizer_is_the_same_when_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert loaded.name == tokenizer.name
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert (loaded.size, loaded.eos_id, loaded.unk_id) == (
            tokenizer.size,
            tokenizer.eos_id,
            tokenizer.unk_id,
        )
        assert loaded.encode(PROSE).tolist() == tokenizer.encode(PROSE).tolist()


def test_a_lowercase_tokenizer_stays_one_when_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    TRAINED[tokenizer.name, True].save(tmp_path)
    assert Tokenizer.load(tmp_path).lowercase


def test_the_config_beside_it_names_the_special_tokens(tmp_path: Path) -> None:
    TRAINED["char", False].save(tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (saved["eos_token"], saved["unk_token"]) == ("<eos>", "<unk>")
    assert saved["added_tokens_decoder"]["0"]["content"] == "<eos>"


def test_bytes_name_no_unknown_token(tmp_path: Path) -> None:
    TRAINED["byte", False].save(tmp_path)
    assert "unk_token" not in json.loads((tmp_path / "tokenizer_config.json").read_text())


def test_a_path_is_used_as_it_is(tmp_path: Path) -> None:
    TRAINED["char", False].save(tmp_path)
    config = TokenizerConfig(path=str(tmp_path / "tokenizer.json"))
    assert Tokenizer.train(config, ["other text"]).fingerprint() == TRAINED["char", False].fingerprint()


def foreign(folder: Path, eos: str) -> Path:
    """A byte-fallback tokenizer such as other makers have, with an end of text of their naming."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, normalizers

    letters = ["▁", *"abc"]
    vocabulary = {token: index for index, token in enumerate([eos, *(f"<0x{n:02X}>" for n in range(256)), *letters])}
    library = Library(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.add_special_tokens([eos])
    library.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_a_tokenizer_made_elsewhere_runs_through_the_library(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(foreign(tmp_path, "</s>"))
    ids = tokenizer.encode("ab €c")
    assert tokenizer.name == "other"
    assert tokenizer.eos_id == 0
    assert tokenizer.decode([0, *ids]) == "ab €c"


def test_a_tokenizer_made_elsewhere_streams(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(foreign(tmp_path, "</s>"))
    ids = tokenizer.encode("ab €c")
    stream = StreamDecoder(tokenizer)
    shown = [stream.push(index) for index in ids]
    assert shown == ["a", "b", " ", "", "", "€", "c"]


def test_an_unusual_end_of_text_is_found_in_the_config_beside_it(tmp_path: Path) -> None:
    path = foreign(tmp_path, "[stop]")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "[stop]"}}')
    assert Tokenizer.load(path).eos_id == 0


def test_a_tokenizer_without_an_end_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no end-of-text token"):
        Tokenizer.load(foreign(tmp_path, "[stop]"))


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(DataError, match="is not a tokenizer that can be read"):
        Tokenizer.load(tmp_path)


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"size": 0}, {"min_count": 0}, {"name": "words"}, {"size": "many"}, {"lowercase": "maybe"}]
)
def test_a_wrong_setting_is_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"tokenizer.{next(iter(wrong))}="):
        validate(TokenizerConfig, wrong, "tokenizer")


def test_a_bpe_smaller_than_its_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="size=100 is too small for bpe"):
        validate(TokenizerConfig, {"name": "bpe", "size": 100}, "tokenizer")
