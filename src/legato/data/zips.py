"""Files in a zip, named by a pattern: `treebank.zip!treebank/combined/wsj_018*.mrg`."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from legato.data.files import no_file
from legato.errors import DataError, listed

SHOWN = 3  # names in a message
IN_ZIP = re.compile(r"(?P<zip>.+\.zip)!(?P<pattern>.*)", re.IGNORECASE)


def zip_members(path: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """The files of a zip that match the pattern."""
    if not path.is_file():
        raise no_file(path)
    name = str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            files = sorted(info.filename for info in archive.infolist() if not info.is_dir())
            found = _matching(files, pattern)
            if not found:
                raise DataError(f"{path}: no file in it matches '{pattern}'{_hint(files, pattern)}")
            for file in found:
                name = f"{path}!{file}"
                yield name, archive.read(file)
    except PermissionError:
        raise DataError(f"{path} may not be read by this user; change its permissions") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as problem:
        reason = str(problem) or "it ends early"
        raise DataError(f"{name}: not a zip file, or damaged ({reason}); copy it again") from None
    except (NotImplementedError, RuntimeError) as problem:  # an unknown compression; a password
        raise DataError(f"{name} cannot be unpacked ({problem}); unpack it and name the folder") from None


def _matching(files: list[str], pattern: str) -> list[str]:
    return [file for file in files if _matches(file.split("/"), pattern.split("/"))]


def _hint(files: list[str], pattern: str) -> str:
    """The end of a message about a pattern that matches nothing: what would, and what there is."""
    anywhere = f"**/{pattern}"
    better = len(_matching(files, anywhere))
    advice = f", but '{anywhere}' matches {better:,}" if better else ""
    return f"{advice}; it has {listed(files, SHOWN)}" if files else "; it is empty"


def _matches(parts: list[str], patterns: list[str]) -> bool:
    """Whether a name matches folder by folder, so that `*` stays within one; `**` is any number of them."""
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_matches(parts[skipped:], patterns[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])
