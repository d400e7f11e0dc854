"""What a model makes of a sound, as arrays: what CTC says when, and where a decoder looks for each token.

>>> heard = sound_maps(legato.load("runs/s"), "recording.wav")  # doctest: +SKIP
>>> heard.frames.shape, heard.said.shape, heard.tokens, heard.attention  # doctest: +SKIP

Frames are what the model reads, a column of the spectrogram each; its states are fewer. A sound longer than what a
model reads at once is looked at to there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from legato.data.audio.sound_files import as_sound
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.sound_batches import sound_batch, written_batch
from legato.errors import LegatoError
from legato.tasks.speech.recognizer import WINDOW, Word
from legato.tasks.speech.writer import Writer, recognizer_of

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class SoundMaps:
    """One sound, of T frames and S states, in which N tokens are said."""

    frames: Array  # (T, F), log-mel energies
    seconds_of_frame: float  # from one to the next
    seconds_of_state: float
    text: str
    tokens: list[str]  # (N,)
    names: list[str]  # (V + 1,), of the columns of `said`; the last is the blank
    said: Array | None  # (S, V + 1), CTC's probabilities, where it was learned
    words: list[Word]  # when each was said, by CTC
    attention: Array | None  # (N, S), where the decoder looks when it writes each token; rows sum to 1


@torch.no_grad()
def sound_maps(model: Any, sound: Any) -> SoundMaps:
    """`sound` is a file, or samples with their rate; greedy."""
    if model.loaded.task != "speech":
        raise LegatoError(f"{model.loaded.folder} writes nothing of what is said; give a model of the task speech")
    recognizer = recognizer_of(model.loaded)
    extractor, module = recognizer.extractor, recognizer.model
    seconds = recognizer.window if isinstance(recognizer, Writer) else WINDOW
    whole = torch.from_numpy(as_sound(sound).load(extractor.sampling_rate))
    samples = whole[: int(seconds * extractor.sampling_rate)].unsqueeze(0).to(module.device)
    lengths = torch.tensor([samples.shape[1]], device=module.device)
    source = recognizer.reader.read(Inputs(values=samples, lengths=lengths))
    attention: Array | None = None
    if isinstance(recognizer, Writer):
        tokens, said, attention = _written(recognizer, source)
    else:
        logits = module(sound_batch(source, [[]])).logits
        assert logits is not None
        said = logits.float().log_softmax(-1)
        counts = module.state_lengths(source)
        assert counts is not None
        tokens = recognizer._search(said, counts, 1, 1)[0][0].tokens
    words = []
    if said is not None:
        words = recognizer.words(said, torch.tensor([said.shape[1]], device=said.device), tokens)
    ids = recognizer.tokenizer
    hop = extractor.hop / extractor.sampling_rate
    return SoundMaps(
        frames=source.content[0].float().cpu().numpy(),
        seconds_of_frame=hop,
        seconds_of_state=recognizer.seconds_of_state,
        text=recognizer.text(tokens),
        tokens=[ids.token(token) for token in tokens],
        names=[*(ids.token(token) for token in range(recognizer.blank)), ""],
        said=None if said is None else said[0].exp().cpu().numpy(),
        words=words,
        attention=attention,
    )


def _written(recognizer: Writer, source: Inputs) -> tuple[list[int], torch.Tensor | None, Array | None]:
    """The tokens that a decoder writes, what CTC says beside it, and where the decoder looks."""
    module = recognizer.model
    memory = module.encode(Batch(source, source=source))
    logits = module.ctc_logits(memory)
    said = None if logits is None else logits.float().log_softmax(-1)
    prompt = recognizer.begins
    if prompt.languages:
        prompt = prompt.speaking(recognizer._spoken(memory, prompt)[0])
    tokens = recognizer._search_in(memory, prompt, 1, 1, said=said)[0][0].tokens
    batch = written_batch(source, [tokens], prompt.tokens, recognizer.tokenizer.eos_id).to(module.device)
    try:
        weights = module.align(batch)[0].float().cpu().numpy()
    except LegatoError:  # a decoder without attention
        return tokens, said, None
    first = len(prompt.tokens) - 1
    return tokens, said, weights[first : first + len(tokens)]
