"""Talking to a model in a terminal: each line is a turn, and the dialogue is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from legato.errors import DataError

if TYPE_CHECKING:
    from legato.decoding import SearchOptions
    from legato.model import Model


def talk(model: Model, options: SearchOptions, system: str | None, write: Any) -> None:
    """Answer every line of standard input, until it ends."""
    model.check_chats()
    first = opening(system)
    turns: list[dict[str, str]] = []
    noted = False
    for line in _turns():
        turns.append({"role": "user", "content": line})
        kept = _fitting(model, first, turns, options)
        if len(kept) < len(turns) and not noted:
            print("legato: note: the model's context is full; the first messages are forgotten", file=sys.stderr)
            noted = True
        turns = kept
        asked = model.chat_ids([*first, *turns])
        try:
            answer = model.write(asked, options, write)
        finally:
            write("\n")
        turns.append({"role": "assistant", "content": answer.text})


def opening(system: str | None) -> list[dict[str, str]]:
    """What a dialogue begins with."""
    return [] if system is None else [{"role": "system", "content": system}]


def _fitting(
    model: Model, first: list[dict[str, str]], turns: list[dict[str, str]], options: SearchOptions
) -> list[dict[str, str]]:
    """The last turns, as many as leave room for an answer in the model's context; the newest one in any case."""
    max_length = model.module.max_length
    if max_length is None or options.slide:
        return turns
    room = min(options.max_tokens, max_length // 4)
    while len(turns) > 1 and len(model.chat_ids([*first, *turns])) + room > max_length:
        turns = turns[2:]  # a question and its answer
    return turns


def _turns() -> Iterator[str]:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("there is no prompt, and standard input is closed; give a prompt")
    typed = sys.stdin.isatty()
    if typed:
        print("one message a line; end with Ctrl-D", file=sys.stderr)
    while True:
        if typed:
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise DataError("standard input is not UTF-8 text") from None
        if not line:
            return
        if line.strip():
            yield line.rstrip("\r\n")
