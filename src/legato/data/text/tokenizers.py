"""Text to token ids and back: byte, char, word, BPE, Unigram and WordPiece.

Notable here:
- each of the six is a `tokenizer.json` of the `tokenizers` library, so other tools read it as it is;
  how they are built and trained is in `vocabularies.py`;
- byte, char and word are encoded by numpy or a dictionary instead, many times faster, to the
  same ids;
- a long document is cut where the whole and its pieces encode alike, so that all cores work on it;
- `<eos>` separates documents and starts an empty prompt. Text never turns into it, even text that
  reads "<eos>", but for `word`, where it is the line's end, as in the published PTB and WikiText scores;
- ids that come one at a time, as a model writes them, become text in a `StreamDecoder`;
- what a loaded file is, is told from its own parts; one made elsewhere runs through the library alone.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.data.text.any_tokenizer import AnyTokenizer, Ids
from legato.data.text.libraries import Library, slow_parts
from legato.data.text.published_tokenizers import CTC, read_library, read_template
from legato.data.text.vocabularies import (
    BEFORE_BLANK,
    BEFORE_SPACE,
    EOS,
    NAMES,
    PAD,
    TokenizerConfig,
    code_points,
    cut,
    cut_checked,
    from_byte_letters,
    lowered,
    recognise,
    train_library,
    words_of,
)
from legato.errors import DataError, listed
from legato.input_files import path_of
from legato.schema import is_text, write_json

__all__ = ["NAMES", "AnyTokenizer", "Ids", "StreamDecoder", "Tokenizer", "TokenizerConfig"]

SHOWN: Final = 8  # ids behind which the next one becomes text
CONTEXT: Final = 16  # ids of a prompt that are read for it
BATCH: Final = 128  # pieces encoded side by side; what they become in memory is some 20 times larger
# Names under which other makers' files keep their end of text.
FOREIGN_EOS: Final = (EOS, "</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "[SEP]", "[EOS]")


class Tokenizer(AnyTokenizer):
    """A vocabulary and the rules that cut text into it.

    >>> tokenizer = Tokenizer.train(TokenizerConfig(name="char"), ["abba"])
    >>> tokenizer.encode("abc").tolist(), tokenizer.decode([2, 3, 3])
    ([2, 3, 1], 'abb')
    """

    bos_id: int | None = None  # what a prompt that follows the file begins with when it is empty
    template: str | None = None  # the chat template beside the file, which is saved again

    def __init__(self, library: Any, eos: str | None = None) -> None:
        """Wrap a `tokenizers.Tokenizer`; `eos` is needed only where it has an unusual name."""
        library = Library(library)
        library.encode_special_tokens = True  # text is text, whatever it spells
        library.no_truncation()  # what a published file says of batches is not for us
        library.no_padding()
        vocabulary: dict[str, int] = library.get_vocab(with_added_tokens=True)
        where = library.source or "the tokenizer"
        if not vocabulary:
            raise DataError(f"{where} has no token at all; give one with a vocabulary")
        self._number(vocabulary, where)  # before it is written, which visits and keeps every gap
        spec = json.loads(library.to_str())
        self.library = Library(library, slow=slow_parts(spec))
        self.name, self.lowercase = recognise(spec)
        self._byte_level = (spec.get("decoder") or {}).get("type") == "ByteLevel"
        names = (eos,) if eos else FOREIGN_EOS
        found = next((vocabulary[name] for name in names if name in vocabulary), None)
        if found is None:
            raise DataError(f"the tokenizer has no end-of-text token; it should have one of {listed(names)}")
        self.eos_id: int = found
        model = spec["model"]
        self.unk_id: int | None = model.get("unk_id", vocabulary.get(model.get("unk_token") or ""))
        self.pad_id, self.cls_id, self.sep_id, self.mask_id = (
            next((vocabulary[name] for name in names if name in vocabulary), None)
            for names in ((PAD, "[PAD]"), ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[MASK]", "<mask>"))
        )
        special = {int(token["id"]) for token in spec["added_tokens"] if token["special"]}
        self.special_ids: frozenset[int] = frozenset(
            special - {self.unk_id}
        )  # what no text turns into, <eos> among them
        self._glued = {
            side: {int(token["id"]) for token in spec["added_tokens"] if token[side]} for side in ("lstrip", "rstrip")
        }

    @classmethod
    def train(cls, config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """A tokenizer with the vocabulary of `texts`, or the one that `config.path` names."""
        if config.path is not None:
            return cls.load(path_of(config.path))
        return cls(train_library(config, texts))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """From a `tokenizer.json`, or from the folder it is in, or one of older files (`published_tokenizers.py`)."""
        library, roles = read_library(path)
        loaded = cls(library, roles.get("eos"))
        for role, token in roles.items():
            if role not in ("eos", "unk") and token in loaded._vocabulary:
                setattr(loaded, f"{role}_id", loaded._vocabulary[token])
        template = read_template(path if path.is_dir() else path.parent)
        loaded.template = None if template is None else template[0]
        return loaded

    def save(
        self,
        folder: Path,
        *,
        starts: bool = False,
        ends: bool = False,
        segments: bool = False,
        ctc: bool = False,
        max_length: int | None = None,
    ) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` as Hugging Face's libraries expect them.

        With `starts` their tokenizer puts `<eos>` before every text, as our prompts have it; with `ends` behind, as
        encoders that were trained so need it; with `segments` it tells the model which of two texts a token is of.
        With `ctc` it decodes paths of tokens and blanks, on which a token that is repeated is one.
        `max_length` is the most tokens that the model takes; None: any number.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._library_to_save(starts, ends).save(str(folder / "tokenizer.json"))
        names = {"eos_token": self._tokens[self.eos_id]}
        if starts:
            names["bos_token"] = names["eos_token"]
        for role in ("unk", "bos", "pad", "cls", "sep", "mask"):
            if (index := getattr(self, f"{role}_id")) is not None:  # its own attributes, one for each role
                names[f"{role}_token"] = self._tokens[index]
        special = {index: self._tokens[index] for index in self.special_ids}
        special |= {self._vocabulary[name]: name for name in names.values()}
        settings = {
            "tokenizer_class": CTC if ctc else "PreTrainedTokenizerFast",
            **names,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", *["token_type_ids"] * segments, "attention_mask"],
            "model_max_length": max_length or 10**30,
            "added_tokens_decoder": {
                str(index): {
                    "content": name,
                    "lstrip": index in self._glued["lstrip"],
                    "normalized": False,
                    "rstrip": index in self._glued["rstrip"],
                    "single_word": False,
                    "special": True,
                }
                for index, name in sorted(special.items())
            },
        }
        if self.template is not None:
            settings["chat_template"] = self.template
        write_json(folder / "tokenizer_config.json", settings)

    def _library_to_save(self, starts: bool, ends: bool) -> Any:
        if not (starts or ends):
            return self.library
        import tokenizers

        library = self.library.copy()
        eos = self._tokens[self.eos_id]
        template = (f"{eos} $A", f"{eos} $A $B") if starts else (f"$A {eos}", f"$A {eos} $B {eos}")
        library.post_processor = tokenizers.processors.TemplateProcessing(*template, [(eos, self.eos_id)])
        return library

    def with_template(
        self, single: tuple[list[int], list[int]], pair: tuple[list[int], list[int], list[int]]
    ) -> Tokenizer:
        """The same tokenizer, whose file puts these special tokens before, between and behind one text, and two."""
        import tokenizers

        plain = copy(self)
        plain.library = self.library.copy()
        plain.library.encode_special_tokens = True
        plain.__dict__.pop("full_library", None)  # made anew, with the other template
        before, between, behind = ([self._tokens[index] for index in part] for part in pair)
        first, last = ([self._tokens[index] for index in part] for part in single)
        used = {index for part in (*single, *pair) for index in part}
        template = tokenizers.processors.TemplateProcessing(
            [*first, "$A", *last],
            [*before, "$A", *between, "$B", *behind],
            [(self._tokens[index], index) for index in sorted(used)],
        )
        now = plain.library.post_processor
        silent = now is not None and not any(now.num_special_tokens_to_add(two) for two in (False, True))
        # One that adds no special tokens says where tokens stand in the text.
        plain.library.post_processor = tokenizers.processors.Sequence([now, template]) if silent else template
        return plain

    def with_special_tokens(self, names: Iterable[str]) -> Tokenizer:
        """The same tokenizer with more special tokens: tokens that no text turns into, behind all others."""
        import tokenizers

        library = self.library.copy()
        new = [name for name in names if name not in self._vocabulary]
        # Other libraries find a special token that somebody types; the space behind it is not the text's.
        library.add_special_tokens([tokenizers.AddedToken(name, rstrip=True, normalized=False) for name in new])
        return Tokenizer(library, self._tokens[self.eos_id])

    @property
    def ends_text(self) -> bool:
        """Whether `<eos>` ends a document; for `word` it ends a line, and reads as a newline."""
        return self.name != "word"

    def fingerprint(self) -> str:
        """A hash of all that decides how text is cut and joined."""
        spec = json.loads(self.library.to_str())
        spec["post_processor"] = None  # it adds special tokens, which `encode` does not
        return hashlib.sha256(f"{self.eos_id} {json.dumps(spec)}".encode()).hexdigest()

    def encode_many(self, texts: Iterable[str]) -> Iterator[Ids]:
        """The ids of each text, side by side where the library does the work."""
        quick = {"byte": self._encode_bytes, "char": self._encode_chars, "word": self._encode_words}
        encode = quick.get(self.name)
        try:
            if encode is None:
                yield from self._encode_pieces(texts)
            else:
                for text in texts:
                    yield encode(lowered(text) if self.lowercase else text)
        except UnicodeEncodeError:
            raise DataError("the text holds half a surrogate pair, which is no character; remove it") from None

    def prompt(self, text: str) -> list[int]:
        """What stands before a continuation: `<eos>` and the text; in files made elsewhere whatever they say.

        There a special token that is spelt in the text is that token, as for everybody who uses such files.
        """
        if not self.follows_own_template:
            return super().prompt(text)
        return self.encode_with_special_tokens(text) or [self.eos_id if self.bos_id is None else self.bos_id]

    def encode_with_special_tokens(self, text: str, most: int | None = None) -> list[int]:
        """The ids of a text with the special tokens that the file puts around it; it is cut for `most` in all."""
        return self.encode_many_with_special_tokens([text], most)[0]

    def encode_many_with_special_tokens(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """`encode_with_special_tokens` for many texts, side by side."""
        encodings = self.full_library.encode_batch([whole_text(text) for text in texts], add_special_tokens=False)
        if most is not None:
            for encoding in encodings:
                encoding.truncate(max(most - self.full_library.num_special_tokens_to_add(False), 0))
        return [list(self.full_library.post_process(encoding).ids) for encoding in encodings]

    def encode_template(self, text: str) -> list[int]:
        """The ids of a text that spells its own special tokens, as a chat template writes it."""
        # One text alone would keep all other threads waiting.
        (encoding,) = self.full_library.encode_batch_fast([whole_text(text)], add_special_tokens=False)
        return list(encoding.ids)

    @cached_property
    def full_library(self) -> Any:
        """The library's tokenizer again, which finds special tokens in a text."""
        return self.library.copy()

    def _library_ids(self, text: str) -> list[int]:
        return list(self.library.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`. `<eos>` leaves no trace, but for `word` it is a newline."""
        if self.pieces is None:
            kept = [int(index) for index in ids if index not in self.special_ids]
            return str(self.library.decode(kept, skip_special_tokens=False))
        if not self.spaced:
            return b"".join([self.pieces[index] for index in ids]).decode("utf-8", "replace")
        stream = StreamDecoder(self)
        return "".join([stream.push(index) for index in ids]) + stream.finish()

    def token(self, index: int) -> str:
        """One token as a person reads it; a byte that is no character is written `<0xE2>`."""
        name = self._tokens[index]
        if self.name in ("byte", "bpe") and index not in self.special_ids and self.pieces is not None:
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
            "byte": from_byte_letters,
            "bpe": from_byte_letters,
            "char": str.encode,
            "word": lambda token: b" " + token.encode(),
            "unigram": lambda token: token.replace("▁", " ").encode(),
            "wordpiece": lambda token: token[2:].encode() if token.startswith("##") else b" " + token.encode(),
        }
        pieces = [
            write[self.name](token) if index not in self.special_ids else b""
            for index, token in enumerate(self._tokens)
        ]
        if self.name == "word":
            pieces[self.eos_id] = b"\n"
        return pieces

    @cached_property
    def byte_pieces(self) -> list[bytes] | None:
        """`pieces`, also of files made elsewhere whose decoder joins the bytes of tokens and does nothing else."""
        if self.pieces is not None or not self._byte_level:
            return self.pieces
        return [
            b"" if index in self.special_ids else from_byte_letters(token) for index, token in enumerate(self._tokens)
        ]

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
        parts = [table[np.minimum(codes, len(table) - 1)] for codes in code_points(text)]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    @cached_property
    def _words(self) -> dict[str, int]:
        """What a text's words turn into: no special token, but for the one that ends a line."""
        return {w: i for w, i in self._vocabulary.items() if i == self.eos_id or i not in self.special_ids}

    def _encode_words(self, text: str) -> Ids:
        get, unknown = self._words.get, itertools.repeat(self.unk_id)
        parts = [np.fromiter(map(get, words_of(piece), unknown), dtype=np.int32) for piece in cut(text, BEFORE_BLANK)]
        return np.concatenate(parts)

    def _encode_pieces(self, texts: Iterable[str]) -> Iterator[Ids]:
        border = {"bpe": BEFORE_BLANK, "wordpiece": BEFORE_BLANK, "unigram": BEFORE_SPACE}.get(self.name)
        pieces = (
            (number, piece)
            for number, text in enumerate(texts)
            for piece in (cut(text, border) if border else cut_checked(text, self._library_ids))
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


def whole_text(text: str) -> str:
    """`text`, unless it holds half a character, of which the library's own complaint is none."""
    if not is_text(text):
        raise DataError("the text holds half a surrogate pair, which is no character; remove it")
    return text


class StreamDecoder:
    """Text from ids that come one at a time; half a character is held back until it is whole.

    `after` are ids that come before and are not shown, a prompt: they decide whether the first new
    token is preceded by a space. All that `push` and `finish` give, joined, is what `decode` gives.
    """

    def __init__(self, tokenizer: AnyTokenizer, after: Iterable[int] = ()) -> None:
        self._tokenizer, self._pieces = tokenizer, tokenizer.byte_pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._starts = tokenizer.spaced
        self._shown: list[int] = []  # for files made elsewhere: the last ids that were shown
        self._held: list[int] = []  # and those that were not yet
        # Where the library decodes, only the last ids count: enough that a character among them is whole.
        for index in list(after)[-CONTEXT:] if tokenizer.pieces is None else after:
            self.push(index)

    def push(self, index: int) -> str:
        """Take one id; give the text that is now certain."""
        if self._pieces is None:
            self._held.append(int(index))
            whole = self._tokenizer.decode([*self._shown, *self._held])
            return "" if whole.endswith("\ufffd") else self._reveal(whole)
        piece = self._pieces[index]
        if self._starts and piece:
            piece, self._starts = piece.removeprefix(b" "), False
        if piece == b"\n" and not self._tokenizer.ends_text:
            self._starts = True
        return self._utf8.decode(piece)

    def push_many(self, ids: Sequence[int]) -> str:
        """Take several ids; give the text that is now certain."""
        if self._pieces is None or self._starts or not self._tokenizer.ends_text:
            return "".join([self.push(index) for index in ids])
        pieces = self._pieces
        return self._utf8.decode(b"".join([pieces[index] for index in ids]))

    def finish(self) -> str:
        """What was held back, with U+FFFD for a character that never became whole."""
        whole = self._tokenizer.decode([*self._shown, *self._held]) if self._held else ""
        return self._reveal(whole) + self._utf8.decode(b"", final=True)

    def _reveal(self, whole: str) -> str:
        """What `whole`, the text of the last ids, has beyond what was shown of it."""
        if not self._held:
            return ""
        before = self._tokenizer.decode(self._shown)
        # A few ids of context are enough for the library to place spaces.
        self._shown, self._held = [*self._shown, *self._held][-SHOWN:], []
        return whole[len(before) :]


def decode_behind(tokenizer: AnyTokenizer, before: Iterable[int], tokens: Iterable[int]) -> str:
    """The text of tokens that follow others: so the first word keeps the space before it."""
    decoder = StreamDecoder(tokenizer, after=before)
    return decoder.push_many(list(tokens)) + decoder.finish()
