"""Sentences whose words have tags: CoNLL's columns, CoNLL-U, and tables with a list of words and one of tags.

    EU NNP I-NP I-ORG          1  From  from  ADP  IN  _  3  case  3:case  _
    rejects VBZ I-VP O         2  the   the   DET  DT  _  3  det   3:det   _

    {"words": ["EU", "rejects", "German"], "tags": ["B-ORG", "O", "B-MISC"]}

Notable: a blank line ends a sentence; `-DOCSTART-` lines are no words. Of columns the first is the word and the last
its tag; in CoNLL-U they have names (FORM and UPOS are read), and comments, multiword tokens (`3-4`) and empty nodes
(`3.1`) are skipped. Where words and tags do not match, the file and the line are named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from legato.data.digests import sha256_of
from legato.data.formats.rows import Rows
from legato.data.sources.columns import TAGS, WORDS, Roles
from legato.data.sources.files import FileOptions, load_text, no_file, resolve_path
from legato.data.sources.named_files import source_folder
from legato.data.sources.patterns import Source, source_files, source_name
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import FORMATS as TABLES
from legato.data.sources.tables import kind_of, locate, read_table
from legato.data.sources.text_folders import has_slots, slot_lines
from legato.errors import DataError, brief, suggest

# CoNLL-U's columns, in their order.
CONLLU: Final = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
FORMATS: Final = ("auto", "columns", "conllu", *(name for name in TABLES if name != "auto"))
DOCUMENT: Final = "-DOCSTART-"


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, a tag for each, and the line that each stands on."""

    words: list[str]
    tags: list[str]
    lines: list[int]
    file: str = ""  # the file that it stands in, where there are several


@dataclass(frozen=True, kw_only=True)
class TaggedText(Rows):
    """Sentences, where they came from, what was read, and the hash that names their content."""

    sentences: list[TaggedSentence]
    columns: tuple[str, str]  # of the words and of the tags: their names, or their numbers from 1

    by_row: ClassVar[tuple[str, ...]] = ("sentences",)

    def content_hash(self) -> str:
        # Control characters part what cannot hold any: words and tags have no white space of this kind.
        rows = (zip(sentence.words, sentence.tags, strict=True) for sentence in self.sentences)
        return sha256_of("\x1e".join(f"{word}\x1f{tag}" for word, tag in row) + "\x1d" for row in rows)

    def where(self, sentence: TaggedSentence, place: int = 0) -> str:
        return f"{sentence.file or self.source}, {self.unit} {sentence.lines[place]}"

    @property
    def words(self) -> int:
        return sum(len(sentence.words) for sentence in self.sentences)


def read_tagged(
    source: Source, files: FileOptions = FileOptions(), *, word: Column | None = None, tag: Column | None = None
) -> TaggedText:
    """The tagged sentences of files, of a folder with `seq.in` and `seq.out`, or of a dataset on the hub.

    `word` and `tag` are columns, by number from 1 or by name; files have formats of their own (FORMATS).

    >>> read_tagged("en_ewt-ud-dev.conllu.gz", tag="xpos").columns  # doctest: +SKIP
    ('form', 'xpos')
    """
    if files.format not in FORMATS:
        raise DataError(f"there is no format '{files.format}' of tagged text; {suggest(files.format, FORMATS)}")
    texts = [_read_one(name, files, word, tag) for name in source_files(source, files.root)]
    if len(texts) == 1:
        return texts[0]
    for text in texts:
        if text.columns != texts[0].columns:
            raise DataError(
                f"{text.source}: words and tags are the columns {' and '.join(text.columns)}, and in "
                f"{texts[0].source} {' and '.join(texts[0].columns)}; give files of the same columns"
            )
    sentences = [replace(sentence, file=text.source) for text in texts for sentence in text.sentences]
    return replace(texts[0], source=source_name(source), sentences=sentences, sha256="")


def _read_one(source: str, files: FileOptions, word: Column | None, tag: Column | None) -> TaggedText:
    folder = source_folder(source, files.root)
    path = None if folder is not None else _locate(source, files.root)
    form = _form(path, files.format)
    if folder is not None:
        text = _slots(folder, files)
    elif path is None or form not in ("columns", "conllu"):
        text = _from_table(source, word, tag, replace(files, format=form))
    else:
        lines = load_text(path, files.encoding, files.max_line)
        text = _conllu(path, lines, word, tag) if form == "conllu" else _columns(path, lines, word, tag)
    if not text.sentences:
        raise DataError(f"{text.source} holds no sentence; give a file with a word and its tag on each line")
    return text


def _locate(source: str, root: str | None) -> Path | None:
    """The file; None for a dataset on the hub. Files of columns end in anything, so a dot makes a name a file's."""
    if (
        not source.startswith("hub:")
        and "." in Path(source).name
        and not (path := resolve_path(source, root)).exists()
    ):
        raise no_file(path)
    return locate(source, root)


def _form(path: Path | None, format: str) -> str:
    """columns, conllu or a kind of table."""
    if format != "auto" or path is None:
        return format
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".conllu"):
        return "conllu"
    kind = kind_of(path)
    return kind if kind in ("csv", "jsonl", "parquet") else "columns"  # a .tsv holds a word on each line, too


# --- a word on each line -----------------------------------------------------------------------------


def _sentences(text: str, read: Callable[[str, str], tuple[str, str] | None], path: Path) -> list[TaggedSentence]:
    """Those between blank lines; `read` makes a word and its tag of a line and where it stands, or skips it."""
    found = [TaggedSentence([], [], [])]
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.split(None, 1)[0] == DOCUMENT:
            found += [TaggedSentence([], [], [])] if found[-1].words else []
        elif (pair := read(line, f"{path}, line {number}")) is not None:
            found[-1].words.append(pair[0])
            found[-1].tags.append(pair[1])
            found[-1].lines.append(number)
    return found if found[-1].words else found[:-1]


def _columns(path: Path, text: str, word: Column | None, tag: Column | None) -> TaggedText:
    """CoNLL's columns, separated by tabs where there is one, else by white space."""
    first = 0 if word is None else _number(path, word, "data.word")
    wanted = None if tag is None else _number(path, tag, "data.tag")
    width = 0  # how many columns the file's first line has

    def read(line: str, where: str) -> tuple[str, str]:
        nonlocal width
        fields = line.rstrip().split("\t") if "\t" in line.rstrip() else line.split()
        last = len(fields) - 1 if wanted is None else wanted
        if not width:
            width = len(fields)
            if width < 2:
                raise DataError(
                    f"{where}: one column, '{brief(fields[0])}', where a word and its tag should stand; is it a file "
                    "of tagged words?"
                )
            if max(first, last) >= width:
                raise DataError(f"{path} has {width} columns, so there is no column {max(first, last) + 1}")
        if max(first, last) >= len(fields) or (wanted is None and len(fields) != width):
            needed = f"the file has {width}" if wanted is None else f"column {max(first, last) + 1} is read"
            raise DataError(
                f"{where}: {_count(fields, 'column')} where {needed}, so '{brief(fields[0])}' has no tag for "
                "certain; complete or remove the line"
            )
        if not fields[first].strip() or not fields[last].strip():
            missing = "word" if not fields[first].strip() else "tag"
            raise DataError(f"{where}: the {missing} is empty; complete or remove the line")
        return fields[first], fields[last]

    sentences = _sentences(text, read, path)
    shown = str(first + 1), str(width if wanted is None else wanted + 1)
    return TaggedText(source=str(path), sentences=sentences, columns=shown)


def _number(path: Path, column: Column, setting: str) -> int:
    """The place of a column, from 0."""
    if not re.fullmatch(r"-?[0-9]{1,9}", str(column)):
        raise DataError(
            f"{path} has no names for its columns; set {setting} to a number from 1, not '{brief(column)}'"
        )
    number = int(column)
    if number < 1:
        raise DataError(f"{setting}={number}: columns are counted from 1")
    return number - 1


def _conllu(path: Path, text: str, word: Column | None, tag: Column | None) -> TaggedText:
    names = []
    for column, setting, usual in ((word, "data.word", "form"), (tag, "data.tag", "upos")):
        name = usual if column is None else str(column).lower()
        if re.fullmatch(r"[0-9]{1,2}", name) and 1 <= int(name) <= len(CONLLU):
            name = CONLLU[int(name) - 1]
        if name not in CONLLU:
            raise DataError(f"{setting}={brief(column)} is no column of CoNLL-U; {suggest(name, CONLLU)}")
        names.append(name)
    first, last = (CONLLU.index(name) for name in names)

    def read(line: str, where: str) -> tuple[str, str] | None:
        fields = line.split("\t")
        if line.startswith("#"):
            return None
        if len(fields) != len(CONLLU):
            count = _count(fields, "column")
            raise DataError(f"{where}: {count}, where CoNLL-U has 10, separated by tabs; mend the line")
        # 3-4 is a token that stands for several words, 3.1 a word that is not written.
        return (fields[first], fields[last]) if fields[0].isdigit() else None

    return TaggedText(source=str(path), sentences=_sentences(text, read, path), columns=(names[0], names[1]))


# --- a sentence in each row --------------------------------------------------------------------------


def _from_table(source: str, word: Column | None, tag: Column | None, files: FileOptions) -> TaggedText:
    """Rows of two lists, or of two texts whose parts spaces part."""
    table = read_table(source, lambda head: [*_choose(head, word, WORDS), *_choose(head, tag, TAGS)], files)
    sentences = []
    for row in range(len(table.lines)):
        words, tags = _parts(table, 0, row), _parts(table, 1, row)
        if len(words) != len(tags):
            raise DataError(
                f"{table.where(row)}: {_count(words, 'word')} but {_count(tags, 'tag')}; there must be one for each"
            )
        if not all(part.strip() for part in (*words, *tags)):
            raise DataError(f"{table.where(row)}: a word or a tag is empty; complete or remove the row")
        if words:
            sentences.append(TaggedSentence(words, tags, [table.lines[row]] * len(words)))
    read = (table.names[0], table.names[1])
    return TaggedText(source=table.source, sentences=sentences, columns=read, unit=table.unit)


def _slots(folder: Path, files: FileOptions) -> TaggedText:
    """A folder with a sentence on each line of `seq.in`, and its tags on that of `seq.out`."""
    if not has_slots(folder):
        raise DataError(
            f"{folder} is a folder without seq.in and seq.out; name a file in it, or a pattern of several"
        )
    sentences = []
    for number, (line, other) in enumerate(zip(*slot_lines(folder, "seq.out", files), strict=True), start=1):
        words, tags = line.split(), other.split()
        if len(words) != len(tags):
            where = f"{folder}, line {number:,}"
            raise DataError(
                f"{where}: seq.in has {_count(words, 'word')}, seq.out {_count(tags, 'tag')}; mend the line"
            )
        if words:
            sentences.append(TaggedSentence(words, tags, [number] * len(words)))
    return TaggedText(source=str(folder), sentences=sentences, columns=("seq.in", "seq.out"))


def _count(parts: list[str], what: str) -> str:
    return f"1 {what}" if len(parts) == 1 else f"{len(parts)} {what}s"


def _choose(head: Head, column: Column | None, roles: Roles) -> Iterable[Column]:
    if column is None:
        return roles.by_name(head).values()
    return [int(column) if re.fullmatch(r"[0-9]{1,9}", str(column)) else column]


def _parts(table: Table, column: int, row: int) -> list[str]:
    value = table.columns[column][row]
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        names = dict(enumerate((table.classes[column] if table.classes else None) or ()))  # of numbers on the hub
        return [str(names.get(part, part)) for part in value]
    raise DataError(
        f"{table.where(row)}: '{brief(table.names[column])}' is no list of {'tags' if column else 'words'}; "
        f"set data.{'tag' if column else 'word'} to a column that is"
    )
