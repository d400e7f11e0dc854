"""Sentences whose words have tags: CoNLL's columns, CoNLL-U, and tables with a list of words and one of tags.

    EU NNP I-NP I-ORG          1  From  from  ADP  IN  _  3  case  3:case  _
    rejects VBZ I-VP O         2  the   the   DET  DT  _  3  det   3:det   _

    {"words": ["EU", "rejects", "German"], "tags": ["B-ORG", "O", "B-MISC"]}

Notable: a blank line ends a sentence; `-DOCSTART-` lines are no words. Of columns the first is the word and the last
its tag; in CoNLL-U they have names (FORM and UPOS are read), and comments, multiword tokens (`3-4`) and empty nodes
(`3.1`) are skipped. Where words and tags do not match, the file and the line are named.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from legato.data.sources.files import MAX_LINE, load_text, no_file, resolve_path
from legato.data.sources.table import Column, Head, Table, list_names
from legato.data.sources.tables import FORMATS as TABLES
from legato.data.sources.tables import kind_of, locate, read_table
from legato.errors import DataError, brief, suggest

# CoNLL-U's columns, in their order.
CONLLU: Final = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
FORMATS: Final = ("auto", "columns", "conllu", *(name for name in TABLES if name != "auto"))
DOCUMENT: Final = "-DOCSTART-"
# What the lists are usually called in tables.
WORDS: Final = ("words", "tokens", "form", "forms", "text", "sentence")
TAGS: Final = ("tags", "ner_tags", "ner", "entities", "pos_tags", "upos", "pos", "labels")


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, a tag for each, and the line that each stands on."""

    words: list[str]
    tags: list[str]
    lines: list[int]


@dataclass(frozen=True)
class TaggedText:
    """Sentences, where they came from, what was read, and the hash that names their content."""

    source: str
    sentences: list[TaggedSentence]
    columns: tuple[str, str]  # of the words and of the tags: their names, or their numbers from 1
    sha256: str
    unit: str = "line"  # what the numbers of lines are of: "line" or "row"

    def where(self, sentence: TaggedSentence, place: int = 0) -> str:
        return f"{self.source}, {self.unit} {sentence.lines[place]}"

    @property
    def words(self) -> int:
        return sum(len(sentence.words) for sentence in self.sentences)

    def part(self, start: int, stop: int) -> TaggedText:
        """Some of the sentences."""
        chosen = self.sentences[start:stop]
        return TaggedText(self.source, chosen, self.columns, _hash(chosen), self.unit)


def read_tagged(
    source: str,
    *,
    word: Column | None = None,
    tag: Column | None = None,
    root: str | None = None,
    format: str = "auto",
    encoding: str = "utf-8",
    max_line: int = MAX_LINE,
    split: str = "train",
) -> TaggedText:
    """The tagged sentences of a file, or of a dataset on the hub.

    `word` and `tag` are columns, by number from 1 or by name; `format` says what a file is whose ending does not.

    >>> read_tagged("en_ewt-ud-dev.conllu.gz", tag="xpos").columns  # doctest: +SKIP
    ('form', 'xpos')
    """
    if format not in FORMATS:
        raise DataError(f"there is no format '{format}' of tagged text; {suggest(format, FORMATS)}")
    path = _locate(source, root)
    form = _form(path, format)
    if path is None or form not in ("columns", "conllu"):
        found = _from_table(
            source, word, tag, root=root, format=form, encoding=encoding, max_line=max_line, split=split
        )
    else:
        text = load_text(path, encoding, max_line)
        found = _conllu(path, text, word, tag) if form == "conllu" else _columns(path, text, word, tag)
    if not found.sentences:
        raise DataError(f"{found.source} holds no sentence; give a file with a word and its tag on each line")
    return found


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


def _hash(sentences: Sequence[TaggedSentence]) -> str:
    digest = hashlib.sha256()
    for sentence in sentences:
        # Control characters part what cannot hold any: words and tags have no white space of this kind.
        row = "\x1e".join(f"{word}\x1f{tag}" for word, tag in zip(sentence.words, sentence.tags, strict=True))
        digest.update(row.encode("utf-8", "surrogatepass") + b"\x1d")
    return digest.hexdigest()


# --- a word on each line -----------------------------------------------------------------------------


def _columns(path: Path, text: str, word: Column | None, tag: Column | None) -> TaggedText:
    """CoNLL's columns, parted by tabs where there is one, else by white space."""
    places = [None if column is None else _number(path, column, setting) for column, setting in _named(word, tag)]
    first = 0 if places[0] is None else places[0]
    width: int | None = None  # how many columns the file's first line has
    gathered = _Gathered()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            gathered.end()
            continue
        fields = line.rstrip().split("\t") if "\t" in line.rstrip() else line.split()
        if fields[0] == DOCUMENT:
            gathered.end()
            continue
        last = len(fields) - 1 if places[1] is None else places[1]
        if width is None:
            width = len(fields)
            if width < 2:
                raise DataError(
                    f"{path}, line {number}: one column, '{brief(fields[0])}', where a word and its tag should "
                    "stand; is it a file of tagged words?"
                )
            if max(first, last) >= width:
                raise DataError(f"{path} has {width} columns, so there is no column {max(first, last) + 1}")
        short = max(first, last) >= len(fields) or (places[1] is None and len(fields) < width)
        if short or (places[1] is None and len(fields) > width):
            wanted = f"the file has {width}" if places[1] is None else f"column {max(first, last) + 1} is read"
            count = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
            raise DataError(
                f"{path}, line {number}: {count} where {wanted}, so '{brief(fields[0])}' has no tag for certain; "
                "complete or remove the line"
            )
        if not fields[first].strip() or not fields[last].strip():
            missing = "word" if not fields[first].strip() else "tag"
            raise DataError(f"{path}, line {number}: the {missing} is empty; complete or remove the line")
        gathered.add(fields[first], fields[last], number)
    gathered.end()
    shown = str(first + 1), str(width or 0) if places[1] is None else str(places[1] + 1)
    return TaggedText(str(path), gathered.sentences, shown, _hash(gathered.sentences))


def _named(word: Column | None, tag: Column | None) -> list[tuple[Column | None, str]]:
    return [(word, "data.word"), (tag, "data.tag")]


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
    gathered = _Gathered()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            gathered.end()
            continue
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != len(CONLLU):
            count = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
            raise DataError(f"{path}, line {number}: {count}, where CoNLL-U has 10, parted by tabs; mend the line")
        if not fields[0].isdigit():
            continue  # 3-4 is a token that stands for several words, 3.1 a word that is not written
        gathered.add(fields[first], fields[last], number)
    gathered.end()
    return TaggedText(str(path), gathered.sentences, (names[0], names[1]), _hash(gathered.sentences))


class _Gathered:
    """Sentences, one word after another."""

    def __init__(self) -> None:
        self.sentences: list[TaggedSentence] = []
        self._open = TaggedSentence([], [], [])

    def add(self, word: str, tag: str, line: int) -> None:
        self._open.words.append(word)
        self._open.tags.append(tag)
        self._open.lines.append(line)

    def end(self) -> None:
        if self._open.words:
            self.sentences.append(self._open)
            self._open = TaggedSentence([], [], [])


# --- a sentence in each row --------------------------------------------------------------------------


def _from_table(source: str, word: Column | None, tag: Column | None, **how: Any) -> TaggedText:
    """Rows of two lists, or of two texts whose parts spaces part."""
    table = read_table(
        source, lambda head: [_choose(head, word, "word", WORDS), _choose(head, tag, "tag", TAGS)], **how
    )
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
    return TaggedText(table.source, sentences, (table.names[0], table.names[1]), _hash(sentences), table.unit)


def _count(parts: list[str], what: str) -> str:
    return f"1 {what}" if len(parts) == 1 else f"{len(parts)} {what}s"


def _choose(head: Head, column: Column | None, role: str, usual: Sequence[str]) -> Column:
    if column is not None:
        return int(column) if re.fullmatch(r"[0-9]{1,9}", str(column)) else column
    lower = {name.lower(): name for name in head.names}
    found = next((lower[name] for name in usual if name in lower), None)
    if found is None:
        raise DataError(
            f"{head.where} has the columns {list_names(head.names)}; say which are the {role}s: "
            f"data.{role}={brief(head.names[-1 if role == 'tag' else 0])}"
        )
    return found


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
