"""A model that writes what is said with a decoder, which looks at the encoder's states (Chan et al. 2016).

Where CTC was learned from the same states (`model.encoder.ctc` = λ; Watanabe et al. 2017), what the search found is
ranked by both, and CTC's alignment says when each word was said:

    score(y) = (1 − λ) log p_decoder(y | sound) + λ log p_ctc(y | sound)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from legato.data.audio.transcripts import Transcripts
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.sound_batches import Waves, written_batch
from legato.decoding import SearchOptions, ctc
from legato.errors import LegatoError
from legato.evaluation.metrics import DetailTable
from legato.evaluation.speech import speech_details, speech_scores
from legato.folders.loaded import Loaded
from legato.models.source_encoder import sound_settings_of
from legato.tasks.encoder_decoder import (
    TargetTokens,
    beam_options,
    longest_of,
    pair_loss,
    search_name,
    write_from,
)
from legato.tasks.sound_data import feature_extractor
from legato.tasks.speech.recognizer import WINDOW, Heard, Recognizer, Word

LONGEST: Final = 448  # tokens of a transcript
MORE: Final = 10  # tokens that a transcript may have beyond the encoder's states


class Writer(Recognizer):
    """A model with an encoder of sound and a decoder, and what it takes to use it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = sound_settings_of(self.model.config)
        self.share: float = 0.0 if settings is None else settings.ctc  # λ
        self.target_tokens = TargetTokens.of(self.tokenizer)
        self.longest = min(LONGEST, longest_of(self.model))

    def pieces(self, waves: Waves) -> Iterator[tuple[list[int], list[float], Tensor, Tensor]]:
        """All sounds, those of like length side by side, longer ones in pieces: their numbers, the seconds at which
        each begins, samples (B, N) and lengths (B,)."""
        most = int(WINDOW * self.extractor.sampling_rate)
        for numbers, samples, lengths in waves.scored():
            if samples.shape[1] <= most:
                yield numbers, [0.0] * len(numbers), samples, lengths
                continue
            for number, row, length in zip(numbers, samples, lengths.tolist(), strict=True):
                parts = list(row[:length].split(most))
                counts = torch.tensor([len(part) for part in parts])
                begins = [index * WINDOW for index in range(len(parts))]
                yield [number] * len(parts), begins, torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), counts

    def source(self, samples: Tensor, lengths: Tensor) -> Inputs:
        device = self.model.device
        return self.reader.read(Inputs(values=samples.to(device), lengths=lengths.to(device)))

    def transcribe(self, waves: Waves, beams: int = 1, nbest: int = 1, *, words: bool = False) -> list[Any]:
        if words and not self.share:
            raise LegatoError(
                "this model writes with a decoder alone, which says no times; train one with model.encoder.ctc=0.3"
            )
        made: list[list[Any]] = [[] for _ in range(len(waves))]
        for numbers, begins, samples, lengths in self.pieces(waves):
            found = self._written(samples, lengths, max(beams, nbest), nbest, begins if words else None)
            for number, answers in zip(numbers, found, strict=True):
                made[number].append(answers)
        return [parts[0] if len(parts) == 1 else [_joined([part[0] for part in parts])] for parts in made]

    @torch.no_grad()
    def _written(
        self, samples: Tensor, lengths: Tensor, beams: int, nbest: int, begins: Sequence[float] | None
    ) -> list[list[tuple[Heard, list[Word]]]]:
        source = self.source(samples, lengths)
        batch = Batch(source, source=source)
        memory = self.model.encode(batch)
        counts = memory.lengths
        assert counts is not None
        options = SearchOptions() if beams == 1 else beam_options({}, beams, nbest=beams if self.share else nbest)
        found = write_from(
            self.model,
            batch,
            self.target_tokens,
            options,
            limits=[min(self.longest, count + MORE) for count in counts.tolist()],
            text_of=self.tokenizer.decode,
            memory=memory,
        )
        ranked = [[Heard(self.text(h.tokens), h.tokens, h.logprob, h.score) for h in row] for row in found]
        logits = self.model.ctc_logits(memory)
        if logits is None:
            return [[(heard, []) for heard in row[:nbest]] for row in ranked]
        log_probs = logits.float().log_softmax(-1)
        made = []
        for row, several in enumerate(ranked):
            frames, count = log_probs[row : row + 1], counts[row : row + 1]
            many = len(several)
            said = ctc.log_likelihood(
                frames.expand(many, -1, -1), count.expand(many), [heard.tokens for heard in several], self.blank
            )
            joint = [
                heard._replace(score=(1 - self.share) * heard.logprob + self.share * also)
                for heard, also in zip(several, said.tolist(), strict=True)
            ]
            best = sorted(joint, key=lambda heard: -heard.score)[:nbest]
            times = [self._times(frames, count, heard, begins, row) for heard in best]
            made.append(list(zip(best, times, strict=True)))
        return made

    def _times(
        self, frames: Tensor, count: Tensor, heard: Heard, begins: Sequence[float] | None, row: int
    ) -> list[Word]:
        """When each word was said; nothing where nobody asks, or where so many tokens do not fit the states."""
        if begins is None or not ctc.alignable(int(count), heard.tokens):
            return []
        return [
            Word(word.text, word.start + begins[row], word.end + begins[row])
            for word in self.words(frames, count, heard.tokens)
        ]

    @torch.no_grad()
    def score(
        self, data: Transcripts, waves: Waves, beams: int = 1
    ) -> tuple[dict[str, Any], list[str], list[DetailTable]]:
        encoded = [
            [int(token) for token in ids][: self.longest - 1] for ids in self.tokenizer.encode_many(data.texts)
        ]
        total, tokens = 0.0, 0
        for numbers, samples, lengths in waves.scored():
            wanted = [encoded[number] for number in numbers]
            source = self.source(samples, lengths)
            batch = written_batch(source, wanted, self.target_tokens.start, self.target_tokens.eos)
            total += float(pair_loss(self.model, batch.to(self.model.device)).reported)
            tokens += batch.tokens
        written = [answers[0][0].text for answers in self.transcribe(waves, beams)]
        options = SearchOptions() if beams == 1 else beam_options({}, beams)
        scores = {"loss": total / max(1, tokens), **speech_scores(written, data.texts)}
        counts = {"sounds": len(waves), "seconds": round(waves.seconds, 1)}
        name = search_name(options) + (f", CTC {self.share:g}" if self.share and beams > 1 else "")
        return {**scores, **counts, "search": name}, written, speech_details(written, data.texts, data.names)


def recognizer_of(loaded: Loaded) -> Recognizer:
    """What a model folder holds: a model that writes with a decoder, or one with a head for CTC."""
    if not loaded.module.is_encoder_decoder:
        return Recognizer.of(loaded)
    return Writer(loaded.module, loaded.tokenizer, feature_extractor(loaded))


def _joined(parts: Sequence[tuple[Heard, list[Word]]]) -> tuple[Heard, list[Word]]:
    """What was written of the pieces of a long sound, as one."""
    heard = [each for each, _ in parts]
    text = " ".join(each.text for each in heard if each.text)
    tokens = [token for each in heard for token in each.tokens]
    whole = Heard(text, tokens, sum(each.logprob for each in heard), sum(each.score for each in heard))
    return whole, [word for _, words in parts for word in words]
