"""Trees from files: plain or gzipped, a folder of them, those that match a pattern, those in a zip."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from legato.data.digests import sha256_of, sized
from legato.data.formats.trees import Tree, parse_trees
from legato.data.sources.files import FileOptions, decode, load_bytes, no_file, resolve_path, unify_newlines
from legato.data.sources.patterns import matching_files
from legato.data.sources.zips import IN_ZIP, zip_members
from legato.errors import DataError


@dataclass(frozen=True)
class Treebank:
    """Trees as their files have them, the files' names, and the hash that names their content."""

    trees: list[Tree]
    sources: list[str]
    sha256: str

    @cached_property
    def words(self) -> int:
        """Leaves over all trees, empty elements included."""
        return sum(len(tree.leaves) for tree in self.trees)


def read_trees(source: str | list[str], files: FileOptions = FileOptions()) -> Treebank:
    """The trees of a file (plain or .gz), of a folder's .mrg files, of a pattern, or of files in a zip.

    A pattern's `*`, `?` and `[0-9]` stand for parts of names, `**` for any folders. In a zip the files are
    named after a `!`, by a pattern too: `treebank.zip!treebank/combined/wsj_018*.mrg`; a zip alone means
    all its .mrg files. Files that one source names come in the order of their names; a list joins several
    sources.
    """
    trees: list[Tree] = []
    names: list[str] = []
    content: list[bytes] = []
    for name, data in (file for part in _listed(source) for file in _files(part, files.root)):
        text = unify_newlines(decode(Path(name), data, files.encoding))
        found = list(parse_trees(text, name))
        if not found:
            raise DataError(f"{name} holds no tree; give a file with trees in brackets")
        trees += found
        names.append(name)
        content += sized([text], partial(_name_of, name))
    return Treebank(trees, names, sha256_of(content))


def _name_of(file: str, row: int) -> str:
    return file


def _listed(source: str | list[str]) -> list[str]:
    sources = [source] if isinstance(source, str) else source
    if not sources:
        raise DataError("there is no source of trees; name a file, a folder or a pattern")
    return sources


def _files(source: str, root: str | None) -> Iterator[tuple[str, bytes]]:
    """The name and content of each file that a source names."""
    path = resolve_path(source, root)
    in_zip = IN_ZIP.fullmatch(source)
    if path.is_dir():
        found = sorted(
            file for file in path.rglob("*") if file.name.lower().endswith((".mrg", ".mrg.gz")) and file.is_file()
        )
        if not found:
            raise DataError(f"{path} has no .mrg file in it; name its files by a pattern, such as {path}/*.txt")
    elif path.suffix.lower() == ".zip" and path.exists():
        yield from zip_members(path, "**/*.mrg")
        return
    elif path.exists():
        found = [path]
    elif in_zip is not None:
        yield from zip_members(resolve_path(in_zip["zip"], root), in_zip["pattern"])
        return
    elif glob.has_magic(str(path)):
        found = matching_files(path)
        if not found:
            raise DataError(f"no file matches {path}; check the pattern, or set data.root to the folder it starts in")
    else:
        raise no_file(path)
    for file in found:
        yield str(file), load_bytes(file)
