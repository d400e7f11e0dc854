"""Dialogues from files and the hub: who said what, and what the model is to learn to answer.

A row is one dialogue, in one of the forms that people publish:

    messages                        a list of {"role": …, "content": …}, or of {"from": …, "value": …}
    instruction, input, output      an instruction, what it is about (may be empty), and the answer
    prompt, completion              and question, answer and other such pairs of columns

Which columns are read is guessed from their names, and said; `columns` names others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from legato.data.digests import sha256_of
from legato.data.formats.rows import NumberedRows
from legato.data.sources.columns import DIALOGUES
from legato.data.sources.files import FileOptions
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import read_table
from legato.data.splits import by_order
from legato.errors import DataError, brief, listed, suggest
from legato.schema import OPEN, TypedDict, fit, is_text, parse_json, with_config

ROLES: Final = ("system", "user", "assistant", "tool", "developer")
OTHER_ROLES: Final = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
MESSAGES, QUESTION, ANSWER, SYSTEM = DIALOGUES.roles

PLACE: Final = "<image>"  # what marks a picture's place in dialogues, by LLaVA's custom

Message = dict[str, str]


@with_config(OPEN)
class Piece(TypedDict, total=False):
    """A part of a message that is written as parts."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Dialogues(NumberedRows):
    """Dialogues, where each stands, and the hash that names their content."""

    rows: list[list[Message]]
    columns: list[str]  # that were read

    by_row: ClassVar[tuple[str, ...]] = ("lines", "rows")

    def content_hash(self) -> str:
        return sha256_of(json.dumps(row) + "\n" for row in self.rows)


def read_dialogues(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    columns: Sequence[Column] | None = None,
    system: str | None = None,
) -> Dialogues:
    """The dialogues of a file or a dataset on the hub; `system` begins those that have no such message.

    >>> read_dialogues("chats.jsonl").rows[0]  # doctest: +SKIP
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello!'}]
    """
    table = read_table(source, lambda head: _guess(head) if columns is None else columns, files)
    return dialogues_of(table, system)


def dialogues_of(table: Table, system: str | None = None, *, pictures: bool = False) -> Dialogues:
    """Those of a table all of whose columns are a dialogue's; with `pictures`, pieces that are one become a line."""
    rows = [_dialogue(table, number, system, pictures) for number in range(len(table.lines))]
    if not rows:
        raise DataError(f"{table.source} holds no dialogue")
    return Dialogues(
        source=table.source,
        rows=rows,
        columns=table.names,
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
    )


def hold_out_dialogues(dialogues: Dialogues, share: float) -> dict[str, Dialogues]:
    """Those without the last `share`, and that share, each at least one."""
    names = {"train": f"the first {1 - share:.0%}", "valid": f"the last {share:.0%}"}
    parts = by_order(len(dialogues), share, dialogues.source, "dialogue")
    return {part: dialogues.select(rows, f"{names[part]} of {dialogues.source}") for part, rows in parts.items()}


def _guess(head: Head) -> list[Column]:
    """The columns whose names are usual."""
    system = SYSTEM.find(head.names)
    if whole := MESSAGES.find(head.names):
        return [*whole, *system]
    asked, answer = QUESTION.find(head.names), ANSWER.find(head.names)
    if not (asked and answer):
        raise head.undecided(DIALOGUES.which, f"the columns {listed(head.names)}, and none are known as a dialogue's")
    about = ["input"] if asked == ["instruction"] and "input" in head.names else []
    return [*asked, *about, *answer, *system]


def _dialogue(table: Table, number: int, system: str | None, pictures: bool) -> list[Message]:
    where, values = table.where(number), [column[number] for column in table.columns]
    names = list(table.names)
    told = None
    if len(names) > 1 and SYSTEM.knows(names[-1]):
        told = values.pop()
        names.pop()
    if len(values) == 1:
        messages = _messages(values[0], where, pictures)
    elif len(values) <= 3:
        *asked, answer = values
        messages = [*_said("user", asked, names, where), *_said("assistant", [answer], names[-1:], where)]
    else:
        raise DataError(
            f"a dialogue is one column of messages, or a question and its answer; not {len(values)} columns"
        )
    if messages[0]["role"] != "system" and (told or system):
        messages = [{"role": "system", "content": str(told or system)}, *messages]
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError(f"{where}: nobody answers; a dialogue to learn from needs a message of the role assistant")
    for message in messages:
        if message["role"] == "assistant" and not message["content"].strip():
            raise DataError(f"{where}: an answer is empty; complete or remove the row")
        if not is_text(message["content"]):
            raise DataError(f"{where}: there is half a surrogate pair, which is no character; remove it")
    return messages


def _said(role: str, values: list[Any], names: list[str], where: str) -> list[Message]:
    """One side of a pair of columns: a text, or messages already."""
    if len(values) == 1 and isinstance(values[0], list):
        return _messages(values[0], where)
    for name, value in zip(names, values, strict=False):
        if not isinstance(value, str) and not (value is None and name == "input"):
            raise DataError(f"{where}: '{name}' is {_kind(value)}, not text; complete or remove the row")
    text = "\n".join(value for value in values if value)
    if not text.strip():
        raise DataError(f"{where}: '{names[0]}' is empty; complete or remove the row")
    return [{"role": role, "content": text}]


def _messages(value: Any, where: str, pictures: bool = False) -> list[Message]:
    if isinstance(value, str):  # in a csv or tsv
        try:
            value = parse_json(value, object, where, error=DataError)
        except DataError:
            raise DataError(f"{where}: '{brief(value, 40)}' is no list of messages; write them as JSON") from None
    if not isinstance(value, list) or not value:
        raise DataError(f'{where}: there are no messages; write [{{"role": "user", "content": "…"}}, …]')
    return [_message(entry, number, where, pictures) for number, entry in enumerate(value, start=1)]


def _message(entry: Any, number: int, where: str, pictures: bool) -> Message:
    where = f"{where}, message {number}"
    if not isinstance(entry, Mapping):
        raise DataError(f'{where}: not {{"role": …, "content": …}} but {brief(entry, 40)!r}')
    role, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    role = OTHER_ROLES.get(str(role), role)
    if role not in ROLES:
        raise DataError(f"{where}: there is no role '{brief(role)}'; {suggest(str(role), ROLES)}")
    if isinstance(content, list):  # pieces, of which there may be others than text
        kinds = [piece.get("type") if isinstance(piece, Mapping) else type(piece).__name__ for piece in content]
        for kind in kinds:
            if kind != "text" and not (pictures and kind == "image"):
                raise DataError(f"{where}: only text can be learned from, not {brief(kind)}")
        said = [piece.get("text", "") for piece in fit(content, list[Piece], where, error=DataError)]
        marks = [f"\n{PLACE}" if place else f"{PLACE}\n" for place in range(len(kinds))]  # a line of its own
        pieces = zip(kinds, said, marks, strict=True)
        content = "".join(text if kind == "text" else mark for kind, text, mark in pieces)
    if not isinstance(content, str):
        raise DataError(f"{where}: its content is {_kind(content)}, not text; complete or remove the row")
    return {"role": str(role), "content": content}


def _kind(value: Any) -> str:
    """What a value is, in words."""
    known = {type(None): "missing", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return known.get(type(value), "an object")
