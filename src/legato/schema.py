"""JSON and YAML from elsewhere: one reader, whose callers say what should be in it.

Everything that a file, a recipe or an argument says in JSON or YAML passes here. What comes back has been held to

- the file: a regular one, of a size that a file of its kind has (`input_files.py`);
- plain values: text, numbers that fit 64 bits and are finite, true, false, null, lists and objects, no deeper and
  no more of them than a person or a program would write, no half characters. A date of YAML is a text;
- a schema: any type that pydantic knows, mostly a `TypedDict` of the entries that are read,

      @with_config(OPEN)
      class Pooling(TypedDict, total=False):
          pooling_mode: str | list[str]
          include_prompt: bool

  which stays a dictionary. Other entries may be there; those that are read have their type.

Whatever does not fit is one line that names the file and the key.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Required, TypeVar, get_type_hints, overload

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic takes the standard one from Python 3.12 on

from legato.errors import ConfigError, FolderError, LegatoError, brief
from legato.input_files import read_bytes

__all__ = [
    "OPEN",
    "TypedDict",
    "check_values",
    "fields_of",
    "fit",
    "is_text",
    "parse_json",
    "parse_yaml",
    "read_json",
    "read_json_if_there",
    "to_json",
    "with_config",
]

T = TypeVar("T")

OPEN: Final = ConfigDict(extra="allow")  # entries that nobody here reads are kept as they are

MAX_BYTES: Final = 1 << 28  # of a JSON or YAML file that is no data; the largest tokenizers' are a tenth of it
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 20_000_000  # in all; a vocabulary has one or two for each token
MAX_YAML_VALUES: Final = 100_000  # aliases make many of few
MAX_KEY: Final = 4096  # characters in the name of an entry
MAX_DIGITS: Final = 400  # of a number, as it is written
LARGEST: Final = 2**63 - 1


def read_json(
    path: Path,
    schema: type[T],
    *,
    error: type[LegatoError] = FolderError,
    loose: bool = False,
    nan_is_null: bool = False,
) -> T:
    """What is in a JSON file, as a `schema`; `error` is the kind of mistake that anything else is.

    With `loose` what Python's libraries write and JSON does not have is no mistake where nobody reads it: NaN and
    Infinity, and 10³⁰ for "as long as you like". A whole number beyond 64 bits is a float then.
    """
    content = read_bytes(path, MAX_BYTES, error=error)
    return parse_json(content, schema, str(path), error=error, loose=loose, nan_is_null=nan_is_null)


def read_json_if_there(
    path: Path, schema: type[T], *, error: type[LegatoError] = FolderError, loose: bool = False
) -> T:
    """The same of a file that may be missing: its `schema` is of an object that may be empty."""
    if not path.is_file():
        return fit({}, schema, str(path), error=error)
    return read_json(path, schema, error=error, loose=loose)


def parse_json(
    text: bytes | str,
    schema: type[T],
    where: str,
    *,
    error: type[LegatoError] = FolderError,
    loose: bool = False,
    nan_is_null: bool = False,
) -> T:
    """JSON that is not a file by itself, such as a line of one; `where` is what a message calls it.

    `nan_is_null` reads the NaN and Infinity that an earlier version wrote for a score as what is written now.
    """
    constant = (lambda name: None) if nan_is_null else float
    try:
        whole = _rounded_number if loose else _whole_number
        value = json.loads(text, parse_int=whole, parse_constant=constant)
    except _OutOfRange as problem:
        raise error(f"{where}: {problem}") from None
    except UnicodeDecodeError:
        raise error(f"{where} is not UTF-8 text") from None
    except (ValueError, RecursionError) as problem:
        reason = "it is nested too deeply" if isinstance(problem, RecursionError) else problem
        raise error(f"{where} is not valid JSON: {reason}") from None
    check_values(value, where, error=error, finite=not loose)
    return fit(value, schema, where, error=error)


def parse_yaml(text: bytes | str, schema: type[T], where: str, *, error: type[LegatoError] = ConfigError) -> T:
    """A YAML text as a `schema`."""
    try:
        value = yaml.load(text, Loader=_PlainLoader)
    except _OutOfRange as problem:
        raise error(f"{where}: {problem}") from None
    except RecursionError:
        raise error(f"{where} is not readable YAML: it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as problem:  # the library's, and what it lets by
        raise error(f"{where} is not readable YAML: {brief(problem, 300)}") from None
    check_values(value, where, most=MAX_YAML_VALUES, error=error)
    return fit(value, schema, where, error=error)


def to_json(value: Any, *, indent: int | None = None, ensure_ascii: bool = True, default: Any = None) -> str:
    """JSON that every reader takes: a number that is infinite or none, for which it has no word, is null."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, default=default, allow_nan=False)
    except ValueError:
        plain = json.loads(json.dumps(value, default=default), parse_constant=lambda name: None)
        return json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def check_values(
    value: Any,
    where: str,
    *,
    most: int = MAX_VALUES,
    error: type[LegatoError] = FolderError,
    finite: bool = True,
) -> None:
    """Refuse what JSON or YAML can say and no reader of ours expects; the key is named, as `a.b.0`."""
    if _are_plain(value, most):
        return
    left = most

    def walk(part: Any, path: tuple[str, ...]) -> None:
        nonlocal left
        if isinstance(part, dict | list):
            if len(path) >= MAX_DEPTH:
                raise error(f"{where}{_at(path[:3])} is nested more than {MAX_DEPTH} deep")
            left -= len(part)
            if left < 0:
                raise error(f"{where} holds more than {most:,} values")
            for key, inner in part.items() if isinstance(part, dict) else enumerate(part):
                if isinstance(part, dict):
                    if not isinstance(key, str):
                        raise error(f"{where}{_at(path)}: the name of an entry should be a text, not {brief(key)}")
                    if len(key) > MAX_KEY or not is_text(key):
                        raise error(f"{where}{_at(path)} has an entry whose name is no name: {brief(key)}")
                kind = type(inner)
                # Most values of a large file need no step further: vocabularies number their tokens.
                if not ((kind is int and -LARGEST <= inner <= LARGEST) or (kind is str and inner.isascii())):
                    walk(inner, (*path, str(key)))
        elif isinstance(part, str):
            if not is_text(part):
                raise error(f"{where}{_at(path)} holds half a character (a lone surrogate), which is no text")
        elif part is None or isinstance(part, bool):
            pass
        elif isinstance(part, int):
            if not -LARGEST <= part <= LARGEST:
                raise error(f"{where}{_at(path)}: {brief(part)} is too large a number")
        elif isinstance(part, float):
            if finite and not math.isfinite(part):
                raise error(f"{where}{_at(path)}: {'NaN' if math.isnan(part) else part} is no number")
        else:
            raise error(f"{where}{_at(path)}: {brief(part)} is a {type(part).__name__}, which is no plain value")

    walk(value, ())


def _are_plain(value: Any, most: int) -> bool:
    """What `check_values` finds, level by level and without the way there: large files hold millions of values."""
    level: list[Any] = [value]
    for depth in range(MAX_DEPTH + 1):
        most -= len(level)
        if most < 0:
            return False
        below: list[Any] = []
        for part in level:
            kind = type(part)
            if kind is str:
                if not part.isascii() and not is_text(part):
                    return False
            elif kind is int:
                if not -LARGEST <= part <= LARGEST:
                    return False
            elif kind is float:
                if not math.isfinite(part):
                    return False
            elif kind is dict or kind is list:
                if depth >= MAX_DEPTH or (kind is dict and not all(map(_is_key, part))):
                    return False
                below.extend(part.values() if kind is dict else part)
            elif part is not None and kind is not bool:
                return False
        if not below:
            return True
        level = below
    return False


def _is_key(key: Any) -> bool:
    return type(key) is str and len(key) <= MAX_KEY and (key.isascii() or is_text(key))


@overload
def fit(value: Any, schema: type[T], where: str, *, error: type[LegatoError] = FolderError) -> T: ...
@overload
def fit(value: Any, schema: Any, where: str, *, error: type[LegatoError] = FolderError) -> Any: ...
def fit(value: Any, schema: Any, where: str, *, error: type[LegatoError] = FolderError) -> Any:
    """`value` as a `schema`: types are taken at their word, so that `"12"` and `true` are no numbers."""
    try:
        return _adapter(schema).validate_python(value, strict=True)
    except ValidationError as problem:
        errors = problem.errors(include_url=False)
        # Where one of several types would do, each complains: the one that got furthest meant it.
        about_one = [one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]]
        first = max(about_one, key=lambda one: len(_keys(value, one["loc"])))
        path, given = _keys(value, first["loc"]), first["input"]
        if first["type"] == "missing":
            raise error(f"{where} lacks '{'.'.join((*path, str(first['loc'][-1])))}'") from None
        if first["type"] == "int_type" and isinstance(given, float) and abs(given) > LARGEST:  # see `_rounded_number`
            raise error(f"{where}{_at(path)}: {brief(given)} is too large a number") from None
        same = (one for one in about_one if one["input"] is given)
        messages = list(dict.fromkeys(_message(one["type"], one["msg"]) for one in same))
        told = " or ".join([messages[0], *(message.removeprefix("should be ") for message in messages[1:])])
        shown = repr(given[:100]) if isinstance(given, str) else given
        raise error(f"{where}{_at(path)} {told}, not {brief(shown)}") from None


def _message(kind: str, text: str) -> str:
    if kind == "dict_type":
        return "should hold a JSON object"
    return text.removeprefix("Value error, ").removeprefix("Input ")


def _keys(value: Any, where: tuple[Any, ...]) -> tuple[str, ...]:
    """The keys and places on the way to what is wrong; pydantic also names which of several types it tried."""
    path: list[str] = []
    for part in where:
        here = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if here or (isinstance(value, dict) and part in value):
            value = value[part]
            path.append(str(part))
    return tuple(path)


def fields_of(kind: type) -> Any:
    """The schema of what a dataclass is made of: its fields, each of its type, and no others."""
    return _fields_of(kind)


@lru_cache(maxsize=64)
def _fields_of(kind: type) -> Any:
    types = get_type_hints(kind)
    needed = {f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING}
    typed = {name: Required[hint] if name in needed else hint for name, hint in types.items()}
    entries = TypedDict(kind.__name__, typed, total=False)  # type: ignore[misc]
    return with_config(ConfigDict(extra="forbid"))(entries)


@lru_cache(maxsize=256)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _at(path: tuple[str, ...]) -> str:
    return f": '{brief('.'.join(path), 100)}'" if path else ""


class _OutOfRange(Exception):
    """A number that no field of ours could hold."""


def _whole_number(digits: str) -> int:
    # Python's own limit on digits is a setting of the process, and its message speaks of it.
    if len(digits) > MAX_DIGITS:
        raise _OutOfRange(f"{brief(digits)} is too large a number")
    return int(digits)


def _rounded_number(digits: str) -> int | float:
    number = _whole_number(digits)
    if -LARGEST <= number <= LARGEST:
        return number
    try:
        return float(number)
    except OverflowError:
        raise _OutOfRange(f"{brief(digits)} is too large a number") from None


def is_text(text: str) -> bool:
    """Whether all of it is characters; half of one (a lone surrogate) cannot be written to any file."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _PlainLoader(yaml.SafeLoader):
    """YAML's safe loader without dates, sets, pairs and bytes: those stay the texts that they are written as."""


_TEXT_TAGS: Final = ("timestamp", "binary", "omap", "pairs", "set")
_PlainLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in known if not tag.endswith(_TEXT_TAGS)]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _construct_int(loader: _PlainLoader, node: yaml.ScalarNode) -> Any:
    if len(node.value) > MAX_DIGITS:
        raise _OutOfRange(f"{brief(node.value)} is too large a number")
    return loader.construct_yaml_int(node)


def _refuse_tag(loader: _PlainLoader, node: yaml.Node) -> Any:
    raise _OutOfRange(f"line {node.start_mark.line + 1}: the tag {brief(node.tag)} is not read; write a plain value")


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)
for _tag in _TEXT_TAGS:
    _PlainLoader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse_tag)
