"""How much a JSON schema asks for at least: by how many tokens one more can put off the end of a text.

What opens an object has to write its required keys, what begins one of several values has to end that one. The size
of a part of a schema is that of the shortest text that fits it, with the longest of its alternatives; no text of it
has more tokens than characters. A part that asks for more than anybody reads is nothing that a text could end, and
what it forces would be computed at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

MOST: Final = 1 << 20  # which is as good as any larger one
PATTERN: Final = 48  # a pattern's, or a format's, at least
COUNT: Final = re.compile(r"\{(\d+)(,\d*)?\}")
ESCAPE: Final = re.compile(r"\\[xupP]\{[^}]*\}|\\.?", re.DOTALL)  # of one character
PARTS: Final = ("properties", "patternProperties", "$defs", "definitions")  # names to schemas
CHOICES: Final = ("anyOf", "oneOf", "allOf", "prefixItems")  # lists of schemas
NUMBERS: Final = ("multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
ALONE: Final = ("items", "additionalProperties", "not", "if", "then", "else")


def largest_part(schema: Mapping[str, Any]) -> int:
    """The largest of a schema's parts, in characters, a separator behind each key counted in.

    >>> largest_part({"properties": {"name": {"enum": ["a", "Annabel"]}}, "required": ["name"]})
    21
    """
    sizes: dict[int, int] = {}
    return max(_size(part, schema, sizes) for part in _parts(schema))


def _parts(schema: Any) -> Iterator[Any]:
    """A schema and all schemas in it."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            yield part
            for key in PARTS:
                named = part.get(key)
                left += list(named.values()) if isinstance(named, Mapping) else []
            for key in CHOICES:
                some = part.get(key)
                left += some if isinstance(some, list) else []
            left += [part[key] for key in ALONE if key in part]


def _size(part: Any, root: Mapping[str, Any], sizes: dict[int, int]) -> int:
    if not isinstance(part, Mapping):
        return 4  # any value: null, say
    if id(part) not in sizes:
        sizes[id(part)] = 0  # what is in itself is optional there
        sizes[id(part)] = min(MOST, _own_size(part, root, sizes))
    return sizes[id(part)]


def _own_size(part: Mapping[str, Any], root: Mapping[str, Any], sizes: dict[int, int]) -> int:
    own = [*(len(str(part.get(key, ""))) for key in NUMBERS), 5]  # "false"
    own.append(2 * own[0] + 2)  # digits that make a multiple of any number, behind a point or not
    if "const" in part:
        own.append(_written(part["const"]))
    if isinstance(part.get("enum"), list):
        own += map(_written, part["enum"])
    if isinstance(part.get("$ref"), str):
        own.append(_size(_target(part["$ref"], root), root, sizes))
    for key in CHOICES:
        some = part.get(key)
        if isinstance(some, list):
            each = [_size(other, root, sizes) for other in some]
            own.append(sum(each) if key in ("allOf", "prefixItems") else max(each, default=0))
    if isinstance(part.get("minLength"), int):
        own.append(part["minLength"] + 2)
    if "pattern" in part or "format" in part:
        own.append(max(PATTERN, largest_match(str(part.get("pattern", "")))))
    if isinstance(part.get("minItems"), int):
        own.append(2 + part["minItems"] * (2 + _size(part.get("items"), root, sizes)))
    required, named = part.get("required"), part.get("properties")
    if isinstance(required, list):
        of = named if isinstance(named, Mapping) else {}
        own.append(2 + sum(_written(key) + 4 + _size(_get(of, key), root, sizes) for key in required))
    return max(own)


def largest_match(pattern: str) -> int:
    """How many characters a regular expression asks for, with the longest of its alternatives, as far as is seen.

    >>> largest_match("^(ab|[a-z]{20}){3}c*$"), largest_match(r"\\{\\d{4}")
    (61, 5)
    """
    outer: list[tuple[int, int]] = []  # of each group that is open: what stands before it, and its longest branch
    branch = longest = last = place = 0  # characters of this branch, of the longest one, and of what a count is about
    while place < len(pattern):
        sign, width = pattern[place], 1
        count = COUNT.match(pattern, place) if sign == "{" else None
        if count is not None:
            times = min(int(count[1].lstrip("0")[:8] or 1), MOST)
            branch, last = min(branch + last * (times - 1), MOST), min(last * times, MOST)
            place += len(count[0])
            continue
        if sign == "(":
            outer.append((branch, longest))
            branch = longest = last = 0
        elif sign == ")" and outer:
            last = max(branch, longest)
            before, longest = outer.pop()
            branch = before + last
        elif sign == "|":
            branch, longest = 0, max(branch, longest)
        elif sign == "[":
            width = _class_length(pattern, place)
            branch, last = branch + 1, 1
        elif sign not in "^$*+?":
            escape = ESCAPE.match(pattern, place)
            width = len(escape[0]) if escape is not None else 1
            branch, last = branch + 1, 1
        branch, last = min(branch, MOST), min(last, MOST)
        place += width
    return max([branch, longest, *(before for before, _ in outer)])


def _class_length(pattern: str, start: int) -> int:
    """Characters of a class such as `[^]a-z]` that begins there."""
    first = place = start + 2 if pattern[start + 1 : start + 2] == "^" else start + 1
    while place < len(pattern) and (pattern[place] != "]" or place == first):
        place += 2 if pattern[place] == "\\" else 1
    return place + 1 - start


def _get(named: Mapping[str, Any], key: Any) -> Any:
    return named.get(key) if isinstance(key, str) else None


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference within a schema names; None where it names nothing."""
    part: Any = root
    for name in reference.removeprefix("#").split("/")[1:]:
        part = _get(part, name.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
    return part


def _written(value: Any) -> int:
    return len(json.dumps(value))
