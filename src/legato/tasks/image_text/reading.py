"""A picture, a text or both as the towers of a model read them, for who looks inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from legato.data.batching.batch import Batch
from legato.data.image.picture_files import PICTURE_TYPES, reads_as_text
from legato.data.positions import IMAGE, Reading, row_reading
from legato.errors import DataError, brief
from legato.folders.loaded import Loaded
from legato.tasks.image_text.matcher import Matcher
from legato.tasks.picture_data import placed_picture


def pair_reading(loaded: Loaded, given: Any) -> Reading:
    """What each tower reads of a picture and a text (a pair of them, or one text with a tab between them), or one
    tower of one of the two."""
    picture, text = _sides(given)
    if text is None:
        pixels, places = placed_picture(loaded, picture)
        return Reading(Batch(pixels), {IMAGE: places})
    vectors = Matcher.of(loaded).texts
    rows = vectors.rows([text])
    vectors.reader.warn_of_cuts()
    words = row_reading(rows[0], loaded.tokenizer, vectors.reader.padding)
    if picture is None:
        return words
    pixels, places = placed_picture(loaded, picture)
    return Reading(replace(words.batch, source=pixels), {IMAGE: places, **words.positions})


def _sides(given: Any) -> tuple[Any, str | None]:
    """A picture and a text, of which one may be missing; a word that is no file is a text."""
    parts = given.split("\t", 1) if isinstance(given, str) else given
    if isinstance(parts, tuple | list) and len(parts) == 2 and isinstance(parts[1], str):
        picture, text = parts
    elif isinstance(given, str) and reads_as_text(given):
        picture, text = None, given
    elif isinstance(given, PICTURE_TYPES):
        picture, text = given, None
    else:
        raise DataError(f"give a picture, a text, or a picture and a text, not {brief(repr(given))}")
    if text is not None and not text.strip():
        raise DataError("there is no text to look at; give one, or a picture alone")
    return picture, text
