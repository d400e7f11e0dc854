"""What stands at the positions of a sequence, for people who look at it: tokens, patches, frames of sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["token", "patch", "frame", "query"]


@dataclass(frozen=True)
class Positions:
    """The positions that one part of a model reads.

    >>> Positions("token", ("a", "dog")).count
    2
    """

    kind: Kind
    names: tuple[str, ...]  # what each is called: a token's text; a patch or a frame has its number
    grid: tuple[int, int] | None = None  # of patches: rows and columns
    seconds: float | None = None  # of frames: from one to the next

    @property
    def count(self) -> int:
        return len(self.names)
