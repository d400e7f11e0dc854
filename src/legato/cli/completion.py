"""What a shell offers behind `legato train` when a person presses the tabulator: tasks, settings, and their values.

The settings are those that `--keys` lists. Listing them takes seconds, so they are kept in the cache, in a file for
each task and model, until a file of the package changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

# Settings of files and folders.
PLACES: Final = (
    "data.train",
    "data.valid",
    "data.test",
    "data.root",
    "train",
    "valid",
    "test",
    "from",
    "out",
    "resume",
)
PLAIN: Final = re.compile(r"[\w.,@%+:/=-]+")  # names that no shell's script evaluates or splits
BESIDE: Final = ("resume",)  # what a command takes beside the settings of a run

Row = list[str]  # a setting's name, default, values and meaning


def complete_what(ctx: Any, incomplete: str) -> list[tuple[str, str] | str]:
    """Tasks, recipes and files for the first word of `legato train`."""
    with suppress(Exception):  # nobody is there to read of it
        from legato.registry import TASKS

        return [*(name for name in [*TASKS.names(), *_recipes(), *_paths(incomplete)] if name.startswith(incomplete))]
    return []


def complete_setting(ctx: Any, incomplete: str) -> list[tuple[str, str] | str]:
    """Settings, and behind an equals sign the values, for the words behind a task."""
    with suppress(Exception):
        words = [
            word for value in ctx.params.values() for word in (value if isinstance(value, list | tuple) else [value])
        ]
        return _complete([word for word in words if isinstance(word, str)], incomplete)
    return []


def _complete(words: Sequence[str], incomplete: str) -> list[tuple[str, str] | str]:
    words = _joined(words)
    rows = {row[0]: row for row in _rows(words)}
    short = {name.rpartition(".")[2]: row for name, row in reversed(rows.items())}
    last = words[-1] if words else ""
    if last.endswith("=") or last in rows or last in short:  # bash parts a word at the sign
        key = last.removesuffix("=")
        return [*_values(rows.get(key) or short.get(key), key, incomplete)]
    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={one}" for one in _values(rows.get(key) or short.get(key), key, value)]
    fitting = {name: row for name, row in rows.items() if name.startswith(incomplete)}
    fitting = fitting or {name: row for name, row in short.items() if name.startswith(incomplete)}
    if len(fitting) == 1:  # with what it may be, so that the shell puts no space behind the sign
        name, row = next(iter(fitting.items()))
        return [f"{name}={one}" for one in _values(row, name, "") or dict.fromkeys(("", row[1]))]
    return [*((f"{name}=", row[3]) for name, row in fitting.items()), *(_paths(incomplete) if incomplete else [])]


def _joined(words: Sequence[str]) -> list[str]:
    """Words of which bash has made three, `model`, `=` and `lstm`, as one."""
    result: list[str] = []
    for word in words:
        if word == "=" and result:
            result[-1] += "="
        elif result and result[-1].endswith("="):
            result[-1] += word
        else:
            result.append(word)
    return result


def _values(row: Row | None, key: str, value: str) -> list[str]:
    """What a setting may be that begins so."""
    choices = row[2].split(" | ") if row is not None and " | " in row[2] else []
    if key in PLACES:
        choices = _paths(value)
    elif key == "model" or key.endswith(".encoder"):
        from legato.registry import MODELS

        choices = MODELS.names()
    elif key == "device":
        choices = ["auto", "cpu", "cuda", "mps"]
    return [choice for choice in choices if choice.startswith(value)]


def _paths(start: str) -> list[str]:
    """The files and folders whose names begin so."""
    folder = Path(os.path.dirname(start) or ".")
    with suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if PLAIN.fullmatch(name))
        places = [os.path.join(os.path.dirname(start), name) for name in names if not name.startswith(".")]
        return [f"{place}/" if os.path.isdir(place) else place for place in places if place.startswith(start)]
    return []


def _recipes() -> list[str]:
    folder = Path(__file__).parent.parent / "recipes"
    return sorted(f"{file.parent.name}/{file.stem}" for file in folder.glob("*/*.yaml"))


def _rows(words: Sequence[str]) -> Iterator[Row]:
    """The settings of the task that the words name, with the model that they set."""
    from legato.registry import TASKS

    task = next((word for word in words if word in TASKS), None)
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    if task is None:
        from legato.runs.recipes import find_recipe, task_named

        recipe = next((recipe for word in words if (recipe := find_recipe(word)) is not None), {})
        task = next((task for word in words if (task := task_named(word))), None) or recipe.get("task")
        model = recipe.get("model")
        settings = {"model": str(model.get("name", "")) if isinstance(model, dict) else "", **settings}
    if not isinstance(task, str):
        return
    for row in _stored_rows(task, settings.get("model") or settings.get("model.name") or ""):
        section, _, name = row[0].rpartition(".")
        yield [section if name == "name" else row[0], *row[1:]]
    yield from ([name, "", "", "a run to go on with"] for name in BESIDE)


def _stored_rows(task: str, model: str) -> list[Row]:
    """The settings of a task and model, from the cache or listed anew."""
    import json

    from legato.output_files import cache_folder, replacing_file
    from legato.registry import MODELS

    model = model if model in MODELS else ""
    place = cache_folder() / f"settings-{task}-{model or 'default'}.json"
    stamp = _stamp()
    with suppress(OSError, ValueError, TypeError, KeyError):
        stored = json.loads(place.read_text(encoding="utf-8"))
        if stored["stamp"] == stamp:
            rows: list[Row] = stored["rows"]
            return rows
    from legato.runs.config import describe_settings

    named = {"task": task, "model": {"name": model}} if model else {"task": task}
    rows = [[row.key, row.default, row.values, row.meaning] for row in describe_settings(named)]
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(place) as fresh:
            fresh.write_text(json.dumps({"stamp": stamp, "rows": rows}), encoding="utf-8")
    return rows


def _stamp() -> int:
    """The time of the newest change in the package."""
    package = Path(__file__).parent.parent
    return max(
        os.stat(os.path.join(place, name)).st_mtime_ns
        for place, _, names in os.walk(package)
        for name in names
        if name.endswith(".py")
    )
