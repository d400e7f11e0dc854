"""How a command refuses: in one line, with exit code 2."""

from __future__ import annotations

from typing import Any


def is_one_line(answer: Any, *parts: str) -> None:
    """The command was refused, in one line that holds `parts`, and said nothing else."""
    assert answer.code == 2, answer.err
    assert answer.out == "", answer.out
    lines = answer.err.splitlines()
    assert len(lines) == 1, answer.err
    assert lines[0].startswith("legato: "), answer.err
    for part in parts:
        assert part in lines[0], (part, lines[0])


def ends_in_one_line(answer: Any, *parts: str) -> None:
    """The command was refused after it had begun to report what it was doing."""
    assert answer.code == 2, answer.err
    last = answer.err.splitlines()[-1]
    assert answer.err.count("legato: ") == 1, answer.err
    assert last.startswith("legato: "), answer.err
    for part in parts:
        assert part in last, (part, last)
