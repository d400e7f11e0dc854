"""What is read of a published config.json: the types that its entries have, and the ranges that a model can have.

Each family lists its own entries beside its map of names (`family.py`). Entries that nobody here reads may be
anything. Where Hugging Face's library writes null, null is taken. What stands in an object inside the file has a
dotted name: `text_config.hidden_size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Required, get_type_hints

from pydantic import AfterValidator, Field

from legato.errors import FolderError, brief
from legato.schema import OPEN, TypedDict, with_config

LARGEST: Final = 2**24
Size = Annotated[int, Field(ge=1, le=LARGEST)]  # of a layer, a vocabulary, a text; and how many layers there are
Share = Annotated[float, Field(ge=0, lt=1)]  # that a dropout leaves out
Epsilon = Annotated[float, Field(gt=0, le=1)]
Flag = bool | Literal[0, 1]
Switch = Flag | None  # null is off
Token = Annotated[int, Field(ge=-(2**31), lt=2**31)]  # -1 is "none" to some; whether a model has it is asked later
Tokens = Token | list[Token]
Beams = Annotated[int, Field(ge=1, le=4096)]


def _as_large_as_a_model(value: Any) -> Any:
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            _as_large_as_a_model(inner)
    elif isinstance(value, int | float) and not abs(value) <= (LARGEST if isinstance(value, int) else 1e9):
        raise ValueError(f"should have no number beyond {LARGEST:,}, which no model has")
    return value


Setting = Annotated[Any, AfterValidator(_as_large_as_a_model)]
"""A setting of a model of ours, as a file has it; what it means is checked where the model is made."""


@with_config(OPEN)
class Entries(TypedDict, total=False):
    """What every family's config.json may say."""

    model_type: str
    architectures: list[str] | None
    tokenizer_class: str | None
    tie_word_embeddings: Switch
    decoder_start_token_id: Token | None
    eos_token_id: Tokens | None
    num_beams: Beams | None  # older folders say here how to search
    length_penalty: float | None
    # of a task's head
    id2label: dict[Any, str | int | float] | None
    problem_type: str | None
    classifier_dropout: Share | None
    seq_classif_dropout: Share | None
    qa_dropout: Share | None


@with_config(OPEN)
class OwnEntries(Entries, total=False):
    """… and that of a model which only we have; the rest are its settings."""

    vocab_size: Required[Annotated[int, Field(ge=0, le=LARGEST)]]  # 0: it reads no tokens
    source_vocab_size: Size | None


NEEDED: Final = object()  # the default of an entry that has to be there

# Their names for activations, and ours; the first of several is what is written.
ACTIVATIONS: Final = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Entry:
    """An entry of a family's config.json: its type, our name for it, and its value where it is left out.

    Without a setting of ours it is checked, and the family itself reads and writes it. `known` are the names that its
    value may have, and ours. Our name, too, may be a dotted one: `vision.width` of a model with a section `vision`.
    """

    type: Any
    setting: str | None = None
    default: Any = NEEDED
    known: Mapping[str, str] | None = None

    @property
    def is_needed(self) -> bool:
        """Whether a folder without it cannot be read."""
        return self.setting is not None and self.default is NEEDED

    def read(self, config: Mapping[str, Any], name: str, where: str) -> Any:
        """Our value for the entry `name`."""
        value = value_at(config, name, self.default)
        if self.known is None:
            return bool(value) if self.type in (Flag, Switch) else value
        if value not in self.known:
            there = ", ".join(sorted(self.known))
            raise FolderError(f"{where}/config.json: {name}={brief(value)} is unknown; there is {there}")
        return self.known[value]

    def written(self, value: Any) -> Any:
        """Theirs for our value."""
        return value if self.known is None else next(their for their, our in self.known.items() if our == value)


def value_at(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value of a dotted name; where an object on the way is left out or null, so is what would be in it.

    >>> value_at({"text_config": {"hidden_size": 8}}, "text_config.hidden_size")
    8
    """
    first, _, rest = name.partition(".")
    if not rest:
        return config.get(first, default)
    return value_at(config.get(first) or {}, rest, default)


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Values under dotted names as objects in objects.

    >>> nested({"text_config.hidden_size": 8, "text_config.num_hidden_layers": 2, "projection_dim": 4})
    {'text_config': {'hidden_size': 8, 'num_hidden_layers': 2}, 'projection_dim': 4}
    """
    made: dict[str, Any] = {}
    for name, value in flat.items():
        *objects, last = name.split(".")
        place = made
        for key in objects:
            place = place.setdefault(key, {})
        place[last] = value
    return made


def schema_of(name: str, entries: Mapping[str, Entry], *, words: bool = True) -> Any:
    """The schema of a family's config.json; with `words` it says how many there are."""
    common = get_type_hints(Entries, include_extras=True)
    counted = {"vocab_size": Required[Size]} if words else {}
    return _object(f"{name}Entries", {**common, **counted, **_fields(name, entries)})


def _object(name: str, fields: Mapping[str, Any]) -> Any:
    made = TypedDict(name, dict(fields), total=False)  # type: ignore[misc]
    return with_config(OPEN)(made)


def _fields(name: str, entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The types of entries, and of the objects in which some of them stand; these may be null where all in them may
    be left out."""
    fields: dict[str, Any] = {}
    inside: dict[str, dict[str, Entry]] = {}
    for key, entry in entries.items():
        first, _, rest = key.partition(".")
        if rest:
            inside.setdefault(first, {})[rest] = entry
        else:
            fields[key] = Required[entry.type] if entry.is_needed else entry.type
    for key, inner in inside.items():
        made = _object(f"{name}_{key}", _fields(f"{name}_{key}", inner))
        fields[key] = Required[made] if any(entry.is_needed for entry in inner.values()) else made | None
    return fields
