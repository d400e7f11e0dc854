"""The tokenizers of published folders: as the `tokenizers` library's own file, or as older ones kept them.

tokenizer.json                       the whole tokenizer, which is the norm
vocab.txt                            BERT's WordPiece, one token a line
vocab.json, merges.txt               the byte-level BPE of GPT-2 and RoBERTa
tokenizer_config.json, special_tokens_map.json      which tokens begin, end, part, pad and hide
chat_template.jinja                  how a dialogue is written as one text; also in tokenizer_config.json

The older forms say little of how text is cut before the vocabulary counts; that is known for the tokenizers named
above, and for no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from legato.data.text.libraries import LARGEST, Library, clear_of_panics
from legato.data.text.vocabularies import put_template
from legato.errors import DataError, brief
from legato.input_files import read_bytes
from legato.schema import OPEN, TypedDict, read_json, read_json_if_there, with_config

LONGEST_TEMPLATE: Final = 1 << 22  # bytes
ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
BERT: Final = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
GPT2: Final = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
ROBERTA: Final = dict(zip(ROLES, ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"), strict=True))
CTC: Final = "ParakeetTokenizer"  # how the names of such tokenizers' classes begin

TokenNumber = Annotated[int, Field(ge=0, lt=2**24)]


@with_config(OPEN)
class AddedToken(TypedDict):
    """A token with how it is found in texts."""

    content: str


class Template(TypedDict):
    """One of several chat templates."""

    name: str
    template: str


@with_config(OPEN)
class TokenizerSettings(TypedDict, total=False):
    """What is read of tokenizer_config.json, special_tokens_map.json and, of a tokenizer, config.json."""

    bos_token: str | AddedToken | None
    eos_token: str | AddedToken | None
    unk_token: str | AddedToken | None
    sep_token: str | AddedToken | None
    pad_token: str | AddedToken | None
    cls_token: str | AddedToken | None
    mask_token: str | AddedToken | None
    chat_template: str | list[Template] | dict[str, Any] | None
    tokenizer_class: str | None
    model_type: str
    model_max_length: int | float | None
    do_lower_case: bool | None
    strip_accents: bool | None
    tokenize_chinese_chars: bool | None
    add_prefix_space: bool | None


def read_library(place: Path) -> tuple[Any, dict[str, str]]:
    """The `tokenizers.Tokenizer` of a folder or a tokenizer.json, and tokens by their roles: `{"eos": "</s>"}`."""
    folder = place if place.is_dir() else place.parent
    file = place / "tokenizer.json" if place.is_dir() else place
    roles = read_roles(folder)
    if file.is_file():
        return Library.read(file), roles
    if place.is_dir():
        if (folder / "vocab.txt").is_file():
            with clear_of_panics(f"{folder / 'vocab.txt'} is not a vocabulary that can be read"):
                return Library(_bert(folder, roles), str(folder / "vocab.txt")), {**BERT, **roles}
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            with clear_of_panics(f"{folder} has a vocab.json and merges.txt that cannot be read"):
                library, roles = _byte_level(folder, roles)
            return Library(library, str(folder / "vocab.json")), roles
        if any((folder / name).is_file() for name in ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")):
            raise DataError(
                f"{folder} has a sentencepiece tokenizer but no tokenizer.json; make one with transformers: "
                f"AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
            )
    raise DataError(f"there is no tokenizer {file}; give a tokenizer.json or the folder it is in")


def read_settings(file: Path) -> TokenizerSettings:
    """What one of the files beside a tokenizer says; nothing where there is no such file."""
    return read_json_if_there(file, TokenizerSettings, error=DataError, loose=True)


def read_roles(folder: Path) -> dict[str, str]:
    """The tokens that the files beside a tokenizer name, by what they are for."""
    roles = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):  # the second counts where both speak
        said: Mapping[str, Any] = read_settings(folder / name)
        for role in ROLES:
            token = said.get(f"{role}_token")
            if token is not None:
                roles[role] = token["content"] if isinstance(token, dict) else token
    if str(said.get("tokenizer_class")).startswith(CTC) and "pad" in roles:
        roles.setdefault("eos", roles["pad"])  # CTC's blank; no text ends in a token of its own there
    return roles


def read_template(folder: Path) -> tuple[str, str] | None:
    """The chat template beside a tokenizer, and where it is; None where there is none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read_text(file, LONGEST_TEMPLATE), str(file)
    for name in ("chat_template.json", "tokenizer_config.json"):  # the former is that of a processor, as LLaVA's
        file = folder / name
        found: Any = read_settings(file).get("chat_template")
        if found is not None:
            break
    if isinstance(found, list):  # several, for tools and the like
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return (found, f"the chat template in {file}") if isinstance(found, str) else None


def _read_text(file: Path, most: int) -> str:
    try:
        return read_bytes(file, most).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8 text") from None


def _bert(folder: Path, given: dict[str, str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    settings = _settings_of(folder, ("BertTokenizer", "DistilBertTokenizer"), "vocab.txt")
    roles = {**BERT, **given}
    text = _read_text(folder / "vocab.txt", LARGEST)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")
    vocabulary = {line: number for number, line in enumerate(lines)}
    for role in ("unk", "sep", "cls"):
        if roles[role] not in vocabulary:
            raise DataError(f"{folder / 'vocab.txt'} lacks {roles[role]}, so it is not BERT's kind of vocabulary")
    library: Any = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=roles["unk"]))
    library.normalizer = normalizers.BertNormalizer(
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    _add(library, folder, [roles[role] for role in BERT if roles[role] in vocabulary])
    put_template(library, roles["cls"], roles["sep"])
    return library


def _byte_level(folder: Path, given: dict[str, str]) -> tuple[Any, dict[str, str]]:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    settings = _settings_of(folder, ("GPT2Tokenizer", "RobertaTokenizer"), "vocab.json")
    # The library takes any number, and files of any size.
    read_json(folder / "vocab.json", dict[str, TokenNumber], error=DataError, most=LARGEST)
    read_bytes(folder / "merges.txt", LARGEST)
    library: Any = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    # RoBERTa's words are GPT-2's; it has a mask, and special tokens around every text.
    masked = library.token_to_id("<mask>") is not None
    roles = {**(ROBERTA if masked else GPT2), **given}
    prefix = bool(settings.get("add_prefix_space", False))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    library.decoder = decoders.ByteLevel()
    known = [token for token in dict.fromkeys(roles.values()) if library.token_to_id(token) is not None]
    _add(library, folder, known)
    if masked:
        put_template(library, roles["cls"], roles["sep"], doubled=True)
    return library, roles


def _settings_of(folder: Path, kinds: tuple[str, ...], file: str) -> TokenizerSettings:
    """tokenizer_config.json, if the tokenizer is one of those that `file` alone tells enough of."""
    settings = read_settings(folder / "tokenizer_config.json")
    named = settings.get("tokenizer_class") or read_settings(folder / "config.json").get("tokenizer_class")
    kind = (named or "").removesuffix("Fast")
    if not kind:
        model = read_settings(folder / "config.json").get("model_type", "nameless model")
        kind = next((known for known in kinds if known.lower() == f"{model}tokenizer"), f"{model}'s tokenizer")
    if kind not in kinds:
        raise DataError(
            f"{folder} has no tokenizer.json, and how a {brief(kind)} cuts text its {file} does not say; make one "
            f"with transformers: AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')"
        )
    return settings


def _add(library: Any, folder: Path, special_tokens: list[str]) -> None:
    """Make `special_tokens` special, and add what added_tokens.json lists."""
    library.add_special_tokens(special_tokens)
    more = read_json_if_there(folder / "added_tokens.json", dict[str, TokenNumber], error=DataError)
    more = {token: number for token, number in more.items() if library.token_to_id(token) != number}
    library.add_tokens(sorted(more, key=lambda token: more[token]))
    for token, number in more.items():
        if library.token_to_id(token) != number:
            raise DataError(f"{folder / 'added_tokens.json'} numbers '{brief(token)}' {number}, which leaves a gap")
