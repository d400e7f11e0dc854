"""Files in a zip, named by a pattern: `treebank.zip!treebank/combined/wsj_018*.mrg`."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from legato.data.sources.files import no_file
from legato.data.sources.patterns import matches
from legato.data.sources.unpacking import Budget
from legato.errors import DataError, listed
from legato.input_files import open_file
from legato.schema import MAX_DEPTH

SHOWN = 3  # names in a message
IN_ZIP = re.compile(r"(?P<zip>.+\.zip)!(?P<pattern>.*)", re.IGNORECASE)


def zip_members(path: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """The files of a zip that match the pattern."""
    from fsspec.implementations.zip import ZipFileSystem

    if not path.exists():
        raise no_file(path)
    name = str(path)
    try:
        with open_file(path) as packed:
            budget = Budget(str(path), os.fstat(packed.fileno()).st_size)
            archive = ZipFileSystem(packed)
            if any(
                file.count("/") > MAX_DEPTH for file in archive.zip.namelist()
            ):  # it keeps each one's every folder
                raise DataError(f"{path}: a file in it lies in more than {MAX_DEPTH} folders; unpack it")
            sizes = {file: info["size"] for file, info in archive.find("", detail=True).items()}
            found = _matching(sizes, pattern)
            if not found:
                raise DataError(f"{path}: no file in it matches '{pattern}'{_hint(sizes, pattern)}")
            budget.check(sum(sizes[file] for file in found))  # of none more is read than it says
            for file in found:
                name = f"{path}!{file}"
                with archive.open(file) as member:
                    yield name, budget.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as problem:
        reason = str(problem) or "it ends early"
        raise DataError(f"{name}: not a zip file, or damaged ({reason}); copy it again") from None
    except (NotImplementedError, RuntimeError) as problem:  # an unknown compression; a password
        raise DataError(f"{name} cannot be unpacked ({problem}); unpack it and name the folder") from None


def _matching(files: Iterable[str], pattern: str) -> list[str]:
    return [file for file in sorted(files) if matches(file.split("/"), pattern.split("/"))]


def _hint(files: Iterable[str], pattern: str) -> str:
    """The end of a message about a pattern that matches nothing: what would, and what there is."""
    anywhere = f"**/{pattern}"
    better = len(_matching(files, anywhere))
    advice = f", but '{anywhere}' matches {better:,}" if better else ""
    return f"{advice}; it has {listed(sorted(files), SHOWN)}" if files else "; it is empty"
