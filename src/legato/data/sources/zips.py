"""Files in a zip, named by a pattern: `treebank.zip!treebank/combined/wsj_018*.mrg`."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from legato.data.sources.files import no_file
from legato.data.sources.patterns import matches
from legato.data.sources.unpacking import Budget
from legato.errors import DataError, listed
from legato.input_files import open_file

SHOWN = 3  # names in a message
IN_ZIP = re.compile(r"(?P<zip>.+\.zip)!(?P<pattern>.*)", re.IGNORECASE)


def zip_members(path: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """The files of a zip that match the pattern."""
    if not path.exists():
        raise no_file(path)
    name = str(path)
    try:
        with open_file(path) as packed, zipfile.ZipFile(packed) as archive:
            budget = Budget(str(path), os.fstat(packed.fileno()).st_size)
            files = sorted(info.filename for info in archive.infolist() if not info.is_dir())
            found = _matching(files, pattern)
            if not found:
                raise DataError(f"{path}: no file in it matches '{pattern}'{_hint(files, pattern)}")
            budget.check(sum(archive.getinfo(file).file_size for file in found))  # of none more is read than it says
            for file in found:
                name = f"{path}!{file}"
                with archive.open(file) as member:
                    yield name, budget.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as problem:
        reason = str(problem) or "it ends early"
        raise DataError(f"{name}: not a zip file, or damaged ({reason}); copy it again") from None
    except (NotImplementedError, RuntimeError) as problem:  # an unknown compression; a password
        raise DataError(f"{name} cannot be unpacked ({problem}); unpack it and name the folder") from None


def _matching(files: list[str], pattern: str) -> list[str]:
    return [file for file in files if matches(file.split("/"), pattern.split("/"))]


def _hint(files: list[str], pattern: str) -> str:
    """The end of a message about a pattern that matches nothing: what would, and what there is."""
    anywhere = f"**/{pattern}"
    better = len(_matching(files, anywhere))
    advice = f", but '{anywhere}' matches {better:,}" if better else ""
    return f"{advice}; it has {listed(files, SHOWN)}" if files else "; it is empty"
