"""JSON with one value in the wrong: what a slip, a strange program or somebody's malice makes of a good file."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

GONE: Final = object()
INSIDE: Final = object()  # the value itself, in a list
VALUES: Final[tuple[Any, ...]] = (
    *(None, True, -1, 0, 0.5, 10**9, 10**25, 1e308, float("nan"), "", "x", "x" * 5000, "\ud800", "\0", "../.."),
    *([], {}, [[]], [1], ["x"], {"a": 1}, GONE, INSIDE),
)
Path_ = tuple[str | int, ...]


def paths(value: Any, here: Path_ = (), most: int = 30) -> Iterator[Path_]:
    """The way to every value; of long lists and objects, to the first ones."""
    yield here
    if isinstance(value, dict | list):
        for key in list(value if isinstance(value, dict) else range(len(value)))[:most]:
            yield from paths(value[key], (*here, key), 3)


def changed(value: Any, path: Path_, new: Any) -> Any:
    """`value` with another one at `path`."""
    if not path:
        return [value] if new is INSIDE else {} if new is GONE else new
    whole = at = copy.deepcopy(value)
    for key in path[:-1]:
        at = at[key]
    if new is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = [at[path[-1]]] if new is INSIDE else new
    return whole


def mutations(file: Path, each: int) -> Iterator[tuple[str, str]]:
    """Texts for a JSON file, each with what is wrong with it: `each` a place, in turn of all that there are."""
    value = json.loads(file.read_text(encoding="utf-8"))
    turn = 0
    for path in paths(value):
        for _ in range(each):
            new = VALUES[turn % len(VALUES)]
            turn += 1
            what = "gone" if new is GONE else "in a list" if new is INSIDE else ascii(new)[:40]
            yield json.dumps(changed(value, path, new)), f"{file.name}: {'.'.join(map(str, path))} {what}"
