"""Tokenizers of others that would take for ever, or all memory: refused in one line."""

from __future__ import annotations

import base64
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from legato import sandbox
from legato.data.text import libraries
from legato.data.text.libraries import KNOWN, Library, slow_parts, slow_parts_of
from legato.data.text.sentencepieces import SentencePieceTokenizer
from legato.data.text.text_growth import check_growth
from legato.data.text.tokenizers import Tokenizer
from legato.errors import DataError
from legato.tasks.mlm.fill_mask import MaskReader
from tiny_published import byte_level

SLOW = r"[ab]*[ab]*\d"  # cubic in a run of letters
WORDS = {"a": 0, "<unk>": 1, "</s>": 2, "a b": 3, "aaaa": 4}
TEXT = "ab" * 400


def library(**parts: Any) -> Any:
    made: Any = tokenizers.Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def file_of(folder: Path, made: Any) -> Path:
    made.save(str(folder / "tokenizer.json"))
    return folder


def refused(work: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "SECONDS", 0.1)
    monkeypatch.setattr(libraries, "SECONDS_A_LETTER", 0.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": pre_tokenizers.Split(Regex(SLOW), "isolated")},
        {"normalizer": normalizers.Replace(Regex(SLOW), "b")},
        {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(SLOW), "b")])},
    ],
    ids=["pre_tokenizer", "normalizer", "inside"],
)
def test_a_pattern_that_is_too_slow_for_a_text_is_named(
    parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(file_of(tmp_path, library(**parts)))
    tokenizer.follows_own_template = True
    said = refused(lambda: tokenizer.encode(TEXT))
    assert said.startswith("the tokenizer takes more than 0.1 s for 800 characters or tokens, since its file says ")
    assert SLOW in said
    for work in (
        tokenizer.encode_with_special_tokens,
        tokenizer.encode_template,
        tokenizer.prompt,
        tokenizer.library.encode,
    ):
        refused(lambda work=work: work(TEXT))  # type: ignore[misc]
    refused(lambda: tokenizer.encode_many_with_special_tokens(["a", TEXT]))
    monkeypatch.setattr(libraries, "SECONDS", 60.0)  # what was given up on still has the processor
    assert tokenizer.encode("a").tolist() in ([0], [1])


@pytest.mark.usefixtures("quick")
def test_a_pattern_that_is_too_slow_for_an_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = library(decoder=decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex(SLOW), "b")]))
    tokenizer = Tokenizer.load(file_of(tmp_path, made))
    assert "800 characters or tokens" in refused(lambda: tokenizer.decode([0] * 800))
    monkeypatch.setattr(libraries, "SECONDS", 60.0)
    assert tokenizer.decode([0]) == "a"


@pytest.mark.slow
def test_a_pattern_that_is_too_slow_to_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = library(normalizer=normalizers.Replace(Regex(SLOW), "b"))
    file_of(tmp_path, made)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    mark = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    spec["added_tokens"] = [{"id": 5, "content": "ab" * 600, **mark}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    monkeypatch.setattr(sandbox, "SECONDS", 0.3)
    assert "takes more than 0.3 s of computing to load, since it says" in refused(lambda: Tokenizer.load(tmp_path))


def test_a_pattern_is_found_however_it_is_spelt(tmp_path: Path) -> None:
    file_of(tmp_path, library(pre_tokenizer=pre_tokenizers.Split(Regex(SLOW), "isolated")))
    text = (tmp_path / "tokenizer.json").read_text().replace('"Regex"', '"\\u0052egex"')
    (tmp_path / "tokenizer.json").write_text(text)
    assert Tokenizer.load(tmp_path).library.slow == (SLOW,)


def test_what_is_parsed_or_copied_is_held_to_a_time_as_what_is_read() -> None:
    made = library(pre_tokenizer=pre_tokenizers.Split(Regex(SLOW), "isolated"))
    parsed = Library.parse(made.to_str())
    assert (parsed.slow, parsed.copy().slow, Library(parsed).slow) == ((SLOW,),) * 3
    assert pickle.loads(pickle.dumps(parsed)).slow == (SLOW,)


def test_the_copy_that_looks_for_masks_is_held_to_a_time_too(tmp_path: Path) -> None:
    made: Any = tokenizers.Tokenizer(models.WordLevel({**WORDS, "<mask>": 5}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(SLOW), "isolated")
    made.add_special_tokens(["<mask>", "</s>"])
    tokenizer = Tokenizer.load(file_of(tmp_path, made))
    assert MaskReader(tokenizer)._library.slow == (SLOW,)


def word_piece(**settings: Any) -> Any:
    prefix = settings.get("continuing_subword_prefix", "##")
    vocabulary = {"a": 0, f"{prefix}a": 1, "[UNK]": 2, "[SEP]": 3}
    return tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", **settings))


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"max_input_chars_per_word": 10**9}, "max_input_chars_per_word=1000000000"),
        ({"continuing_subword_prefix": "#" * 10**6}, "continuing_subword_prefix=####"),
    ],
    ids=["letters", "prefix"],
)
def test_a_wordpiece_that_takes_words_of_any_length_is_held_to_a_time(
    settings: dict[str, Any], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(file_of(tmp_path, word_piece(**settings)))
    word = "a" * (2_000 if "max_input_chars_per_word" in settings else 60)
    assert shown in refused(lambda: tokenizer.encode(word))
    monkeypatch.setattr(libraries, "SECONDS", 60.0)
    assert tokenizer.encode("aa").tolist() == [0, 1]


def test_a_wordpiece_as_published_runs_as_it_is(tmp_path: Path) -> None:
    assert Tokenizer.load(file_of(tmp_path, word_piece(max_input_chars_per_word=100))).library.slow == ()


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"\\u0052egex": '])
def test_what_is_no_json_has_nothing_slow_in_it(text: str) -> None:
    assert slow_parts_of(text.encode()) == []


@pytest.mark.parametrize("pattern", sorted(KNOWN))
def test_patterns_that_most_have_run_as_they_are(pattern: str, tmp_path: Path) -> None:
    made = library(pre_tokenizer=pre_tokenizers.Split(Regex(pattern), "isolated"))
    assert Tokenizer.load(file_of(tmp_path, made)).library.slow == ()
    assert slow_parts(json.loads(made.to_str())) == []


@pytest.mark.slow
def test_a_guarded_tokenizer_gives_what_the_library_gives(tmp_path: Path) -> None:
    plain = byte_level()
    plain.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}|\p{L}+"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    tokenizer = Tokenizer.load(file_of(tmp_path, plain))
    assert tokenizer.library.slow
    texts = ["the cat sat", "", "on 12 mats, héllo"]
    expected = [plain.encode(text, add_special_tokens=False).ids for text in texts]
    assert [ids.tolist() for ids in tokenizer.encode_many(texts)] == expected
    assert [tokenizer.encode_template(text) for text in texts] == expected
    assert tokenizer.encode_many_with_special_tokens(texts) == expected
    assert [tokenizer.decode(ids) for ids in expected] == [plain.decode(ids) for ids in expected]
    assert tokenizer.library.encode("a", "b").ids == plain.encode("a", "b").ids


# --- numbers and sizes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**31, 2**32 - 1, 20_000_000])
def test_a_token_of_a_huge_number_is_refused_before_a_list_of_that_size_is_made(number: int, tmp_path: Path) -> None:
    file_of(tmp_path, library())
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["model"]["vocab"]["far"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    said = refused(lambda: Tokenizer.load(tmp_path))
    assert said.startswith(f"{tmp_path / 'tokenizer.json'} has 6 tokens, and numbers one of them {number:,}")


class Unwritten:
    """A library's tokenizer that would never end writing its vocabulary, as all do that number a token 2³¹."""

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        return {"a": 0, "</s>": 1, "far": 2**31}

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def to_str(self) -> str:
        raise AssertionError("it was written")


def test_a_vocabulary_with_a_token_of_a_huge_number_is_never_written() -> None:
    assert "has 3 tokens, and numbers one of them 2,147,483,648" in refused(lambda: Tokenizer(Unwritten()))


def test_an_older_vocabulary_of_huge_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 2**31}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    assert "'<|endoftext|>' should be less than 16777216" in refused(lambda: Tokenizer.load(tmp_path))


def test_added_tokens_of_huge_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"x": 2**31}))
    assert "'x' should be less than 16777216" in refused(lambda: Tokenizer.load(tmp_path))


def test_a_table_of_marian_s_with_huge_numbers_is_refused() -> None:
    pytest.importorskip("sentencepiece")
    assert "numbers one of them 2,147,483,648" in refused(
        lambda: SentencePieceTokenizer(b"", {"</s>": 0, "<unk>": 1, "a": 2**31}, {})
    )


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "merges.txt"])
def test_a_vocabulary_larger_than_any_is_not_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    if name == "merges.txt":
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
        (tmp_path / "vocab.json").write_text("{}")
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    said = refused(lambda: Tokenizer.load(tmp_path))
    assert name in said
    assert "bytes" in said


def replace(pattern: Any, content: str) -> Any:
    return normalizers.Replace(pattern, content)


def charsmap(longest: int) -> Any:
    data = (4).to_bytes(4, "little") + bytes(4) + b"a\0" + b"b" * longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


GROWING: dict[str, dict[str, Any]] = {
    "by a text": {"normalizer": replace("a", "a" * 17)},
    "by a pattern": {"normalizer": replace(Regex("."), "a" * 17)},
    "between characters": {"normalizer": replace("", "a" * 17)},
    "by doubling": {"normalizer": normalizers.Sequence([replace("a", "aa")] * 5)},
    "before": {"normalizer": normalizers.Prepend("a" * 17)},
    "within sequences": {
        "normalizer": normalizers.Sequence([normalizers.Sequence([replace("a", "aaaa")] * 2), replace("a", "aa")])
    },
    "by bytes": {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 5)},
    "of tokens": {"decoder": decoders.Sequence([decoders.Replace("a", "a" * 17), decoders.Fuse()])},
}


@pytest.mark.parametrize("name", GROWING)
def test_a_tokenizer_that_makes_texts_many_times_longer_is_refused_before_it_is_loaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = file_of(tmp_path, library(**GROWING[name]))
    monkeypatch.setattr(tokenizers.Tokenizer, "from_buffer", None)
    monkeypatch.setattr(sandbox, "call", None)
    said = refused(lambda: Tokenizer.load(folder))
    assert re.search(r"may make a text \d+ times longer by what it replaces .*; use another tokenizer$", said)


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ("normalizer", charsmap(65)),
        ("post_processor", {"type": "TemplateProcessing", "single": [{"Sequence": {}}] * 5, "pair": []}),
    ],
)
def test_a_growing_part_of_a_file_is_seen_however_it_is_written(section: str, part: dict[str, Any]) -> None:
    for key in (section, f"\\u00{ord(section[0]):x}{section[1:]}"):
        text = f'{{"model": {{"vocab": {{"normalizer": 3}}}}, "{key}" : {json.dumps(part)}}}'
        refused(lambda text=text: check_growth(Path("a.json"), text.encode(), KNOWN))  # type: ignore[misc]


WRONG: list[dict[str, Any]] = [  # of each key, what is no value of it
    *({"type": "TemplateProcessing", "single": value} for value in (3, [3], [[3]], "Sequence", {"a": 3})),
    *({"type": "Replace", "pattern": value, "content": 3} for value in (3, [3], {"Regex": [3]}, {"String": [3]})),
    *({"type": kind} for kind in (3, [3], {"a": 3}, "Prepend", "Precompiled", "TemplateProcessing")),
    {"type": "Precompiled", "precompiled_charsmap": ["é"]},
    {"type": "Precompiled", "precompiled_charsmap": "é"},
    {"type": "Precompiled", "precompiled_charsmap": "AA=="},
]


@pytest.mark.parametrize("part", WRONG, ids=str)
def test_what_has_the_wrong_type_is_left_to_the_library(part: dict[str, Any]) -> None:
    check_growth(Path("a.json"), json.dumps({"post_processor": part}).encode(), KNOWN)


PUBLISHED: dict[str, dict[str, Any]] = {  # what changes texts in them
    "Llama 2": {
        "normalizer": normalizers.Sequence([normalizers.Prepend("▁"), replace(" ", "▁")]),
        "decoder": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    },
    "Whisper, GPT-2": {"pre_tokenizer": pre_tokenizers.ByteLevel(), "decoder": decoders.ByteLevel()},
    "BERT": {"normalizer": normalizers.BertNormalizer(), "decoder": decoders.WordPiece()},
    "XLNet": {
        "normalizer": normalizers.Sequence(
            [
                *(replace("``", '"'), replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents()),
                *(normalizers.Lowercase(), replace(Regex(" {2,}"), " ")),
            ]
        ),
        "pre_tokenizer": pre_tokenizers.Metaspace(),
    },
    "CLIP": {
        "normalizer": normalizers.Sequence([normalizers.NFC(), replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    },
    "Qwen": {
        "normalizer": normalizers.NFC(),
        "pre_tokenizer": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
        ),
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tokenizers_are_no_growing_ones(name: str) -> None:
    check_growth(Path("a.json"), library(**PUBLISHED[name]).to_str().encode(), KNOWN)
    sentencepiece = {"normalizer": {"type": "Sequence", "normalizers": [charsmap(40)]}}  # XLM-R, T5
    check_growth(Path("a.json"), json.dumps(sentencepiece).encode(), KNOWN)
