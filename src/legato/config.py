"""Settings: YAML files and `section.key=value` words, checked by pydantic.

Every section is a `Section`: unknown keys are refused with the nearest known one, and so is what no setting could
mean, whatever its field says: half characters, zero bytes, numbers that no computer counts to. This module knows
no section in particular; each room declares its own beside the code that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from legato.errors import ConfigError, brief
from legato.input_files import read_bytes
from legato.other_names import renamed, suggest_key, switched
from legato.schema import is_text

# `model=lstm` is short for `model.name=lstm`.
SHORT_SECTIONS = ("model", "model.encoder", "model.vision", "model.text", "tokenizer", "adapt")

MAX_FILE: Final = 1 << 16  # bytes of a settings file
MAX_WORD: Final = 1 << 16  # characters of a setting's value
MAX_PARTS: Final = 8  # of a dotted key
MAX_NAME: Final = 200  # characters of a key
MAX_COUNT: Final = 2**31 - 1  # of whole numbers whose field has no bound of its own
MAX_SEED: Final = 2**63 - 1  # what PyTorch and every file of ours can hold
MAX_NUMBER: Final = 1e38  # of other numbers: what float32 can hold

S = TypeVar("S", bound="Section")


class Section(BaseModel):
    """A group of settings. Unknown keys are errors; fields never change after validation.

    A whole number whose field says no upper bound is at most `most`, or what `most_of` says of the end of its name;
    other numbers are what float32 can hold.
    """

    model_config = ConfigDict(
        extra="forbid", validate_default=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )

    most: ClassVar[int] = MAX_COUNT
    most_of: ClassVar[Mapping[str, int]] = {}

    @field_validator("*")
    @classmethod
    def _is_plain(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        bounded = any(isinstance(rule, Le | Lt) for rule in cls.model_fields[name].metadata)
        most = next((most for end, most in cls.most_of.items() if name.endswith(end)), cls.most)
        _check_plain(value, None if bounded else most)
        return value


@dataclass(frozen=True)
class ChosenByName:
    """Beside a field's type: it holds a section whose class the section's own `name`, or `key`, chooses, or nothing.

    encoder: Annotated[Section | None, ChosenByName(class_of)] = None

    `class_of` has a ConfigError for a name that will not do. Where there is a `usual` name, that is what settings
    without one are of.
    """

    class_of: Callable[[str], type[Section]]
    usual: str | None = None
    key: str = "name"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def read(self, value: Any) -> Any:
        """The section that settings are: a name alone, or a group with a name in it."""
        given = {self.key: value} if isinstance(value, str) else value
        if not isinstance(given, Mapping):
            return given
        if self.key not in given and self.usual is None:
            raise ValueError(f"it needs a {self.key} beside its settings")
        try:
            section = self.section(given)
        except ConfigError as problem:
            raise ValueError(str(problem)) from None
        if section is None:
            return None
        try:
            return section.model_validate(given)
        except ValidationError as problem:
            raise _InnerError(section, problem) from None

    def section(self, given: Any) -> type[Section] | None:
        """The class for a group of settings; None where they name none."""
        name = given.get(self.key, self.usual) if isinstance(given, Mapping) else given
        name = self.usual if name is None else name
        return None if name is None else self.class_of(str(name))


class _InnerError(ValueError):
    """What is wrong inside a section that is `ChosenByName`."""

    def __init__(self, section: type[Section], problem: ValidationError) -> None:
        super().__init__(str(problem))
        self.section, self.problem = section, problem


def _check_plain(value: Any, most: int | None) -> None:
    """ValueError for what no setting could be; whole numbers are at most `most`, where that is not looked at yet."""
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("holds a zero byte, which no setting can")
        if not is_text(value):
            raise ValueError("holds bytes that are no UTF-8; write it in UTF-8")
        if len(value) > MAX_WORD:
            raise ValueError(f"has {len(value):,} characters, and a setting at most {MAX_WORD:,}")
    elif isinstance(value, int) and not isinstance(value, bool):
        if most is not None and abs(value) > most:
            bound = f"less than or equal to {most}" if value > 0 else f"greater than or equal to {-most}"
            raise ValueError(f"should be {bound}")
    elif isinstance(value, float):
        if abs(value) > MAX_NUMBER:
            raise ValueError(f"should be between {-MAX_NUMBER:g} and {MAX_NUMBER:g}")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check_plain(key, None)
            _check_plain(inner, most)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            _check_plain(inner, most)


def parse_value(text: str) -> Any:
    """The value of a `key=value` word. Numbers stay text here: the field they go to knows its type.

    >>> parse_value("[a.en, a.de]"), parse_value("none"), parse_value("1e-3")
    (['a.en', 'a.de'], None, '1e-3')
    """
    if text.startswith(("[", "{")):
        from legato.plain_yaml import parse_yaml

        try:
            return parse_yaml(text, object, "it")
        except ConfigError as problem:
            raise ConfigError(
                f"'{brief(text)}' is not a list; write [a,b,c] (in quotes where the shell needs them): "
                f"{brief(problem, 300)}"
            ) from None
    return None if text.lower() in ("none", "null", "") else text


def joined(words: Iterable[str]) -> list[str]:
    """Words with `--key value` and `--key=value` as `key=value`.

    >>> joined(["lm", "--lr", "3e-5", "--train.weight-decay=0.1", "seed=1"])
    ['lm', 'lr=3e-5', 'train.weight_decay=0.1', 'seed=1']
    """
    settings: list[str] = []
    rest = iter(words)
    for word in rest:
        word = "--out" if word == "-o" else word
        if word.startswith("--") and len(word) > 2:
            key, equals, value = word[2:].partition("=")
            if not equals:
                value = next(rest, "--")
                if value.startswith("--"):
                    switch = switched(key.replace("-", "_"), ("device", "precision", "quantize", "adapt"))
                    if switch is not None:
                        raise ConfigError(f"{brief(word)} is no option here; write {switch}")
                    raise ConfigError(f"{brief(word)} needs a value, as in {brief(word)} 1")
            word = f"{key.replace('-', '_')}={value}"
        settings.append(word)
    return settings


def split_words(words: Iterable[str]) -> dict[str, Any]:
    """`["model.width=5", "--out", "runs/x"]` as dotted keys and values."""
    settings: dict[str, Any] = {}
    for word in joined(words):
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"'{brief(word)}' is not a setting; settings are written key=value")
        if len(text) > MAX_WORD:
            raise ConfigError(f"'{brief(word)}' has {len(text):,} characters, and a setting at most {MAX_WORD:,}")
        settings[key] = parse_value(text)
    return settings


def parse_words(words: Iterable[str]) -> dict[str, Any]:
    """`["model.width=5", "out=runs/x"]` as a nested dictionary."""
    return nested(split_words(words))


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and their values as a nested dictionary."""
    whole: dict[str, Any] = {}
    for name, value in settings.items():
        # `data=FILE` and `train=FILE` are short for `data.train=FILE`.
        group = value is None or isinstance(value, Mapping | int | float)
        key = "data.train" if name in ("data", "train") and not group else name
        if not isinstance(key, str) or len(key) > MAX_NAME or not is_text(key):
            raise ConfigError(f"'{brief(key)}' is no setting's name; settings are written section.key=value")
        *sections, last = _in_our_case(key.split("."))
        key = ".".join((*sections, last))
        if not last or not all(sections) or len(sections) >= MAX_PARTS:
            why = "it needs a name on both sides of each dot, of few"
            raise ConfigError(f"'{brief(key)}' is no setting's name: {why}")
        if key in SHORT_SECTIONS and not isinstance(value, dict):
            sections, last = [*sections, last], "name"
        inner = whole
        for section in sections:
            there = inner.setdefault(section, {})
            if not isinstance(there, dict):
                # `data: x` in a file, then `data.train=y` on the command line.
                raise ConfigError(f"'{key}' is set inside '{section}', which is already the value '{brief(there)}'")
            inner = there
        inner[last] = str(value) if isinstance(value, Path) else _spelled_out(key, value)
    return whole


def _in_our_case(parts: list[str]) -> list[str]:
    """A dotted name as ours are written, `Train.Steps` or `learning-rate`; deeper names may be a person's own."""
    named = 1 if parts[0] == "expect" else 2
    return [part.lower().replace("-", "_") if place < named else part for place, part in enumerate(parts)]


def _spelled_out(key: str, value: Any) -> Any:
    """A group of settings; a section inside it that is given by its name alone is what that is short for."""
    if not isinstance(value, dict):
        return value
    short = {name for name in value if f"{key}.{name}" in SHORT_SECTIONS and not isinstance(value[name], dict)}
    return {name: {"name": inner} if name in short else inner for name, inner in value.items()}


def settings_of(settings: Any) -> dict[str, Any]:
    """What Python gives as settings: a dict, or nothing.

    >>> settings_of({"model.width": 64}), settings_of(None)
    ({'model.width': 64}, {})
    """
    if settings is not None and not isinstance(settings, Mapping):
        file = "; a file to train on goes to train=" if isinstance(settings, str | Path) else ""
        raise ConfigError(f'settings are a dict, such as {{"model.width": 64}}, not {brief(repr(settings))}{file}')
    return dict(settings or {})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def read_yaml(path: Path) -> dict[str, Any]:
    """A settings file as a dictionary, with short forms (`model: lstm`) spelled out."""
    from legato.plain_yaml import parse_yaml

    loaded = parse_yaml(read_bytes(path, MAX_FILE, error=ConfigError), object, str(path))
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path} holds no settings; it should be a YAML mapping such as 'task: lm'")
    return nested(loaded)


def to_yaml(settings: Mapping[str, Any]) -> str:
    """What `read_yaml` reads."""
    import yaml

    text: str = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_FILE:
        raise ConfigError(f"the settings have {size:,} bytes, and can have {MAX_FILE:,}; shorten their longest list")
    return text


def validate(section: type[S], settings: Any, where: str = "") -> S:
    """`settings` as a `section`, or one line that says which key is wrong and why."""
    if isinstance(settings, section):
        return settings
    if not isinstance(settings, Mapping):
        raise ConfigError(f"{where or 'the settings'} should be a group of settings, not '{brief(settings)}'")
    try:
        return section.model_validate(renamed(settings, field_names(section)))
    except ValidationError as problem:
        raise ConfigError(_one_line(section, problem, where)) from None


def field_names(section: type[BaseModel]) -> list[str]:
    """The settings of a section, as they are written."""
    return [field.alias or name for name, field in section.model_fields.items()]


class Described(NamedTuple):
    """A setting as a list of settings shows it."""

    key: str  # dotted
    default: str
    meaning: str
    values: str = ""  # that it may have, where it is not free


def describe(section: type[Section], prefix: str, given: Mapping[str, Any] | None = None) -> list[Described]:
    """Every setting of a section; `given` are some of its settings, whose names choose the sections inside it."""
    rows = []
    for name, field in section.model_fields.items():
        key = f"{prefix}.{field.alias or name}"
        inner = _section_of(field, (given or {}).get(name))
        if inner is not None:
            rows += describe(inner, key)
        else:
            default = "" if field.is_required() else str(field.get_default(call_default_factory=True))
            rows.append(Described(key, default, field.description or "", permitted(field)))
    return rows


def _section_of(field: FieldInfo, value: Any) -> type[Section] | None:
    """The class of the section that a field holds, where it holds one."""
    choice = next((rule for rule in field.metadata if isinstance(rule, ChosenByName)), None)
    if choice is not None:
        return choice.section(value)
    held = field.annotation
    return held if isinstance(held, type) and issubclass(held, Section) else None


def permitted(field: FieldInfo) -> str:
    """What a setting may be: its choices, true or false, or between which numbers; nothing where it is free.

    >>> permitted(Section.model_fields["rate"])  # doctest: +SKIP
    'above 0, at most 1'
    """
    kinds = get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else [field.annotation]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return " | ".join(str(each).lower() if isinstance(each, bool) else str(each) for each in get_args(kind))
    if bool in kinds:
        return "true | false"
    bounds = []
    for rule in field.metadata:
        match rule:
            case Ge(ge=least):
                bounds.append(f"at least {least}")
            case Gt(gt=least):
                bounds.append(f"above {least}")
            case Le(le=most) if most not in (MAX_SEED, MAX_COUNT):
                bounds.append(f"at most {most}")
            case Lt(lt=most):
                bounds.append(f"below {most}")
    return ", ".join(bounds)


def _one_line(section: type[Section], problem: ValidationError, where: str) -> str:
    errors = problem.errors()
    # An unknown key is usually the cause of whatever else is reported.
    error = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    # Of a setting that may be of several types, the place ends with the one that was tried.
    path = [str(part) for part in error["loc"] if part not in ("str", "int", "float") and "[" not in str(part)]
    key = brief(".".join([where, *path] if where else path), 100)
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, _InnerError):
        return _one_line(cause.section, cause.problem, key)
    if error["type"] == "extra_forbidden":
        return f"unknown key '{key}'; {suggest_key(path[-1], _known_keys(section, path[:-1]))}"
    if error["type"] == "missing":
        return f"'{key}' is needed; set {key}=…"
    value = error["input"]
    kind, _, fault = error["type"].partition("_")
    plain = {
        "int": "is not a whole number",
        "float": "is not a number",
        "bool": "is neither true nor false",
        "string": "is not text",
        "tuple": "is not a list",
        "list": "is not a list",
    }.get(kind)
    if plain is None or fault not in ("parsing", "type", "from_float"):
        message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
        plain = message[0].lower() + message[1:] if message else "is not valid"
        if error["type"] == "literal_error":
            plain = plain.replace("True", "true").replace("False", "false")  # as they are written in settings
    if isinstance(value, Mapping):  # the settings as a whole do not go together
        return f"{key}: {plain}" if key else plain
    return f"{key}={brief(value)} {brief(plain, 400)}"


def _known_keys(section: type[Section], path: list[str]) -> list[str]:
    """The field names of the (possibly nested) section that `path` leads to."""
    current: Any = section
    for part in path:
        if get_origin(current) is dict:  # as in expect.NAME: the user chooses the name
            current = get_args(current)[1]
        elif _is_section(current) and part in current.model_fields:
            current = current.model_fields[part].annotation
        else:
            return []
    return field_names(current) if _is_section(current) else []


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
