"""Documents: what is in files of text, Markdown, HTML, PDF, csv, tsv, jsonl and parquet; the files of a folder.

Whatever a document says is data. Its name and its metadata are never opened, followed or run; a link out of a folder
is not followed. What cannot be read is a `DataError` of one line.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from legato import sandbox
from legato.data.sources.files import MAX_LINE, FileOptions, decode, load_bytes, unify_newlines
from legato.data.sources.patterns import source_files
from legato.data.sources.table import Head
from legato.data.sources.tables import parse_line, read_table
from legato.errors import DataError, LegatoError, brief, listed
from legato.input_files import near_path, open_file, path_of
from legato.registry import require_extra
from legato.retrieval.html_text import html_blocks
from legato.retrieval.markdown import markdown_blocks, plain_blocks
from legato.retrieval.records import Block, Document, FileDocuments
from legato.schema import is_text

TEXT: Final = frozenset({".txt", ".text", ".rst", ".log"})
MARKDOWN: Final = frozenset({".md", ".markdown", ".mdx"})
HTML: Final = frozenset({".html", ".htm", ".xhtml"})
LINES: Final = frozenset({".jsonl", ".ndjson"})
SEPARATED: Final = frozenset({".csv", ".tsv"})
TABLES: Final = LINES | SEPARATED | {".parquet"}
ENDINGS: Final = TEXT | MARKDOWN | HTML | TABLES | {".pdf"}
TEXT_COLUMNS: Final = ("text", "contents", "content", "body", "passage", "document", "abstract")
ID_COLUMNS: Final = ("_id", "id", "docid", "key")
MAX_PAGES: Final = 10_000  # of a PDF
PDF_SECONDS = 20.0  # of computing that a PDF may take, and as much again for each megabyte that it has
MAX_PDF_SECONDS = 600.0
MAX_VALUE: Final = 1000  # characters of a value that is kept as metadata
MAX_KEYS: Final = 50


class Unreadable(DataError):
    """A document that cannot be read, and why."""


class NoText(Unreadable):
    """A document says nothing, or is not there any longer."""


def kind_of(path: Path) -> str:
    """The ending that says how a file is read, in lower case; `.gz` is looked behind."""
    name = path.name.lower().removesuffix(".gz")
    return os.path.splitext(name)[1]


def files_under(
    place: Path, skipped: list[str], closed: list[Path] | None = None, without: Path | None = None
) -> Iterator[Path]:
    """The documents in a folder, in the order of their names; what is hidden or of another kind is left out.

    `skipped` is told of other kinds, of folders that cannot be read, which are added to `closed`, and of links that
    lead out of the folder; `without` is a folder within that is not looked into.
    """
    root, others = os.path.realpath(place), Counter[str]()

    def tell(problem: OSError) -> None:
        skipped.append(f"{problem.filename} cannot be read: {problem.strerror}")
        if closed is not None and not is_gone(problem.filename):
            closed.append(Path(problem.filename))

    for folder, folders, names in os.walk(place, followlinks=False, onerror=tell):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and Path(folder, name) != without)
        for name in sorted(names):
            path = Path(folder, name)
            if name.startswith("."):
                continue
            if kind_of(path) not in ENDINGS:
                others[kind_of(path)] += 1
                continue
            if os.path.islink(path) and not os.path.realpath(path).startswith(root + os.sep):
                skipped.append(f"{path} is a link out of the folder, and is not followed")
                continue
            yield path
    if others:
        kinds = [f"{count:,} {kind or 'without an ending'}" for kind, count in others.most_common()]
        told = brief(", ".join(kinds), 80)
        skipped.append(f"files in {place} that are of no kind that is read were left out: {told}")


def document_places(names: Iterable[str | Path]) -> list[Path]:
    """The files and folders that names or patterns of them stand for."""
    return [check_document_place(file) for name in names for file in source_files(str(name))]


def check_document_place(name: str | Path) -> Path:
    """The file or folder that somebody names; what is not there, or of no kind that is read, is refused."""
    path = path_of(name)
    if path.is_dir():
        return path
    if not path.exists():
        near = near_path(path) or near_path(path, folder=True)
        raise DataError(f"there is no {path} to index" + ("" if near is None else f"; did you mean '{near}'?"))
    if kind_of(path) not in ENDINGS:
        raise DataError(f"{path}: no document that can be read; its name should end in {listed(sorted(ENDINGS))}")
    return path


def is_gone(path: str | Path) -> bool:
    """Whether nothing is at a place; of what is behind a closed door nobody knows."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever is raised while a document is read into one line that names it, an `Unreadable`.

    Parsers and libraries raise any exception over damaged files, and some that are none (a panic). So that one
    document stops no other, this is around the reading of each; what has nothing to do with the document (an extra
    that is not installed, Ctrl-C) passes.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as problem:
        if isinstance(problem, OSError | DataError) and is_gone(path):  # since its folder was looked through
            raise NoText(f"{path} is no longer there") from None
        if isinstance(problem, Unreadable) or (
            isinstance(problem, LegatoError) and not isinstance(problem, DataError)
        ):
            raise
        reason = str(problem) if isinstance(problem, DataError) else f"{path} cannot be read: {_reason(problem)}"
        raise Unreadable(reason) from None


def _reason(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    try:
        message = brief(problem, 120)
    except Exception:  # an error that cannot be printed either, such as KeyError(10**5000)
        message = ""
    return f"{type(problem).__name__}: {message}" if message else type(problem).__name__


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_documents(path: Path, column: str | None = None) -> Iterator[Document]:
    """The documents of a file: one, or each row of a table; `column` is the table's that holds the text."""
    kind = kind_of(path)
    if kind in TABLES:
        yield from _rows(path, kind, column)
        return
    if kind == ".pdf":
        yield _pdf(path)
        return
    raw = load_bytes(path)
    text = _text(path, raw)
    if kind in MARKDOWN:
        title, metadata, blocks = markdown_blocks(text)
    elif kind in HTML:
        (title, blocks), metadata = html_blocks(text), {}
    else:
        title, metadata, blocks = "", {}, plain_blocks(text)
    if not blocks:
        raise NoText(f"{path} holds no text; there is nothing to find in it")
    yield Document("", title, blocks, dict(metadata))


def read_changes(path: Path, column: str | None, before: FileDocuments) -> tuple[list[Document], list[int]]:
    """The documents of a file that are new or other than `before`, and which of those are as they were.

    Of jsonl the lines that are known are not parsed; other files are read whole.
    """
    if kind_of(path) not in LINES or not before.keys:
        return list(read_documents(path, column)), []
    left, alike = _by_digest(before.digests)
    same: list[int] = []
    lines: list[tuple[int, str]] = []
    for number, line in _lines(path):
        digest = _line_digest(line, column)
        found = left.pop(digest, None)
        if found is None:
            lines.append((number, line))
            continue
        same.append(found)
        if others := alike.get(digest):
            left[digest] = others.pop(0)
    taken = {before.keys[n] for n in same}
    return list(_documents(path, _parsed(path, lines), column, taken)), same


def _by_digest(digests: Sequence[str]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Where each digest stands first, and where it stands again."""
    first = dict(zip(reversed(digests), range(len(digests) - 1, -1, -1), strict=True))
    again: dict[str, list[int]] = {}
    if len(first) < len(digests):
        for number, digest in enumerate(digests):
            if first[digest] != number:
                again.setdefault(digest, []).append(number)
    return first, again


def _text(path: Path, raw: bytes) -> str:
    """Text in UTF-8, or in UTF-16 where it begins with that mark; else in Latin-1, if it reads like text."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return unify_newlines(decode(path, raw, "utf-16"))
    try:
        return unify_newlines(decode(path, raw, "utf-8"))
    except DataError:
        if _is_cut(raw):
            raise DataError(f"{path} ends within a character; somebody may be writing it") from None
        controls = sum(raw.count(bytes([code])) for code in (*range(9), *range(14, 32)))
        if controls:
            raise DataError(f"{path} is binary, or in no encoding that is known; save it as text in UTF-8") from None
        return unify_newlines(raw.decode("latin-1"))


def _is_cut(raw: bytes) -> bool:
    """Whether it is UTF-8 with letters beyond ASCII but for its last bytes, which begin another one."""
    for count in (1, 2, 3):
        try:
            return not raw[:-count].decode("utf-8").isascii()
        except UnicodeDecodeError:
            continue
    return False


# --- tables ------------------------------------------------------------------------------------------


def _rows(path: Path, kind: str, column: str | None) -> Iterator[Document]:
    if kind in LINES:
        rows = _parsed(path, _lines(path))
    else:
        rows = ((*row, "") for row in (_separated(path, column) if kind in SEPARATED else _parquet(path)))
    yield from _documents(path, rows, column, set())


def _documents(
    path: Path, rows: Iterable[tuple[int, dict[str, Any], str]], column: str | None, taken: set[str]
) -> Iterator[Document]:
    """The documents in rows and their lines; `taken` are keys that others of the file have."""
    count = len(taken)
    seen: dict[str, int] = {}
    for number, row, line in rows:
        document = _row_document(path, number, row, column)
        if document is None:
            continue
        count += 1
        key, again = document.key, seen.get(document.key, 0)
        while not again or key in taken:  # the same number or text may stand there twice
            again += 1
            key = document.key if again == 1 else f"{document.key}~{again}"
        seen[document.key] = again
        taken.add(key)
        yield replace(document, key=key, digest=_line_digest(line, column) if line else "")
    if not count:
        raise NoText(f"{path} holds no row with a text; there is nothing to find in it")


def _line_digest(line: str, column: str | None) -> str:
    return hashlib.sha256(f"{column or ''}\0{line}".encode()).hexdigest()


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    text = unify_newlines(decode(path, load_bytes(path), "utf-8"))
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line and not line.isspace())


def _parsed(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any], str]]:
    for number, line in lines:
        if len(line) > MAX_LINE:
            raise DataError(f"{path}, line {number}: {len(line):,} characters in one line, more than {MAX_LINE:,}")
        row = parse_line(line, f"{path}, line {number}")
        if not isinstance(row, dict):
            raise DataError(f'{path}, line {number} is no row: it should be {{"text": …}}')
        yield number, row, line


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    from legato.data.sources.parquet import ParquetFile

    file = ParquetFile(path, load_bytes(path))
    columns = file.read(file.names)
    names = list(columns)
    for number, values in enumerate(zip(*columns.values(), strict=True), start=1):
        yield number, dict(zip(names, values, strict=True))


def _separated(path: Path, column: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a csv or tsv: by the names in its first row, or by numbers where `column` is one."""

    def choose(head: Head) -> list[str | int]:
        numbered = column is not None and column.isdecimal() and column not in head.names
        return list(range(1, len(head.names) + 1)) if numbered else list(head.names)

    table = read_table(str(path), choose, FileOptions(max_line=0))
    for number, values in zip(table.lines, zip(*table.columns, strict=True), strict=True):
        yield number, dict(zip(table.names, values, strict=True))


def _row_document(path: Path, number: int, row: dict[str, Any], column: str | None) -> Document | None:
    chosen = column or next((name for name in TEXT_COLUMNS if name in row), None)
    if chosen is None or chosen not in row:
        named = f"no column '{brief(column)}'" if column else f"none of the columns {listed(TEXT_COLUMNS)}"
        raise DataError(f"{path}, row {number} has {named}; it has {listed(row) or 'nothing'}: choose with --column")
    text = row[chosen]
    if text is None or (isinstance(text, str) and not text.strip()):
        return None
    if not isinstance(text, str) or not is_text(text):
        raise DataError(f"{path}, row {number}: '{brief(chosen)}' is no text but {brief(repr(text))}")
    title = row.get("title") if isinstance(row.get("title"), str) and is_text(row["title"]) else ""
    name = next((row[name] for name in ID_COLUMNS if isinstance(row.get(name), str | int)), None)
    key = hashlib.sha256(text.encode()).hexdigest()[:16] if name is None else _clean(brief(name, 200))
    others = {k: v for k, v in row.items() if k not in (chosen, "title") and isinstance(k, str)}
    entries = {_clean(brief(k, 60)): _kept(v) for k, v in list(others.items())[:MAX_KEYS]}
    metadata = {k: v for k, v in entries.items() if v is not None}
    return Document(key, _clean(brief(title or "", 300)), plain_blocks(unify_newlines(_clean(text))), metadata)


def _kept(value: Any) -> Any:
    """A value as metadata: numbers, short texts, lists of those; None for whatever else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 2**53 else None  # nan and infinities compare as no
    if isinstance(value, str):
        return value if len(value) <= MAX_VALUE and is_text(value) and "\0" not in value else None
    if isinstance(value, list) and len(value) <= MAX_KEYS:
        return [one for one in map(_kept, value) if one is not None and not isinstance(one, list)]
    return None


def _clean(text: str) -> str:
    """Without what is no character, and zero bytes, which no store takes."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")


# --- PDF ---------------------------------------------------------------------------------------------


def _pdf(path: Path) -> Document:
    require_extra("retrieval", "pypdf")
    if path.suffix.lower() != ".gz":
        with open_file(path) as file:
            title, *pages = _pdf_texts(path, path, os.fstat(file.fileno()).st_size)
    else:
        with tempfile.NamedTemporaryFile(suffix=".pdf") as unpacked:
            unpacked.write(raw := load_bytes(path))
            unpacked.flush()
            title, *pages = _pdf_texts(path, Path(unpacked.name), len(raw))
    blocks, place = list[Block](), 0
    for number, text in enumerate(pages, start=1):
        for block in plain_blocks(text):
            blocks.append(Block(block.text, place + block.start, (), number))
        place += len(text) + 1
    if not blocks:
        raise NoText(f"{path} holds no text: its {len(pages)} pages may be pictures; recognise their text first")
    return Document("", brief(title, 200), blocks, {"pages": len(pages)})


def _pdf_texts(path: Path, place: Path, size: int) -> list[str]:
    """The title and the pages of the PDF at a place, read in a process that can be ended; `path` is for messages."""
    seconds = max(1, round(min(PDF_SECONDS * (1 + size / 1e6), MAX_PDF_SECONDS)))
    place = Path(os.path.abspath(place))  # the process may be in another folder
    try:
        texts = sandbox.call("read_pdf", apart="documents", seconds=seconds, path=str(place), max_pages=MAX_PAGES)
    except sandbox.OverBudget as problem:
        raise DataError(f"{path} takes more than {problem} to read; save it anew, or split it") from None
    except sandbox.Failed as problem:
        if problem.stage == "decrypt":
            raise DataError(f"{path} is encrypted; save it without a password first") from None
        if problem.stage == "pages":
            raise DataError(f"{path} has {problem} pages, more than {MAX_PAGES:,}; split it") from None
        reason = brief(f"{problem.kind}: {problem}", 120)
        raise DataError(f"{path} is no PDF that can be read: {reason}; save it anew") from None
    return [_clean(text) for text in texts]
