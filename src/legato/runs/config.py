"""The settings of a run, checked: `RunConfig`.

They come from a task's name, a recipe or a YAML file, with `key=value` words laid over it; which classes check
`data` and `model` depends on the names in it. With `from=MODEL` the model's settings are those of a trained one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

from pydantic import Field, SerializeAsAny

from legato.config import MAX_SEED, Described, Section, describe, merge, validate
from legato.data.processors import TEXT
from legato.data.text.tokenizers import TokenizerConfig
from legato.errors import ConfigError, brief, suggest
from legato.folders.model_folder import read_config
from legato.models.base import ModelConfig, SequenceModel
from legato.models.model_with_head import HeadConfig
from legato.registry import MODELS, TASKS
from legato.runs.aliases import resolved
from legato.runs.recipes import SECTIONS, TO_BE_NAMED, Expectation
from legato.runs.recipes import find_recipe as find_recipe
from legato.runs.recipes import list_recipes as list_recipes
from legato.runs.recipes import settings_for as settings_for
from legato.tasks.defaults import Defaults, Given
from legato.training.adapt import AdaptConfig
from legato.training.config import TrainConfig


class RunConfig(Section):
    """All the settings of a run."""

    task: str
    about: str = Field("", description="what the recipe is, in one line")
    hardware: str = Field("", description="on what a recipe's figures were measured")
    data: SerializeAsAny[Section]
    tokenizer: TokenizerConfig | None = Field(None, description="of tasks that read text")
    model: SerializeAsAny[ModelConfig]
    train: TrainConfig
    head: HeadConfig | None = Field(None, description="of tasks that put one on a model")
    adapt: AdaptConfig = Field(default_factory=AdaptConfig, description="how much of a model that it goes on from")
    start_from: str | dict[str, str] | None = Field(
        None,
        alias="from",
        description="a model to go on from: its architecture, weights and tokenizer are taken; of a part alone, as "
        "in from.encoder=MODEL, its architecture, weights and image processor",
    )
    quantize: Literal["int8", "int4"] | None = Field(
        None, description="adapt=lora: bring the matrices of from=MODEL, which stay frozen, to int8 or int4"
    )
    seed: int = Field(0, ge=-MAX_SEED, le=MAX_SEED, description="of everything that is drawn")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 or mps")
    out: str | None = Field(None, description="the run's folder; left out: the next free name under runs/")
    expect: dict[str, Expectation] = Field(default_factory=dict)

    @property
    def whole_from(self) -> str | None:
        """The model that all of it goes on from."""
        return self.start_from if isinstance(self.start_from, str) else None

    @property
    def parts_from(self) -> dict[str, str]:
        """The models that parts of it begin with, by the parts' names."""
        return self.start_from if isinstance(self.start_from, dict) else {}


NAMES: Final = [field.alias or name for name, field in RunConfig.model_fields.items()]


def check(settings: Mapping[str, Any]) -> RunConfig:
    """The settings as a `RunConfig`, each section checked by the class that its names choose."""
    _refuse_unnamed(settings.get("from"))
    settings = resolved(settings, NAMES)
    for key in settings:
        if key not in NAMES:
            raise ConfigError(f"unknown key '{brief(key)}'; {suggest(key, NAMES)}")
    if not settings.get("task"):
        raise ConfigError("which task? name one, as in: legato train lm data.train=FILE")
    _refuse_no_name(settings["task"], "task")
    task = TASKS.get(str(settings["task"]))
    _check_expected(task, settings.get("expect"))
    settings = with_defaults(task, _begun_with(task, settings))
    if _section(settings, "train").get("batch_rows") is not None and not task.rows:
        rowed = _tasks_with(lambda task: task.rows)
        raise ConfigError(f"{task.name} fills its batches by tokens; train.batch_rows is for {', '.join(rowed)}")
    model: type[SequenceModel] = MODELS.get(str(settings["model"]["name"]))
    _refuse_unread(task, model.processors, str(settings["model"]["name"]))  # whatever its settings are
    kinds = {"data": task.Data, "model": model.Config, "train": TrainConfig}
    checked: dict[str, Any] = {name: validate(kind, settings[name], name) for name, kind in kinds.items()}
    _refuse_unread(task, model.processors_of(checked["model"]), checked["model"].name)
    if TEXT in task.processors:
        checked["tokenizer"] = validate(TokenizerConfig, settings["tokenizer"], "tokenizer")
    elif any(value is not None for value in settings["tokenizer"].values()):  # a run's own file says null
        raise ConfigError(f"{task.name} reads no text, so it has no tokenizer; leave out tokenizer.*")
    else:
        checked["tokenizer"] = None
    checked |= {"head": _head(task, settings), "adapt": _adapt(settings)}
    return validate(RunConfig, {**settings, **checked})


def _refuse_unnamed(start: Any) -> None:
    """Refuse a recipe that its user has to name a model for."""
    for part, place in start.items() if isinstance(start, Mapping) else [("", start)]:
        if place == TO_BE_NAMED:
            key = f"from.{part}" if part else "from"
            raise ConfigError(f"this recipe goes on from a trained model; name it: {key}=MODEL")


def _begun_with(task: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of the model that `from=` names, or of the parts that it names models for."""
    start = settings.get("from")
    if isinstance(start, Mapping):  # from.encoder=none, where a recipe has one: that part is drawn
        start = {part: place for part, place in start.items() if place is not None} or None
    if start is None:
        return {**settings, "from": None}
    return _with_parts(task, settings, start) if isinstance(start, Mapping) else _go_on_from(task, settings)


def _refuse_unread(task: Any, needed: tuple[str, ...], model: str) -> None:
    """Refuse a model that reads what the task has none of: a picture for a translator."""
    if not set(needed) <= set(task.processors):
        held = " and ".join(task.processors)
        raise ConfigError(
            f"model={model} of these settings reads with {' and '.join(needed)}; {task.name} has only {held}"
        )


def with_defaults(task: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings laid over what the task knows better than the general defaults."""
    given = {name: _section(settings, name) for name in SECTIONS}
    given["model"] = {"name": task.default_model, **given["model"]}
    start = settings.get("from")
    adapt, trained = given.pop("adapt"), isinstance(start, str)
    brought = trained or (isinstance(start, Mapping) and "text" in start)  # a tokenizer
    usual: Defaults = task.defaults(Given(**given, adapt=str(adapt.get("name", "full")), trained=trained))
    laid = {name: merge(section, given[name]) for name, section in usual.sections().items()}
    laid["model"] |= usual.fixed
    return {**settings, **laid, "adapt": adapt, **({"tokenizer": {}} if brought else {})}


def _check_expected(task: Any, expected: Any) -> None:
    """Refuse to expect what a task will not report: who waits for a score wants to know before the training."""
    figures = [metric.name for metric in task.metrics if not metric.eval_only]  # another package's may not say
    for name in expected if isinstance(expected, Mapping) else ():
        split, _, figure = str(name).partition(".")
        if name == "minutes" or not figures:
            continue
        if split not in ("valid", "test") or not any(fnmatchcase(figure, known) for known in figures):
            known = ["minutes", *(f"{part}.{known}" for part in ("valid", "test") for known in figures)]
            raise ConfigError(
                f"expect.{brief(name)}: {task.name} reports no such figure; {suggest(str(name), known)}"
            )


def _tasks_with(has: Callable[[Any], bool]) -> list[str]:
    """The names of the tasks that say so of themselves."""
    return [name for name in TASKS.names() if has(TASKS.get(name))]


def _adapt(settings: Mapping[str, Any]) -> AdaptConfig:
    given = _section(settings, "adapt")
    adapt = validate(AdaptConfig, given, "adapt")
    if given and "name" not in given:
        raise ConfigError(f"adapt.{next(iter(given))} belongs to adapt=lora; say that, too")
    unused = adapt.model_dump(exclude={"name"}, exclude_defaults=True)
    if unused and adapt.name != "lora":
        raise ConfigError(f"adapt.{next(iter(unused))} belongs to adapt=lora; adapt={adapt.name} has no use for it")
    if settings.get("quantize") is not None and adapt.name != "lora":
        raise ConfigError(
            f"quantize={brief(settings['quantize'])}: quantised weights cannot be trained; add adapt=lora, "
            "which trains beside them, or leave quantize out"
        )
    if adapt.name != "full" and not isinstance(settings.get("from"), str):
        raise ConfigError(f"adapt={adapt.name} trains a little of a model that is there already; name it: from=MODEL")
    return adapt


def _head(task: Any, settings: Mapping[str, Any]) -> HeadConfig | None:
    if task.headed:
        return validate(HeadConfig, _section(settings, "head"), "head")
    if settings.get("head"):
        known = _tasks_with(lambda task: task.headed)
        raise ConfigError(f"{settings['task']} puts no head on a model; head.* is for {', '.join(known)}")
    return None


def _go_on_from(task: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the model that `from=` names; beside it only dropouts and heads may be chosen."""
    place = str(settings["from"])
    if not task.continues:
        known = _tasks_with(lambda task: task.continues)
        raise ConfigError(f"{settings['task']} cannot go on from a model yet; from={place} is for {', '.join(known)}")
    tokenizer = _section(settings, "tokenizer")
    if TEXT not in task.processors and not any(tokenizer.values()):  # a run's own file says null
        tokenizer = {}
    if validate(TokenizerConfig, tokenizer, "tokenizer") != TokenizerConfig():
        raise ConfigError(f"from={place} brings its own tokenizer; leave out tokenizer=…")
    config = read_config(place)
    held, given = config.model_dump(mode="json"), _section(settings, "model")
    if given.get("name", config.name) != config.name:
        raise ConfigError(f"from={place} holds a model '{config.name}'; leave out model={brief(given['name'])}")
    if "dropout" in given:  # where the other dropouts are no different, they follow
        given = {**{k: given["dropout"] for k, v in held.items() if _is_dropout(k) and v == held["dropout"]}, **given}
    wanted = validate(type(config), merge(held, given), "model").model_dump(mode="json")
    heads = config.pretraining_heads  # a model may go on with others than it had
    choice = " and ".join(["dropouts", *(["heads"] if heads else []), *config.free])
    before, now, missing = flat(held), flat(wanted), object()
    for key in {**before, **now}:
        free = _is_dropout(key) or key in (*heads, *config.free)
        if before.get(key, missing) != now.get(key, missing) and not free:
            raise ConfigError(
                f"model.{key}={brief(now.get(key))} is not what from={place} holds, which is "
                f"{brief(before.get(key))}; of model.* only {choice} can be chosen with it"
            )
    return {**settings, "model": wanted}


def _with_parts(task: Any, settings: Mapping[str, Any], start: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of the models that parts of the model begin with; of those, dropouts may be chosen."""
    given = _section(settings, "model")
    name = str(given.get("name", task.default_model))
    parts = [key for key in MODELS.get(name).part_names if key in MODELS.get(name).Config.model_fields]
    if (
        "text" in start
        and validate(TokenizerConfig, _section(settings, "tokenizer"), "tokenizer") != TokenizerConfig()
    ):
        raise ConfigError(f"from.text={brief(start['text'])} brings its own tokenizer; leave out tokenizer=…")
    for part, place in start.items():
        if part not in parts:
            known = suggest(part, parts) if parts else "leave it out"
            raise ConfigError(f"from.{brief(part)}: model={name} has no such part; {known}")
        _refuse_no_name(place, f"from.{part}")
        whole = read_config(str(place))
        inside = part_inside(whole, part)
        found = whole if inside is None else dict(whole)[inside]
        _refuse_other_part(name, part, str(place), found)
        held = found.model_dump(mode="json")
        chosen = given.get(part) or {}
        chosen = {"name": chosen} if isinstance(chosen, str) else dict(chosen)
        wanted = chosen
        if chosen.get("name", found.name) == found.name:
            wanted = validate(type(found), {**held, **chosen}, f"model.{part}").model_dump(mode="json")
        for key, value in chosen.items():
            if wanted[key] != held.get(key) and not (_is_dropout(key) or key in found.free):
                raise ConfigError(
                    f"model.{part}.{key}={brief(value)} is not what from.{part}={brief(place)} holds, which is "
                    f"{brief(held.get(key))}; leave it out"
                )
        given[part] = wanted
    return {**settings, "from": dict(start), "model": given}


def _refuse_other_part(model: str, part: str, place: str, found: ModelConfig) -> None:
    """Refuse to begin a part that can be of one kind alone (CLIP's text tower) with another model."""
    kind = MODELS.get(model).Config.model_fields[part].annotation
    only = kind.model_fields["name"].default if isinstance(kind, type) and issubclass(kind, Section) else None
    if isinstance(only, str) and found.name != only:
        raise ConfigError(
            f"from.{part}={brief(place)} holds '{found.name}', and the {part} of model={model} is always '{only}'; "
            f"name a model with one, such as another {model}, or leave it out"
        )


def part_inside(config: ModelConfig, part: str) -> str | None:
    """The part of a model that is meant where a part of that name is to begin with it; None: all of it.

    It is the one of the same name; what reads pictures is a vision tower in one model (CLIP), an encoder in another.
    """
    names = {"encoder": ("encoder", "vision"), "vision": ("vision", "encoder")}.get(part, (part,))
    known = MODELS.get(config.name).part_names
    return next((name for name in names if name in known and dict(config).get(name) is not None), None)


def _is_dropout(key: str) -> bool:
    return key.rpartition(".")[2].startswith("dropout")


def _section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = settings.get(name) or {}
    if not isinstance(section, Mapping):
        example = {"data": "train=FILE", "train": "steps=300"}.get(name, "name=…")
        raise ConfigError(f"'{name}' is a group of settings, such as {name}.{example}, not '{brief(section)}'")
    _refuse_no_name(section.get("name"), name)
    return dict(section)


def _refuse_no_name(value: Any, key: str) -> None:
    if isinstance(value, list | Mapping):
        advice = "; legato compare takes a list of them" if isinstance(value, list) else ""
        raise ConfigError(f"{key} should be a name, such as {key}=NAME, not {brief(value)}{advice}")


def describe_settings(settings: Mapping[str, Any]) -> list[Described]:
    """Every key that a run of this task and model takes, with its default, meaning and values."""
    task = TASKS.get(settings["task"])
    start = settings.get("from")
    places = start.values() if isinstance(start, Mapping) else [start]
    settings = {**settings, "from": None} if TO_BE_NAMED in places else _begun_with(task, settings)
    laid = with_defaults(task, settings)
    chosen = flat(laid)
    model = MODELS.get(str(chosen["model.name"]))
    rows = describe(task.Data, "data")
    rows += describe(TokenizerConfig, "tokenizer") if TEXT in task.processors else []
    rows += describe(model.Config, "model", laid["model"]) + describe(TrainConfig, "train")
    rows += describe(HeadConfig, "head") if task.headed else []
    rows += describe(AdaptConfig, "adapt") if task.continues else []
    rows = [row._replace(default=str(chosen.get(row.key, row.default))) for row in rows]
    top = [(key, RunConfig.model_fields[key]) for key in ("start_from", "quantize", "seed", "device", "out")]
    return rows + [Described(field.alias or key, str(field.default), field.description or "") for key, field in top]


def dump(config: RunConfig) -> dict[str, Any]:
    """The settings as plain values, for YAML; where the run lies is not one of them."""
    return config.model_dump(mode="json", by_alias=True, exclude={"out"})


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
