"""Notes in Python are shown with the caller's own line."""

from __future__ import annotations

import warnings

from legato.errors import warn


def test_a_note_stands_at_the_line_outside_the_package_that_led_to_it() -> None:
    inside: dict[str, object] = {"__name__": "legato.within", "warn": warn}
    exec("def call():\n    warn('a note')\n", inside)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        inside["call"]()  # type: ignore[operator]
    assert [note.filename for note in notes] == [__file__]
