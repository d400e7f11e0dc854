"""Damage to any file: what can be done to it follows from what is in it, not from its name.

A file of a kind that nobody thought of is still text or bytes, and still a file: it may be cut, be a folder, a pipe,
a link to elsewhere, or missing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fuzzing import containers, lines, structures

BYTES: Final = ("flip", "cut", "zero-tail", "extend", "insert")
FILES: Final = ("empty", "missing", "folder", "fifo", "zero", "outside", "dangling", "loop")
SECRET: Final = "what nobody may copy: 4f1c8e0b97"


def content_of(content: bytes) -> str:
    """What a file's content is: the name of the structure that its damage can follow."""
    if content[:2] == b"PK":
        return "zip"
    if content[:2] == b"\x1f\x8b":
        return "gzip"
    if content[:4] == b"PAR1":
        return "parquet"
    if content[:6] == b"\x93NUMPY":
        return "npy"
    if containers.safetensors_header(content) is not None:
        return "safetensors"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes"
    if _is_json(text):
        return "json"
    rows = [line for line in text.split("\n") if line.strip()]
    if rows and all(line[0] in "[{" and _is_json(line) for line in rows[:20]):
        return "jsonl"
    return "yaml" if _is_yaml(text) else "text" if "\x00" not in text else "bytes"


def kinds_of(content: bytes) -> list[str]:
    """Every kind of damage that a file with this content can take."""
    structure = content_of(content)
    known: dict[str, tuple[str, ...]] = {
        "zip": containers.ZIP,
        "gzip": containers.GZIP,
        "parquet": containers.PARQUET,
        "npy": containers.NPY,
        "safetensors": containers.SAFETENSORS,
        "json": tuple(structures.CHANGES),
        "jsonl": tuple(structures.CHANGES),
        "yaml": (*structures.CHANGES, "snippet"),
    }
    found = [f"{structure}.{kind}" for kind in known.get(structure, ())]
    if structure in ("text", "jsonl", "yaml"):
        found += [f"text.{kind}" for kind in lines.KINDS]
    return found + [f"bytes.{kind}" for kind in BYTES] + [f"file.{kind}" for kind in FILES]


def damage(path: Path, kind: str, draw: random.Random) -> None:
    """Damage a file where it lies."""
    family, _, what = kind.partition(".")
    if family == "file":
        _change_file(path, what)
    else:
        path.write_bytes(changed(path.read_bytes(), kind, draw))


def changed(content: bytes, kind: str, draw: random.Random) -> bytes:
    """The content with one change of a kind that `kinds_of` named."""
    family, _, what = kind.partition(".")
    if family == "bytes":
        return _change_bytes(content, what, draw)
    if family == "text":
        return lines.change_text(content.decode("utf-8", "replace"), what, draw)
    if family == "json":
        return structures.change_json(content.decode("utf-8"), what, draw).encode("utf-8", "surrogatepass")
    if family == "yaml":
        return structures.change_yaml(content.decode("utf-8"), what, draw).encode("utf-8", "surrogatepass")
    if family == "jsonl":
        rows = content.decode("utf-8").split("\n")
        which = draw.choice([number for number, row in enumerate(rows) if row.strip()])
        rows[which] = structures.change_json(rows[which], what, draw)
        return "\n".join(rows).encode("utf-8", "surrogatepass")
    what = what.partition("-")[0] if family in ("gzip", "zip", "parquet") else what  # told apart to be counted apart
    contained: dict[str, Callable[[], bytes]] = {
        "safetensors": lambda: containers.change_safetensors(content, what, draw),
        "gzip": lambda: containers.change_gzip(content, what, draw, _inside),
        "zip": lambda: containers.change_zip(content, what, draw, _inside),
        "parquet": lambda: containers.change_parquet(content, what, draw),
        "npy": lambda: containers.change_npy(content, what, draw),
    }
    return contained[family]()


def _inside(content: bytes, draw: random.Random) -> bytes:
    """What a container holds, damaged in any way that its content allows."""
    kinds = [kind for kind in kinds_of(content) if not kind.startswith("file.")]
    return changed(content, draw.choice(kinds), draw)


def _change_bytes(content: bytes, kind: str, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    if kind == "flip":
        flipped = bytearray(content)
        for _ in range(draw.choice([1, 1, 8])):
            if flipped:
                flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    if kind == "cut":
        return content[:place]
    if kind == "zero-tail":
        return content[:place] + bytes(len(content) - place)
    if kind == "extend":
        return content + draw.choice([b"\x00" * 4096, content[:1000], b"x", b"\n" * 1000, draw.randbytes(64)])
    return content[:place] + draw.randbytes(draw.choice([1, 16, 300])) + content[place:]


def _change_file(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "outside":
        path.symlink_to(_root(path) / "outside" / "secret.txt")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind != "missing":
        raise ValueError(kind)


def _root(path: Path) -> Path:
    """The case's folder, which holds `in`, where everything lies, and `outside`."""
    return next(parent for parent in path.parents if (parent / "outside").is_dir())


def prepare_outside(root: Path) -> None:
    """What a case must neither change nor copy."""
    outside = root / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir(parents=True)
    (outside / "secret.txt").write_text(f"{SECRET}\n" * 3)
    (outside / "zero").symlink_to("/dev/zero")
    os.mkfifo(outside / "pipe")


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _is_yaml(text: str) -> bool:
    import yaml

    if (": " not in text and ":\n" not in text) or len(text) > 100_000:
        return False
    try:
        return isinstance(yaml.safe_load(text), dict)
    except (yaml.YAMLError, ValueError):
        return False
