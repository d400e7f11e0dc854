"""Text to token ids and back: byte, char, word, BPE, Unigram and WordPiece.

Notable here:
- each of the six is a `tokenizer.json` of the `tokenizers` library, so other tools read it as it is;
- byte, char and word are encoded by numpy or a dictionary instead, many times faster; `encode_plain`
  is the twin that goes through the library, and tests hold the two equal;
- a long document is cut where the whole and its pieces encode alike, so that all cores work on it;
- `<eos>` separates documents and starts an empty prompt. Text never turns into it, even text that
  reads "<eos>", but for `word`, where it is the line's end, as in the published PTB and WikiText scores;
- what a loaded file is, is told from its own parts; one made elsewhere runs through the library alone.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from legato.config import Section
from legato.errors import ConfigError, DataError

EOS: Final = "<eos>"
UNK: Final = "<unk>"
NAMES: Final = ("byte", "char", "word", "bpe", "unigram", "wordpiece")
DEFAULT_SIZE: Final = 8000
PIECE: Final = 1 << 16  # characters that the library gets at once: longer ones cost it more than their share
BATCH: Final = 128  # pieces encoded side by side; what they become in memory is some 20 times larger
# Names under which other makers' files keep their end of text.
FOREIGN_EOS: Final = (EOS, "</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "[SEP]", "[EOS]")

# Every rule that splits words ends one where white space begins. Unigram marks only spaces.
_BEFORE_SPACE: Final = re.compile(r"(?<=\S) ")
_BEFORE_BLANK: Final = re.compile(r"(?<=\S)[ \n]")
# Python's split() also splits at these four, which are not white space to Unicode or the library.
_SEPARATORS: Final = re.compile("[\x1c-\x1f]")
_WORD: Final = re.compile(r"[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

Ids = np.ndarray[Any, np.dtype[np.int32]]


class TokenizerConfig(Section):
    """Which tokenizer, and how it is trained."""

    name: Literal["byte", "char", "word", "bpe", "unigram", "wordpiece"] = "bpe"
    # The vocabulary: 8000 for bpe, unigram and wordpiece; for char and word at most this, none means all.
    size: int | None = Field(None, gt=0)
    min_count: int = Field(1, ge=1)  # char and word: rarer ones become <unk>
    lowercase: bool = False
    path: str | None = None  # a tokenizer.json to use as it is

    @model_validator(mode="after")
    def _bytes_fit(self) -> TokenizerConfig:
        if self.name == "bpe" and self.size is not None and self.size < 257:
            raise ValueError(f"size={self.size} is too small for bpe: the 256 bytes and {EOS} need 257")
        return self


class Tokenizer:
    """A vocabulary and the rules that cut text into it.

    >>> tokenizer = Tokenizer.train(TokenizerConfig(name="char"), ["abba"])
    >>> tokenizer.encode("abc").tolist(), tokenizer.decode([2, 3, 3])
    ([2, 3, 1], 'abb')
    """

    def __init__(self, library: Any, eos: str | None = None) -> None:
        """Wrap a `tokenizers.Tokenizer`; `eos` is needed only where it has an unusual name."""
        library.encode_special_tokens = True  # text is text, whatever it spells
        spec = json.loads(library.to_str())
        self.library = library
        self.name, self.lowercase = _recognise(spec)
        vocabulary: dict[str, int] = library.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values()) + 1
        self._tokens = [""] * self.size
        for token, index in vocabulary.items():
            self._tokens[index] = token
        names = (eos,) if eos else FOREIGN_EOS
        found = next((vocabulary[name] for name in names if name in vocabulary), None)
        if found is None:
            raise DataError(f"the tokenizer has no end-of-text token; it should have one of {', '.join(names)}")
        self.eos_id: int = found
        model = spec["model"]
        self.unk_id: int | None = model.get("unk_id", vocabulary.get(model.get("unk_token") or ""))
        self._vocabulary = vocabulary

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """A tokenizer with the vocabulary of `texts`, or the one that `config.path` names."""
        if config.path is not None:
            return cls.load(Path(config.path).expanduser())
        return cls(_TRAIN[config.name](config, texts))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """From a `tokenizer.json`, or from the folder it is in."""
        import tokenizers

        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise DataError(f"there is no tokenizer {file}; give a tokenizer.json or the folder it is in")
        try:
            library = tokenizers.Tokenizer.from_file(str(file))
        except Exception as problem:  # the library raises plain Exception
            raise DataError(f"{file} is not a tokenizer that can be read: {problem}") from None
        return cls(library, _configured_eos(file.with_name("tokenizer_config.json")))

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` as Hugging Face's libraries expect them."""
        folder.mkdir(parents=True, exist_ok=True)
        self.library.save(str(folder / "tokenizer.json"))
        names = {"eos_token": self._tokens[self.eos_id]}
        if self.unk_id is not None:
            names["unk_token"] = self._tokens[self.unk_id]
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **names,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 10**30,
            "added_tokens_decoder": {
                str(self._vocabulary[name]): {
                    "content": name,
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": True,
                }
                for name in names.values()
            },
        }
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    @property
    def ends_text(self) -> bool:
        """Whether `<eos>` ends a document; for `word` it ends a line, and reads as a newline."""
        return self.name != "word"

    def fingerprint(self) -> str:
        """A hash of all that decides how text is cut."""
        return hashlib.sha256(self.library.to_str().encode("utf-8")).hexdigest()

    def encode(self, text: str) -> Ids:
        """The ids of `text`; nothing is added to it."""
        return next(self.encode_many([text]))

    def encode_many(self, texts: Iterable[str]) -> Iterator[Ids]:
        """The ids of each text, side by side where the library does the work."""
        quick = {"byte": self._encode_bytes, "char": self._encode_chars, "word": self._encode_words}
        encode = quick.get(self.name)
        try:
            if encode is None:
                yield from self._encode_pieces(texts)
            else:
                for text in texts:
                    yield encode(_lowered(text) if self.lowercase else text)
        except UnicodeEncodeError:
            raise DataError("the text holds half a surrogate pair, which is no character; remove it") from None

    def encode_plain(self, text: str) -> Ids:
        """The same ids, by the library alone and in one go."""
        return np.array(self.library.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`. `<eos>` leaves no trace, but for `word` it is a newline."""
        if self.pieces is None:
            kept = [int(index) for index in ids if index != self.eos_id]
            return str(self.library.decode(kept, skip_special_tokens=False))
        if not self.spaced:
            return b"".join([self.pieces[index] for index in ids]).decode("utf-8", "replace")
        stream = StreamDecoder(self)
        return "".join([stream.push(index) for index in ids]) + stream.finish()

    def token(self, index: int) -> str:
        """One token as a person reads it; a byte that is no character is written `<0xE2>`."""
        name = self._tokens[index]
        if self.name in ("byte", "bpe") and index != self.eos_id and self.pieces is not None:
            piece = self.pieces[index]
            try:
                return piece.decode("utf-8")
            except UnicodeDecodeError:
                return "".join(f"<0x{byte:02X}>" for byte in piece)
        return name.replace("▁", " ") if self.name == "unigram" else name

    @property
    def spaced(self) -> bool:
        """Whether a token brings the space before it, which the first one then loses."""
        return self.name in ("word", "unigram", "wordpiece")

    @cached_property
    def pieces(self) -> list[bytes] | None:
        """The bytes that each token adds to a text; None where only the library knows."""
        if self.name == "other":
            return None
        write: dict[str, Callable[[str], bytes]] = {
            "byte": _from_byte_letters,
            "bpe": _from_byte_letters,
            "char": str.encode,
            "word": lambda token: b" " + token.encode(),
            "unigram": lambda token: token.replace("▁", " ").encode(),
            "wordpiece": lambda token: token[2:].encode() if token.startswith("##") else b" " + token.encode(),
        }
        pieces = [
            write[self.name](token) if index != self.eos_id else b"" for index, token in enumerate(self._tokens)
        ]
        if self.name == "word":
            pieces[self.eos_id] = b"\n"
        return pieces

    def _encode_bytes(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32) + np.int32(1)

    @cached_property
    def _char_ids(self) -> Ids:
        codes = {ord(token): index for token, index in self._vocabulary.items() if len(token) == 1}
        table = np.full(max(codes, default=0) + 2, self.unk_id, dtype=np.int32)
        table[list(codes)] = list(codes.values())
        return table

    def _encode_chars(self, text: str) -> Ids:
        table = self._char_ids
        # The table's last entry stands for every code point beyond it.
        parts = [table[np.minimum(codes, len(table) - 1)] for codes in _code_points(text)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def _encode_words(self, text: str) -> Ids:
        get, unknown = self._vocabulary.get, itertools.repeat(self.unk_id)
        parts = [np.fromiter(map(get, _words(piece), unknown), dtype=np.int32) for piece in _cut(text, _BEFORE_BLANK)]
        return np.concatenate(parts)

    def _encode_pieces(self, texts: Iterable[str]) -> Iterator[Ids]:
        border = {"bpe": _BEFORE_BLANK, "wordpiece": _BEFORE_BLANK, "unigram": _BEFORE_SPACE}.get(self.name)
        pieces = (
            (number, piece)
            for number, text in enumerate(texts)
            for piece in (_cut(text, border) if border else (text,))
        )

        def encoded() -> Iterator[tuple[int, Ids]]:
            while batch := list(itertools.islice(pieces, BATCH)):
                for _, piece in batch:
                    piece.encode()  # the library's own complaint of half a character is none
                results = self.library.encode_batch_fast([p for _, p in batch], add_special_tokens=False)
                for (number, _), result in zip(batch, results, strict=True):
                    yield number, np.array(result.ids, dtype=np.int32)

        for _, group in itertools.groupby(encoded(), key=lambda pair: pair[0]):
            yield np.concatenate([ids for _, ids in group])


class StreamDecoder:
    """Text from ids that come one at a time; half a character is held back until it is whole.

    `after` are ids that come before and are not shown, a prompt: they decide whether the first new
    token is preceded by a space. All that `push` and `finish` give, joined, is what `decode` gives.
    """

    def __init__(self, tokenizer: Tokenizer, after: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._starts = tokenizer.spaced
        self._shown: list[int] = []  # for files made elsewhere: the last ids that were shown
        self._held: list[int] = []  # and those that were not yet
        for index in after:
            self.push(index)

    def push(self, index: int) -> str:
        """Take one id; give the text that is now certain."""
        if self._tokenizer.pieces is None:
            return self._push_by_library(int(index))
        piece = self._tokenizer.pieces[index]
        if self._starts and piece:
            piece, self._starts = piece.removeprefix(b" "), False
        if piece == b"\n" and not self._tokenizer.ends_text:
            self._starts = True
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """What was held back, with U+FFFD for a character that never became whole."""
        return self._reveal() + self._utf8.decode(b"", final=True)

    def _push_by_library(self, index: int) -> str:
        self._held.append(index)
        whole = self._tokenizer.decode([*self._shown, *self._held])
        return "" if whole.endswith("\ufffd") else self._reveal()

    def _reveal(self) -> str:
        if not self._held:
            return ""
        before = self._tokenizer.decode(self._shown)
        whole = self._tokenizer.decode([*self._shown, *self._held])
        # A few ids of context are enough for the library to place spaces.
        self._shown, self._held = [*self._shown, *self._held][-8:], []
        return whole[len(before) :]


# --- the parts that text goes through ------------------------------------------------------------


def _cut(text: str, border: re.Pattern[str], size: int | None = None) -> Iterator[str]:
    """`text` in pieces of about `size` characters, each but the first beginning at a `border`."""
    size = PIECE if size is None else size
    start = 0
    while len(text) - start > size:
        found = border.search(text, start + size)
        if found is None:
            break
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]


def _words(text: str) -> list[str]:
    text = text.replace("\n", f" {EOS} ")
    return _WORD.findall(text) if _SEPARATORS.search(text) else text.split()


def _code_points(text: str) -> Iterator[np.ndarray[Any, np.dtype[np.uint32]]]:
    step = 1 << 22  # four bytes a character: a whole corpus at once would be large
    for start in range(0, len(text), step):
        yield np.frombuffer(text[start : start + step].encode("utf-32-le"), dtype="<u4")


def _lowered(text: str) -> str:
    """By the library's own rule: Python's treats a final sigma apart and may know another Unicode."""
    from tokenizers import normalizers

    lower = normalizers.Lowercase()
    step = 1 << 20
    return "".join([lower.normalize_str(text[start : start + step]) for start in range(0, len(text), step)])


def _byte_letters() -> list[str]:
    """The visible character by which byte-level vocabularies write each byte (as GPT-2's does)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return [chr(byte if byte in visible else next(spare)) for byte in range(256)]


_BYTE_OF_LETTER: Final = {letter: byte for byte, letter in enumerate(_byte_letters())}


def _from_byte_letters(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in token])
    except KeyError:  # a special token, which is written as it is
        return token.encode()


def _assemble(name: str, lowercase: bool, model: Any = None) -> Any:
    """A library tokenizer with the parts of `name`, around `model` or an empty one."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if model is None and name in ("byte", "bpe"):
        model = models.BPE()
    elif model is None and name == "unigram":
        model = models.Unigram()
    elif model is None:
        model = (models.WordPiece if name == "wordpiece" else models.WordLevel)(vocab={UNK: 0}, unk_token=UNK)
    library: Any = Tokenizer(model)
    steps: list[Any] = [normalizers.Lowercase()] if lowercase else []
    if name == "word":
        steps.append(normalizers.Replace("\n", f" {EOS} "))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        # No word holds white space, so this prefix never glues; then lines end without one.
        joined = decoders.WordPiece(prefix="\n", cleanup=False)
        ends = [decoders.Replace(f" {EOS}", "\n"), decoders.Replace(EOS, "\n"), decoders.Replace("\n ", "\n")]
        library.decoder = decoders.Sequence([joined, decoders.Fuse(), *ends])
    elif name == "char":
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        library.decoder = decoders.Fuse()
    elif name in ("byte", "bpe"):
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name == "bpe")
        library.decoder = decoders.ByteLevel()
    elif name == "unigram":
        # Lines are kept apart, or a word, a newline and a word would be one unit; and a spelt "<eos>" is
        # broken, or it would match the vocabulary's.
        breaks = pre_tokenizers.Split(Regex(f"\\n|<(?={EOS[1:]})"), "isolated")
        spaces = pre_tokenizers.Metaspace(prepend_scheme="first")
        library.pre_tokenizer = pre_tokenizers.Sequence([breaks, spaces])
        library.decoder = decoders.Metaspace(prepend_scheme="first")
    else:
        library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        library.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    if steps:
        library.normalizer = normalizers.Sequence(steps)
    return library


def _recognise(spec: dict[str, Any]) -> tuple[str, bool]:
    """Which of ours a tokenizer.json is, and whether it lower-cases; ("other", False) if none."""

    def parts(spec: dict[str, Any]) -> list[Any]:
        trained = ("vocab", "merges", "unk_id")
        model = {key: value for key, value in spec["model"].items() if key not in trained}
        return [model, *(spec[part] for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"))]

    for name, lowercase in itertools.product(NAMES, (False, True)):
        if parts(spec) == parts(json.loads(_assemble(name, lowercase).to_str())):
            ours = name != "byte" or spec["model"]["vocab"] == _byte_vocabulary()
            return (name, lowercase) if ours else ("other", False)
    return "other", False


def _configured_eos(file: Path) -> str | None:
    """The end-of-text token that the file beside a tokenizer.json names, if it does."""
    try:
        token = json.loads(file.read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    return token.get("content") if isinstance(token, dict) else token


# --- training ------------------------------------------------------------------------------------


def _with_special(library: Any, *names: str) -> Any:
    library.add_special_tokens(list(names))
    return library


def _byte_vocabulary() -> dict[str, int]:
    return {EOS: 0, **{letter: byte + 1 for byte, letter in enumerate(_byte_letters())}}


def _train_byte(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    from tokenizers import models

    model = models.BPE(vocab=_byte_vocabulary(), merges=[])
    return _with_special(_assemble("byte", config.lowercase, model), EOS)


def _train_char(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        for codes in _code_points(_lowered(text) if config.lowercase else text):
            counts += np.bincount(codes, minlength=len(counts))
    seen = Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts)})
    kept = _most_common(seen, config, reserved=2)
    return _word_level("char", config, [EOS, UNK, *sorted(kept)])


def _train_word(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    counts: Counter[str] = Counter({EOS: 0, UNK: 0})
    for text in texts:
        for piece in _cut(_lowered(text) if config.lowercase else text, _BEFORE_BLANK):
            counts.update(_words(piece))
    ordinary = Counter({word: count for word, count in counts.items() if word not in (EOS, UNK)})
    kept = {EOS, UNK, *_most_common(ordinary, config, reserved=2)}
    return _word_level("word", config, sorted(kept, key=lambda word: (-counts[word], word)))


def _most_common(counts: Counter[str], config: TokenizerConfig, reserved: int) -> list[str]:
    frequent = [token for token, count in counts.items() if count >= config.min_count]
    frequent.sort(key=lambda token: (-counts[token], token))
    return frequent if config.size is None else frequent[: max(config.size - reserved, 0)]


def _word_level(name: str, config: TokenizerConfig, tokens: list[str]) -> Any:
    from tokenizers import models

    model = models.WordLevel(vocab={token: index for index, token in enumerate(tokens)}, unk_token=UNK)
    return _with_special(_assemble(name, config.lowercase, model), EOS, UNK)


def _train_subword(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    from tokenizers import pre_tokenizers, trainers

    size = config.size or DEFAULT_SIZE
    common: dict[str, Any] = {"vocab_size": size, "show_progress": False}
    if config.name == "bpe":
        letters = pre_tokenizers.ByteLevel.alphabet()
        return _fit(config, texts, trainers.BpeTrainer(special_tokens=[EOS], initial_alphabet=letters, **common))
    # These two trainers number pieces, and break ties by number, differently from run to run. Here the
    # alphabet decides instead, so that the same text always gives the same tokenizer.
    if config.name == "unigram":
        spec = _spec(_fit(config, texts, trainers.UnigramTrainer(special_tokens=[EOS, UNK], unk_token=UNK, **common)))
        spec["model"]["vocab"] = [[EOS, 0.0], [UNK, 0.0], *sorted(_levelled(spec["model"]["vocab"][2:]))]
    else:
        texts = list(texts)
        bare = trainers.WordPieceTrainer(special_tokens=[EOS, UNK], vocab_size=1, show_progress=False)
        letters = sorted(token for token in _fit(config, texts, bare).get_vocab() if token.startswith("##"))
        # Named beforehand, letters that go on a word have their numbers before any word is looked at.
        trainer = trainers.WordPieceTrainer(special_tokens=[EOS, UNK, *letters], **common)
        spec = _spec(_fit(config, texts, trainer))
        order = [EOS, UNK, *sorted(set(spec["model"]["vocab"]) - {EOS, UNK})]
        spec["model"]["vocab"] = {token: index for index, token in enumerate(order)}
        spec["added_tokens"] = spec["added_tokens"][:2]
    return type(_assemble(config.name, config.lowercase)).from_str(json.dumps(spec))


def _fit(config: TokenizerConfig, texts: Iterable[str], trainer: Any) -> Any:
    library = _assemble(config.name, config.lowercase)
    border = _BEFORE_SPACE if config.name == "unigram" else _BEFORE_BLANK
    try:
        library.train_from_iterator((piece for text in texts for piece in _cut(text, border)), trainer)
    except Exception as problem:  # the library raises plain Exception
        raise ConfigError(f"tokenizer={config.name} could not be trained on this text: {problem}") from None
    return library


def _spec(library: Any) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(library.to_str())
    return spec


def _levelled(vocabulary: list[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Unigram's pieces, with the characters that it keeps only for completeness made equal.

    It sets those 0.0001 apart, in an order that changes from run to run.
    """
    before, level = np.inf, np.inf
    for piece, score in sorted(vocabulary, key=lambda pair: -pair[1]):
        if len(piece) > 1:
            yield piece, round(score, 4)
            continue
        if before - score > 0.00015:
            level = score
        before = score
        yield piece, round(level, 4)


_TRAIN: Final[dict[str, Callable[[TokenizerConfig, Iterable[str]], Any]]] = {
    "byte": _train_byte,
    "char": _train_char,
    "word": _train_word,
    "bpe": _train_subword,
    "unigram": _train_subword,
    "wordpiece": _train_subword,
}
