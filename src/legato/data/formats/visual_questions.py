"""Questions about pictures, with their answers, and perhaps the answers to choose from.

{"image": "1.jpg", "question": "what is on the table ?", "answer": "cup, plate"}
{"image": "1.jpg", "question": "how many cups are there ?", "answer": "two", "choices": ["one", "two", "three"]}

An answer is a text or a number; of a list, which is what several people said, it is what most of them did. Choices
are a list, or a text with ; between them. A picture has any number of questions, and is the same picture in all of
them: by its name, or where a table holds its bytes, by those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.labelled import Labelled
from legato.data.formats.picture_rows import IMAGE, album_of, drawn_picture, picture_key, read_picture_table
from legato.data.formats.text_pairs import tidy
from legato.data.image.picture_files import Picture
from legato.data.image.scene_questions import TRUE_FALSE, Question
from legato.data.image.scene_questions import questions as scene_questions
from legato.data.image.scene_questions import statements as scene_statements
from legato.data.image.scenes import SCENES, Scene, Scenes, ScenesConfig
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions, unify_newlines
from legato.data.sources.named_files import digest_of_files
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column, Table
from legato.errors import DataError, brief

QUESTION: Final = Role("question", "question, query, q")
CHOICES: Final = Role("choices", "choices, options, candidates, multiple_choices", required=False)
VISUAL_QUESTIONS: Final = Roles(
    (IMAGE, QUESTION, Role("answer", "answer, multiple_choice_answer, label, answers"), CHOICES),
    "are picture, question and answer: data.columns=[IMAGE,QUESTION,ANSWER], by name, or by number from 1",
    (3, 4),
    "three, [IMAGE,QUESTION,ANSWER], and as a fourth the choices, where there are any",
)
ASKED: Final = Roles(
    (IMAGE, QUESTION, CHOICES),
    "are picture and question: --columns IMAGE,QUESTION",
    (2, 3),
    "two, IMAGE,QUESTION, and as a third the choices, where there are any",
)
BETWEEN: Final = ";"  # choices that are one text


@dataclass(frozen=True, kw_only=True)
class VisualQuestions(Labelled):
    """Questions (`texts`), their answers (`labels`), and the picture of each."""

    pictures: list[Picture]
    names: list[str]  # which picture each is
    choices: list[list[str]] | None = None  # to answer with one of them; none for a question that is open

    by_row: ClassVar[tuple[str, ...]] = ("lines", "texts", "labels", "pictures", "names", "choices")

    def content_hash(self) -> str:
        labels, choices = ([repr(value) for value in column] for column in (self.labels, self.choices or []))
        columns = sized_columns((self.texts, labels, choices, self.names), self.where)
        return sha256_of([*columns, *digest_of_files(self.album()[0])])

    def album(self) -> tuple[list[Picture], list[int]]:
        """Every picture once, and for each question the number of its picture there."""
        return album_of(self.pictures, self.names)

    def joined(self) -> list[str]:
        return [f"{picture.name}\t{text}" for picture, text in zip(self.pictures, self.texts, strict=True)]


def read_visual_questions(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    images: str | None = None,
    columns: Sequence[Column] | None = None,
    choices: bool | None = None,
) -> VisualQuestions:
    """The questions of a table or a dataset on the hub; with `choices` or without, or with those that there are."""
    table, pictures, note = read_picture_table(source, files, images, VISUAL_QUESTIONS, columns)
    if choices and len(table.columns) < 4:
        raise DataError(f"{table.source} has no column of choices; name it: data.columns=[…,CHOICES], the fourth")
    names = table.classes[2] if table.classes else None
    return VisualQuestions(
        source=table.source,
        texts=_questions(table),
        labels=[_answer(table, row, names) for row in range(len(table.lines))],
        pictures=pictures,
        names=[picture_key(picture) for picture in pictures],
        choices=None if choices is False or len(table.columns) < 4 else _choices(table, 3),
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
        columns=list(table.names),
        note=note,
    )


def read_asked(
    source: Source, columns: Sequence[Column] | None = None
) -> tuple[list[tuple[Picture, str, list[str]]], str]:
    """The pictures and questions of a table, with the choices of each, and a note of what was guessed."""
    table, pictures, note = read_picture_table(source, FileOptions(), None, ASKED, columns)
    choices = _choices(table, 2) if len(table.columns) > 2 else [[] for _ in pictures]
    return list(zip(pictures, _questions(table), choices, strict=True)), note if columns is None else ""


def _questions(table: Table) -> list[str]:
    found = [tidy(unify_newlines(text)) for text in table.texts(1)]
    for row, text in enumerate(found):
        if not text:
            raise DataError(f"{table.where(row)}: the question is empty; write one, or remove the {table.unit}")
    return found


def _answer(table: Table, row: int, names: Sequence[str] | None) -> str:
    """A row's answer; `names` are those of numbers that stand for answers."""
    value = table.columns[2][row]
    given = value if isinstance(value, list) else [value]
    said = [_text(part, names) for part in given]
    if not said or not all(said):
        problem = "the answer is empty" if None not in said else f"{brief(repr(value))} is no answer"
        raise DataError(f"{table.where(row)}: {problem}; write one, or remove the {table.unit}")
    return str(Counter(said).most_common(1)[0][0])


def _text(value: Any, names: Sequence[str] | None) -> str | None:
    if isinstance(value, Mapping):  # as in VQA, where each answer stands beside who gave it
        value = value.get("answer")
    if names is not None and isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    if value is None:
        return ""
    return tidy(str(value)) if isinstance(value, str | int | float) else None


def _choices(table: Table, place: int) -> list[list[str]]:
    """The answers to choose from of every row; none where nothing stands there."""
    found = []
    for row, value in enumerate(table.columns[place]):
        parts = value.split(BETWEEN) if isinstance(value, str) else [] if value is None else value
        if not isinstance(parts, list) or not all(isinstance(part, str | int | float) for part in parts):
            raise DataError(
                f"{table.where(row)}: {brief(repr(value))} are no choices; give a list of texts, or a text with "
                f"{BETWEEN} between them"
            )
        found.append([text for part in parts if (text := tidy(str(part)))])
    return found


def questioned_scenes(config: ScenesConfig, split: str, seed: int, choices: bool = False) -> VisualQuestions:
    """Scenes, each with several questions."""
    told = "questions with choices" if choices else "questions"
    return _told_scenes(Scenes(config, split, seed), scene_questions, told, choices)


def stated_scenes(config: ScenesConfig, split: str, seed: int) -> VisualQuestions:
    """Scenes, each with several statements: what is answered is whether they are true or false."""

    def statements(scene: Scene) -> list[Question]:
        return [Question(said.sort, said.text, said.label, TRUE_FALSE) for said in scene_statements(scene)]

    return _told_scenes(Scenes(config, split, seed), statements, "statements")


def _told_scenes(
    scenes: Scenes, asked: Callable[[Scene], list[Question]], told: str, choices: bool = False
) -> VisualQuestions:
    rows = [
        (number, drawn_picture(scene), question)
        for number, scene in enumerate(scenes, start=1)
        for question in asked(scene)
    ]
    return VisualQuestions(
        source=SCENES,
        texts=[question.text for _, _, question in rows],
        labels=[question.answer for _, _, question in rows],
        pictures=[picture for _, picture, _ in rows],
        names=[picture.name for _, picture, _ in rows],
        choices=[list(question.options) for _, _, question in rows] if choices else None,
        lines=[number for number, _, _ in rows],
        unit="scene",
        columns=["scene"],
        sha256=sha256_of([scenes.digest(), told]),
    )
