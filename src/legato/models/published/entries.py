"""What is read of a published config.json: the types that its entries have, and the ranges that a model can have.

Each family lists its own entries beside its map of names (`family.py`). Entries that nobody here reads may be
anything. Where Hugging Face's library writes null, null is taken.
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

    vocab_size: Required[Size]
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
    value may have, and ours.
    """

    type: Any
    setting: str | None = None
    default: Any = NEEDED
    known: Mapping[str, str] | None = None

    def read(self, config: Mapping[str, Any], name: str, where: str) -> Any:
        """Our value for the entry `name`."""
        value = config.get(name, self.default)
        if self.known is None:
            return bool(value) if self.type in (Flag, Switch) else value
        if value not in self.known:
            there = ", ".join(sorted(self.known))
            raise FolderError(f"{where}/config.json: {name}={brief(value)} is unknown; there is {there}")
        return self.known[value]

    def written(self, value: Any) -> Any:
        """Theirs for our value."""
        return value if self.known is None else next(their for their, our in self.known.items() if our == value)


def schema_of(name: str, entries: Mapping[str, Entry]) -> Any:
    """The schema of a family's config.json."""
    needed = {key for key, entry in entries.items() if entry.setting is not None and entry.default is NEEDED}
    own = {key: Required[entry.type] if key in needed else entry.type for key, entry in entries.items()}
    common = get_type_hints(Entries, include_extras=True)
    made = TypedDict(f"{name}Entries", {**common, "vocab_size": Required[Size], **own}, total=False)  # type: ignore[misc]
    return with_config(OPEN)(made)
