"""What is read of a published config.json: the types that its entries have, and the ranges that a model can have.

Each family lists its own entries beside its map of names, in the same way:

    @with_config(OPEN)
    class GPT2Entries(Entries, total=False):
        n_embd: Required[Size]

Entries that nobody here reads may be anything. Where Hugging Face's library writes null, null is taken.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Required

from pydantic import AfterValidator, Field

from legato.schema import OPEN, TypedDict, with_config

LARGEST: Final = 2**24
Size = Annotated[int, Field(ge=1, le=LARGEST)]  # of a layer, a vocabulary, a text; and how many layers there are
Share = Annotated[float, Field(ge=0, lt=1)]  # that a dropout leaves out
Epsilon = Annotated[float, Field(gt=0, le=1)]
Flag = bool | Literal[0, 1]
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
    tie_word_embeddings: Flag | None
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
