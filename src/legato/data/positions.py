"""What stands at the positions of a sequence, for people who look at it: tokens, patches, frames, queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from legato.data.batching.batch import Batch
from legato.data.batching.examples import Example, collate_examples
from legato.data.text.any_tokenizer import AnyTokenizer

Kind = Literal["token", "patch", "frame", "query"]
PLURALS: Final[Mapping[Kind, str]] = {"token": "tokens", "patch": "patches", "frame": "frames", "query": "queries"}

# The streams that parts of a model read. What a batch has: its inputs, the pictures beside them, what an encoder
# reads, what a decoder writes. What a model makes of it: the grid of a picture, without what stands for the whole,
# and the queries that look at things. What is looked at (the axis `source`) is always SOURCE.
INPUT, SOURCE, TARGET, IMAGE, GRID, QUERY = "input", "source", "target", "image", "grid", "query"


@dataclass(frozen=True)
class Positions:
    """The positions that one part of a model reads. Some of them may be the patches of a picture (`patches`).

    >>> Positions("token", ("a", "dog")).count
    2
    """

    kind: Kind  # of those that are no patches of a grid
    names: tuple[str, ...]  # what each is called: a token's text, a patch's row and column, a frame's time or number
    grid: tuple[int, int] | None = None  # of the patches of a picture: rows and columns
    before: int = 0  # positions before the first of those patches: what stands for the whole, tokens
    seconds: float | None = None  # of frames: from one to the next

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def patches(self) -> range:
        """The positions that are patches of the picture, row by row of its grid; none where there is no grid.

        >>> prompt = Positions("token", ("look", "1, 1", "1, 2", "!"), grid=(1, 2), before=1)
        >>> list(prompt.patches), str(prompt)
        ([1, 2], '2 patches and 2 tokens')
        """
        size = 0 if self.grid is None else self.grid[0] * self.grid[1]
        return range(self.before, self.before + size)

    def __str__(self) -> str:
        inside = 0 if self.kind == "patch" else len(self.patches)
        counts = {"patch": inside, self.kind: self.count - inside}
        told = [f"{count} {kind if count == 1 else PLURALS[kind]}" for kind, count in counts.items() if count]
        return " and ".join(told) or "nothing"

    def only_patches(self) -> Positions:
        """The patches of the grid, without what stands before and behind them."""
        return Positions("patch", self.names[self.patches.start : self.patches.stop], self.grid)

    def followed_by(self, other: Positions) -> Positions:
        """Both, one behind the other; the second has no grid."""
        return Positions(other.kind, self.names + other.names, self.grid, self.before)


@dataclass(frozen=True)
class Reading:
    """One input as a model reads it: a batch of one row, and what stands in it."""

    batch: Batch
    positions: dict[str, Positions] = field(default_factory=dict)  # by stream
    written: list[str] | None = None  # the token that belongs behind each of the last stream's positions


def named_tokens(tokenizer: AnyTokenizer, ids: Iterable[int]) -> Positions:
    """Tokens, each by what it adds to a text."""
    return Positions("token", tuple(shown_token(tokenizer, int(index)) for index in ids))


def row_reading(row: Example, tokenizer: AnyTokenizer, padding: int = 0) -> Reading:
    """A row of tokens, which is all that a model reads."""
    return Reading(collate_examples([row], pad=padding), {INPUT: named_tokens(tokenizer, row.ids)})


def named_patches(grid: tuple[int, int], before: int) -> Positions:
    """The patches of a picture by row and column, from 1, and `before` them what stands for the whole."""
    places = (f"{row + 1}, {column + 1}" for row in range(grid[0]) for column in range(grid[1]))
    return Positions("patch", ("whole",) * before + tuple(places), grid, before)


def numbered(kind: Kind, count: int) -> Positions:
    """So many of a kind, by their numbers from 1.

    >>> numbered("query", 2).names
    ('query 1', 'query 2')
    """
    return Positions(kind, tuple(f"{kind} {number}" for number in range(1, count + 1)))


def shown_token(tokenizer: AnyTokenizer, index: int) -> str:
    """What a token adds to a text; the name of one that adds nothing, or that is no more than an output."""
    if index >= tokenizer.size:
        return f"<{index}>"
    if index in tokenizer.special_ids:
        return tokenizer.token(index)
    if tokenizer.pieces is None:
        return tokenizer.decode([index]) or tokenizer.token(index)
    return tokenizer.pieces[index].decode("utf-8", "replace")
