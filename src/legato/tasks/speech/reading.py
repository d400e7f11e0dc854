"""One sound as a model for speech reads it, for who looks inside."""

from __future__ import annotations

from typing import Any

from legato.data.batching.batch import Batch
from legato.data.positions import INPUT, Reading
from legato.folders.loaded import Loaded
from legato.tasks.encoder_decoder import written_reading
from legato.tasks.sound_data import framed_sound
from legato.tasks.speech.recognizer import WINDOW
from legato.tasks.speech.writer import Writer, encoded_texts, recognizer_of


def speech_reading(loaded: Loaded, given: Any, written: str | None) -> Reading:
    """A sound, and beside it what a decoder has written of it."""
    source, states = framed_sound(loaded, given, WINDOW)
    recognizer = recognizer_of(loaded)
    if not isinstance(recognizer, Writer):
        return Reading(Batch(source), {INPUT: states})
    memory = loaded.module.encode(Batch(source, source=source).to(loaded.module.device))
    prompt, tokenizer = recognizer.spoken(memory, recognizer.begins)[0], recognizer.tokenizer
    ids = encoded_texts(tokenizer, [written or ""], spaced=prompt.spaced)[0][: recognizer.longest]
    return written_reading(source, states, tokenizer, prompt.tokens, ids, tokenizer.eos_id)
