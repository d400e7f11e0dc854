"""JSON and YAML from elsewhere (YAML in `plain_yaml.py`): one reader, whose callers say what should be in it.

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
import re
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Required, TypeVar, get_type_hints, overload

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic import with_config as with_config
from typing_extensions import TypedDict as TypedDict  # pydantic takes the standard one from Python 3.12 on

from legato.errors import FolderError, LegatoError, brief
from legato.input_files import read_bytes

T = TypeVar("T")

MAX_PART, MAX_PATH = 255, 4000  # bytes of a file's name, and of a path


def _can_be(place: str) -> str:
    parts = place.encode().split(b"/")
    if b"\0" in place.encode() or sum(map(len, parts)) > MAX_PATH or max(map(len, parts)) > MAX_PART:
        raise ValueError("should name a file or folder")
    return place


Place = Annotated[str, AfterValidator(_can_be)]  # such as a file system can have
OPEN: Final = ConfigDict(extra="allow")  # entries that nobody here reads are kept as they are

MAX_BYTES: Final = 1 << 24  # of a JSON file that is no data, where its reader says nothing else
MAX_VOCABULARY: Final = 1 << 28  # of one with an entry for each token or tensor; the largest are a tenth of it
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 10_000_000  # in all; a vocabulary has up to four for each token
MAX_KEY: Final = 4096  # characters in the name of an entry
MAX_DIGITS: Final = 400  # of a number, as it is written
LARGEST: Final = 2**63 - 1
TEXTS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)  # in JSON


def read_json(
    path: Path,
    schema: type[T],
    *,
    error: type[LegatoError] = FolderError,
    most: int = MAX_BYTES,
    loose: bool = False,
) -> T:
    """What is in a JSON file of at most `most` bytes, as a `schema`; `error` is the kind of mistake that others are.

    With `loose` what Python's libraries write and JSON does not have is no mistake where nobody reads it: NaN and
    Infinity, and 10³⁰ for "as long as you like". A whole number beyond 64 bits is a float then.
    """
    return parse_json(read_bytes(path, most, error=error), schema, str(path), error=error, loose=loose)


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
    most: int = MAX_VALUES,
    loose: bool = False,
    nan_is_null: bool = False,
) -> T:
    """JSON that is not a file by itself, such as a line of one; `where` is what a message calls it.

    No more than `most` values are made of it: two bytes of text become a hundred of memory.

    `nan_is_null` reads the NaN and Infinity that an earlier version wrote for a score as what is written now.
    """
    if _is_more_than(most, text):
        raise error(f"{where} holds more than {most:,} values")
    constant = (lambda name: None) if nan_is_null else float
    try:
        whole = _rounded_number if loose else _whole_number
        value = json.loads(text, parse_int=whole, parse_constant=constant)
    except OutOfRange as problem:
        raise error(f"{where}: {problem}") from None
    except UnicodeDecodeError:
        raise error(f"{where} is not UTF-8 text") from None
    except (ValueError, RecursionError) as problem:
        reason = "it is nested too deeply" if isinstance(problem, RecursionError) else problem
        raise error(f"{where} is not valid JSON: {reason}") from None
    check_values(value, where, most=most, error=error, finite=not loose)
    return fit(value, schema, where, error=error)


def _is_more_than(most: int, text: bytes | str) -> bool:
    """Whether JSON has more commas and brackets than that, one for each value; texts have others."""
    raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
    marks = (b",", b"[", b"{")
    return sum(map(raw.count, marks)) > most and sum(map(TEXTS.sub(b"", raw).count, marks)) > most


def to_json(value: Any, *, indent: int | None = None, ensure_ascii: bool = True, default: Any = None) -> str:
    """JSON that every reader takes: a number that is infinite or none, for which it has no word, is null."""
    try:
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, default=default, allow_nan=False)
    except ValueError:
        plain = json.loads(json.dumps(value, default=default), parse_constant=lambda name: None)
        return json.dumps(plain, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """A file that holds one object, as a model folder's do."""
    path.write_text(to_json(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


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

    def look(part: Any, path: tuple[str, ...]) -> None:
        nonlocal left
        named = type(part) is dict
        if not named and type(part) is not list:
            if (problem := _problem(part, finite)) is not None:
                raise error(f"{where}{_at(path)}{problem}")
            return
        if len(path) >= MAX_DEPTH:
            raise error(f"{where}{_at(path[:3])} is nested more than {MAX_DEPTH} deep")
        left -= len(part)
        if left < 0:  # before any of them is looked at: aliases of YAML make many of few
            raise error(f"{where} holds more than {most:,} values")
        for key in part if named else ():
            if not _is_key(key):
                no_text = ": the name of an entry should be a text, not"
                wrong = " has an entry whose name is no name:" if isinstance(key, str) else no_text
                raise error(f"{where}{_at(path)}{wrong} {brief(key)}")
        for key, inner in part.items() if named else enumerate(part):
            look(inner, (*path, str(key)))

    look(value, ())


def _are_plain(value: Any, most: int) -> bool:
    """What `check_values` finds, level by level and without the way there: large files hold millions of values."""
    level: list[Any] = [value]
    for depth in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for part in level:
            kind = type(part)
            if kind is dict or kind is list:
                most -= len(part)
                if most < 0 or depth >= MAX_DEPTH or (kind is dict and not all(map(_is_key, part))):
                    return False
                below.extend(part.values() if kind is dict else part)
            elif (kind is int and -LARGEST <= part <= LARGEST) or (kind is str and part.isascii()):
                continue  # as most values of a large file are: vocabularies number their tokens
            elif _problem(part, True) is not None:
                return False
        if not below:
            break
        level = below
    return True


def _problem(value: Any, finite: bool) -> str | None:
    """What is wrong with a value that holds no others."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if is_text(value) else " holds half a character (a lone surrogate), which is no text"
    if isinstance(value, int):
        return None if -LARGEST <= value <= LARGEST else f": {brief(value)} is too large a number"
    if isinstance(value, float):
        return None if not finite or math.isfinite(value) else f": {brief(value).replace('nan', 'NaN')} is no number"
    return f": {brief(value)} is a {type(value).__name__}, which is no plain value"


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


@lru_cache(maxsize=64)
def fields_of(kind: type) -> Any:
    """The schema of what a dataclass is made of: its fields, each of its type, and no others."""
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


class OutOfRange(Exception):
    """A number that no field of ours could hold."""


def _whole_number(digits: str) -> int:
    # Python's own limit on digits is a setting of the process, and its message speaks of it.
    if len(digits) > MAX_DIGITS:
        raise OutOfRange(f"{brief(digits)} is too large a number")
    return int(digits)


def _rounded_number(digits: str) -> int | float:
    number = _whole_number(digits)
    if -LARGEST <= number <= LARGEST:
        return number
    try:
        return float(number)
    except OverflowError:
        raise OutOfRange(f"{brief(digits)} is too large a number") from None


def is_text(text: str) -> bool:
    """Whether all of it is characters; half of one (a lone surrogate) cannot be written to any file."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
