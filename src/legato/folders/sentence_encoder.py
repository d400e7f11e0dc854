"""Sentence encoders: a Transformer, and how its states become one vector a text.

Such folders are those of the `sentence-transformers` library:

modules.json                     the parts in order: a Transformer, a Pooling, perhaps a Normalize
1_Pooling/config.json            the first token's state (cls), the last one's, the mean or the largest of all tokens'
sentence_bert_config.json        how many tokens of a text are read, and whether it is lower-cased first
config_sentence_transformers.json        a text that is put before every other, perhaps

Ours that this library cannot load (recurrent models, bitfit's folders) say the same under our own key, `"sentences"`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.text.published_tokenizers import TokenizerSettings
from legato.errors import FolderError, brief
from legato.folders.file_names import MODULES
from legato.models.published.entries import Flag, Size
from legato.nn.pooling import pool
from legato.schema import OPEN, Place, TypedDict, read_json, read_json_if_there, with_config, write_json

POOL_OF_MODE: Final = {"cls": "first", "lasttoken": "last", "max": "max", "mean": "mean"}  # in nn/pooling.py
MODES: Final = tuple(POOL_OF_MODE)
TYPES: Final = "sentence_transformers.models."
# Where several are asked for they are joined in this order, which is the library's.
OLDER: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@with_config(OPEN)
class ModuleEntry(TypedDict):
    """One of the parts in modules.json."""

    type: str
    path: Place


@with_config(OPEN)
class PoolingEntries(TypedDict, total=False):
    """The config.json of a Pooling."""

    pooling_mode: str | list[str] | None
    include_prompt: Flag
    pooling_mode_cls_token: Flag | None
    pooling_mode_max_tokens: Flag | None
    pooling_mode_mean_tokens: Flag | None
    pooling_mode_mean_sqrt_len_tokens: Flag | None
    pooling_mode_weightedmean_tokens: Flag | None
    pooling_mode_lasttoken: Flag | None


@with_config(OPEN)
class TransformerEntries(TypedDict, total=False):
    """sentence_bert_config.json."""

    max_seq_length: Size | None
    do_lower_case: Flag | None
    transformer_task: str


@with_config(OPEN)
class PromptEntries(TypedDict, total=False):
    """config_sentence_transformers.json."""

    prompts: dict[str, str] | None
    default_prompt_name: str | None


@dataclass(frozen=True)
class SentenceEncoder:
    """How a text's states become its vector."""

    modes: tuple[str, ...] = ("mean",)
    normalise: bool = False  # to length one
    most: int | None = None  # tokens of a text that are read, special tokens included
    lowercase: bool = False
    before: str = ""  # what stands before every text
    transformer: str = ""  # the subfolder of the model; mostly the folder itself

    @property
    def head_pool(self) -> str:
        """How a classifier's head reads such a model; of several ways side by side it has the first."""
        return POOL_OF_MODE[self.modes[0]]

    def pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """States (B, T, D) of texts of these lengths (B,) to their vectors (B, modes · D)."""
        vectors = torch.cat([pool(hidden, lengths, POOL_OF_MODE[mode]) for mode in self.modes], -1)
        return F.normalize(vectors, dim=-1) if self.normalise else vectors


def load_sentence_encoder(folder: Path) -> SentenceEncoder | None:
    """What a folder says of sentences; None where it says nothing."""
    if not (folder / MODULES).is_file():
        return None
    modes: tuple[str, ...] = ()
    normalise, transformer, included = False, None, True
    for kind, path in _modules(folder / MODULES):
        if kind == "Transformer" and transformer is None:
            transformer = path
        elif kind == "Pooling" and transformer is not None and not modes:
            config = read_json(folder / path / "config.json", PoolingEntries, loose=True)
            modes = _modes(config, folder / path / "config.json")
            included = bool(config.get("include_prompt", True))
        elif kind == "Normalize" and modes:
            normalise = True
        else:
            read = "Legato reads a Transformer, a Pooling and perhaps a Normalize"
            raise FolderError(f"{folder / MODULES} has a {brief(kind)}; {read}")
    if transformer is None or not modes:
        raise FolderError(f"{folder / MODULES} lacks a {'Transformer' if transformer is None else 'Pooling'}")
    file = folder / transformer / "sentence_bert_config.json"
    settings = read_json_if_there(file, TransformerEntries, loose=True)
    job = settings.get("transformer_task", "feature-extraction")
    if job != "feature-extraction":
        raise FolderError(f"{file}: transformer_task is {brief(job)}; Legato has feature-extraction")
    most = settings.get("max_seq_length")
    if most is None:  # newer folders say it with the tokenizer, where it may be a number beyond all texts
        beside = folder / transformer / "tokenizer_config.json"
        said = read_json_if_there(beside, TokenizerSettings, loose=True).get("model_max_length")
        most = said if isinstance(said, int) and 1 <= said < 10**9 else None
    prompts = read_json_if_there(folder / "config_sentence_transformers.json", PromptEntries, loose=True)
    name = prompts.get("default_prompt_name")
    before = "" if name is None else (prompts.get("prompts") or {}).get(name, "")
    if before and not included:
        raise FolderError(f"{folder}: its vectors leave out the text before every text, which Legato cannot do")
    return SentenceEncoder(modes, normalise, most, bool(settings.get("do_lower_case", False)), before, transformer)


def save_sentence_encoder(folder: Path, how: SentenceEncoder, width: int) -> None:
    """Make a folder that holds a model and its tokenizer one of `sentence-transformers`; `width` is the states'."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [("Normalize", "2_Normalize")] if how.normalise else []
    listed = [{"idx": n, "name": str(n), "path": path, "type": TYPES + kind} for n, (kind, path) in enumerate(kinds)]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling: dict[str, Any] = {"word_embedding_dimension": width}
    pooling |= {key: mode in how.modes for key, mode in OLDER.items()}
    if tuple(mode for mode in OLDER.values() if mode in how.modes) != how.modes:  # joined in another order
        pooling["pooling_mode"] = list(how.modes)
    (folder / MODULES).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    write_json(folder / "1_Pooling" / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": how.most, "do_lower_case": how.lowercase})
    prompts = {"prompts": {"text": how.before}, "default_prompt_name": "text"} if how.before else {}
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine", **prompts})


def told_sentences(how: SentenceEncoder) -> dict[str, Any]:
    """What our own key says of sentences; `sentences_of` reads it."""
    return {name: value for name, value in asdict(how).items() if name != "transformer"}


def sentences_of(about: dict[str, Any], where: Path) -> SentenceEncoder | None:
    """What our own key says of sentences; None where it says nothing."""
    told = about.get("sentences")
    if told is None:
        return None
    try:
        how = SentenceEncoder(**{**told, "modes": tuple(told["modes"])})
    except (TypeError, KeyError):
        raise FolderError(f"{where}: 'sentences' should say how texts become vectors, not {brief(told)}") from None
    if not how.modes or not set(how.modes) <= set(MODES):
        raise FolderError(f"{where} asks for pooling by {brief(list(how.modes))}; there is {', '.join(MODES)}")
    return how


def _modules(path: Path) -> list[tuple[str, str]]:
    """Each part's class and subfolder, in order."""
    parts = [
        (part["type"].rpartition(".")[2], part["path"]) for part in read_json(path, list[ModuleEntry], loose=True)
    ]
    for kind, place in parts:
        if Path(place).is_absolute() or ".." in Path(place).parts:
            raise FolderError(f"{path}: the {brief(kind)} should be inside the folder, not in '{brief(place)}'")
    return parts


def _modes(config: PoolingEntries, path: Path) -> tuple[str, ...]:
    asked = config.get("pooling_mode")
    if asked is None:
        asked = [mode for key, mode in OLDER.items() if config.get(key)] or ["mean"]
    modes = tuple(asked) if isinstance(asked, list) else (str(asked),)
    unknown = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    modes += tuple(key for key in unknown if key not in OLDER)
    for mode in modes:
        if mode not in MODES:
            raise FolderError(
                f"{path} asks for pooling by '{brief(mode)}', which Legato lacks; it has {', '.join(MODES)}"
            )
    return modes
