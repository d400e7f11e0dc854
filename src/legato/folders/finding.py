"""Which folder a name means: a model's own, a run's best model, or one from the hub."""

from __future__ import annotations

from pathlib import Path

from legato.errors import FolderError
from legato.folders.atomic import OLD
from legato.folders.hub import fetch
from legato.folders.links import leads_out
from legato.folders.sentence_encoder import MODULES
from legato.input_files import path_of


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds only what was trained of a model (adapters/), or an adapter of peft's."""
    return not (folder / "config.json").is_file() and any(
        (folder / name).is_file() for name in ("legato.json", "adapter_config.json")
    )


def find_model(place: str | Path) -> Path:
    """The model folder behind a path: the folder itself, or a run's `best`, or its `last`; else a hub name's."""
    folder = path_of(place, error=FolderError)
    aside = folder.with_name(f"{OLD}{folder.name}") if folder.name else folder
    if not folder.exists():
        folder = aside if aside.is_dir() else fetch(place)
    # A kill between two renames leaves the best model under its other name until the run is resumed.
    for candidate in (folder, folder / "best", folder / f"{OLD}best", folder / "last", folder / f"{OLD}last"):
        if (candidate / "config.json").exists() or (candidate / MODULES).exists() or is_adapter(candidate):
            if leads_out(candidate, folder):
                raise FolderError(f"{candidate} is a link out of the run's folder; name the model's own folder")
            return candidate
    if (folder / "config.yaml").exists():
        raise FolderError(f"{folder} is a run that has not saved a model yet")
    raise FolderError(f"{folder} is no model folder: it has no config.json")
