"""The built-in corpus, `builtin:stdlib`: text that every Python carries, so nothing is downloaded.

Half of it is English (the language reference's topics, as `help()` shows them) and the rest is code
(sources of well-known standard modules). It differs between Python versions, which is why a run
records its hash; for one version it is always the same.

A document belongs to one split as a whole. Documents are walked in the order of a hash of their
names, each kind by itself, and fill 5% of that kind's characters for validation, then 5% for
testing; what does not fit trains. So every split holds both kinds whichever modules are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final

from legato.data.sources.files import SPLITS
from legato.errors import DataError, suggest

HELD_OUT = 0.05
MODULES: Final = (
    *("argparse", "ast", "calendar", "configparser", "contextlib", "copy", "csv", "dataclasses", "difflib"),
    *("doctest", "enum", "fractions", "functools", "gettext", "heapq", "inspect", "mimetypes", "pickle", "pprint"),
    *("queue", "random", "shlex", "shutil", "socketserver", "statistics", "subprocess", "tarfile", "tempfile"),
    *("textwrap", "threading", "tokenize", "traceback", "uuid", "weakref"),
)


def stdlib_corpus(split: str) -> list[str]:
    """The documents of one split: topics first, then modules, each in alphabetical order."""
    if split not in SPLITS:
        raise DataError(f"the built-in corpus has no split '{split}'; {suggest(split, SPLITS)}")
    from pydoc_data.topics import topics

    documents: list[str] = []
    for kind in ({name: text for name, text in topics.items() if text}, _sources()):
        homes = _assign(kind)
        documents += [kind[name] for name in sorted(kind) if homes[name] == split]
    return documents


def _sources() -> dict[str, str]:
    sources = {}
    for name in MODULES:
        # Asking the loader, of which not every kind has the text, reads the file without running the module.
        spec = find_spec(name)
        read = getattr(spec.loader, "get_source", None) if spec else None
        text = read(name) if read else None
        if text:
            sources[name] = text
    return sources


def _assign(documents: dict[str, str]) -> dict[str, str]:
    """Each document's split."""
    share = HELD_OUT * sum(map(len, documents.values()))
    room = {"valid": share, "test": share}
    homes = {}
    for name in sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest()):
        size = len(documents[name])
        home = next((split for split, left in room.items() if size <= left), "train")
        if home in room:
            room[home] -= size
        homes[name] = home
    return homes


CORPORA: Final[dict[str, Callable[[str], list[str]]]] = {"stdlib": stdlib_corpus}
CORPUS_SOURCES: Final = tuple(f"builtin:{name}" for name in CORPORA)
