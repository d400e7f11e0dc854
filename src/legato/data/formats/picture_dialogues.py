"""Dialogues about pictures: a picture each, and what was said of it.

{"image": "1.jpg", "messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A dog."}]}
{"image": "1.jpg", "conversations": [{"from": "human", "value": "<image>\\nWhy?"}, {"from": "gpt", "value": "So."}]}
{"image": "1.jpg", "question": "What is it?", "answer": "A dog."}
{"image": "1.jpg", "question": "Describe it.", "answer": "A dog.", "references": ["A dog.", "A brown dog."]}
{"image": "1.jpg", "captions": ["a dog runs", "a brown dog in the grass"]}

The picture stands before what a user says first, wherever a line <image> there, as in LLaVA's published dialogues, or
a piece of the type image marks it.

Of pictures with captions all are asked the same (`prompt`), and each caption is an answer to learn; where nothing is
learned, a picture is asked once, and all its captions are references.

What is learned is the answers. What a model writes in place of the last one is compared with its references, or
where there are none with the answer itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from legato.data.digests import sha256_of
from legato.data.formats.captions import CAPTIONS, Captions, captioned_scenes, captions_of
from legato.data.formats.dialogues import ANSWER, MESSAGES, PLACE, QUESTION, Dialogues, Message, dialogues_of
from legato.data.formats.picture_rows import IMAGE, album_of, picture_key, read_picture_table
from legato.data.formats.text_pairs import tidy
from legato.data.formats.visual_questions import questioned_scenes
from legato.data.image.picture_files import Picture
from legato.data.image.scenes import ScenesConfig
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions
from legato.data.sources.named_files import digest_of_files
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column, Head, Table
from legato.errors import DataError, brief, listed
from legato.schema import is_text

REFERENCES: Final = Role("references", "references", required=False)


DESCRIPTIONS: Final = CAPTIONS.roles[1]
PROMPT: Final = "Describe the picture."


class DialogueRoles(Roles):
    """A dialogue is one column, or two; or there are captions in its place."""

    def by_name(self, head: Head) -> dict[str, Column]:
        found = super().by_name(head)
        pair = {QUESTION.name, ANSWER.name}
        if MESSAGES.name not in found and not pair <= found.keys():
            captions = DESCRIPTIONS.find(head.names)
            if captions and IMAGE.name in found and not pair & found.keys():
                return {IMAGE.name: found[IMAGE.name], DESCRIPTIONS.name: captions[0]}
            raise DataError(
                f"{head.where}: no columns look like a dialogue, among {listed(head.names)}; say which {self.which}"
            )
        return {role: column for role, column in found.items() if role not in pair or MESSAGES.name not in found}


PICTURE_DIALOGUES: Final = DialogueRoles(
    (IMAGE, MESSAGES, QUESTION, ANSWER, REFERENCES),
    "are picture and dialogue: data.columns=[IMAGE,MESSAGES], [IMAGE,QUESTION,ANSWER] or [IMAGE,CAPTIONS]",
    (2, 4),
    "two or three, [IMAGE,MESSAGES], [IMAGE,QUESTION,ANSWER] or [IMAGE,CAPTIONS], and behind those of a dialogue "
    "references, where there are any",
)


@dataclass(frozen=True, kw_only=True)
class PictureDialogues(Dialogues):
    """Dialogues, and the picture that each is about."""

    pictures: list[Picture]
    names: list[str]  # which picture each is
    references: list[list[str]]  # what the last answer of each is compared with

    by_row: ClassVar[tuple[str, ...]] = ("lines", "rows", "pictures", "names", "references")

    def content_hash(self) -> str:
        said = (json.dumps(several) + "\n" for several in self.references)
        return sha256_of([super().content_hash(), *said, *self.names, *digest_of_files(self.album()[0])])

    def album(self) -> tuple[list[Picture], list[int]]:
        """Every picture once, and for each dialogue the number of its picture there."""
        return album_of(self.pictures, self.names)

    def asked_once(self) -> PictureDialogues:
        """Without rows that ask the same of the same picture and are compared with the same references."""
        first: dict[str, int] = {}
        for row, messages in enumerate(self.rows):
            asked = messages[: last_answer(messages)]
            first.setdefault(json.dumps([self.names[row], asked, self.references[row]]), row)
        return self if len(first) == len(self.rows) else self.select(list(first.values()))


def read_picture_dialogues(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    images: str | None = None,
    columns: Sequence[Column] | None = None,
    system: str | None = None,
    prompt: str = PROMPT,
) -> PictureDialogues:
    """The dialogues of a table or a dataset on the hub, with their pictures."""
    table, pictures, note = read_picture_table(source, files, images, PICTURE_DIALOGUES, columns)
    if len(table.names) == 2 and not MESSAGES.knows(str(table.names[1])) and _has_captions(table):
        return described(captions_of(table, pictures, note), prompt, system, each=files.split == "train")
    compared = len(table.names) == 4 or (len(table.names) == 3 and REFERENCES.knows(table.names[-1]))
    said = slice(1, len(table.names) - compared)
    found = dialogues_of(replace(table, names=table.names[said], columns=table.columns[said]), system, pictures=True)
    for messages in found.rows:
        _take_place(messages)
    return PictureDialogues(
        source=found.source,
        rows=found.rows,
        columns=list(table.names),
        lines=found.lines,
        row_files=found.row_files,
        unit=found.unit,
        note=note,
        pictures=pictures,
        names=[picture_key(picture) for picture in pictures],
        references=[
            (_references(table, row) if compared else []) or [messages[last_answer(messages)]["content"]]
            for row, messages in enumerate(found.rows)
        ],
    )


def _has_captions(table: Table) -> bool:
    """Whether what stands first in the second column is a text, or a list of them, and no messages."""
    value = next(iter(table.columns[1]), None)
    if isinstance(value, str):
        return not value.lstrip().startswith("[")  # messages may be written as JSON
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)


def described(captions: Captions, prompt: str, system: str | None, *, each: bool) -> PictureDialogues:
    """A dialogue for `each` caption, or one for each picture, with its captions as references."""
    said = [(row, text) for row, several in enumerate(captions.captions) for text in several[: None if each else 1]]
    return PictureDialogues(
        source=captions.source,
        rows=[_asked(prompt, text, system) for _, text in said],
        columns=list(map(str, captions.columns)),
        lines=[captions.lines[row] for row, _ in said],
        unit=captions.unit,
        note=captions.note,
        pictures=[captions.pictures[row] for row, _ in said],
        names=[picture_key(captions.pictures[row]) for row, _ in said],
        references=[captions.captions[row] for row, _ in said],
    )


def talked_scenes(
    config: ScenesConfig, split: str, seed: int, *, prompt: str = PROMPT, system: str | None = None
) -> PictureDialogues:
    """Scenes, each described once and asked about."""
    captions = described(captioned_scenes(config, split, seed), prompt, system, each=False)
    asked = questioned_scenes(config, split, seed)
    questions = zip(asked.texts, asked.labels, strict=True)
    return replace(
        captions,
        rows=captions.rows + [_asked(text, answer, system) for text, answer in questions],
        lines=[*captions.lines, *asked.lines],
        pictures=captions.pictures + asked.pictures,
        names=captions.names + asked.names,
        references=captions.references + [[answer] for answer in asked.labels],
        sha256=sha256_of([captions.sha256, asked.sha256, prompt, system or ""]),
    )


def _take_place(messages: list[Message]) -> None:
    """Leave out what marks the picture's place in what a user says first: a line before it, or behind it."""
    first = next((message for message in messages if message["role"] == "user"), None)
    if first is not None:
        said = first["content"]
        bare = said.removeprefix(f"{PLACE}\n")
        first["content"] = bare if bare != said else said.removesuffix(f"\n{PLACE}")


def _asked(question: str, answer: str, system: str | None) -> list[Message]:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def last_answer(messages: Sequence[Message]) -> int:
    """Which message of a dialogue is its last answer."""
    return max(place for place, message in enumerate(messages) if message["role"] == "assistant")


def _references(table: Table, row: int) -> list[str]:
    """What stands in the last column: a list of texts, or nothing."""
    value = table.columns[-1][row]
    several = [] if value is None else value
    if not isinstance(several, list) or not all(isinstance(text, str) and is_text(text) for text in several):
        raise DataError(f"{table.where(row)}: {brief(repr(value))} is no list of references, which are texts")
    return [text for text in map(tidy, several) if text]
