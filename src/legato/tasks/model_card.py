"""The README of a model folder, as Hugging Face's model cards are: a head of YAML, and what a reader needs to know.

The licence is the base model's where its card states one; nobody else can say what it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from legato.data.sources.memory_tables import SCHEMES
from legato.models.base import count_parameters
from legato.models.published.heads import head_note
from legato.registry import TASKS

HEAD_BYTES: Final = 1 << 16  # of a base model's card that are read
LICENSE: Final = re.compile(r"^license:[ \t]*[\"']?([\w.-]{1,40})[\"']?[ \t]*$", re.MULTILINE)
CACHED: Final = re.compile(r"models--([\w.-]+?)--([\w.-]+)")  # a hub model's folder in the cache
HUB: Final = re.compile(r"hub:([\w.-]+/[\w.-]+)")


def model_card(
    model: Any,
    task: str,
    use: str,
    *,
    scores: Mapping[str, str],
    hashes: Mapping[str, str],
    data: Any,
    folder: Path | None,
) -> str:
    """What the model is, its licence, base model and data, how well it does, and how to use it.

    `data` is the task's section, whose splits have these `hashes`; `folder` is where the base model lies.
    """
    name, note = model.config.name, head_note(model)
    license = None if folder is None else license_of(folder)
    sources = {split: _names(getattr(data, split, None)) for split in hashes}
    head = {
        "library_name": "legato",
        "license": license,
        "pipeline_tag": TASKS.get(task).pipeline if task in TASKS else None,
        "base_model": None if folder is None else hub_name(folder),
        "datasets": sorted({found[1] for names in sources.values() for name in names if (found := HUB.match(name))}),
        "tags": ["legato", task],
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in scores.items())
    digests = "\n".join(
        f"- {split}: {''.join(map(_name_of, sources[split]))}sha256 `{digest}`" for split, digest in hashes.items()
    )
    origin = "" if folder is None else f" It began with `{hub_name(folder) or folder.name}`."
    terms = (
        "No licence is stated. Add `license:` at the top of this file before you publish the model."
        if license is None
        else f"The base model's licence is `{license}`. Check that it covers this model, and check that of the data."
    )
    elsewhere = "" if note is None else f"Note: {note}.\n\n"
    return (
        f"---\n{_yaml(head)}---\n\n# {name} for {task}\n\n"
        f"A model of {count_parameters(model):,} parameters, trained with Legato.{origin}\n\n"
        f"## Use\n\n```\n{use}\n```\n\n{elsewhere}"
        f"## Scores on the validation text\n\n| | |\n|---|---|\n{rows}\n\n## Data\n\n{digests}\n\n"
        f"## Licence\n\n{terms}\n"
    )


def license_of(folder: Path) -> str | None:
    """The licence that the head of a folder's card states."""
    with suppress(OSError), (folder / "README.md").open("rb") as file:
        text = file.read(HEAD_BYTES).decode("utf-8", "replace")
        if text.startswith("---\n") and (found := LICENSE.search(text.split("\n---", 1)[0])):
            return found[1]
    return None


def hub_name(folder: Path) -> str | None:
    """The name on the hub of a model whose folder lies in the hub's cache.

    >>> hub_name(Path("/cache/models--distilbert--distilbert-base-uncased/snapshots/12ab"))
    'distilbert/distilbert-base-uncased'
    """
    found = next((found for part in folder.parts if (found := CACHED.fullmatch(part))), None)
    return None if found is None else f"{found[1]}/{found[2]}"


def _names(source: str | Sequence[str] | None) -> Sequence[str]:
    """The names of a split's files."""
    return [source] if isinstance(source, str) else source or []


def _name_of(source: str) -> str:
    """A file's name without its folders, which are of one machine."""
    return f"`{source if source.startswith(SCHEMES) else Path(source).name}`, "


def _yaml(head: Mapping[str, str | list[str] | None]) -> str:
    lines = []
    for key, value in head.items():
        if isinstance(value, list) and value:
            lines += [f"{key}:", *(f"- {each}" for each in value)]
        elif value:
            lines.append(f"{key}: {value}")
    return "".join(f"{line}\n" for line in lines)
