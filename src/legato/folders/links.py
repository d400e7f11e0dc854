"""No path out of a model folder: what lies elsewhere is never read as a part of it, nor copied with it.

A folder comes from whoever made it, and a symbolic link in it may lead to anything that this user can read. Links
within a folder are plain. Of those that lead out, one kind is known: in the cache of Hugging Face's hub,

    models--ORG--NAME/snapshots/REVISION/FILE   is a link to   models--ORG--NAME/blobs/HASH
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from legato.errors import FolderError
from legato.input_files import KINDS


def refuse_links_out(folder: Path) -> None:
    """Refuse a folder in which a link, however deep, leads out of it."""
    root = Path(os.path.realpath(folder))
    for path in walk(root):
        if path.is_symlink():
            _check(path, root, folder)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a model folder into one that is there: files as files, never as links; what is hidden stays behind."""
    root = Path(os.path.realpath(source))
    for path in walk(root):
        below = path.relative_to(root)
        if any(part.startswith(".") for part in below.parts):
            continue
        if path.is_symlink():
            _check(path, root, source)
        mode = path.stat().st_mode if path.exists() else 0
        if stat.S_ISDIR(mode) and not path.is_symlink():
            (target / below).mkdir(exist_ok=True)
        elif stat.S_ISREG(mode):
            shutil.copyfile(path, target / below)
        else:
            kind = "a link to a folder" if stat.S_ISDIR(mode) else KINDS.get(stat.S_IFMT(mode), "a link to nothing")
            raise FolderError(f"{source / below} is {kind}, which cannot be copied; remove it, or put a file there")


def refuse_link(path: Path) -> None:
    """Refuse to write where a link is: what it leads to is another's, or another part of the same folder."""
    if path.is_symlink():
        raise FolderError(
            f"{path} is a link to {os.readlink(path)}, and nothing is written through a link; put a copy of what "
            "it leads to in its place, or remove it"
        )


def leads_out(path: Path, folder: Path) -> bool:
    """Whether what is at `path`, in `folder`, lies elsewhere."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def walk(root: Path) -> Iterator[Path]:
    """Everything below a folder, each folder before what is in it; links are not followed."""
    for place, inner, files in os.walk(root):
        inner.sort()
        for name in (*inner, *sorted(files)):
            yield Path(place, name)


def _check(link: Path, root: Path, folder: Path) -> None:
    if leads_out(link, root) and Path(os.path.realpath(link)).parent != _blobs(root):
        raise FolderError(
            f"{folder / link.relative_to(root)} is a link to {os.readlink(link)}, outside of the folder; a model's "
            "files lie in its folder: put a copy there, if that file is meant"
        )


def _blobs(root: Path) -> Path | None:
    """Where the hub's cache has the files of a snapshot that `root` is, or is in."""
    for place in (root, *root.parents):
        if place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--"):
            return place.parent.parent / "blobs"
    return None
