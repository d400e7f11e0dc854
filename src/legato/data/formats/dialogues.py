"""Dialogues from files and the hub: who said what, and what the model is to learn to answer.

A row is one dialogue, in one of the forms that people publish:

    messages                        a list of {"role": …, "content": …}, or of {"from": …, "value": …}
    instruction, input, output      an instruction, what it is about (may be empty), and the answer
    prompt, completion              and question, answer and other such pairs of columns

Which columns are read is guessed from their names, and said; `columns` names others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from legato.data.sources.table import Column, Head, Table, list_names
from legato.data.sources.tables import read_table
from legato.errors import DataError, brief, suggest
from legato.schema import OPEN, TypedDict, fit, is_text, parse_json, with_config

ROLES: Final = ("system", "user", "assistant", "tool", "developer")
OTHER_ROLES: Final = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
WHOLE: Final[tuple[str, ...]] = ("messages", "conversations", "conversation", "dialogue", "dialog")
ANSWERS: Final[tuple[str, ...]] = ("output", "completion", "response", "answer", "assistant", "target")
ASKED: Final[tuple[str, ...]] = ("instruction", "prompt", "question", "user", "input", "query")
SYSTEM: Final = ("system", "system_prompt")

Message = dict[str, str]


@with_config(OPEN)
class Piece(TypedDict, total=False):
    """A part of a message that is written as parts."""

    text: str


@dataclass(frozen=True)
class Dialogues:
    """Dialogues, where each stands, and the hash that names their content."""

    source: str
    rows: list[list[Message]]
    where: list[str]
    columns: list[str]  # that were read
    sha256: str


def read_dialogues(
    source: str,
    *,
    root: str | None = None,
    columns: Sequence[Column] | None = None,
    system: str | None = None,
    format: str = "auto",
    encoding: str = "utf-8",
    split: str = "train",
) -> Dialogues:
    """The dialogues of a file or a dataset on the hub; `system` begins those that have no such message.

    >>> read_dialogues("chats.jsonl").rows[0]  # doctest: +SKIP
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello!'}]
    """
    table = read_table(
        source,
        lambda head: _choose(head, columns),
        root=root,
        format=format,
        encoding=encoding,
        split=split,
    )
    rows = [_dialogue(table, number, system) for number in range(len(table.lines))]
    if not rows:
        raise DataError(f"{source} holds no dialogue")
    where = [table.where(number) for number in range(len(rows))]
    return _made(table.source, rows, where, table.names)


def hold_out_dialogues(dialogues: Dialogues, share: float) -> tuple[Dialogues, Dialogues]:
    """Those without the last `share`, and that share, each at least one."""
    count = len(dialogues.rows)
    if count < 2:
        raise DataError(f"{dialogues.source} holds one dialogue, so that none can be held out; set data.valid=FILE")
    cut = max(1, min(count - 1, round(count * (1 - share))))
    parts = [(slice(0, cut), f"the first {1 - share:.0%}"), (slice(cut, None), f"the last {share:.0%}")]
    kept, held = (
        _made(f"{name} of {dialogues.source}", dialogues.rows[part], dialogues.where[part], dialogues.columns)
        for part, name in parts
    )
    return kept, held


def _made(source: str, rows: list[list[Message]], where: list[str], columns: list[str]) -> Dialogues:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
    return Dialogues(source, rows, where, columns, digest.hexdigest())


def _choose(head: Head, columns: Sequence[Column] | None) -> list[Column]:
    """The columns to read: those that somebody named, or those whose names are usual."""
    if columns is not None:
        return list(columns)
    told = [name for name in SYSTEM if name in head.names][:1]
    for name in WHOLE:
        if name in head.names:
            return [name, *told]
    asked = next((name for name in ASKED if name in head.names), None)
    answer = next((name for name in ANSWERS if name in head.names and name != asked), None)
    if asked is None or answer is None:
        raise DataError(
            f"{head.where} has the columns {list_names(head.names)}, and none are known as a dialogue's; say which "
            "are: data.columns=[question,answer], or the one that holds messages"
        )
    about = ["input"] if asked == "instruction" and "input" in head.names else []
    return [asked, *about, answer, *told]


def _dialogue(table: Table, number: int, system: str | None) -> list[Message]:
    where, values = table.where(number), [column[number] for column in table.columns]
    names = list(table.names)
    told = None
    if len(names) > 1 and names[-1] in SYSTEM:
        told = values.pop()
        names.pop()
    if len(values) == 1:
        messages = _messages(values[0], where)
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


def _messages(value: Any, where: str) -> list[Message]:
    if isinstance(value, str):  # in a csv or tsv
        try:
            value = parse_json(value, object, where, error=DataError)
        except DataError:
            raise DataError(f"{where}: '{brief(value, 40)}' is no list of messages; write them as JSON") from None
    if not isinstance(value, list) or not value:
        raise DataError(f'{where}: there are no messages; write [{{"role": "user", "content": "…"}}, …]')
    return [_message(entry, number, where) for number, entry in enumerate(value, start=1)]


def _message(entry: Any, number: int, where: str) -> Message:
    where = f"{where}, message {number}"
    if not isinstance(entry, Mapping):
        raise DataError(f'{where}: not {{"role": …, "content": …}} but {brief(entry, 40)!r}')
    role, content = entry.get("role", entry.get("from")), entry.get("content", entry.get("value"))
    role = OTHER_ROLES.get(str(role), role)
    if role not in ROLES:
        raise DataError(f"{where}: there is no role '{brief(role)}'; {suggest(str(role), ROLES)}")
    if isinstance(content, list):  # pieces, of which there may be others than text
        for piece in content:
            kind = piece.get("type") if isinstance(piece, Mapping) else type(piece).__name__
            if kind != "text":
                raise DataError(f"{where}: only text can be learned from, not {brief(kind)}")
        content = "".join(piece.get("text", "") for piece in fit(content, list[Piece], where, error=DataError))
    if not isinstance(content, str):
        raise DataError(f"{where}: its content is {_kind(content)}, not text; complete or remove the row")
    return {"role": str(role), "content": content}


def _kind(value: Any) -> str:
    """What a value is, in words."""
    known = {type(None): "missing", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return known.get(type(value), "an object")
