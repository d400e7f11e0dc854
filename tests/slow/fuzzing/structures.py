"""Damage to what is structured, JSON and YAML: one entry becomes another, or the whole another shape."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Final

from fuzzing.values import near, value

RAW: Final = "\ue000raw\ue000"  # stands in a tree for text that no tree can say, until the tree is written

Change = Callable[[Any, random.Random], tuple[Any, dict[str, str]]]


def _place(tree: Any, draw: random.Random) -> tuple[Any, Any] | None:
    """A container in the tree and a key in it; as likely near the root as far from it."""
    found = None
    here = tree
    while isinstance(here, dict | list) and here:
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        found = here, key
        if draw.random() < 0.35:
            break
        here = here[key]
    return found


def _any_value(tree: Any, draw: random.Random) -> Any:
    place = _place(tree, draw)
    return tree if place is None else copy.deepcopy(place[0][place[1]])


def _replace(make: Callable[[Any, Any, random.Random], Any]) -> Change:
    def change(tree: Any, draw: random.Random) -> tuple[Any, dict[str, str]]:
        place = _place(tree, draw)
        if place is None:
            return make(tree, tree, draw), {}
        inside, key = place
        inside[key] = make(inside[key], tree, draw)
        return tree, {}

    return change


def _retyped(old: Any, tree: Any, draw: random.Random) -> Any:
    if isinstance(old, str):
        return draw.choice([[old], {"content": old}, len(old), list(old[:5])])
    if isinstance(old, dict):
        return draw.choice([list(old), list(old.values()), str(old)[:200], len(old)])
    if isinstance(old, list):
        return draw.choice([{str(n): item for n, item in enumerate(old)}, str(old)[:200], len(old), [old]])
    return draw.choice([str(old), [old], {"value": old}, not old])


def _nudged(old: Any, tree: Any, draw: random.Random) -> Any:
    if isinstance(old, bool) or old is None:
        return not old
    if isinstance(old, int | float):
        return near(old, draw)
    if isinstance(old, str):
        return draw.choice([old + "x", old[1:], old.upper(), old * 2, old + "\n", " " + old, old[: len(old) // 2]])
    items = list(old.items()) if isinstance(old, dict) else list(old)
    items = draw.choice([items[::-1], items[1:], items[:-1], items * 2, items[: len(items) // 2], items * 50])
    return dict(items) if isinstance(old, dict) else items


def _delete(tree: Any, draw: random.Random) -> tuple[Any, dict[str, str]]:
    place = _place(tree, draw)
    if place is not None:
        del place[0][place[1]]
    return tree, {}


def _rename(tree: Any, draw: random.Random) -> tuple[Any, dict[str, str]]:
    place = _place(tree, draw)
    if place is None or not isinstance(place[0], dict):
        return _delete(tree, draw)
    inside, key = place
    name = draw.choice([f"{key}x", str(key).upper(), "", "\ud800", "x" * 100_000, "__class__", str(key)[:-1]])
    inside[name] = inside.pop(key)
    return tree, {}


def _double_key(tree: Any, draw: random.Random) -> tuple[Any, dict[str, str]]:
    """The same key twice, which only text can say."""
    place = _place(tree, draw)
    if place is None or not isinstance(place[0], dict):
        return _delete(tree, draw)
    inside, key = place
    inside[RAW] = value(draw)
    return tree, {json.dumps(RAW): json.dumps(key)}


def _deep(tree: Any, draw: random.Random) -> tuple[Any, dict[str, str]]:
    place = _place(tree, draw)
    depth = draw.choice([20, 100, 5_000, 100_000])
    opening, closing = draw.choice([("[", "]"), ('{"x":', "}")])
    if place is not None:
        place[0][place[1]] = RAW
    return tree if place is not None else RAW, {json.dumps(RAW): opening * depth + "1" + closing * depth}


def _many(tree: Any, draw: random.Random) -> tuple[Any, dict[str, str]]:
    place = _place(tree, draw)
    made = draw.choice([[0] * 100_000, {f"k{n}": n for n in range(20_000)}, ["x" * 50] * 20_000])
    if place is None:
        return made, {}
    place[0][place[1]] = made
    return tree, {}


CHANGES: Final[dict[str, Change]] = {
    "value": _replace(lambda old, tree, draw: value(draw)),
    "retype": _replace(_retyped),
    "nudge": _replace(_nudged),
    "other": _replace(lambda old, tree, draw: _any_value(tree, draw)),
    "delete": _delete,
    "rename": _rename,
    "double-key": _double_key,
    "deep": _deep,
    "many": _many,
}


def change_json(text: str, kind: str, draw: random.Random) -> str:
    """The JSON text with one change."""
    tree, raw = CHANGES[kind](json.loads(text), draw)
    written = json.dumps(tree, ensure_ascii=draw.random() < 0.5 or not _is_text(tree))
    for mark, instead in raw.items():
        written = written.replace(mark, instead, 1).replace(json.dumps(RAW, ensure_ascii=False), instead, 1)
    return written


def change_yaml(text: str, kind: str, draw: random.Random) -> str:
    """The YAML text with one change; what YAML's writer cannot say is said as JSON, which YAML reads, too."""
    import yaml

    if kind == "snippet":
        lines = text.split("\n")
        lines.insert(draw.randrange(len(lines)), draw.choice(SNIPPETS))
        return "\n".join(lines)
    tree, raw = CHANGES[kind](yaml.safe_load(text), draw)
    if not raw and draw.random() < 0.8 and _is_text(tree):
        return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    written = json.dumps(tree)
    for mark, instead in raw.items():
        written = written.replace(mark, instead, 1)
    return written


SNIPPETS: Final = [
    "seed: !!python/object/apply:os.system ['true']",
    "seed: 2020-99-99",
    "seed: 2020-01-01",
    "seed: !!binary aGVsbG8=",
    "seed: !!set {a, b}",
    "expect: {perplexity: {}}",
    "expect: {2020-01-01: {at_most: .nan}}",
    "? [a, b]\n: c",
    "1: 2",
    "\tseed: 1",
    "seed: &a [*a]",
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\nseed: [*d,*d,*d,*d,*d,*d,*d,*d]",
    "a: &a [" + "x," * 9_000 + "]\nseed: [" + "*a," * 9_000 + "]",
    "m0: &m0 {x: 1}\n" + "\n".join(f"m{n}: &m{n} {{<<: [{','.join([f'*m{n - 1}'] * 10)}]}}" for n in range(1, 9)),
    'from: "a\\0b"',
    'out: "a\\0b"',
    "---\ntask: lm",
    "%YAML 9.9",
    "<<: 5",
    "seed: 0o99",
    "seed: 1:30:00",
    "data: none",
    "train: [1]",
    "model: {name: {name: lstm}}",
    "model.width: 8\nmodel: 5",
]


def _is_text(tree: Any) -> bool:
    try:
        json.dumps(tree, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
