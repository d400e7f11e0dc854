"""One picture and one question as a model reads them, for who looks inside: patches among tokens."""

from __future__ import annotations

from typing import Any

import torch

from legato.data.batching.batch import Batch, Inputs
from legato.data.positions import IMAGE, INPUT, Positions, Reading, named_tokens
from legato.folders.loaded import Loaded
from legato.tasks.picture_data import placed_picture
from legato.tasks.visual_chat.picture_talk import PictureTalk, llava_of
from legato.tasks.vqa.answerer import asked_of


def talk_reading(loaded: Loaded, given: Any) -> Reading:
    """What the model reads before it answers: the question by the chat template, and in it the picture.

    What is given is as for `vqa`: a picture and a question, or both in a text with a tab between them.
    """
    picture, question, _ = asked_of(given)
    model, talk = llava_of(loaded), PictureTalk.of(loaded)
    pixels, places = placed_picture(loaded, picture)
    ids = talk.prompt([{"role": "user", "content": question}])
    model.refuse_longer(len(ids))
    names, first = list(named_tokens(loaded.tokenizer, ids).names), ids.index(talk.token)
    stand = places if model.config.whole else places.only_patches()
    names[first : first + stand.count] = stand.names
    read = Positions("token", tuple(names), places.grid, first + stand.before)
    batch = Batch(Inputs.of([ids]), images=pixels, image_rows=torch.zeros(1, dtype=torch.long))
    return Reading(batch, {IMAGE: places, INPUT: read}, [*names[1:], ""])
