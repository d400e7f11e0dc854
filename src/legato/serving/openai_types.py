"""The requests of OpenAI's API, as far as it is spoken here.

What a client sends that changes nothing (`user`, `metadata`, …) is taken and left alone; what would change the answer
and is not done here is refused.
"""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from legato.config import MAX_SEED, validate
from legato.decoding import SearchOptions
from legato.decoding.options import NEUTRAL
from legato.errors import ConfigError
from legato.serving.app import Refusal
from legato.serving.indexes import IndexField
from legato.serving.tool_calls import MOST_TOOLS, CalledTool, Tool, ToolChoice, forced_schema

IGNORED: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key"}
)
NOT_DONE: Final = {  # with what says that nothing is asked for
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": ({}, None),
    "suffix": ("", None),
    "best_of": (1, None),
    "functions": ([], None),
    "modalities": (["text"], None),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
}
LENGTHS: Final = (
    "at most `max_input_tokens` tokens and `max_input_characters` characters, which `/v1/models` says of each model"
)
MOST_CHOICES: Final = 128
MOST_STOPS: Final = 16
MOST_MESSAGES: Final = 4096
MOST_PARTS: Final = 1024  # of a message


def _kind_of_texts(given: Any) -> str:
    first = given[0] if isinstance(given, list) and given else None
    kinds = ((str, "texts"), (list, "token lists"))
    return next((kind for type_, kind in kinds if isinstance(first, type_)), "tokens" if given else "texts")


# Which of the four it is, its first element says: none is read as another, and the first mistake ends the reading.
Texts = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(fail_fast=True), Tag("texts")]
    | Annotated[list[int], Field(fail_fast=True), Tag("tokens")]
    | Annotated[list[Annotated[list[int], Field(fail_fast=True)]], Field(fail_fast=True), Tag("token lists")],
    Discriminator(lambda given: "text" if not isinstance(given, list) else _kind_of_texts(given)),
]


class ApiRequest(BaseModel):
    """What every body has in common; names that nobody knows are refused."""

    model_config = ConfigDict(extra="allow")

    model: str

    def refuse_unsupported(self) -> None:
        """Refuse what was sent and is not done here."""
        for name, value in (self.model_extra or {}).items():
            if name in IGNORED or value in NOT_DONE.get(name, ()):
                continue
            if name in NOT_DONE:
                raise Refusal(400, f"'{name}' is not done here; leave it out", name)
            raise Refusal(400, f"there is no parameter '{name}'", name)


class StreamOptions(BaseModel):
    include_usage: bool = False


class GenerationRequest(ApiRequest):
    """What all that writes has in common."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None  # not OpenAI's, and known everywhere
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @field_validator("stop")
    @classmethod
    def _few_and_not_empty(cls, stop: str | list[str] | None) -> str | list[str] | None:
        given = [stop] if isinstance(stop, str) else stop or []
        if len(given) > MOST_STOPS:
            raise ValueError(f"has {len(given)} strings; {MOST_STOPS} are read")
        if "" in given:
            raise ValueError("holds an empty string, which would stop at once")
        return stop

    @property
    def schema_text(self) -> str | None:
        """The JSON schema that an answer has to fit, as text."""
        return None

    @property
    def top(self) -> int | None:
        """How many of the likeliest tokens to tell in each place; None: nothing of any."""
        return None

    def search(self, most: int) -> SearchOptions:
        """How to search. A temperature of 0 is greedy search; left out it is 1, and tokens are drawn."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        options: dict[str, Any] = {"max_tokens": most, "stop": tuple(stops), "json_schema": self.schema_text}
        if self.repetition_penalty is not None:
            options["repetition_penalty"] = self.repetition_penalty
        if self.temperature == 0:
            return validate(SearchOptions, options)
        for name, neutral in NEUTRAL.items():
            given = getattr(self, name)
            options[name] = neutral if given is None else given
        seed = secrets.randbelow(MAX_SEED) if self.seed is None else self.seed % (MAX_SEED + 1)
        return validate(SearchOptions, {"search": "sample", "seed": seed, **options})


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class PictureUrl(BaseModel):
    url: str
    detail: str | None = None  # changes nothing: a model sees pictures in one size


class PicturePart(BaseModel):
    type: Literal["image_url"]
    image_url: PictureUrl


Part = Annotated[TextPart | PicturePart, Field(discriminator="type")]


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | Annotated[list[Part], Field(max_length=MOST_PARTS, fail_fast=True)] | None, Field(description=LENGTHS)
    ] = None
    name: str | None = None
    tool_calls: Annotated[list[CalledTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the {self.role} has no content")
        return self

    def plain(self) -> dict[str, Any]:
        """As a chat template takes it."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content if isinstance(part, TextPart))
        role = "system" if self.role == "developer" else self.role
        calls = [call.plain() for call in self.tool_calls or ()]
        named = {"name": self.name, "tool_call_id": self.tool_call_id, "tool_calls": calls}
        return {"role": role, "content": content or "", **{key: value for key, value in named.items() if value}}


class TextFormat(BaseModel):
    type: Literal["text"]


class JsonFormat(BaseModel):
    type: Literal["json_object"]


class NamedSchema(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class JsonSchemaFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonFormat | JsonSchemaFormat, Field(discriminator="type")]


class ChatCompletionRequest(GenerationRequest):
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    index: IndexField | None = None  # ours: answer from its passages

    @property
    def offered_tools(self) -> list[Tool]:
        """Those that may be called."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def schema_text(self) -> str | None:
        schema = forced_schema(self.offered_tools, self.tool_choice)
        if schema is None and isinstance(self.response_format, JsonSchemaFormat):
            schema = self.response_format.json_schema.schema_ or {"type": "object"}
        elif schema is None and isinstance(self.response_format, JsonFormat):
            schema = {"type": "object"}
        return None if schema is None else json.dumps(schema)

    @property
    def top(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise ConfigError("'top_logprobs' needs 'logprobs': true")
        return self.top_logprobs or 0 if self.logprobs else None


class CompletionRequest(GenerationRequest):
    prompt: Annotated[Texts, Field(description=LENGTHS)] = ""
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @property
    def top(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """Each of them."""
        return one_or_many(self.prompt)


def one_or_many(given: Any) -> list[Any]:
    """Texts, or lists of tokens, of which one may stand alone.

    >>> one_or_many("a"), one_or_many([1, 2]), one_or_many(["a", "b"])
    (['a'], [[1, 2]], ['a', 'b'])
    """
    return [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else list(given)


class EmbeddingsRequest(ApiRequest):
    input: Annotated[Texts, Field(description=LENGTHS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
