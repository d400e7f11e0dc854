"""Names of files and folders that a file says: such as a file system can have."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

LONGEST_PART, LONGEST = 255, 4000  # bytes


def _can_be(place: str) -> str:
    parts = place.encode().split(b"/")
    if b"\0" in place.encode() or sum(map(len, parts)) > LONGEST or max(map(len, parts)) > LONGEST_PART:
        raise ValueError("should name a file or folder")
    return place


Place = Annotated[str, AfterValidator(_can_be)]
