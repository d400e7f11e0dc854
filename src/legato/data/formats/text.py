"""Text from files, the built-in corpus and the hub.

A plain file is one document; a column of csv, tsv, jsonl or parquet gives one document per row. How
files are opened and decoded is in `files.py`, how they are cut into columns in `tables.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from legato.data.sources.corpora import CORPORA
from legato.data.sources.files import MAX_LINE, load_text, resolve_path, unify_newlines
from legato.data.sources.table import Head, list_names
from legato.data.sources.tables import kind_of, locate, read_table
from legato.errors import DataError, brief, suggest

__all__ = ["MAX_LINE", "Text", "hold_out", "read_text", "resolve_path"]


@dataclass(frozen=True)
class Text:
    """Documents, where they came from, and the hash that names their content."""

    source: str
    documents: list[str]
    sha256: str

    @cached_property
    def bytes(self) -> int:
        """UTF-8 bytes over all documents."""
        return sum(len(document.encode("utf-8")) for document in self.documents)

    @cached_property
    def words(self) -> int:
        """Words between white space, and newlines: what published word perplexities count."""
        return sum(len(document.split()) + document.count("\n") for document in self.documents)


def hold_out(text: Text, share: float) -> tuple[Text, Text]:
    """The text without its last `share`, and that share: of the rows, or of a single document's characters."""
    rows = text.documents if len(text.documents) > 1 else text.documents[0]
    cut = max(1, min(len(rows) - 1, round(len(rows) * (1 - share))))
    parts = [part if isinstance(part, list) else [part] for part in (rows[:cut], rows[cut:])]
    names = f"the first {1 - share:.0%} of {text.source}", f"the last {share:.0%} of {text.source}"
    kept, held = (Text(name, part, _content_hash(name, part)) for name, part in zip(names, parts, strict=True))
    return kept, held


def read_text(
    source: str,
    *,
    root: str | None = None,
    column: str | None = None,
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
    split: str = "train",
) -> Text:
    """The documents of a file, of `builtin:stdlib`, or of a dataset on the hub.

    `split` picks the part of a source that has parts; a file is always whole. `max_line` refuses a
    line of more characters than that, which is usually a file of another kind; 0 accepts any.

    >>> read_text("builtin:stdlib", split="valid").words > 1000
    True
    """
    if source.startswith("builtin:"):
        documents = _read_builtin(source, split)
    else:
        path = locate(source, root)
        if path is not None and kind_of(path) == "text":
            documents = [load_text(path, encoding, max_line)]
        else:
            table = read_table(
                source,
                lambda head: [_choose_column(head, column)],
                root=root,
                encoding=encoding,
                max_line=max_line,
                split=split,
            )
            documents = table.texts(0, "data.column")
    documents = [unify_newlines(document) for document in documents if document]
    if all(document.isspace() for document in documents):
        raise DataError(f"{source} is empty: it holds no text; give a file that does")
    return Text(source, documents, _content_hash(source, documents))


def _content_hash(source: str, documents: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for number, document in enumerate(documents, start=1):
        try:
            data = document.encode("utf-8")
        except UnicodeEncodeError as problem:
            raise DataError(
                f"{source}: document {number} holds half a surrogate pair at character {problem.start}, "
                "which is no text; remove it"
            ) from None
        # The length in front keeps ["ab", "c"] and ["a", "bc"] apart.
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _choose_column(head: Head, wanted: str | None) -> str:
    if wanted is not None:
        return wanted
    if "text" in head.names:
        return "text"
    if len(head.names) == 1:
        return head.names[0]
    raise DataError(
        f"{head.where} has the columns {list_names(head.names)}; say which is the text: "
        f"data.column={brief(head.names[0])}"
    )


def _read_builtin(source: str, split: str) -> list[str]:
    name = source.removeprefix("builtin:")
    if name not in CORPORA:
        known = [f"builtin:{corpus}" for corpus in CORPORA]
        raise DataError(f"there is no built-in text '{brief(source)}'; {suggest(source, known)}")
    return CORPORA[name](split)
