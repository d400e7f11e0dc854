"""One picture and one question as a model reads them, for who looks inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from legato.data.positions import IMAGE, Reading, row_reading
from legato.folders.loaded import Loaded
from legato.tasks.picture_data import placed_picture
from legato.tasks.vqa.answerer import PictureAnswerer, asked_of


def question_reading(loaded: Loaded, given: Any) -> Reading:
    """A question, and beside it the picture that it is about, where the model is not blind."""
    picture, question, _ = asked_of(given)
    answerer = PictureAnswerer.of(loaded)
    rows = answerer.reader.texts([question])
    answerer.reader.warn_of_cuts()
    words = row_reading(rows[0], loaded.tokenizer, answerer.reader.padding)
    if answerer.processor is None:
        return words
    pixels, places = placed_picture(loaded, picture)
    batch = replace(words.batch, images=pixels, image_rows=torch.zeros(1, dtype=torch.long))
    return Reading(batch, {IMAGE: places, **words.positions})
