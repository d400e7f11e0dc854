"""The requests and answers of `/v1/predict`, made of what the served models' tasks declare.

A task says what it predicts from (`Task.Input`) and with which options (`Task.Options`); here that becomes a request
that OpenAPI describes: one for each task that is served, chosen by the name of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    RootModel,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from legato.config import validate
from legato.data.audio.sound_files import SOUND_TYPES
from legato.data.image.picture_files import PICTURE_TYPES
from legato.errors import ConfigError, brief, suggest
from legato.folders.loaded import Loaded
from legato.registry import TASKS
from legato.schema import OPEN, TypedDict, with_config
from legato.serving.media import picture_of, sound_of
from legato.serving.models import Served, ServedModels
from legato.serving.transport.text_limits import TextLimits
from legato.tasks.base import Task

MOST_INPUTS: Final = 256
MOST_BEAMS: Final = 64  # and answers of a search, each of which is a row in memory
OF_FILES: Final = ("search", "lm")  # options that name a file or a folder: those of the server are no client's
OWN: Final = ("model", "inputs", "task")  # what else a request says
CODED: Final = "as a data: URL, or in base64"

Coded = Annotated[str, Field(min_length=1)]


class PictureQuestion(BaseModel):
    """A question about a picture."""

    model_config = ConfigDict(extra="forbid")

    image: Annotated[Coded, Field(description=CODED)]
    question: str
    choices: Annotated[list[str], Field(max_length=1000)] | None = Field(None, description="answers to choose from")


@dataclass(frozen=True)
class InputKind:
    """What a client sends as one input, and how it becomes what a task predicts from."""

    type: Any
    about: str
    read: Callable[[Any, str], Any]  # given where in the request it stands

    @classmethod
    def of(cls, task: type[Task], about: Mapping[str, Any], limits: TextLimits) -> InputKind | None:
        """Of a task, by what it declares, and by what a model's folder remembers; None: of nothing that is sent."""
        if task.Input is str:
            text = Annotated[str, Field(json_schema_extra={"maxLength": limits.characters})]
            pair = Annotated[list[text], Field(min_length=2, max_length=2)]
            shown = f"a text of {limits.tokens:,} tokens at most; where two belong together, both in a list"
            return cls(text | pair, shown, _text)
        if task.Input == PICTURE_TYPES:
            clip = bool(about.get("frames"))
            return cls(
                Coded,
                f"a {'clip: an animated GIF or WebP' if clip else 'picture'}, {CODED}",
                lambda value, where: picture_of(value, where, clip=clip),
            )
        if task.Input == SOUND_TYPES:
            return cls(Coded, f"a sound, {CODED}", sound_of)
        if "image" in task.processors and task.Input == (tuple, str):
            return cls(PictureQuestion, "a question about a picture", _question)
        return None


def _text(value: str | list[str], where: str) -> str:
    return value if isinstance(value, str) else "\t".join(part.replace("\t", " ") for part in value)


def _question(value: PictureQuestion, where: str) -> tuple[Any, ...]:
    pair = (picture_of(value.image, f"{where}.image"), value.question)
    return pair if value.choices is None else (*pair, value.choices)


@dataclass(frozen=True)
class Predictable:
    """A model, or one of its several tasks, that `/v1/predict` asks."""

    served: Served
    member: str | None  # which of its tasks
    task: type[Task]
    kind: InputKind

    def option_names(self) -> list[str]:
        """The names of its options."""
        assert self.task.Options is not None
        return [name for name in self.task.Options.model_fields if name not in OF_FILES]

    def check(self, body: Mapping[str, Any]) -> None:
        """Refuse what is no option, with the nearest that is one."""
        for name in body:
            if (
                name in self.option_names()
                or name in ("model", "inputs")
                or (name == "task" and self.member is not None)
            ):
                continue
            if self.task.Options is not None and name in self.task.Options.model_fields:
                raise ConfigError(f"'{name}' names files of the server, which are no client's; leave it out")
            raise ConfigError(f"{self.task.name} has no option '{brief(name)}'; {suggest(name, self.option_names())}")

    def options(self, request: PredictRequest) -> dict[str, Any]:
        """Those that were given, held to what the task takes."""
        options = request.model_dump(include=request.model_fields_set - set(OWN))
        assert self.task.Options is not None
        validate(self.task.Options, options)
        for name, most in (("max_tokens", self.served.most_tokens), ("beams", MOST_BEAMS), ("nbest", MOST_BEAMS)):
            wide = (
                name != "nbest" or "beams" in self.option_names()
            )  # other answers are there anyway, and cost nothing
            if wide and (options.get(name) or 0) > most:
                raise ConfigError(f"{name} is {options[name]:,}; this server does {most:,} at most")
        return options


def predictable(served: Served, member: str | None = None) -> Predictable:
    """What is asked of a model; a line that says what else to ask it where that is nothing."""
    task, loaded = TASKS.get(served.model.task), served.model.loaded
    members = task.members(loaded)
    if members:
        if member is None and len(members) == 1:
            member = next(iter(members))
        if member not in members:
            said = "has several tasks, so say which" if member is None else f"has no task '{brief(member)}'"
            raise ConfigError(f"'{served.name}' {said}; task: {suggest(member or '', members)}")
        loaded = members[member]
        task = TASKS.get(loaded.task)
    target = _of_task(served, member if members else None, task, loaded)
    if target is not None:
        return target
    if served.model.generates:
        route = "completions" if loaded.chat is None else "chat/completions"
        raise ConfigError(f"'{served.name}' is a model for {task.name}, which generates: use /v1/{route}")
    raise ConfigError(f"'{served.name}' is a model for {task.name}, whose inputs cannot be sent over HTTP")


def _of_task(served: Served, member: str | None, task: type[Task], loaded: Loaded) -> Predictable | None:
    kind = None if task.Options is None else InputKind.of(task, loaded.about, served.input_limits)
    return None if kind is None else Predictable(served, member, task, kind)


def _all_predictable(served: Served) -> list[Predictable]:
    task = TASKS.get(served.model.task)
    several = task.members(served.model.loaded) or {None: served.model.loaded}
    every = (_of_task(served, name, TASKS.get(each.task), each) for name, each in several.items())
    return [each for each in every if each is not None]


def predictable_kinds(served: Served) -> dict[str | None, str]:
    """What each of a model's tasks reads, in words; of a model of one task by None. Empty: nothing is predicted."""
    return {each.member: each.kind.about for each in _all_predictable(served)}


# ── requests ──────────────────────────────────────────────────────────────────────────────────────


class PredictRequest(BaseModel):
    """Inputs of a model, each of which gets a prediction. Options are those of `legato predict`."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), allow_inf_nan=False)

    model: str
    inputs: Annotated[list[Any], Field(min_length=1, max_length=MOST_INPUTS)]


def request_of(models: ServedModels) -> type[RootModel[Any]]:
    """The body of a request: one of as many kinds as tasks are served, by the model's name."""
    alone: dict[tuple[str, str], list[Predictable]] = {}
    choices: list[Any] = []
    for served in models:
        every = _all_predictable(served)
        if any(each.member is not None for each in every):
            requests = [_request([each]) for each in every]
            choices.append(requests[0] if len(requests) == 1 else _one_of(requests, "task"))
            continue
        for each in every:
            alone.setdefault((each.task.name, each.kind.about), []).append(each)
    choices += [_request(group) for group in alone.values()]
    body: Any = PredictRequest if not choices else choices[0] if len(choices) == 1 else _one_of(choices, "model")

    class PredictBody(RootModel[body]):
        """A request; which options there are depends on the model's task."""

        @model_validator(mode="before")
        @classmethod
        def _check_names(cls, body: Any) -> Any:
            """Say what is wrong with a name in our own words, before pydantic does in its."""
            if isinstance(body, Mapping):
                names = [served.name for served in models]
                if "model" not in body and len(names) == 1:
                    body = {**body, "model": names[0]}
                if not isinstance(body.get("model"), str):
                    raise ConfigError(f"model: name the model to ask; {suggest('', names)}")
                member = body.get("task")
                predictable(models[body["model"]], member if isinstance(member, str) else None).check(body)
            return body

        @classmethod
        def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
            schema = handler(core)
            _flatten(handler.resolve_ref_schema(schema))
            return schema

    return PredictBody


def _flatten(schema: dict[str, Any]) -> None:
    """Make choices within a choice, of which OpenAPI knows nothing, choices: a model of several tasks has several."""
    flat = [inner for each in schema.get("oneOf", ()) for inner in each.get("oneOf", (each,))]
    if flat:
        schema["oneOf"] = flat
        mapping = schema["discriminator"]["mapping"]
        schema["discriminator"]["mapping"] = {key: ref for key, ref in mapping.items() if isinstance(ref, str)}


def _one_of(choices: Iterable[Any], key: str) -> Any:
    return Annotated[Union[tuple(choices)], Field(discriminator=key)]  # noqa: UP007 - made of a list


def _request(group: list[Predictable]) -> type[PredictRequest]:
    """The request of models that have one task."""
    first, names = group[0], tuple(each.served.name for each in group)
    task, kind = first.task, first.kind
    assert task.Options is not None
    fields: dict[str, Any] = {name: task.Options.model_fields[name] for name in first.option_names()}
    assert not set(fields) & set(OWN), f"{task.name} has an option that a request has a meaning for"
    own: dict[str, Any] = {name: (info.annotation, deepcopy(info)) for name, info in fields.items()}
    own["model"] = (Literal[names], ...)
    inputs = list[Annotated[kind.type, Field(description=kind.about)]]  # type: ignore[name-defined]
    own["inputs"] = (inputs, Field(min_length=1, max_length=MOST_INPUTS))
    if first.member is not None:
        own["task"] = (Literal[first.member], first.member)
    name = task.name if first.member is None else f"{names[0]} {first.member}"
    title = "".join(part.capitalize() for part in "".join(c if c.isalnum() else " " for c in name).split())
    request: Any = create_model(
        f"{title}Request", __base__=PredictRequest, __doc__=f"For {task.name}: {task.summary}.", **own
    )
    return request


# ── answers ───────────────────────────────────────────────────────────────────────────────────────


class Word(TypedDict):
    word: str
    start: Annotated[float, Field(description="seconds")]
    end: float


class Entity(TypedDict):
    """A name or the like, in a text."""

    type: str
    text: str
    start: Annotated[int, Field(description="characters before it")]
    end: int
    words: Annotated[tuple[int, int], Field(description="numbers of its first word, and of the one behind its last")]
    probability: float


@with_config(OPEN)
class PredictedAnswer(TypedDict, total=False):
    """One of the things that a model makes of an input, as `legato predict --json` tells it. Beside the text and the
    score there is what the task tells; tasks from elsewhere may tell more."""

    text: Required[str]
    score: Required[Annotated[float | None, Field(description="by which answers are sorted")]]
    probability: float
    probabilities: Annotated[
        dict[str, float] | list[float], Field(description="of all labels, or of each word's tag")
    ]
    labels: Annotated[list[str], Field(description="of a classifier of several labels, those that hold")]
    value: Annotated[float, Field(description="of a regression")]
    logprob: float
    finished: Annotated[bool, Field(description="whether it ends by itself, not by the limit")]
    words: Annotated[list[str] | list[Word], Field(description="a sentence's, or with `timestamps` those of a sound")]
    tags: Annotated[list[str], Field(description="of the words")]
    entities: list[Entity]
    start: Annotated[int, Field(description="of an answer in its context: characters before it")]
    end: int
    mask: Annotated[int, Field(description="which hidden word of the text this is for, from 1")]
    word: Annotated[str, Field(description="to which this one is near")]
    cosine: float
    box: Annotated[tuple[float, float, float, float], Field(description="x0, y0, x1, y1 in pixels")]
    source_tokens: Annotated[list[str], Field(description="with `alignments`, as the next three")]
    target_tokens: list[str]
    alignment: Annotated[list[list[float]], Field(description="target tokens × source tokens")]
    word_alignment: Annotated[list[tuple[int, int]], Field(description="pairs of source word and target word")]


class PredictionOfInput(TypedDict):
    """Answers, best first, or why there are none."""

    input: str
    answers: list[PredictedAnswer]
    problem: NotRequired[str]


class Predictions(TypedDict):
    """One prediction an input, in order."""

    object: Literal["list"]
    model: str
    task: str
    predictions: list[PredictionOfInput]
