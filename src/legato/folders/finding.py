"""Which folder a name means: a model's own, a run's best model, or one from the Hugging Face hub; or a GGUF file.

A name on the hub is `org/name`, or `org/name@revision`. What a model needs is downloaded once, into the cache that
all of Hugging Face's libraries share (`HF_HOME` moves it), and read from there when the hub cannot be reached or
`HF_HUB_OFFLINE=1` is set. Pickles and code are never fetched.

Nothing here imports PyTorch, so that a slip in a name is told at once.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from legato.data.sources.hub_access import offline_where_unreachable
from legato.errors import FolderError
from legato.folders.atomic import OLD
from legato.folders.file_names import MODULES, WEIGHTS
from legato.folders.links import leads_out
from legato.folders.steady import find_and_read
from legato.input_files import near_path, path_of

# A folder's files that are read here; `*` goes into subfolders, where sentence encoders keep some of theirs.
WANTED: Final = [
    *("*.json", "model*.safetensors", "*/model*.safetensors", "adapter_model.safetensors"),
    *("*.txt", "*.jinja", "*.spm", "*.model"),
]
# The same weights for other programs.
LEFT: Final = ["onnx/*", "openvino/*", "original/*", "coreml/*", "*.bin", "*.msgpack", "*.h5"]
NAME: Final = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*|\w[\w.-]*)(@(?P<revision>[\w./-]+))?", re.ASCII)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds only what was trained of a model (adapters/), or an adapter of peft's."""
    return not (folder / "config.json").is_file() and any(
        (folder / name).is_file() for name in ("legato.json", "adapter_config.json")
    )


def find_model(place: str | Path) -> Path:
    """The model folder behind a path: the folder itself, or a run's `best`, or its `last`; else a hub name's.

    A GGUF file is a whole model, and stands for itself.
    """
    folder = _place_here(place)
    if folder is not None and folder.is_file():
        from legato.folders.gguf.header import is_gguf

        if is_gguf(folder):
            return folder
        raise FolderError(f"{folder} is no model folder, nor a GGUF file")
    return _model_in(fetch(place) if folder is None else folder)


def check_place(place: str | Path) -> None:
    """Refuse a place where no model is, before anything takes long; the hub is not asked, and no file is opened."""

    def look() -> Path:
        folder = _place_here(place)
        if folder is None:
            _hub_model(place)
        elif not folder.is_file():
            _model_in(folder)
        return path

    path = path_of(place, error=FolderError)
    find_and_read(path, look, lambda found: None)


def _place_here(place: str | Path) -> Path | None:
    """The folder or file at a path, or what a kill between two renames left of it; None where there is none."""
    folder = path_of(place, error=FolderError)
    if folder.exists():
        return folder
    aside = folder.with_name(f"{OLD}{folder.name}") if folder.name else folder
    return aside if aside.is_dir() else None


def _model_in(folder: Path) -> Path:
    """The folder itself, or the one of a run's models that is asked for."""
    # Such a kill leaves the best model under its other name until the run is resumed.
    for candidate in (folder, folder / "best", folder / f"{OLD}best", folder / "last", folder / f"{OLD}last"):
        if (candidate / "config.json").exists() or (candidate / MODULES).exists() or is_adapter(candidate):
            if leads_out(candidate, folder):
                raise FolderError(f"{candidate} is a link out of the run's folder; name the model's own folder")
            return candidate
    if (folder / WEIGHTS).is_file():  # some are published alone, and are known by their tensors
        return folder
    if (folder / "config.yaml").exists():
        raise FolderError(f"{folder} is a run that has not saved a model yet")
    files = sorted(file.name for file in folder.glob("*.gguf"))
    inside = f"; {files[0]} in it is a model by itself: name that file" if files else ""
    raise FolderError(f"{folder} is no model folder: it has no config.json{inside}")


def hub_name(place: str | Path) -> tuple[str, str | None] | None:
    """The model and the revision that a hub name says; None for what is none, such as /a/b or a/b/c.

    >>> hub_name("org/name@v1.0"), hub_name("runs/x/best")
    (('org/name', 'v1.0'), None)
    """
    found = NAME.fullmatch(str(place))
    if found is None or ".." in found["name"] or "--" in found["name"] or len(found["name"]) > 96:
        return None
    return found["name"], found["revision"]


def _hub_model(place: str | Path) -> tuple[str, str | None, str]:
    """The model and the revision to ask the hub for, and what is here that may be meant instead."""
    asked = hub_name(place)
    path = path_of(place, error=FolderError)
    file = path.suffix.lower() == ".gguf"
    near = near_path(path, folder=not file)
    meant = "" if near is None else f"; did you mean '{near}'?"
    if file:
        meant = meant or "; one on the hub has to be fetched first: hf download ORG/NAME FILE.gguf"
        raise FolderError(f"there is no file {place}{meant}")
    if asked is None:
        raise FolderError(f"there is no folder {place}{meant}")
    name, revision = asked
    first = name.partition("/")[0]
    if "/" in name and Path(first).is_dir():  # a slip in `runs/x` should not go out to the hub
        unasked = meant or f"; since {first} is a folder here, the hub was not asked"
        raise FolderError(f"there is no folder {place}{unasked}")
    return name, revision, meant


def fetch(place: str | Path) -> Path:
    """The folder of the model that `place` names on the hub, downloaded or from the cache."""
    name, revision, meant = _hub_model(place)
    from huggingface_hub import snapshot_download

    # A slip in the name of a folder that is here should not, either; but what was fetched once is no slip.
    slip = bool(meant) and revision is None
    try:
        with offline_where_unreachable() if not slip else nullcontext():
            found = snapshot_download(
                name, revision=revision, allow_patterns=WANTED, ignore_patterns=LEFT, local_files_only=slip
            )
    except Exception as problem:  # the library's own, its transport's and the operating system's
        if slip:
            raise FolderError(f"there is no folder {place}{meant} (a model on the hub: {name}@main)") from None
        run = Path("runs") / name
        meant = f"; did you mean '{run}'?" if run.is_dir() else ""
        raise FolderError(f"there is no folder {place}, and {_explain(problem, name, revision)}{meant}") from problem
    folder = Path(found)
    if not any(folder.rglob("*.safetensors")):
        raise FolderError(
            f"{place} on the hub has no safetensors; its weights may be pickles, which are refused since they may "
            f"run any code: try another revision, such as {name}@refs/pr/1, or another model; of GGUF files fetch "
            f"one and name it: hf download {name} FILE.gguf"
        )
    return folder


def _explain(problem: Exception, name: str, revision: str | None) -> str:
    from huggingface_hub import constants, errors

    if isinstance(problem, errors.GatedRepoError):
        return f"{name} on the hub is given only to those who asked for it: see https://huggingface.co/{name}"
    if isinstance(problem, errors.RevisionNotFoundError):
        return f"{name} on the hub has no revision '{revision}'"
    if isinstance(problem, errors.RepositoryNotFoundError):
        return f"the hub has no model '{name}' (or it is private: log in with 'hf auth login')"
    if isinstance(problem, getattr(errors, "IncompleteSnapshotError", ())):  # newer versions have it
        return f"of {name} only a part is in the cache, and the hub cannot be reached for the rest"
    if isinstance(problem, errors.LocalEntryNotFoundError):
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        return f"{name} is not in the cache of models from the hub: {why}"
    if isinstance(problem, OSError) and not isinstance(problem, errors.HfHubHTTPError) and problem.errno is not None:
        return f"{name} could not be downloaded: {problem.strerror}"
    said = (str(problem) or type(problem).__name__).splitlines()[0]
    return f"{name} could not be fetched from the hub: {said}"
