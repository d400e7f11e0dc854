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
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from legato.data.formats.strays import is_missing, is_number
from legato.data.sources.files import load_text
from legato.data.sources.table import Column, Head, Table, list_names
from legato.data.sources.tables import FORMATS, format_of, locate, read_table
from legato.errors import DataError, brief, suggest
from legato.schema import check_values, parse_json

E = TypeVar("E")

QUESTION_FORMATS: Final = (*FORMATS, "squad")
# Names by which columns are known, the likeliest first.
QUESTION_NAMES: Final = ("question", "query", "q")
CONTEXT_NAMES: Final = ("context", "passage", "paragraph", "review", "document", "text")
ANSWER_NAMES: Final = ("answers", "answer", "human_ans_spans", "answer_text", "span")
START_NAMES: Final = ("answer_start", "start", "human_ans_indices", "answer_span", "offset")
ARTICLE_NAMES: Final = ("title", "article", "item_id", "document_id", "doc_id")
MAX_LITERAL: Final = 1_000_000  # characters of an object that a csv holds in a field


@dataclass(frozen=True)
class Span:
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
    answers: list[Span | None]
    article: str | None = None

    @property
    def answerable(self) -> bool:
        return any(answer is not None for answer in self.answers)

    @property
    def found(self) -> list[Span | None]:
        """What annotators answered; that one of them found nothing counts only where all did, as SQuAD 2.0 has it."""
        spans: list[Span | None] = [answer for answer in self.answers if answer is not None]
        return spans or [None]

    @property
    def rights(self) -> list[str]:
        """The right answers, each once; the empty one alone where there is none."""
        return list(dict.fromkeys("" if answer is None else answer.text for answer in self.found))

    @property
    def common(self) -> Span | None:
        """The answer that most gave; the first of those that as many gave."""
        return Counter(self.found).most_common(1)[0][0]


@dataclass
class Questions:
    """What a file asks."""

    source: str
    questions: list[Question]
    sha256: str = ""
    notes: list[str] = field(default_factory=list)  # what a reader should know: columns guessed, rows left out

    def __post_init__(self) -> None:
        self.sha256 = self.sha256 or _content_hash(self.questions)

    @property
    def unanswerable(self) -> int:
        return sum(not question.answerable for question in self.questions)


@dataclass
class Reading:
    """How files are read: the same for all of a task's."""

    root: str | None = None
    format: str = "auto"
    columns: Sequence[Column] | None = None  # question, context, answer and, where there is one, its place
    article: Column | None = None  # what texts belong together
    no_answer: str = "ANSWERNOTFOUND"  # the answer that means none
    encoding: str = "utf-8"
    skip_bad: bool = False


def read_questions(source: str, reading: Reading, split: str = "train") -> Questions:
    """The questions of a file, or of a dataset on the hub, each answer where it is said to be."""
    if reading.format not in QUESTION_FORMATS:
        raise DataError(f"there is no format '{reading.format}' of data; {suggest(reading.format, QUESTION_FORMATS)}")
    checker = _Checker(reading)
    notes = []
    squad = _squad_rows(source, reading) if reading.format in ("auto", "squad") else None
    if squad is None:
        table, roles, note = _read_columns(source, reading, split)
        name, rows = table.source, _table_rows(table, roles)
        notes.append(note)
    else:
        name, rows = squad
    questions = [question for row in rows if (question := checker.question(row)) is not None]
    if checker.skipped:
        left = f"{name}: {len(checker.skipped):,} left out, whose answers are not where they should be"
        notes.append(f"{left}; the first is {checker.skipped[0].removeprefix(f'{name}, ')}")
    if not questions:
        raise DataError(f"{name} holds no questions{' that can be used' if checker.skipped else ''}")
    if squad is None and len(grouped := _grouped(questions)) < len(questions):
        notes.append(f"{name}: {len(questions):,} rows ask {len(grouped):,} questions, some with several answers")
        questions = grouped
    return Questions(name, questions, notes=notes)


@dataclass
class _Raw:
    """A question as it stands in a file: answers are (text or None, place or None) pairs, or not spoken of."""

    where: str
    id: str
    question: Any
    context: Any
    answers: list[tuple[Any, Any]] | None
    article: str | None


# --- SQuAD's JSON -----------------------------------------------------------------------------------


def _squad_rows(source: str, reading: Reading) -> tuple[str, Iterator[_Raw]] | None:
    """The name of a SQuAD file and its questions; None where it is something else."""
    path = locate(source, reading.root)
    if path is None or (reading.format == "auto" and path.name.lower().removesuffix(".gz")[-5:] != ".json"):
        return None
    text = load_text(path, reading.encoding, max_line=0)
    try:
        held: Any = parse_json(text, object, str(path), error=DataError)
    except DataError as problem:
        if reading.format == "auto" and "\n" in text.strip() and text.lstrip().startswith("{"):
            return None  # one object a line
        raise DataError(f"{problem}; put it right, or copy the file again") from None
    articles = held.get("data") if isinstance(held, dict) else None
    if not isinstance(articles, list):
        if reading.format == "auto" and isinstance(held, dict) and any(name in held for name in QUESTION_NAMES):
            return None  # a table of one line
        there = list_names(held) if isinstance(held, dict) else type(held).__name__
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
                yield _Raw(f"{path}, question {brief(name)}", name, text, context, pairs, title)


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


def _read_columns(source: str, reading: Reading, split: str) -> tuple[Table, list[str], str]:
    """The columns that hold what is needed, the role of each, and a note that says which they are."""
    roles: list[str] = []

    def choose(head: Head) -> list[Column]:
        chosen = _named(reading) if reading.columns else _guessed(head)
        if reading.article is not None:
            chosen["article"] = reading.article
        elif "article" not in chosen and (found := _first_of(ARTICLE_NAMES, head.names)) is not None:
            numbers = all(isinstance(column, int) for column in chosen.values())
            if not numbers:  # else there is no header
                chosen["article"] = found
        roles[:] = chosen
        return list(chosen.values())

    format = "auto" if reading.format == "squad" else reading.format
    format = format_of(source, reading.root, format, reading.encoding)
    table = read_table(source, choose, root=reading.root, format=format, encoding=reading.encoding, split=split)
    told = ", ".join(f"'{brief(name)}' as {role}" for name, role in zip(table.names, roles, strict=True))
    return table, roles, f"{table.source}: reading {told}"


def _named(reading: Reading) -> dict[str, Column]:
    assert reading.columns is not None
    roles = ("question", "context", "answer", "place")
    if not 2 <= len(reading.columns) <= len(roles):
        raise DataError(
            f"data.columns has {len(reading.columns)} columns; name those of question, context, answer and, where "
            "there is one, the answer's place"
        )
    return dict(zip(roles, reading.columns, strict=False))


def _first_of(known: Iterable[str], names: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[name] for name in known if name in lower), None)


def _guessed(head: Head) -> dict[str, Column]:
    chosen: dict[str, Column] = {}
    wanted = (("question", QUESTION_NAMES), ("context", CONTEXT_NAMES), ("answer", ANSWER_NAMES))
    for role, known in wanted:
        found = _first_of(known, [name for name in head.names if name not in chosen.values()])
        if found is None:
            raise DataError(
                f"{head.where}: no column looks like the {role}, among {list_names(head.names)}; say which are "
                "question, context and answer: data.columns=[…,…,…]"
            )
        chosen[role] = found
    place = _first_of(START_NAMES, head.names)
    if place is not None:
        chosen["place"] = place
    return chosen


def _table_rows(table: Table, roles: list[str]) -> Iterator[_Raw]:
    columns = dict(zip(roles, table.columns, strict=True))
    nothing: list[Any] = [None] * len(table.lines)
    answers, places = columns.get("answer", nothing), columns.get("place", nothing)
    articles = columns.get("article", nothing)
    for row, (question, context) in enumerate(zip(columns["question"], columns["context"], strict=True)):
        where = table.where(row)
        pairs = _pairs(answers[row], places[row], where)
        article = None if articles[row] in (None, "") else str(articles[row])
        yield _Raw(where, str(table.lines[row]), question, context, pairs, article)


def _pairs(value: Any, place: Any, where: str) -> list[tuple[Any, Any]]:
    """What stands for answers as (text, place) pairs: a text, `{"text": […], "answer_start": […]}`, or a list."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        value = _literal(value)  # a csv's way to hold such an object
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start", value.get("start"))
        if texts is None or isinstance(texts, dict):
            raise DataError(f"{where}: the answer has no 'text'; it has {list_names(map(str, value))}")
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


class _Checker:
    """Turns what a file says into questions whose answers are where they should be."""

    def __init__(self, reading: Reading) -> None:
        self.none, self.skip = reading.no_answer, reading.skip_bad
        self.skipped: list[str] = []  # what was wrong with each

    def question(self, raw: _Raw) -> Question | None:
        question, context = self._text(raw, "question").strip(), self._text(raw, "context")
        if self.none:  # SubjQA's contexts end in it
            context = context.removesuffix(self.none)
        if not context.strip():
            raise DataError(f"{raw.where}: the context is empty; fill it in, or remove the question")
        try:
            if raw.answers is None:
                raise ValueError("there are no 'answers', nor 'is_impossible', which says that there are none")
            answers = [self._span(context, text, place) for text, place in raw.answers] or [None]
        except ValueError as problem:
            said = f"{raw.where}: {problem}"
            if not self.skip:
                raise DataError(f"{said}; put it right, or set data.skip_bad=true to leave such ones out") from None
            self.skipped.append(said)
            return None
        return Question(raw.id, question, context, answers, raw.article)

    def _text(self, raw: _Raw, role: str) -> str:
        value = getattr(raw, role)
        if not isinstance(value, str):
            raise DataError(f"{raw.where}: the {role} is {type(value).__name__}, not text; set data.columns")
        if not value.strip():
            raise DataError(f"{raw.where}: the {role} is empty; fill it in, or remove the question")
        return value

    def _span(self, context: str, text: Any, place: Any) -> Span | None:
        """The answer in its context; ValueError says why there is none."""
        if text is None or text == "" or (isinstance(text, str) and text.strip() == self.none):
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


def _between(context: str, text: str, place: Sequence[Any]) -> Span:
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


def _trimmed(start: int, text: str) -> Span:
    bare = text.strip()
    if not bare:
        raise ValueError("the answer is white space")
    return Span(start + len(text) - len(text.lstrip()), bare)


def _grouped(questions: list[Question]) -> list[Question]:
    """Rows that ask the same of the same context as one, with all their answers."""
    known: dict[tuple[str, str], Question] = {}
    for question in questions:
        key = (question.question, question.context)
        if key in known:
            known[key].answers += question.answers
        else:
            known[key] = question
    return list(known.values())


def _content_hash(questions: Iterable[Question]) -> str:
    digest = hashlib.sha256()
    for question in questions:
        answers = [None if answer is None else (answer.start, answer.text) for answer in question.answers]
        digest.update(repr((question.question, question.context, answers)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
