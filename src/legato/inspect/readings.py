"""One input as its model reads it, with what stands at each position: what looking inside begins with.

What writes is looked at while it reads what it has written (or what somebody gives instead), so one pass shows all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from legato.data.audio.sound_files import as_sound
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.examples import collate_examples
from legato.data.batching.pair_batches import collate_pairs
from legato.data.batching.sound_batches import written_batch
from legato.data.image.picture_files import as_picture
from legato.data.positions import INPUT, SOURCE, TARGET, Positions, Reading
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import DataError, LegatoError
from legato.folders.loaded import Loaded
from legato.models.source_encoder import sound_settings_of
from legato.registry import TASKS
from legato.tasks.embedding.text_vectors import TextVectors
from legato.tasks.encoder_decoder import TargetTokens, longest_of
from legato.tasks.picture_data import image_processor, picture_encoder
from legato.tasks.sound_data import SoundReader, feature_extractor
from legato.tasks.speech.recognizer import WINDOW
from legato.tasks.speech.writer import Writer, encoded_texts, recognizer_of

FILES: Final = ("image-classification", "captioning", "audio-classification", "speech")  # tasks that read one


def reading_of(loaded: Loaded, given: Any, written: str | None = None) -> Reading:
    """One input as its model reads it; `written`: beside that text, in place of what the model would write."""
    task = TASKS.get(loaded.task)
    own: Reading | None = task.reading(loaded, given, written)
    if own is not None:
        return own
    kinds = set(loaded.processors.others)
    if kinds not in ({"image"}, {"audio"}, set()) or (kinds and task.name not in FILES):
        raise LegatoError(f"{loaded.folder}: a model of the task {task.name} is not looked into yet")
    if not kinds:
        check_text(given)
    if loaded.module.is_encoder_decoder:
        text = _predicted(loaded, given) if written is None else written
        if kinds == {"audio"}:
            return read_transcribed(loaded, given, text)
        return read_described(loaded, given, text) if kinds else read_pair(loaded, given, text)
    if written is not None:
        raise LegatoError(f"{loaded.folder} writes no text of what it reads; leave out what is written")
    if kinds:
        return read_sound(loaded, given) if kinds == {"audio"} else read_picture(loaded, given)
    if loaded.module.can_generate and loaded.module.has_readout:
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


def named_tokens(tokenizer: AnyTokenizer, ids: Any) -> Positions:
    return Positions("token", tuple(shown_token(tokenizer, int(index)) for index in ids))


def shown_token(tokenizer: AnyTokenizer, index: int) -> str:
    """What a token adds to a text; the name of one that adds nothing, or that is no more than an output."""
    if index >= tokenizer.size:
        return f"<{index}>"
    if index in tokenizer.special_ids:
        return tokenizer.token(index)
    if tokenizer.pieces is None:
        return tokenizer.decode([index]) or tokenizer.token(index)
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


# --- pictures -----------------------------------------------------------------------------------------


def _pictured(loaded: Loaded, given: Any) -> tuple[Inputs, Positions]:
    """A picture, and the places that its encoder makes of it."""
    processor, encoder = image_processor(loaded), picture_encoder(loaded.module)
    assert encoder is not None, "a model with an image processor has what reads pictures"
    if loaded.about.get("frames"):
        raise LegatoError(f"{loaded.folder} reads clips, which are not looked into yet")
    pixels = processor.pixels(as_picture(given).load())
    grid = encoder.grid(*pixels.shape[:2])
    places = [f"{row + 1}, {column + 1}" for row in range(grid[0]) for column in range(grid[1])]
    values = processor.scaled(torch.from_numpy(pixels).unsqueeze(0))
    return Inputs(values=values), Positions("patch", ("whole",) * encoder.before_grid + tuple(places), grid)


def read_picture(loaded: Loaded, given: Any) -> Reading:
    inputs, places = _pictured(loaded, given)
    return Reading(Batch(inputs), {INPUT: places})


def read_described(loaded: Loaded, given: Any, caption: str) -> Reading:
    """A picture, and a caption of it."""
    source, places = _pictured(loaded, given)
    target = loaded.target
    tokens = TargetTokens.of(target, loaded.first_token)
    ids = [int(index) for index in target.encode(caption)[: longest_of(loaded.module) - 1]]
    return _beside(source, places, target, [tokens.start], ids, tokens.eos)


# --- sounds -------------------------------------------------------------------------------------------


def _heard(loaded: Loaded, given: Any) -> tuple[Inputs, Positions]:
    """A sound, and the states that a model makes of it; of a longer one than it reads, the beginning."""
    extractor, settings = feature_extractor(loaded), sound_settings_of(loaded.module.config)
    assert settings is not None, "a model with a feature extractor has what reads sound"
    samples = torch.from_numpy(as_sound(given).load(extractor.sampling_rate))
    samples = samples[: int((extractor.seconds or WINDOW) * extractor.sampling_rate)].unsqueeze(0)
    source = SoundReader(extractor).read(Inputs(values=samples, lengths=torch.tensor([samples.shape[1]])))
    count = settings.states_of(source.content.shape[1])
    seconds = extractor.hop * settings.subsampling / extractor.sampling_rate
    names = tuple(f"{number * seconds:.2f} s" for number in range(count))
    return source, Positions("frame", names, seconds=seconds)


def read_sound(loaded: Loaded, given: Any) -> Reading:
    source, states = _heard(loaded, given)
    return Reading(Batch(source), {INPUT: states})


def read_transcribed(loaded: Loaded, given: Any, text: str) -> Reading:
    """A sound, and what is said in it."""
    recognizer = recognizer_of(loaded)
    assert isinstance(recognizer, Writer)
    source, states = _heard(loaded, given)
    prompt, tokenizer = recognizer.begins, recognizer.tokenizer
    if prompt.languages:
        memory = loaded.module.encode(Batch(source, source=source).to(loaded.module.device))
        prompt = prompt.speaking(recognizer._spoken(memory, prompt)[0])
    ids = encoded_texts(tokenizer, [text], spaced=prompt.spaced)[0][: recognizer.longest - 1]
    return _beside(source, states, tokenizer, prompt.tokens, ids, tokenizer.eos_id)


def _beside(
    source: Inputs, places: Positions, tokenizer: AnyTokenizer, prompt: Sequence[int], ids: Sequence[int], eos: int
) -> Reading:
    """What an encoder reads, and a text that a decoder reads behind a prompt."""
    batch = written_batch(source, [ids], prompt, eos)
    read = named_tokens(tokenizer, [*prompt, *ids])
    return Reading(batch, {SOURCE: places, TARGET: read}, [*read.names[1:], shown_token(tokenizer, eos)])
