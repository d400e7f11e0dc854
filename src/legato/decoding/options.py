"""How to search: the settings behind `--search`, `--beams`, `--top-p` and the rest.

Two choices make the four searches: how wide the frontier is, and whether its next tokens are *taken*
(the most probable ones) or *drawn* (at random, by their probabilities).

|            | taken    | drawn         |
|------------|----------|---------------|
| one row    | `greedy` | `sample`      |
| many rows  | `beam`   | `beam-sample` |

A setting that the chosen search would ignore is an error, so that nobody tunes a dial that does nothing.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from pydantic import Field, ValidationInfo, field_validator

from legato.config import MAX_SEED, Section

DEFAULT_BEAMS = 4
MAX_BEAMS = 1 << 10  # rows side by side for each prompt
MAX_NBEST = 1 << 14
MAX_TOKENS = 1 << 24

DRAWN = ("sample", "beam-sample")
WIDE = ("beam", "beam-sample")

Search = Literal["greedy", "beam", "sample", "beam-sample"]
F = TypeVar("F", bound=Callable[..., Any])

# Whichever value leaves the scores as they are.
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


class SearchOptions(Section):
    """The settings of one search.

    >>> SearchOptions(search="beam").width
    4
    """

    search: Search = "greedy"
    beams: int | None = Field(None, ge=1, le=MAX_BEAMS)  # None: 4 where the search has beams
    nbest: int = Field(1, ge=1, le=MAX_NBEST)  # hypotheses a prompt; for `sample`, independent walks
    length_penalty: float = Field(1.0, ge=0, le=10)  # score = log p / length ** length_penalty
    temperature: float = Field(1.0, gt=0)
    top_k: int = Field(0, ge=0)  # 0: all
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0)
    max_tokens: int = Field(200, ge=1, le=MAX_TOKENS)
    min_tokens: int = Field(0, ge=0)
    stop: tuple[str, ...] = ()
    slide: bool = False  # beyond the model's context, go on from the last tokens
    seed: int = Field(0, ge=0, le=MAX_SEED)
    json_schema: str | None = None  # that what is written has to fit (constraints/json_schema.py)

    @property
    def width(self) -> int:
        """Rows in a prompt's frontier."""
        return (self.beams or DEFAULT_BEAMS) if self.search in WIDE else 1

    @property
    def samples(self) -> int:
        """Independent searches of the same prompt."""
        return self.nbest if self.search == "sample" else 1

    @property
    def drawn(self) -> bool:
        """Whether tokens are drawn at random rather than taken."""
        return self.search in DRAWN

    # The checks sit on single fields, so that the error names the field to change; each sees the fields
    # declared above it.

    @field_validator("beams")
    @classmethod
    def _beams_need_a_beam_search(cls, beams: int | None, info: ValidationInfo) -> int | None:
        if beams is not None and beams > 1 and info.data.get("search", "beam") not in WIDE:
            raise ValueError("needs --search beam (or beam-sample)")
        return beams

    @field_validator("nbest")
    @classmethod
    def _nbest_fits_the_search(cls, nbest: int, info: ValidationInfo) -> int:
        search = info.data.get("search", "sample")
        beams = info.data.get("beams") or DEFAULT_BEAMS
        if search == "greedy" and nbest > 1:
            raise ValueError("needs --search beam or sample: greedy search finds one hypothesis")
        if search in WIDE and nbest > beams:
            raise ValueError(f"is more than the {beams} beams; ask for --beams {nbest}")
        return nbest

    @field_validator(*NEUTRAL)
    @classmethod
    def _shaping_needs_drawing(cls, value: float, info: ValidationInfo) -> float:
        name = info.field_name or ""
        if value != NEUTRAL[name] and info.data.get("search", "sample") not in DRAWN:
            raise ValueError("needs --search sample (or beam-sample)")
        return value

    @field_validator("min_tokens")
    @classmethod
    def _min_is_within_max(cls, least: int, info: ValidationInfo) -> int:
        most = info.data.get("max_tokens", least)
        if least > most:
            raise ValueError(f"is more than max_tokens={most}")
        return least

    @field_validator("json_schema", mode="before")
    @classmethod
    def _a_schema_is_an_object(cls, schema: Any) -> Any:
        try:
            read = json.loads(schema) if isinstance(schema, str) else schema
        except (ValueError, RecursionError):
            raise ValueError('is no JSON; write a schema, as {"type": "object"}') from None
        if read is not None and not isinstance(read, dict):
            raise ValueError('is no JSON schema, as {"type": "object"} is one')
        return None if read is None else json.dumps(read)

    @field_validator("stop", mode="before")
    @classmethod
    def _one_string_is_a_list_of_one(cls, stop: Any) -> Any:
        return (stop,) if isinstance(stop, str) else stop

    @field_validator("stop")
    @classmethod
    def _every_text_holds_the_empty_string(cls, stop: tuple[str, ...]) -> tuple[str, ...]:
        if "" in stop:
            raise ValueError("holds an empty string, which would stop at once")
        return stop


class SearchSettings(TypedDict, total=False):
    """`SearchOptions` as keyword arguments, for those who check types."""

    search: Search
    beams: int | None
    nbest: int
    length_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    slide: bool
    seed: int
    json_schema: str | dict[str, Any] | None


def with_search_options(function: F) -> F:
    """Show a function's `**options` as the settings of a search, with their defaults: for `help` and completion."""
    signature = inspect.signature(function)
    named = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    fields = SearchOptions.model_fields
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=fields[name].default, annotation=kind)
        for name, kind in get_type_hints(SearchSettings).items()
    ]
    function.__signature__ = signature.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    return function
