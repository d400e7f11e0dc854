"""One sound as a model for speech reads it, and what the search of its text begins with, for who looks inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from legato.data.batching.batch import Batch
from legato.data.positions import INPUT, Reading
from legato.decoding.search_start import SearchStart
from legato.decoding.speech.ctc_prefix import JointScores
from legato.folders.loaded import Loaded
from legato.tasks.encoder_decoder import written_reading
from legato.tasks.sound_data import framed_sound
from legato.tasks.speech.recognizer import WINDOW
from legato.tasks.speech.writer import MORE, Writer, encoded_texts, recognizer_of


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


def speech_search_start(loaded: Loaded, start: SearchStart) -> SearchStart:
    """What the search of a decoder that hears begins with: its prompt, and CTC's say."""
    writer = recognizer_of(loaded)
    assert isinstance(writer, Writer), "an encoder–decoder of sound writes with its decoder"
    prompt = replace(writer.begins, tokens=tuple(start.prompt), languages=())
    tokens = writer.target_tokens(prompt)
    counts, logits = start.memory.lengths, loaded.module.ctc_logits(start.memory)
    limit = writer.longest if counts is None else min(writer.longest, int(counts[0]) + MORE)
    found = replace(
        start,
        limit=limit,
        usual=limit,
        written=writer.text,
        encoded=lambda prefix: encoded_texts(writer.tokenizer, [prefix], spaced=prompt.spaced)[0],
        suppress=tokens.suppress,
        suppress_first=tokens.suppress_first,
        length_penalty=1.0,
        text_of=writer.tokenizer.decode,
    )
    if logits is None:
        return found
    said = logits.float().log_softmax(-1)
    joint = JointScores(said, counts, blank=writer.blank, eos=tokens.eos, weight=writer.share)
    return replace(found, processor=joint, normalised=True, length_penalty=0.0)
