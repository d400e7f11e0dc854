"""Questions, the texts they are asked of, and the spans that answer them.

Read from SQuAD's JSON (1.1 and 2.0, gzip or not), or from the columns of a csv, tsv, jsonl or parquet file or a
dataset on the hub. An answer is a text and the character at which it begins, or a pair of characters between which
it lies, as in SubjQA; without either it is where its text first stands.

Notable here:
- an answer must be where it is said to be: otherwise the line or question is named, or left out (`skip_bad`);
- white space around a question is left out, as where one is asked (tasks/qa/answerer.py); contexts stay as they are;
- rows of a table with the same question and context are one question with several answers, as annotators gave them.

How they are split into parts is in `question_splits.py`.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, TypeVar

from legato.data.digests import sha256_of
from legato.data.formats.rows import Rows
from legato.data.formats.strays import is_missing, is_number
from legato.data.sources.columns import QUESTIONS
from legato.data.sources.files import FileOptions, load_text
from legato.data.sources.patterns import Source, source_files, source_name
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import FORMATS, locate, read_table, tabbed
from legato.errors import DataError, brief, listed, suggest
from legato.schema import check_values, parse_json

E = TypeVar("E")

QUESTION_FORMATS: Final = (*FORMATS, "squad")
QUESTION, ARTICLE = QUESTIONS.roles[0], QUESTIONS.roles[-1]
MAX_LITERAL: Final = 1_000_000  # characters of an object that a csv holds in a field


@dataclass(frozen=True)
class AnswerSpan:
    """A part of a context."""

    start: int
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass
class Question:
    """A question, what it is asked of, and what each annotator answered: None where there is no answer."""

    id: str
    question: str
    context: str
    answers: list[AnswerSpan | None]
    article: str | None = None

    def content(self) -> str:
        """All that is learned from it, as its hash has it."""
        answers = [None if answer is None else (answer.start, answer.text) for answer in self.answers]
        return repr((self.question, self.context, answers))

    @property
    def answerable(self) -> bool:
        return any(answer is not None for answer in self.answers)

    @property
    def found(self) -> list[AnswerSpan | None]:
        """What annotators answered; that one of them found nothing counts only where all did, as SQuAD 2.0 has it."""
        spans: list[AnswerSpan | None] = [answer for answer in self.answers if answer is not None]
        return spans or [None]

    @property
    def rights(self) -> list[str]:
        """The right answers, each once; the empty one alone where there is none."""
        return list(dict.fromkeys("" if answer is None else answer.text for answer in self.found))

    @property
    def common(self) -> AnswerSpan | None:
        """The answer that most gave; the first of those that as many gave."""
        return Counter(self.found).most_common(1)[0][0]


@dataclass(frozen=True, kw_only=True)
class Questions(Rows):
    """What a file asks."""

    questions: list[Question]
    notes: list[str] = field(default_factory=list)  # what a reader should know: columns guessed, rows left out

    by_row: ClassVar[tuple[str, ...]] = ("questions",)

    def content_hash(self) -> str:
        return sha256_of(question.content() for question in self.questions)

    @property
    def unanswerable(self) -> int:
        return sum(not question.answerable for question in self.questions)


@dataclass(frozen=True)
class QuestionFiles(FileOptions):
    """How files of questions are read: the same for all of a task's."""

    columns: Sequence[Column] | None = None  # question, context, answer and, where there is one, its place
    article: Column | None = None  # what texts belong together
    no_answer: str = "ANSWERNOTFOUND"  # the answer that means none
    skip_bad: bool = False


def read_questions(source: Source, files: QuestionFiles = QuestionFiles()) -> Questions:
    """The questions of a file, or of a dataset on the hub, each answer where it is said to be."""
    if files.format not in QUESTION_FORMATS:
        raise DataError(f"there is no format '{files.format}' of data; {suggest(files.format, QUESTION_FORMATS)}")
    notes = []
    names = source_files(source, files.root)
    squads = [_squad_rows(name, files) if files.format in ("auto", "squad") else None for name in names]
    squad = [rows for rows in squads if rows is not None]
    if not squad:
        table, roles, note = _read_columns(source, files)
        name, rows = table.source, _table_rows(table, roles)
        notes.append(note)
    elif len(squad) == len(names):
        name, rows = source_name(source), itertools.chain(*(part for _, part in squad))
    else:
        other = next(name for name, part in zip(names, squads, strict=True) if part is None)
        raise DataError(f"{other} is a table, and {squad[0][0]} is SQuAD's JSON; give files of one kind")
    questions: list[Question] = []
    skipped: list[str] = []  # what was wrong with each
    for row in rows:
        try:
            questions.append(_question(row, files.no_answer))
        except ValueError as problem:
            skipped.append(f"{row[0]}: {problem}")
            if not files.skip_bad:
                advice = "put it right, or set data.skip_bad=true to leave such ones out"
                raise DataError(f"{skipped[0]}; {advice}") from None
    if skipped:
        left = f"{name}: {len(skipped):,} left out, whose answers are not where they should be"
        notes.append(f"{left}; the first is {skipped[0].removeprefix(f'{name}, ')}")
    if not questions:
        raise DataError(f"{name} holds no questions{' that can be used' if skipped else ''}")
    if not squad and len(grouped := _grouped(questions)) < len(questions):
        notes.append(f"{name}: {len(questions):,} rows ask {len(grouped):,} questions, some with several answers")
        questions = grouped
    return Questions(source=name, questions=questions, notes=notes)


# A question as it stands in a file: where, its id, what it asks and of what context, the answers, and the article.
# Answers are (text or None, place or None) pairs, or not spoken of.
_Raw = tuple[str, str, Any, Any, list[tuple[Any, Any]] | None, str | None]


# --- SQuAD's JSON -----------------------------------------------------------------------------------


def _squad_rows(source: str, files: FileOptions) -> tuple[str, Iterator[_Raw]] | None:
    """The name of a SQuAD file and its questions; None where it is something else."""
    path = locate(source, files.root)
    if path is None or (files.format == "auto" and path.name.lower().removesuffix(".gz")[-5:] != ".json"):
        return None
    text = load_text(path, files.encoding, max_line=0)
    try:
        held: Any = parse_json(text, object, str(path), error=DataError)
    except DataError as problem:
        if files.format == "auto" and "\n" in text.strip() and text.lstrip().startswith("{"):
            return None  # one object a line
        raise DataError(f"{problem}; put it right, or copy the file again") from None
    articles = held.get("data") if isinstance(held, dict) else None
    if not isinstance(articles, list):
        if files.format == "auto" and isinstance(held, dict) and QUESTION.find(held):
            return None  # a table of one line
        there = listed(held) if isinstance(held, dict) else type(held).__name__
        raise DataError(
            f"{path} is no SQuAD file: it should be an object whose 'data' is a list of articles, and has {there}; "
            "one object a line is a .jsonl"
        )
    return str(path), _articles(str(path), articles)


def _articles(path: str, articles: list[Any]) -> Iterator[_Raw]:
    for number, article in enumerate(articles, start=1):
        where = f"{path}, article {number}"
        title = str(article["title"]) if isinstance(article, dict) and "title" in article else str(number)
        for place, paragraph in enumerate(_entry(article, "paragraphs", list, where), start=1):
            inside = f"{where} ({brief(title)}), paragraph {place}"
            context = _entry(paragraph, "context", str, inside)
            for asked in _entry(paragraph, "qas", list, inside):
                text = _entry(asked, "question", str, inside)
                name = str(asked.get("id", f"{number}.{place}"))
                answers = [] if asked.get("is_impossible") else asked.get("answers")
                pairs = None if answers is None else _pairs(answers, None, inside)
                yield f"{path}, question {brief(name)}", name, text, context, pairs, title


def _entry(value: Any, key: str, kind: type[E], where: str) -> E:
    """What stands under a key; of the kind that SQuAD's files have there."""
    if not isinstance(value, dict) or key not in value:
        raise DataError(f"{where}: there is no '{key}', so this is no SQuAD file; see data.columns for tables")
    found = value[key]
    if not isinstance(found, kind):
        wanted = "a list" if kind is list else "a text"
        raise DataError(f"{where}: '{key}' should be {wanted}, not {brief(json.dumps(found))}")
    return found


# --- tables -----------------------------------------------------------------------------------------


def _read_columns(source: Source, files: QuestionFiles) -> tuple[Table, list[str], str]:
    """The columns that hold what is needed, the role of each, and a note that says which they are."""
    roles: list[str] = []
    QUESTIONS.check(files.columns or None)

    def choose(head: Head) -> list[Column]:
        if files.columns:
            names = (role.name for role in QUESTIONS.roles)
            chosen: dict[str, Column] = dict(zip(names, files.columns, strict=False))
            if not all(isinstance(column, int) for column in files.columns):  # else there is no header
                chosen |= dict(zip([ARTICLE.name], ARTICLE.find(head.names), strict=False))
        else:
            chosen = QUESTIONS.by_name(head)
        if files.article is not None:
            chosen[ARTICLE.name] = files.article
        roles[:] = chosen
        return list(chosen.values())

    files = replace(files, format="auto") if files.format == "squad" else files
    table = read_table(source, choose, tabbed(source, files))
    told = ", ".join(f"'{brief(name)}' as {role}" for name, role in zip(table.names, roles, strict=True))
    return table, roles, f"{table.source}: reading {told}"


def _table_rows(table: Table, roles: list[str]) -> Iterator[_Raw]:
    columns = dict(zip(roles, table.columns, strict=True))
    nothing: list[Any] = [None] * len(table.lines)
    answers, places = columns.get("answer", nothing), columns.get("place", nothing)
    articles = columns.get("article", nothing)
    for row, (question, context) in enumerate(zip(columns["question"], columns["context"], strict=True)):
        where = table.where(row)
        pairs = _pairs(answers[row], places[row], where)
        article = None if articles[row] in (None, "") else str(articles[row])
        yield where, str(table.lines[row]), question, context, pairs, article


def _pairs(value: Any, place: Any, where: str) -> list[tuple[Any, Any]]:
    """What stands for answers as (text, place) pairs: a text, `{"text": […], "answer_start": […]}`, or a list."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = _literal(value)  # a csv's way to hold such an object
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start", value.get("start"))
        if texts is None or isinstance(texts, dict):
            raise DataError(f"{where}: the answer has no 'text'; it has {listed(map(str, value))}")
        return _pairs(texts, starts, where)
    if isinstance(value, list | tuple):
        if any(isinstance(part, dict) for part in value):
            if not all(isinstance(part, dict) for part in value):
                raise DataError(f"{where}: the answers should all be objects with a 'text', and some are not")
            return [pair for part in value for pair in _pairs(part, None, where)]
        starts = place if isinstance(place, list | tuple) else [place] * len(value)
        if len(starts) != len(value):
            raise DataError(f"{where}: {len(value)} answers, but {len(starts)} places where they begin")
        return list(zip(value, starts, strict=True)) or [(None, None)]
    return [(value, _literal(place) if isinstance(place, str) else place)]


def _literal(text: str) -> Any:
    """The value that a text spells, such as a pair of numbers; the text itself where it spells none."""
    bare = text.strip()
    if len(bare) > MAX_LITERAL:
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            found = read(bare)
            check_values(json.loads(json.dumps(found)), "it", error=DataError)  # pairs as lists, and nothing odd
            return found
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, DataError):
            continue
    return text


# --- checking ---------------------------------------------------------------------------------------


def _question(raw: _Raw, none: str) -> Question:
    """What a file says as a question; ValueError where an answer is not where it should be."""
    where, name, asked, of, answers, article = raw
    question, context = _text(where, asked, "question").strip(), _text(where, of, "context")
    if none:  # SubjQA's contexts end in it
        context = _text(where, context.removesuffix(none), "context")
    if answers is None:
        raise ValueError("there are no 'answers', nor 'is_impossible', which says that there are none")
    spans = [_span(context, text, place, none) for text, place in answers] or [None]
    return Question(name, question, context, spans, article)


def _text(where: str, value: Any, role: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: the {role} is {type(value).__name__}, not text; set data.columns")
    if not value.strip():
        raise DataError(f"{where}: the {role} is empty; fill it in, or remove the question")
    return value


def _span(context: str, text: Any, place: Any, none: str) -> AnswerSpan | None:
    """The answer in its context, None where it is `none`; ValueError says why it is not there."""
    if text is None or text == "" or (isinstance(text, str) and text.strip() == none):
        return None
    if isinstance(text, list | dict) or (isinstance(text, float) and not math.isfinite(text)):
        raise ValueError(f"the answer is {brief(text)}, which is no text")
    if not isinstance(text, str):
        if is_missing(text, False):
            raise ValueError(f"the answer is {text}, which is none; leave it empty where there is no answer")
        text = str(text)
    if isinstance(place, list | tuple):
        return _between(context, text, place)
    if place is None or place == "":
        start = context.find(text)
        if start >= 0 and is_missing(text, True) and not re.search(rf"\b{re.escape(text.strip())}\b", context):
            raise ValueError(f"the answer '{text}' stands for a missing one; leave it empty where there is none")
        if start < 0:
            raise ValueError(f"the answer '{brief(text)}' does not stand in the context")
        return _trimmed(start, text)
    whole = isinstance(place, int | float) and is_number(place) and place == int(place)
    if isinstance(place, bool) or not whole:
        raise ValueError(f"the answer begins at '{brief(place)}', which is no number")
    start = int(place)
    if start == -1 and not text.strip():
        return None
    found = context[start : start + len(text)] if start >= 0 else ""
    if found != text:
        raise ValueError(f"the answer '{brief(text)}' is not at character {start}, where '{brief(found)}' stands")
    return _trimmed(start, text)


def _between(context: str, text: str, place: Sequence[Any]) -> AnswerSpan:
    """The answer between two characters. Its text may be written apart, or leave out words, as SubjQA's do."""
    if len(place) != 2 or not all(isinstance(part, int) and not isinstance(part, bool) for part in place):
        raise ValueError(f"the answer lies between {brief(tuple(place))}, which is no pair of characters")
    start, end = place
    found = context[start:end] if 0 <= start < end else ""
    if found == text:
        return _trimmed(start, text)
    said, there = ([c for c in part.lower() if c.isalnum()] for part in (text, found))
    rest = iter(there)
    same_ends = said[:1] == there[:1] and said[-1:] == there[-1:]
    if said and same_ends and all(character in rest for character in said):
        return _trimmed(start, found)
    raise ValueError(f"the answer '{brief(text)}' is not between {start} and {end}, where '{brief(found)}' stands")


def _trimmed(start: int, text: str) -> AnswerSpan:
    bare = text.strip()
    if not bare:
        raise ValueError("the answer is white space")
    return AnswerSpan(start + len(text) - len(text.lstrip()), bare)


def _grouped(questions: list[Question]) -> list[Question]:
    """Rows that ask the same of the same context as one, with all their answers."""
    known: dict[tuple[str, str], Question] = {}
    for question in questions:
        first = known.setdefault((question.question, question.context), question)
        if first is not question:
            first.answers += question.answers
    return list(known.values())
