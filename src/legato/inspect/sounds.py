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

from legato.data.batching.batch import IGNORE, Batch
from legato.errors import LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.inspect.trace import Shaped
from legato.models.base import SequenceModel
from legato.tasks.speech.recognizer import Word
from legato.tasks.speech.writer import Writer, recognizer_of

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, repr=False)
class SoundMaps(Shaped):
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
    loaded: Loaded = model.loaded
    if loaded.task != "speech":
        raise LegatoError(f"{loaded.folder} writes nothing of what is said; give a model of the task speech")
    recognizer, module = recognizer_of(loaded), loaded.module
    reading = reading_of(loaded, sound)
    batch = reading.batch.to(module.device)
    attention: Array | None = None
    if isinstance(recognizer, Writer):
        source, logits = batch.source, module.ctc_logits(module.encode(batch))
        assert batch.targets is not None
        *tokens, _ = (int(token) for token in batch.targets[0] if token != IGNORE)  # and the end
        attention = _looks(module, batch, len(tokens))
    else:
        source, logits = batch.inputs, module(batch).logits
    assert source is not None
    said = None if logits is None else logits.float().log_softmax(-1)
    words = []
    if said is not None:
        count = torch.tensor([said.shape[1]], device=said.device)
        if not isinstance(recognizer, Writer):
            tokens = recognizer._search(said, count, 1, 1)[0][0].tokens
        words = recognizer.words(said, count, tokens)
    extractor, names = recognizer.extractor, recognizer.tokenizer
    return SoundMaps(
        frames=source.content[0].float().cpu().numpy(),
        seconds_of_frame=extractor.hop / extractor.sampling_rate,
        seconds_of_state=recognizer.seconds_of_state,
        text=recognizer.text(tokens),
        tokens=[names.token(token) for token in tokens],
        names=[*(names.token(token) for token in range(recognizer.blank)), ""],
        said=None if said is None else said[0].exp().cpu().numpy(),
        words=words,
        attention=attention,
    )


def _looks(module: SequenceModel, batch: Batch, count: int) -> Array | None:
    """Where a decoder looks when it writes each of the last tokens but the end; None: it has no attention."""
    try:
        weights = module.align(batch)[0].float().cpu().numpy()
    except LegatoError:
        return None
    found: Array = weights[-count - 1 : -1]
    return found
