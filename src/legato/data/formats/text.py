"""Text from files, the built-in corpus and the hub.

A plain file is one document; a column of csv, tsv, jsonl or parquet gives one document per row. How
files are opened and decoded is in `files.py`, how they are cut into columns in `tables.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from legato.data.digests import sha256_of, sized
from legato.data.sources.columns import TEXT
from legato.data.sources.corpora import CORPORA, CORPUS_SOURCES
from legato.data.sources.files import FileOptions, load_text, resolve_path, unify_newlines
from legato.data.sources.patterns import Source, source_files, source_name
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import kind_of, locate, read_table
from legato.data.splits import by_order
from legato.errors import DataError, brief, suggest


@dataclass(frozen=True)
class Text:
    """Documents, where they came from, and the hash that names their content."""

    source: str
    documents: list[str]
    sha256: str

    @classmethod
    def of(cls, source: str, documents: list[str]) -> Text:
        """These documents, with the hash of their content."""
        return cls(source, documents, sha256_of(sized(documents, lambda number: f"{source}, document {number + 1}")))

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes over all documents."""
        return sum(len(document.encode("utf-8")) for document in self.documents)

    @cached_property
    def words(self) -> int:
        """Words between white space, and newlines: what published word perplexities count."""
        return sum(len(document.split()) + document.count("\n") for document in self.documents)


def hold_out(text: Text, share: float) -> dict[str, Text]:
    """The text without its last `share`, and that share: of the rows, or of a single document's characters."""
    alone = len(text.documents) == 1
    rows = text.documents[0] if alone else text.documents
    names = {"train": f"the first {1 - share:.0%}", "valid": f"the last {share:.0%}"}
    found = {}
    for part, those in by_order(len(rows), share, text.source, "character" if alone else "document").items():
        kept = rows[those.start : those.stop]
        found[part] = Text.of(f"{names[part]} of {text.source}", [kept] if isinstance(kept, str) else kept)
    return found


def read_text(source: Source, files: FileOptions = FileOptions(), *, column: str | None = None) -> Text:
    """The documents of a file, of several, of `builtin:stdlib`, or of a dataset on the hub.

    >>> read_text("builtin:stdlib", FileOptions(split="valid")).words > 1000
    True
    """
    names = source_files(source, files.root)
    name = source_name(source)
    if any(_is_plain(part, files) for part in names):
        documents = [text for part in names for text in _documents(part, files, column)]
    else:  # tables are read as one, by the columns of the first
        table = _read_table(names, files, column)
        documents, name = table.texts(0, "data.column"), name if table.memory_folder is None else table.source
    documents = [unify_newlines(document) for document in documents if document]
    if all(document.isspace() for document in documents):
        raise DataError(f"{name} is empty: it holds no text; give a file that does")
    return Text.of(name, documents)


def _is_plain(name: str, files: FileOptions) -> bool:
    """Whether a source is a text without columns."""
    if name.startswith("builtin:"):
        return True
    path = locate(name, files.root)
    return path is not None and kind_of(path) == "text"


def _documents(name: str, files: FileOptions, column: str | None) -> list[str]:
    if not _is_plain(name, files):
        return _read_table([name], files, column).texts(0, "data.column")
    if not name.startswith("builtin:"):
        return [load_text(resolve_path(name, files.root), files.encoding, files.max_line)]
    corpus = name.removeprefix("builtin:")
    if corpus not in CORPORA:
        raise DataError(f"there is no built-in text '{brief(name)}'; {suggest(name, CORPUS_SOURCES)}")
    return CORPORA[corpus](files.split)


def _read_table(names: list[str], files: FileOptions, column: str | None) -> Table:
    return read_table(names, lambda head: [_guess(head) if column is None else column], files)


def _guess(head: Head) -> Column:
    exact = [name for name in head.names if name == "text" or len(head.names) == 1]
    return exact[0] if exact else TEXT.by_name(head)["text"]
