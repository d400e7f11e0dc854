"""The vocabularies of byte, char, word, BPE, Unigram and WordPiece: how each is built and trained.

Notable here:
- each of the six is a pipeline of the `tokenizers` library around a vocabulary; `assemble` builds the
  pipeline, `recognise` tells which one a file holds, `train_library` finds the vocabulary in a text;
- training twice on one text gives the same tokenizer, which the library alone does not promise;
- a vocabulary for guessing hidden words (`masked`) has BERT's or RoBERTa's special tokens, and the template by
  which others put them around a text;
- how text is cut into pieces, words and characters is said once, for training and for encoding.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from legato.config import Section
from legato.data.text.libraries import clear_of_panics
from legato.errors import ConfigError

EOS: Final = "<eos>"
UNK: Final = "<unk>"
PAD: Final = "<pad>"
BERT_SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # in the order in which BERT numbers them
ROBERTA_SPECIAL_TOKENS: Final = ("<pad>", "<s>", "</s>", "<unk>")  # and <mask>, which comes last
NAMES: Final = ("byte", "char", "word", "bpe", "unigram", "wordpiece")
DEFAULT_SIZE: Final = 8000
PIECE: Final = 1 << 16  # characters that the library gets at once: longer ones cost it more than their share

# Letters of the longest words that vocabularies are trained on whole. Unigram knows only spaces, which not all
# languages have: it gets as much as sentencepiece takes for a sentence.
LONGEST_WORD: Final = {"bpe": 1000, "wordpiece": 1000, "unigram": 4192}
LONG_RUN: Final = re.compile(r"(?<!\S)\S{1000}|(?<!\s)\s{1000}")

# Every rule that splits words ends one where white space begins. Unigram looks at spaces only.
BEFORE_SPACE: Final = re.compile(r"(?<=\S) ")
BEFORE_BLANK: Final = re.compile(r"(?<=\S)[ \n]")
BETWEEN_WORDS: Final = re.compile(r"(?<=\S)\s(?=\S)")
AROUND: Final = 256  # characters on each side of a border that are looked at, where nobody knows the rules
TRIED: Final = 64  # borders looked at before a text is left in one piece
# Python's split() also splits at these four, which are not white space to Unicode or the library.
_SEPARATORS: Final = re.compile("[\x1c-\x1f]")
_WORD: Final = re.compile(r"[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


class TokenizerConfig(Section):
    """Which tokenizer, and how it is trained."""

    name: Literal["byte", "char", "word", "bpe", "unigram", "wordpiece"] = Field("bpe", description="its kind")
    size: int | None = Field(
        None,
        gt=0,
        le=1 << 24,
        description="largest vocabulary; left out: 8000 for bpe, unigram and wordpiece, else all",
    )
    min_count: int = Field(1, ge=1, description="char and word: rarer ones become <unk>")
    lowercase: bool = Field(False, description="read everything in lower case")
    path: str | None = Field(None, description="a tokenizer.json to use as it is")
    masked: bool = Field(False, description="with [CLS], [SEP] and [MASK], by which words are hidden; mlm sets it")
    special_tokens: Literal["bert", "roberta"] = Field(
        "bert", description="of masked: bert; or roberta, of bpe alone: <s>, </s> and <mask>, and no <eos>"
    )

    @property
    def as_roberta(self) -> bool:
        """Whether the special tokens are RoBERTa's."""
        return self.masked and self.name == "bpe" and self.special_tokens == "roberta"

    @model_validator(mode="after")
    def _bytes_fit(self) -> TokenizerConfig:
        least = 261 if self.masked else 257
        if self.name == "bpe" and self.size is not None and self.size < least:
            raise ValueError(
                f"size={self.size} is too small for bpe: the 256 bytes and the special tokens need {least}"
            )
        return self


def train_library(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    """A `tokenizers.Tokenizer` with the vocabulary of `texts`."""
    train = _TRAIN.get(config.name, _train_subword)
    with clear_of_panics(f"tokenizer={config.name} could not be trained on this text", ConfigError):
        if not config.masked:
            return train(config, texts)
        if config.name == "wordpiece":  # BERT's own, so its special tokens come first and are all there are
            return put_template(train(config, texts))
        if config.as_roberta:
            library = train(config.model_copy(update={"size": (config.size or DEFAULT_SIZE) - 1}), texts)
            return put_template(with_token(library, "<mask>", config.name), "<s>", "</s>", doubled=True)
        size = DEFAULT_SIZE if config.size is None and config.name in ("bpe", "unigram") else config.size
        if size is not None:  # the special tokens count, and <unk> is there
            config = config.model_copy(update={"size": max(size - len(BERT_SPECIAL_TOKENS) + 1, 1)})
        return with_mask(train(config, texts), config.name)


def with_mask(library: Any, name: str) -> Any:
    """`library` with those of BERT's special tokens that it lacks, behind all others."""
    known = library.get_vocab(with_added_tokens=True)
    for special_token in BERT_SPECIAL_TOKENS:
        if special_token not in known and special_token != "[UNK]":
            with_token(library, special_token, name)
    return put_template(library)


def with_token(library: Any, special_token: str, name: str) -> Any:
    """`library`, whose kind is `name`, with one more special token."""
    from tokenizers import AddedToken

    # Where tokens bring the space before them, the hidden one's is hidden with it.
    swallows = special_token in ("[MASK]", "<mask>") and name in ("bpe", "unigram")
    library.add_special_tokens([AddedToken(special_token, lstrip=swallows, normalized=False)])
    return library


def put_template(library: Any, first: str = "[CLS]", last: str = "[SEP]", *, doubled: bool = False) -> Any:
    """`library` with the rule by which others put special tokens around a text, and around each of two.

    With `doubled` two of them stand between texts, as in RoBERTa, which knows no segments.
    """
    from tokenizers.processors import TemplateProcessing

    middle, second = (f"{last}:0 {last}:0", 0) if doubled else (f"{last}:0", 1)
    library.post_processor = TemplateProcessing(
        f"{first}:0 $A:0 {last}:0",
        f"{first}:0 $A:0 {middle} $B:{second} {last}:{second}",
        [(special_token, library.token_to_id(special_token)) for special_token in (first, last)],
    )
    return library


# --- how text is cut --------------------------------------------------------------------------------


def cut(text: str, border: re.Pattern[str], size: int | None = None) -> Iterator[str]:
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


def cut_checked(text: str, encode: Callable[[str], list[int]], size: int | None = None) -> Iterator[str]:
    """`cut` by rules that are not ours: where the words on both sides become the same ids, apart and together."""
    size = PIECE if size is None else size
    start = 0
    while len(text) - start > size:
        for found in itertools.islice(BETWEEN_WORDS.finditer(text, start + size), TRIED):
            place = found.start()
            before, behind = text[max(start, place - AROUND) : place], text[place : place + AROUND]
            (before + behind).encode()  # the library's own complaint of half a character is none
            if encode(before + behind) == encode(before) + encode(behind):
                break
        else:
            break
        yield text[start:place]
        start = place
    yield text[start:]


def words_of(text: str) -> list[str]:
    text = text.replace("\n", f" {EOS} ")
    return _WORD.findall(text) if _SEPARATORS.search(text) else text.split()


def code_points(text: str) -> Iterator[np.ndarray[Any, np.dtype[np.uint32]]]:
    step = 1 << 22  # four bytes a character: a whole corpus at once would be large
    for start in range(0, len(text), step):
        yield np.frombuffer(text[start : start + step].encode("utf-32-le"), dtype="<u4")


def lowered(text: str) -> str:
    """By the library's own rule: Python's treats a final sigma apart and may know another Unicode."""
    from tokenizers import normalizers

    lower = normalizers.Lowercase()
    step = 1 << 20
    return "".join([lower.normalize_str(text[start : start + step]) for start in range(0, len(text), step)])


# --- the library's pipelines ------------------------------------------------------------------------


def _byte_letters() -> list[str]:
    """The visible character by which byte-level vocabularies write each byte (as GPT-2's does)."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = itertools.count(0x100)
    return [chr(byte if byte in visible else next(spare)) for byte in range(256)]


_BYTE_OF_LETTER: Final = {letter: byte for byte, letter in enumerate(_byte_letters())}


def from_byte_letters(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in token])
    except KeyError:  # a special token, which is written as it is
        return token.encode()


def assemble(name: str, lowercase: bool, model: Any = None, unknown: str = UNK) -> Any:
    """A library tokenizer with the parts of `name`, around `model` or an empty one."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if model is None and name in ("byte", "bpe"):
        model = models.BPE()
    elif model is None and name == "unigram":
        model = models.Unigram()
    elif model is None:
        model = (models.WordPiece if name == "wordpiece" else models.WordLevel)(vocab={unknown: 0}, unk_token=unknown)
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


def recognise(spec: dict[str, Any]) -> tuple[str, bool]:
    """Which of ours a tokenizer.json is, and whether it lower-cases; ("other", False) if none."""

    def parts(spec: dict[str, Any]) -> list[Any]:
        trained = ("vocab", "merges", "unk_id")
        model = {key: value for key, value in spec["model"].items() if key not in trained}
        # What a post-processor adds is for other libraries; we add our own special tokens.
        return [model, *(spec[part] for part in ("normalizer", "pre_tokenizer", "decoder"))]

    unknown = spec["model"].get("unk_token") or UNK
    unknown = unknown if unknown in (UNK, "[UNK]") else UNK
    for name, lowercase in itertools.product(NAMES, (False, True)):
        if parts(spec) == parts(json.loads(assemble(name, lowercase, unknown=unknown).to_str())):
            ours = name != "byte" or spec["model"]["vocab"] == _byte_vocabulary()
            return (name, lowercase) if ours else ("other", False)
    return "other", False


# --- training ---------------------------------------------------------------------------------------


def _around(model: Any, config: TokenizerConfig, *special_tokens: str) -> Any:
    library = assemble(config.name, config.lowercase, model)
    library.add_special_tokens(list(special_tokens))
    return library


def _byte_vocabulary() -> dict[str, int]:
    return {EOS: 0, **{letter: byte + 1 for byte, letter in enumerate(_byte_letters())}}


def _train_byte(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    from tokenizers import models

    return _around(models.BPE(vocab=_byte_vocabulary(), merges=[]), config, EOS)


def _train_char(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    counts = np.zeros(0x110000, dtype=np.int64)
    for text in texts:
        for codes in code_points(lowered(text) if config.lowercase else text):
            counts += np.bincount(codes, minlength=len(counts))
    seen = Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts)})
    kept = _most_common(seen, config, reserved=2)
    return _word_level(config, [EOS, UNK, *sorted(kept)])


def _train_word(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    counts: Counter[str] = Counter({EOS: 0, UNK: 0})
    for text in texts:
        for piece in cut(lowered(text) if config.lowercase else text, BEFORE_BLANK):
            counts.update(words_of(piece))
    ordinary = Counter({word: count for word, count in counts.items() if word not in (EOS, UNK)})
    kept = {EOS, UNK, *_most_common(ordinary, config, reserved=2)}
    return _word_level(config, sorted(kept, key=lambda word: (-counts[word], word)))


def _most_common(counts: Counter[str], config: TokenizerConfig, reserved: int) -> list[str]:
    frequent = [token for token, count in counts.items() if count >= config.min_count]
    frequent.sort(key=lambda token: (-counts[token], token))
    return frequent if config.size is None else frequent[: max(config.size - reserved, 0)]


def _word_level(config: TokenizerConfig, tokens: list[str]) -> Any:
    from tokenizers import models

    model = models.WordLevel(vocab={token: index for index, token in enumerate(tokens)}, unk_token=UNK)
    return _around(model, config, EOS, UNK)


def _train_subword(config: TokenizerConfig, texts: Iterable[str]) -> Any:
    from tokenizers import pre_tokenizers, trainers

    size = config.size or DEFAULT_SIZE
    common: dict[str, Any] = {"vocab_size": size, "show_progress": False}
    if config.name == "bpe":
        letters = pre_tokenizers.ByteLevel.alphabet()
        first = list(ROBERTA_SPECIAL_TOKENS) if config.as_roberta else [EOS]
        return _fit(config, texts, trainers.BpeTrainer(special_tokens=first, initial_alphabet=letters, **common))
    # These two trainers number pieces, and break ties by number, differently from run to run. Here the
    # alphabet decides instead, so that the same text always gives the same tokenizer.
    if config.name == "unigram":
        trainer: Any = trainers.UnigramTrainer(special_tokens=[EOS, UNK], unk_token=UNK, **common)
        spec = json.loads(_fit(config, texts, trainer).to_str())
        spec["model"]["vocab"] = [[EOS, 0.0], [UNK, 0.0], *sorted(_levelled(spec["model"]["vocab"][2:]))]
    else:
        texts = list(texts)
        special_tokens = list(BERT_SPECIAL_TOKENS) if config.masked else [EOS, UNK]
        bare = trainers.WordPieceTrainer(special_tokens=special_tokens, vocab_size=1, show_progress=False)
        letters = sorted(token for token in _fit(config, texts, bare).get_vocab() if token.startswith("##"))
        # Named beforehand, letters that go on a word have their numbers before any word is looked at.
        trainer = trainers.WordPieceTrainer(special_tokens=[*special_tokens, *letters], **common)
        spec = json.loads(_fit(config, texts, trainer).to_str())
        order = [*special_tokens, *sorted(set(spec["model"]["vocab"]) - set(special_tokens))]
        spec["model"]["vocab"] = {token: index for index, token in enumerate(order)}
        spec["added_tokens"] = spec["added_tokens"][: len(special_tokens)]
    return type(assemble(config.name, config.lowercase)).from_str(json.dumps(spec))


def _fit(config: TokenizerConfig, texts: Iterable[str], trainer: Any) -> Any:
    unknown = "[UNK]" if config.masked and config.name == "wordpiece" else UNK
    library = assemble(config.name, config.lowercase, unknown=unknown)
    border = BEFORE_SPACE if config.name == "unigram" else BEFORE_BLANK
    pieces = (piece for text in texts for piece in cut(text, border))
    rules = assemble(config.name, config.lowercase)  # of its own: the library holds what it trains
    parts = (part for piece in pieces for part in _shortened(piece, rules, config.name))
    library.train_from_iterator(parts, trainer)
    return library


def _shortened(piece: str, rules: Any, name: str) -> list[str]:
    """The piece, parted inside the words that are longer than any: the trainers are quadratic in a word's length.

    What such a word gives to the vocabulary are then the parts of its parts. Whoever has no such word gets what the
    library alone would give.
    """
    if LONG_RUN.search(piece) is None:
        return [piece]
    most = LONGEST_WORD[name]
    text = piece if rules.normalizer is None else rules.normalizer.normalize_str(piece)  # lower case stays so
    words = [place for _, place in rules.pre_tokenizer.pre_tokenize_str(text)]
    cuts = [at for start, end in words for at in range(start + most, end, most)]
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])] if cuts else [piece]


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
}
