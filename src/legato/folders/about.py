"""What a model folder says of itself under our own key, `"legato"`, and how to search: types of what is read.

Each task writes what it needs to read, predict and score again. Other packages' tasks may write what they like, and
what theirs and ours have in common is in `About`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from legato.config import validate
from legato.data.formats.tag_schemes import Scheme
from legato.data.sources.table import Column
from legato.errors import ConfigError, FolderError
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec
from legato.models.published.entries import Beams, Flag, Setting, Size, Token, Tokens
from legato.registry import TASKS
from legato.schema import OPEN, TypedDict, fit, with_config


def label_kind(value: Any) -> Any:
    """What labels are, as it is called now: `several` was the name of `multilabel`, and stands in older folders."""
    return "multilabel" if value == "several" else value


@with_config(OPEN)
class Generation(TypedDict, total=False):
    """generation_config.json."""

    decoder_start_token_id: Token | None
    bos_token_id: Token | None
    eos_token_id: Tokens | None
    num_beams: Beams | None
    length_penalty: float | None


@with_config(OPEN)
class SentenceEntries(TypedDict, total=False):
    """How a text becomes one vector (sentence_encoder.py)."""

    modes: Annotated[list[str], Field(min_length=1)]
    normalise: bool
    most: Size | None
    lowercase: bool
    before: str


@with_config(OPEN)
class About(TypedDict, total=False):
    """What every task may say."""

    task: str
    published: Flag  # others made the model, whoever trained it last
    tokens: list[str] | None  # digests of the tokenizers
    processors: dict[str, str] | None  # … and of the other processors, by kind
    ends: list[Token] | None
    head: dict[str, Setting] | None
    labels: list[str] | None
    sentences: SentenceEntries | None


class Toy(TypedDict, total=False):
    settings: dict[str, Setting]
    seed: Annotated[int, Field(ge=0)]


class Split(TypedDict):
    by: str
    valid_share: Annotated[float, Field(ge=0, lt=1)]
    test_share: Annotated[float, Field(ge=0, lt=1)]


@with_config(OPEN)
class TagColumns(TypedDict, total=False):
    word: Column | None
    tag: Column | None


@with_config(OPEN)
class OwnAbout(About, total=False):
    """What our own tasks say."""

    window: Size | None  # lm, mlm, chat, qa, word2vec
    toy: Toy  # lm, translation
    frames: Annotated[int, Field(ge=1, le=1024)] | None  # image-classification, of clips
    beams: Beams  # translation, parsing
    length_penalty: Annotated[float, Field(ge=0, le=10)]
    directions: list[str] | None
    kind: Annotated[Literal["classes", "multilabel", "regression"], BeforeValidator(label_kind)]  # classification
    numbered: bool
    separator: Annotated[str, Field(min_length=1)]
    max_length: Size | None
    unseen_labels: Literal["wrong", "refuse"]
    pair: bool | None
    columns: list[Column] | TagColumns | None  # classification, qa; tagging
    scheme: Scheme  # tagging
    valid_transitions: Flag
    zero_digits: Flag
    splitting: str
    unseen_tags: Literal["wrong", "refuse"]
    stride: Annotated[int, Field(ge=0, le=2**24)]  # qa
    longest_answer: Size
    article: Column | None
    no_answer: str
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None
    split: Split | None
    tasks: dict[str, dict[str, Any]]  # unit: what each of its tasks says


def check_about(about: Any, where: Path) -> dict[str, Any]:
    """What is under our own key in the file `where`."""
    held, file = {"legato": about}, str(where)
    entries: dict[str, Any] = {**fit(held, dict[str, About], file)["legato"]}
    if entries.get("task", "lm") in TASKS.builtin:
        entries = {**fit(held, dict[str, OwnAbout], file)["legato"]}
    if "tasks" in entries:
        entries["tasks"] = {name: check_about(inner, where) for name, inner in entries["tasks"].items()}
    return entries


def head_shape(about: dict[str, Any], file: Path) -> HeadSpec | None:
    """The shape of the head; None where there is none. `file` is where `about` was read."""
    if about.get("head") is None:
        return None
    try:
        shape = validate(HeadSpec, about["head"], "legato.head")
    except ConfigError as problem:
        raise FolderError(f"{file}: {problem}") from None
    labels = about.get("labels")
    if labels and shape.kind != "spans" and len(labels) != shape.outputs:
        raise FolderError(f"{file}: there are {len(labels)} labels, but the head has {shape.outputs} outputs")
    return shape


def usual_task(module: SequenceModel) -> str:
    """What a model whose folder names no task is for."""
    if module.usual_task is not None:
        return module.usual_task
    if module.is_encoder_decoder:
        return "translation" if module.source_encoder is None else "captioning"
    return "lm" if module.can_generate else "mlm"
