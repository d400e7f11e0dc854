"""The tokenizer in a GGUF file, `tokenizer.ggml.*`: the vocabulary, what is known of its tokens, how text is cut.

model          gpt2: byte-level BPE with `merges`, after text was cut into words by the rule that `pre` names;
               llama: sentencepiece's BPE, in which neighbours become the token of the highest of the `scores`;
               spaces are ▁, and what no token spells is bytes
tokens         in the order of their numbers
token_type     1 ordinary, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 a byte
…_token_id     which token begins a text, ends it, pads it
add_bos_token, add_eos_token, add_space_prefix
chat_template  (without `ggml`)

Read, it is a pipeline of the `tokenizers` library, as the tokenizer.json of the same model would have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from legato.data.text.libraries import LLAMA3_WORDS, QWEN2_WORDS, TEKKEN_WORDS, Library, clear_of_panics
from legato.data.text.tokenizers import Tokenizer
from legato.errors import FolderError, LegatoError, brief, listed
from legato.folders.gguf.header import Header
from legato.folders.loaded import Loaded

GGML: Final = "tokenizer.ggml."
TEMPLATE: Final = "tokenizer.chat_template"
ORDINARY, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ROLES: Final = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "sep": "seperator_token_id",  # so it is spelt there
    "pad": "padding_token_id",
    "mask": "mask_token_id",
}
USUAL: Final = {"unk": 0, "bos": 1, "eos": 2}  # of `llama`, where a file does not say them
NO_TOKEN: Final = (2**32 - 1, -1)
# Tokens that end an answer beside the one that ends a text, if they are control tokens.
ENDS: Final = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>"),
    *("<end_of_turn>", "<end_of_utterance>", "<EOT>", "</s>"),
)
SPACE: Final = "▁"
MAX_ADDED: Final = 1 << 16  # tokens that are looked for in a text before it is cut into words
MAX_PIECE: Final = 512  # characters of a token of sentencepiece's, whose halves are all looked at
MAX_PIECES: Final = 1 << 24  # … and of all of them


@dataclass(frozen=True)
class WordRule:
    """How text is cut into words before byte-level BPE."""

    names: tuple[str, ...]  # in `pre`; the first one is written
    pattern: str | None = None  # a regular expression of words; None: GPT-2's
    single_digits: bool = False
    whole_words: bool = False  # whether a word that is a token is that token, whatever merges say
    adds_bos: bool = False  # where a file does not say it
    composed: bool = False  # whether letters and their accents become one character first

    @cached_property
    def pre_tokenizer(self) -> Any:
        from tokenizers import Regex, pre_tokenizers

        parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if self.single_digits else []
        if self.pattern is not None:
            parts.append(pre_tokenizers.Split(Regex(self.pattern), "isolated"))
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        return parts[0] if len(parts) == 1 else pre_tokenizers.Sequence(parts)


RULES: Final = (
    WordRule(("gpt-2", "olmo", "mellum", "trillion")),
    WordRule(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), single_digits=True),
    WordRule(("llama-bpe", "llama3", "llama-v3", "falcon3"), LLAMA3_WORDS, whole_words=True, adds_bos=True),
    WordRule(("smaug-bpe", "dbrx"), LLAMA3_WORDS),
    WordRule(("qwen2", "deepseek-r1-qwen"), QWEN2_WORDS, composed=True),
    WordRule(("tekken",), TEKKEN_WORDS, whole_words=True, adds_bos=True),
)


# --- reading ------------------------------------------------------------------------------------------


def read_tokenizer(header: Header) -> tuple[Tokenizer, dict[str, str]]:
    """The tokenizer of a file, and tokens by their roles: `{"eos": "</s>"}`."""
    tokens = header.texts(GGML + "tokens")
    kind = header.text(GGML + "model")
    types = [ORDINARY] * len(tokens)
    if GGML + "token_type" in header.entries:
        types = header.numbers(GGML + "token_type", len(tokens))
    if kind not in ("gpt2", "llama"):
        raise FolderError(
            f"{header.path}: its tokenizer is '{brief(kind)}'; Legato reads gpt2 (byte-level BPE) and llama "
            "(sentencepiece's BPE)"
        )
    special = [token for token, of in zip(tokens, types, strict=True) if token and of in (CONTROL, UNKNOWN)]
    defined = [token for token, of in zip(tokens, types, strict=True) if token and of == USER_DEFINED]
    if (count := len(special) + len(defined)) > MAX_ADDED:
        raise FolderError(f"{header.path} says that {count:,} tokens are special; up to {MAX_ADDED:,} are read")
    roles = _roles(header, tokens, USUAL if kind == "llama" else {})
    with clear_of_panics(f"{header.path} has a tokenizer that cannot be made", FolderError):
        if kind == "llama":
            library, adds_bos = _sentencepiece(header, tokens, types, roles), True
        else:
            library, adds_bos = _byte_level(header, tokens, set(special))
        _add_tokens(library, special, defined)
        _put_template(library, header, roles, adds_bos)
        tokenizer = Tokenizer(Library(library, str(header.path)), roles.get("eos"))
    for role, token in roles.items():
        if role not in ("eos", "unk"):
            setattr(tokenizer, f"{role}_id", tokenizer.id_of(token))
    tokenizer.template = header.text(TEMPLATE, None)
    tokenizer.follows_own_template = True
    return tokenizer, roles


def ends_of(header: Header, tokenizer: Tokenizer) -> list[int]:
    """The tokens that end what a model writes."""
    said = (_token_id(header, key, tokenizer.size) for key in ("eos_token_id", "eot_token_id", "eom_token_id"))
    known = (tokenizer.id_of(name) for name in ENDS)
    found = [tokenizer.eos_id, *said, *(index for index in known if index in tokenizer.special_ids)]
    return sorted({index for index in found if index is not None})


def _token_id(header: Header, key: str, count: int) -> int | None:
    found = header.entries.get(GGML + key)
    if found is None or found in NO_TOKEN:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < count:
        raise FolderError(f"{header.path}: '{GGML}{key}' is {brief(found)}, and there are {count:,} tokens")
    return found


def _roles(header: Header, tokens: Sequence[str], usual: Mapping[str, int]) -> dict[str, str]:
    found = {role: _token_id(header, key, len(tokens)) for role, key in ROLES.items()}
    numbers = {**{role: index for role, index in usual.items() if index < len(tokens)}}
    numbers |= {role: index for role, index in found.items() if index is not None}
    return {role: tokens[index] for role, index in numbers.items() if tokens[index]}


def _vocabulary(tokens: Iterable[str]) -> dict[str, int]:
    """Tokens and their numbers; of two that are spelt alike the first one counts."""
    numbers: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token:
            numbers.setdefault(token, index)
    return numbers


def _byte_level(header: Header, tokens: Sequence[str], special: set[str]) -> tuple[Any, bool]:
    """The library's tokenizer, and whether a text begins with a token where the file does not say it."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    rule = _rule(header)
    merges = []
    for merge in header.texts(GGML + "merges"):
        left, right = merge[: (space := merge.find(" ", 1))], merge[space + 1 :]
        if space > 0 and not (left in special and right in special):  # as written where there are none
            merges.append((left, right))
    model = models.BPE(vocab=_vocabulary(tokens), merges=merges, ignore_merges=rule.whole_words)
    library: Any = Tokenizer(model)
    library.pre_tokenizer = rule.pre_tokenizer
    library.decoder = decoders.ByteLevel()
    if rule.composed:
        library.normalizer = normalizers.NFC()
    return library, rule.adds_bos


def _rule(header: Header) -> WordRule:
    name = header.text(GGML + "pre", None)
    if name in (None, "default") and header.entries["general.architecture"] == "gpt2":
        return RULES[0]  # it has never had another
    for rule in RULES:
        if name in rule.names:
            return rule
    known = listed(name for rule in RULES for name in rule.names)
    says = f"lacks '{GGML}pre'" if name is None else f"cuts text into words by the rule '{brief(name)}'"
    raise FolderError(f"{header.path} {says}, and how that is done Legato does not know; it knows {known}")


def _sentencepiece(header: Header, tokens: Sequence[str], types: Sequence[int], roles: Mapping[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = header.numbers(GGML + "scores", len(tokens))
    vocabulary = _vocabulary(tokens)
    merges = _merges(header, vocabulary, types, scores)
    unknown = next((token for token, of in zip(tokens, types, strict=True) if of == UNKNOWN), roles.get("unk"))
    library: Any = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = header.flag(GGML + "add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    return library


def _merges(
    header: Header, vocabulary: Mapping[str, int], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to make a token of two others, those of the highest scores first."""
    pieces = [(token, index) for token, index in vocabulary.items() if types[index] in (ORDINARY, USER_DEFINED)]
    if max((len(piece) for piece, _ in pieces), default=0) > MAX_PIECE or sum(len(p) for p, _ in pieces) > MAX_PIECES:
        raise FolderError(f"{header.path} has tokens of more than {MAX_PIECE} characters, which no vocabulary has")
    known = {piece for piece, _ in pieces}
    pieces.sort(key=lambda pair: (-scores[pair[1]], pair[1]))
    return [
        halves
        for piece, _ in pieces
        for halves in sorted(
            ((piece[:cut], piece[cut:]) for cut in range(1, len(piece))),
            key=lambda halves: (vocabulary.get(halves[0], -1), vocabulary.get(halves[1], -1)),
        )
        if halves[0] in known and halves[1] in known
    ]


def _add_tokens(library: Any, special: Sequence[str], defined: Sequence[str]) -> None:
    from tokenizers import AddedToken

    library.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    library.add_tokens([AddedToken(token, normalized=False) for token in defined])


def _put_template(library: Any, header: Header, roles: Mapping[str, str], adds_bos: bool) -> None:
    """What stands around every text."""
    from tokenizers.processors import TemplateProcessing

    around: dict[str, str] = {}
    for role, default in (("bos", adds_bos and "bos" in roles), ("eos", False)):
        if header.flag(f"{GGML}add_{role}_token", default):
            if role not in roles:
                raise FolderError(f"{header.path} begins or ends texts with a token, but lacks '{GGML}{ROLES[role]}'")
            around[role] = roles[role]
    if around:
        one = [around.get("bos"), "$A", around.get("eos")]
        two = [*one, around.get("bos"), "$B", around.get("eos")]
        single, pair = ([part for part in parts if part is not None] for parts in (one, two))
        used = [(token, library.token_to_id(token)) for token in dict.fromkeys(around.values())]
        library.post_processor = TemplateProcessing(single, pair, used)


# --- writing ------------------------------------------------------------------------------------------


def token_entries(loaded: Loaded) -> dict[str, Any]:
    """What a file says of a model's tokenizer."""
    tokenizer = loaded.tokenizer
    if not isinstance(tokenizer, Tokenizer):
        raise _no_such(loaded, "it is of another library")
    spec = json.loads(tokenizer.library.to_str())
    special = {int(token["id"]): bool(token["special"]) for token in spec["added_tokens"]}
    names = [tokenizer.token_name(index) for index in range(tokenizer.size)]
    types = [UNUSED if not name else ORDINARY for name in names]
    for index, is_special in special.items():
        types[index] = CONTROL if is_special else USER_DEFINED
    if tokenizer.unk_id is not None:
        types[tokenizer.unk_id] = UNKNOWN
    cut = _sentencepiece_entries if spec["model"].get("byte_fallback") else _byte_level_entries
    how = cut(loaded, spec, names, types)
    missing = range(len(names), loaded.module.vocabulary)  # rows that others pad a table with
    names = [name or f"[PAD{index}]" for index, name in enumerate([*names, *("" for _ in missing)])]
    types += [UNUSED] * len(missing)
    if "scores" in how:
        how["scores"] += [how["scores"][-1]] * len(missing)
    before, behind = _around(loaded, tokenizer)
    entries: dict[str, Any] = {**how, "tokens": names, "token_type": types}
    entries |= {"add_bos_token": before is not None, "add_eos_token": behind is not None}
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    ids["bos"] = before if before is not None else ids["bos"]
    entries |= {
        ROLES[role]: index for role, index in ids.items() if index is not None and role not in ("sep", "mask")
    }
    others = [end for end in loaded.ends if end != tokenizer.eos_id]
    if others:
        entries["eot_token_id"] = others[0]
    template = {} if loaded.chat is None else {TEMPLATE: loaded.chat.source}
    return {GGML + key: value for key, value in entries.items()} | template


def _around(loaded: Loaded, tokenizer: Tokenizer) -> tuple[int | None, int | None]:
    """The tokens before and behind every text."""
    if not tokenizer.follows_own_template:
        return tokenizer.eos_id, None
    inside, whole = tokenizer.encode_template("a"), tokenizer.encode_with_special_tokens("a")
    at = next((n for n in range(len(whole)) if whole[n : n + len(inside)] == inside), 0)
    before, behind = whole[:at], whole[at + len(inside) :]
    if len(before) > 1 or len(behind) > 1 or behind not in ([], [tokenizer.eos_id]):
        raise _no_such(loaded, "it puts several tokens around a text")
    return next(iter(before), None), next(iter(behind), None)


def _byte_level_entries(loaded: Loaded, spec: dict[str, Any], names: list[str], types: list[int]) -> dict[str, Any]:
    model = spec["model"]
    bare = not (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"))
    if model["type"] != "BPE" or not bare or (spec["decoder"] or {}).get("type") != "ByteLevel":
        raise _no_such(loaded)
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    cut = _plain(spec["pre_tokenizer"])
    if not merges and cut == {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}:
        cut = _plain(RULES[0].pre_tokenizer)  # without merges a word is its bytes, wherever it ends
    for rule in RULES:
        composed = {"type": "NFC"} if rule.composed else None
        same = cut == _plain(rule.pre_tokenizer) and spec["normalizer"] == composed
        if same and bool(model.get("ignore_merges")) == rule.whole_words:
            break
    else:
        raise _no_such(loaded, "it cuts text into words by a rule of its own")
    if not merges:  # llama.cpp wants some: these two never stand beside one another in a text
        merges = [" ".join([names[types.index(CONTROL)]] * 2)]
    return {"model": "gpt2", "pre": rule.names[0], "merges": merges}


def _plain(part: Any) -> Any:
    """How a part of the library's pipeline cuts text, as JSON, without what changes no token."""
    if not isinstance(part, dict | list | None):
        part = json.loads(part.__getstate__())
    if isinstance(part, list):
        return [_plain(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    kept = {name: _plain(value) if isinstance(value, dict | list) else value for name, value in part.items()}
    kept.pop("trim_offsets", None)
    return kept


def _sentencepiece_entries(
    loaded: Loaded, spec: dict[str, Any], names: list[str], types: list[int]
) -> dict[str, Any]:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    both = {"type": "Sequence", "normalizers": [prepend, replace]}
    normalizer, cut = spec["normalizer"], spec["pre_tokenizer"] or {}
    if cut.get("type") == "Metaspace" and normalizer is None and not cut.get("split", True):
        prefix = cut.get("prepend_scheme") != "never"
    elif not cut and normalizer in (both, replace):
        prefix = normalizer == both
    else:
        raise _no_such(loaded, "it cuts text into words by a rule of its own")
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(spec["model"]["merges"]):
        left, right = merge if isinstance(merge, list) else merge.split(" ")
        ranks.setdefault(left + right, rank)
    for index, name in enumerate(names):
        if types[index] == ORDINARY and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            types[index] = BYTE
    scores = [-float(ranks.get(name, len(ranks))) for name in names]
    return {"model": "llama", "pre": "default", "scores": scores, "add_space_prefix": prefix}


def _no_such(loaded: Loaded, why: str = "") -> LegatoError:
    name = getattr(loaded.tokenizer, "name", "")
    why = why or f"it is {name if name != 'other' else 'of another kind'}"
    return LegatoError(
        f"llama.cpp has no tokenizer like that of {loaded.folder}: {why}; it has byte-level BPE (tokenizer=bpe or "
        "byte) and sentencepiece's BPE"
    )
