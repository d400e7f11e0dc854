"""What is worth knowing of a trace, as tables of plain text: what there is, what is said at each position, what heads
do, and what is aligned with what."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, Final, NamedTuple

from legato.inspect.heads import HeadMeasures, head_measures
from legato.inspect.trace import Trace

BEST: Final = 3  # heads for each measure
MOST: Final = 40  # positions that are shown
LAYER: Final = re.compile(r"(?:^|(?<=\.))\d+(?=\.)")


class Table(NamedTuple):
    """Rows of values, under what they are called."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Any]]


def summary(trace: Trace) -> list[Table]:
    """The tables of a trace; those that would be empty are left out."""
    made = [_parts(trace), _positions(trace), _heads(trace), _alignment(trace)]
    return [table for table in made if table.rows]


def _parts(trace: Trace) -> Table:
    """Tensors of one kind, whatever their layer."""
    kinds: dict[str, list[str]] = {}
    for name in trace:
        kinds.setdefault(LAYER.sub("N", name), []).append(name)
    rows = [
        [kind, len(names), " × ".join(trace[names[0]].axes), " × ".join(map(str, trace[names[0]].values.shape))]
        for kind, names in kinds.items()
    ]
    return Table("what is inside", ("name", "layers", "axes", "shape"), rows)


def _positions(trace: Trace) -> Table:
    """What the model would say behind each token, and what stands there."""
    title, columns = "what it would say", ("position", "token", "guess", "probability", "then")
    if not trace.guesses or trace.written is None:
        return Table(title, columns, [])
    tokens = list(trace.positions.values())[-1].names
    rows = [
        [number, _shown(token), _shown(guess[0][0]), guess[0][1], _shown(then)]
        for number, (token, guess, then) in enumerate(zip(tokens, trace.guesses, trace.written, strict=False))
    ]
    return Table(title if len(rows) <= MOST else f"{title} (the last {MOST})", columns, rows[-MOST:])


def _heads(trace: Trace) -> Table:
    """The heads that are most of each kind."""
    measured = head_measures(trace)
    rows = []
    for each in fields(HeadMeasures)[2:]:
        known = [head for head in measured if getattr(head, each.name) is not None]
        best = sorted(known, key=lambda head, key=each.name: -getattr(head, key))[:BEST]  # type: ignore[misc]
        rows += [[each.name, head.name, head.head, float(getattr(head, each.name))] for head in best]
    return Table("heads", ("most", "name", "head", "value"), rows)


def _alignment(trace: Trace) -> Table:
    """Where most of a decoder's attention lies for each token that it writes, or for each query."""
    names = [name for name, each in trace.items() if each.axes[-2:] == ("position", "source")]
    columns = ("query" if trace.written is None else "written", "looks at", "weight")
    if not names:
        return Table("where it looks", columns, [])
    captured = trace[names[-1]]
    weights = captured.values if captured.values.ndim == 2 else captured.values.mean(0)  # (T, S)
    source, queries = (trace.positions_of(names[-1], axis) for axis in ("source", "position"))
    assert source is not None
    assert queries is not None
    rows = [
        [_shown(token), _shown(source.names[int(row.argmax())]), float(row.max())]
        for token, row in zip(queries.names if trace.written is None else trace.written, weights, strict=False)
    ]
    return Table(f"where it looks ({names[-1]})", columns, rows[:MOST])


def _shown(token: str) -> str:
    """A token in one line, with what cannot be seen: a space has the studio's sign.

    >>> _shown(" "), _shown(" a"), _shown("1, 2")
    ('␣', '␣a', '1, 2')
    """
    if token.strip() == token and token.isprintable():
        return token or "∅"
    return repr(token)[1:-1].replace(" ", "␣")
