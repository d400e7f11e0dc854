"""The folders that checkpoints are, by their names and files alone, so that nothing here imports PyTorch."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from legato.folders.atomic import OLD, OWN, recover
from legato.output_files import NEW

STEP = re.compile(r"step-(\d+)$")
TENSORS = ("weights", "optimizer", "average", "random")  # what a `Checkpoint` calls them, and so do its files
FILES = (*(f"{name}.safetensors" for name in (*TENSORS, "stream")), "progress.json")
MANIFEST = "manifest.json"  # the checksums of those


def is_checkpoint(place: Path) -> bool:
    """Whether a folder was written here, by what it holds; its name alone anybody could have given."""
    return not place.is_symlink() and (place / MANIFEST).is_file()


def holds_checkpoint(folder: Path) -> bool:
    """Whether a checkpoint lies in a folder, be it under the name that it has while another takes its place."""
    return folder.is_dir() and any(is_checkpoint(path) for path in folder.iterdir() if STEP.search(path.name))


def remove_checkpoint(place: Path) -> None:
    """Remove a checkpoint's own files, and the folder unless somebody put others there; its manifest last.

    So a kill in between leaves what is still known as a checkpoint, and goes next time.
    """
    with suppress(OSError):
        for name in (*FILES, MANIFEST):
            (place / name).unlink(missing_ok=True)
        place.rmdir()


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if STEP.match(path.name)]
    return sorted(found, key=step_of)


def step_of(place: Path) -> int:
    return int(place.name.removeprefix("step-"))


def sweep(folder: Path) -> None:
    """Remove what a kill left half-written, and put back what had stepped aside for it."""
    if folder.is_dir():
        for path in list(folder.iterdir()):
            for prefix in (NEW, OLD, OWN):
                name = path.name.removeprefix(prefix)
                if path.name.startswith(prefix) and STEP.match(name):
                    recover(folder / name)
        for path in list_checkpoints(folder):
            with suppress(OSError):
                path.rmdir()  # which only an empty one allows: the last of what was removed
