"""A model that writes what is said: sounds in, CTC's search, transcripts and when each word was said out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.audio.transcripts import Transcripts
from legato.data.batching.batch import Inputs
from legato.data.batching.sound_batches import Waves, sound_batch
from legato.data.text.tokenizers import AnyTokenizer
from legato.decoding.speech import ctc
from legato.errors import FolderError
from legato.evaluation.metrics import DetailTable
from legato.evaluation.speech import speech_details, speech_scores
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec
from legato.models.source_encoder import sound_settings_of
from legato.nn.losses.ctc import ctc_nll
from legato.tasks.sound_data import SoundReader, feature_extractor

WINDOW: Final = 30.0  # seconds that are read at once, of a longer sound …
MARGIN: Final = 3.0  # … and what is read before and behind them, of which nothing is kept


class Word(NamedTuple):
    """A word, and the seconds at which it begins and ends."""

    text: str
    start: float
    end: float


class Heard(NamedTuple):
    """What a sound may say."""

    text: str
    tokens: list[int]
    logprob: float  # log p(tokens | sound), over the paths that were kept; of a decoder and CTC, their weighted sum
    score: float  # what it was ranked by


def outputs_of(tokenizer: AnyTokenizer, before: HeadSpec | None) -> int:
    """How many outputs a head has that writes with a tokenizer: one for each token, and the blank last.

    Published tokenizers may count the blank among their tokens, as the head that they had `before` tells.
    """
    counted = before is not None and before.kind == "ctc" and before.outputs == tokenizer.size
    return tokenizer.size if counted else tokenizer.size + 1


@dataclass
class Recognizer:
    """A model with what it takes to put sounds in and get transcripts out."""

    model: SequenceModel
    tokenizer: AnyTokenizer
    extractor: FeatureExtractor
    fusion: ctc.Fusion | None = None  # a language model in the search
    normalizer: str | None = None  # of one more word error rate

    def __post_init__(self) -> None:
        self.blank = self.tokenizer.size if self.model.shape is None else self.model.shape.outputs - 1
        self.reader = SoundReader(self.extractor)
        settings = sound_settings_of(self.model.config)
        assert settings is not None, "a model without an encoder of sound"
        self.subsampling = settings.subsampling

    @classmethod
    def of(cls, loaded: Loaded) -> Recognizer:
        shape = loaded.module.shape
        if shape is None or shape.kind != "ctc":
            raise FolderError(f"{loaded.folder} has no head for speech; was it trained for that?")
        if shape.outputs != outputs_of(loaded.tokenizer, shape):
            counts = (
                f"{loaded.tokenizer.size} tokens, and the head {shape.outputs} outputs, of which the last is none"
            )
            raise FolderError(f"{loaded.folder}: the tokenizer has {counts}; it is another's")
        return cls(loaded.module, loaded.tokenizer, feature_extractor(loaded))

    @property
    def seconds_of_state(self) -> float:
        """From one state to the next."""
        seconds: float = self.extractor.hop * self.subsampling / self.extractor.sampling_rate
        return seconds

    @torch.no_grad()
    def log_probs(self, samples: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Sounds (B, N), each of so many samples, to log probabilities (B, T, V + 1) and how many of them are a
        row's."""
        inputs = self.reader.read(Inputs(values=samples.to(self.model.device), lengths=lengths.to(self.model.device)))
        logits = self.model(sound_batch(inputs, [[]] * len(samples))).logits
        check_finite(logits, self.model)
        counts = self.model.state_lengths(inputs)
        assert counts is not None
        return logits.float().log_softmax(-1), counts

    def windowed(self, samples: Tensor) -> Tensor:
        """Log probabilities (1, T, V + 1) of one long sound (N,), read in windows that overlap."""
        return torch.cat(list(self._windowed(samples)), dim=1)

    def _windowed(self, samples: Tensor) -> Iterator[Tensor]:
        state = self.extractor.hop * self.subsampling  # samples
        window, margin = (
            int(seconds * self.extractor.sampling_rate) // state * state for seconds in (WINDOW, MARGIN)
        )
        for start in range(0, len(samples), window):
            first, last = max(0, start - margin), min(len(samples), start + window + margin)
            piece = samples[first:last].unsqueeze(0)
            found, _ = self.log_probs(piece, torch.tensor([piece.shape[1]]))
            before = (start - first) // state
            yield found[:, before:] if start + window >= len(samples) else found[:, before : before + window // state]

    def passages(self, samples: Tensor) -> Iterator[Word]:
        """What is said in one sound (N,), window by window, each as soon as it is read; greedy.

        A word that a window may have cut comes with the next.
        """
        tokens: list[int] = []
        told, last, at = 0, self.blank, 0.0
        for log_probs in self._windowed(samples):
            path = log_probs[0].argmax(-1).tolist()
            tokens += [new for old, new in pairwise([last, *path]) if new not in (old, self.blank)]
            last = path[-1] if path else last
            end = min(at + WINDOW, len(samples) / self.extractor.sampling_rate)
            whole = self.tokenizer.decode(tokens)
            until = len(whole) if end >= len(samples) / self.extractor.sampling_rate else whole.rfind(" ") + 1
            if text := " ".join(whole[told:until].split()):
                yield Word(text, at, end)
            told, at = max(told, until), end

    def _read(self, waves: Waves) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Log probabilities of all sounds, those of like length side by side."""
        longest = int((WINDOW + MARGIN) * self.extractor.sampling_rate)
        for numbers, samples, lengths in waves.scored():
            if samples.shape[1] <= longest:
                yield numbers, *self.log_probs(samples, lengths)
                continue
            for number, row, length in zip(numbers, samples, lengths.tolist(), strict=True):
                found = self.windowed(row[:length])
                yield [number], found, torch.tensor([found.shape[1]], device=found.device)

    def transcribe(self, waves: Waves, beams: int = 1, nbest: int = 1, *, words: bool = False) -> list[Any]:
        """What each sound says, best first, in the order of the sounds; with `words` each with its `Word`s."""
        made: list[Any] = [None] * len(waves)
        for numbers, log_probs, lengths in self._read(waves):
            found = self._search(log_probs, lengths, max(beams, nbest), nbest)
            for row, number in enumerate(numbers):
                made[number] = [
                    (
                        heard,
                        self.words(log_probs[row : row + 1], lengths[row : row + 1], heard.tokens) if words else [],
                    )
                    for heard in found[row]
                ]
        return made

    def _search(self, log_probs: Tensor, lengths: Tensor, beams: int, nbest: int) -> list[list[Heard]]:
        if beams > 1 or self.fusion is not None:
            return [
                [Heard(self.text(one.tokens), one.tokens, one.logprob, one.score) for one in row[:nbest]]
                for row in ctc.prefix_beam(log_probs, lengths, self.blank, beams=max(beams, 2), fusion=self.fusion)
            ]
        tokens, counts = ctc.greedy(log_probs, lengths, self.blank)
        inside = torch.arange(log_probs.shape[1], device=log_probs.device) < lengths[:, None]
        totals = log_probs.amax(-1).masked_fill(~inside, 0).sum(1).tolist()
        return [
            [Heard(self.text(row[:count]), row[:count], total, total)]
            for row, count, total in zip(tokens.tolist(), counts.tolist(), totals, strict=True)
        ]

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(self.tokenizer.decode(list(tokens)).split())

    def words(self, log_probs: Tensor, lengths: Tensor, tokens: Sequence[int]) -> list[Word]:
        """When each word of a transcript was said, by the most probable path."""
        if not tokens:
            return []
        spans = ctc.align(log_probs, lengths, [list(tokens)], self.blank)[0].spans
        ends = [len(self.tokenizer.decode(list(tokens[: count + 1]))) for count in range(len(tokens))]
        whole, unit = self.tokenizer.decode(list(tokens)), self.seconds_of_state
        made, behind = [], 0
        for word in whole.split():
            first = whole.index(word, behind)
            behind = first + len(word)
            own = [
                span
                for span, (start, end) in zip(spans, pairwise([0, *ends]), strict=True)
                if start < behind and end > first
            ]
            made.append(Word(word, own[0].first * unit, (own[-1].last + 1) * unit))
        return made

    @torch.no_grad()
    def score(
        self, data: Transcripts, waves: Waves, beams: int = 1
    ) -> tuple[dict[str, Any], list[str], list[DetailTable]]:
        """The loss of all transcripts, the scores of those that the model writes, these, and the worst of them."""
        encoded = [[int(token) for token in ids] for ids in self.tokenizer.encode_many(data.texts)]
        written, total, tokens, unaligned = [""] * len(waves), 0.0, 0, 0
        for numbers, log_probs, lengths in self._read(waves):
            wanted = [encoded[number] for number in numbers]
            fits = [ctc.alignable(count, ids) for count, ids in zip(lengths.tolist(), wanted, strict=True)]
            targets = sound_batch(Inputs(values=log_probs), wanted).targets
            assert targets is not None
            losses = ctc_nll(log_probs, lengths, targets.to(log_probs.device), self.blank).tolist()
            for number, loss, fit, ids, heard in zip(
                numbers, losses, fits, wanted, self._search(log_probs, lengths, beams, 1), strict=True
            ):
                written[number] = heard[0].text
                unaligned += not fit
                total, tokens = (total + loss, tokens + len(ids)) if fit else (total, tokens)
        scores = {"loss": total / max(1, tokens), **speech_scores(written, data.texts, self.normalizer)}
        counts = {"sounds": len(waves), "seconds": round(waves.seconds, 1)}
        if unaligned:
            counts["not_alignable"] = unaligned
        search = f"beam {beams}" if beams > 1 else "greedy"
        if self.fusion is not None and self.fusion.next_tokens is not None:
            search += f", LM {self.fusion.weight:g}"
        return {**scores, **counts, "search": search}, written, speech_details(written, data.texts, data.names)
