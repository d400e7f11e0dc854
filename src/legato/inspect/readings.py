"""One input as its model reads it, with what stands at each position: what looking inside begins with.

What writes is looked at while it reads what it has written (or what somebody gives instead), so one pass shows all.
A task that reads more than text says itself how (`Task.reading`).
"""

from __future__ import annotations

from typing import Any

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.examples import collate_examples
from legato.data.positions import INPUT, Reading, named_tokens
from legato.errors import DataError, LegatoError
from legato.folders.loaded import Loaded
from legato.registry import TASKS
from legato.tasks.embedding.text_vectors import TextVectors
from legato.tasks.encoder_decoder import TargetTokens, longest_of, written_reading


def reading_of(loaded: Loaded, given: Any, written: str | None = None) -> Reading:
    """One input as its model reads it; `written`: beside that text, in place of what the model would write."""
    task, module = TASKS.get(loaded.task), loaded.module
    if written is not None and not module.is_encoder_decoder:
        raise LegatoError(f"{loaded.folder} writes no text of what it reads; leave out what is written")
    reads_text = not loaded.processors.others
    if reads_text:
        check_text(given)
    if written is None and module.is_encoder_decoder:
        written = _predicted(loaded, given)
    own: Reading | None = task.reading(loaded, given, written)
    if own is not None:
        return own
    if not reads_text:
        raise LegatoError(f"{loaded.folder}: a model of the task {task.name} is not looked into yet")
    if module.is_encoder_decoder:
        return read_pair(loaded, given, written or "")
    if module.can_generate and module.has_readout:
        return read_left_to_right(loaded, given)
    return read_both_ways(loaded, given)


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
    batch = collate_examples(rows, pad=loaded.tokenizer.eos_id)
    return Reading(batch, {INPUT: named_tokens(loaded.tokenizer, rows[0].ids)})


def read_pair(loaded: Loaded, text: str, written: str) -> Reading:
    """A source, and what is written of it, as an encoder and a decoder read them."""
    tokenizer, target = loaded.tokenizer, loaded.target
    source = [*(int(index) for index in tokenizer.encode(text)), tokenizer.eos_id]
    check_length(loaded, len(source))
    ids = [int(index) for index in target.encode(written)[: longest_of(loaded.module) - 1]]
    tokens = TargetTokens.of(target, loaded.first_token)
    read = named_tokens(tokenizer, source)
    return written_reading(Inputs.of([source]), read, target, [tokens.start], ids, tokens.eos)
