"""One input as its model reads it, with what stands at each position: what looking inside begins with.

What writes is looked at while it reads what it has written (or what somebody gives instead), so one pass shows all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.examples import collate_examples
from legato.data.batching.pair_batches import collate_pairs
from legato.data.positions import INPUT, SOURCE, TARGET, Positions, Reading
from legato.data.processors import TEXT
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import DataError, LegatoError
from legato.folders.loaded import Loaded
from legato.registry import TASKS
from legato.tasks.embedding.text_vectors import TextVectors
from legato.tasks.encoder_decoder import TargetTokens, longest_of


def reading_of(loaded: Loaded, given: Any, written: str | None = None) -> Reading:
    """One input as its model reads it; `written`: beside that text, in place of what the model would write."""
    task = TASKS.get(loaded.task)
    own: Reading | None = task.reading(loaded, given, written)
    if own is not None:
        return own
    if loaded.processors.others or loaded.module.processors != (TEXT,):
        raise LegatoError(f"{loaded.folder}: a model of the task {task.name} is not looked into yet")
    text = check_text(given)
    if loaded.module.is_encoder_decoder:
        if written is None:
            found = task.predict(loaded, [text], None if task.Options is None else task.Options())[0]
            if found.problem is not None:
                raise DataError(found.problem)
            written = found.answers[0].text
        return read_pair(loaded, text, written)
    if written is not None:
        raise LegatoError(f"{loaded.folder} reads one text and writes no other; leave out what is written")
    if loaded.module.can_generate and loaded.module.has_readout:
        return read_left_to_right(loaded, text)
    return read_both_ways(loaded, text)


def named_tokens(tokenizer: AnyTokenizer, ids: Any) -> Positions:
    return Positions("token", tuple(shown_token(tokenizer, int(index)) for index in ids))


def shown_token(tokenizer: AnyTokenizer, index: int) -> str:
    """What a token adds to a text; the name of one that adds nothing, or that is no more than an output."""
    if index >= tokenizer.size:
        return f"<{index}>"
    if tokenizer.pieces is None or index in tokenizer.special_ids:
        return tokenizer.token(index)
    return tokenizer.pieces[index].decode("utf-8", "replace")


def check_text(given: Any) -> str:
    if not isinstance(given, str):
        raise DataError(f"this model reads text, and {type(given).__name__} is none")
    if not given.strip():
        raise DataError("there is no text to look at; give one")
    return given


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
    source = np.array([*tokenizer.encode(text), tokenizer.eos_id], dtype=np.int32)
    ids = target.encode(written)[: longest_of(loaded.module) - 1]
    check_length(loaded, len(source))
    tokens = TargetTokens.of(target, loaded.first_token)
    batch = collate_pairs([source], [ids], tokens.start, tokens.eos)
    read = named_tokens(target, [tokens.start, *ids])
    streams = {SOURCE: named_tokens(tokenizer, source), TARGET: read}
    return Reading(batch, streams, [*read.names[1:], shown_token(target, tokens.eos)])
