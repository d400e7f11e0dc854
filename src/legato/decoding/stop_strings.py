"""Stop strings: text that ends what is written, and is left out of it."""

from __future__ import annotations

from collections.abc import Sequence

BROKEN = "\ufffd"  # what decoding gives for bytes that are no character


def cut_at_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string in it, and whether there was one.

    >>> cut_at_stop("one. two.", (".", "two"))
    ('one', True)
    """
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)
