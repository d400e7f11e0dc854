"""One input as its model reads it, with what stands at each position: what looking inside begins with.

What writes is looked at while it reads what it has written (or what somebody gives instead), so one pass shows all.
A task that reads more than text says itself how (`Task.reading`), and a model what its parts see of that
(`SequenceModel.streams`, `stream_positions`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from legato.data.batching.batch import Batch, Inputs
from legato.data.positions import INPUT, Reading, named_tokens, row_reading
from legato.data.processors import TEXT
from legato.errors import DataError, LegatoError
from legato.folders.loaded import Loaded
from legato.registry import TASKS
from legato.tasks.embedding.text_vectors import TextVectors
from legato.tasks.encoder_decoder import text_reading
from legato.tasks.file_inputs import refuse_files


def reading_of(loaded: Loaded, given: Any, written: str | None = None) -> Reading:
    """One input as its model reads it; `written`: beside that text, in place of what the model would write."""
    task, module = TASKS.get(loaded.task), loaded.module
    if written is not None and not module.is_encoder_decoder:
        raise LegatoError(f"{loaded.folder} writes no text of what it reads; leave out what is written")
    reads_text = task.processors == (TEXT,)
    if reads_text:
        check_text(given)
    if written is None and module.is_encoder_decoder:
        written = _predicted(loaded, given)
    reading: Reading | None = task.reading(loaded, given, written)
    if reading is None:
        if not reads_text:
            raise LegatoError(f"{loaded.folder}: the task {task.name} does not say how its models read one input")
        reading = _read_text(loaded, given, written or "")
    return replace(reading, positions=module.stream_positions(reading.positions))


def _read_text(loaded: Loaded, text: str, written: str) -> Reading:
    module = loaded.module
    if module.is_encoder_decoder:
        return read_pair(loaded, text, written)
    if module.can_generate and module.has_readout:
        return read_left_to_right(loaded, text)
    return read_both_ways(loaded, text)


def _predicted(loaded: Loaded, given: Any) -> str:
    """What the model writes of it."""
    task = TASKS.get(loaded.task)
    found = task.predict(loaded, [given], None if task.Options is None else task.Options())[0]
    if found.problem is not None:
        raise DataError(found.problem)
    text: str = found.answers[0].text
    return text


def check_text(given: Any) -> None:
    if not isinstance(given, str):
        raise DataError(f"this model reads text, and {type(given).__name__} is none")
    refuse_files([given], "this model")
    if not given.strip():
        raise DataError("there is no text to look at; give one")


def check_length(loaded: Loaded, count: int) -> None:
    most = loaded.module.max_length
    if most is not None and count > most:
        raise DataError(f"the text has {count:,} tokens, and {loaded.folder} reads {most:,} at most; shorten it")


def read_left_to_right(loaded: Loaded, text: str) -> Reading:
    """A text as a language model reads it."""
    ids = loaded.tokenizer.prompt(text)
    check_length(loaded, len(ids))
    names = named_tokens(loaded.tokenizer, ids)
    return Reading(Batch(Inputs.of([ids])), {INPUT: names}, [*names.names[1:], ""])


def read_both_ways(loaded: Loaded, text: str) -> Reading:
    """A text as an encoder reads it, between its special tokens."""
    vectors = TextVectors.of(loaded)
    rows = vectors.rows([text])
    if vectors.reader.cut:
        check_length(loaded, len(loaded.tokenizer.encode(text)))
    return row_reading(rows[0], loaded.tokenizer, vectors.reader.padding)


def read_pair(loaded: Loaded, text: str, written: str) -> Reading:
    """A source, and what is written of it, as an encoder and a decoder read them."""
    source = [*(int(index) for index in loaded.tokenizer.encode(text)), loaded.tokenizer.eos_id]
    check_length(loaded, len(source))
    return text_reading(loaded, source, written)
