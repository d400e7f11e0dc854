"""A model that writes what is said with a decoder, which looks at the encoder's states (Chan et al. 2016).

Where CTC was learned from the same states (`model.encoder.ctc` = λ; Watanabe et al. 2017), the search asks both, at
each token (`decoding/speech/ctc_prefix.py`), and CTC's alignment says when each word was said:

    score(y) = (1 − λ) log p_decoder(y | sound) + λ log p_ctc(y | sound)

Whisper reads windows of 30 seconds and may write times itself (`decoding/speech/speech_prompt.py`). Of a longer sound
the next window begins where what was written of the one before ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from legato.data.audio.transcripts import Transcripts
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.sound_batches import Waves, written_batch
from legato.data.text.tokenizers import AnyTokenizer
from legato.decoding import Hypothesis, SearchOptions
from legato.decoding.frontier import LogitsProcessor
from legato.decoding.speech import ctc
from legato.decoding.speech.ctc_prefix import JointScores
from legato.decoding.speech.speech_prompt import SpeechPrompt, Timestamps, segments
from legato.errors import ConfigError, LegatoError, warn
from legato.evaluation.metrics import DetailTable
from legato.evaluation.speech import speech_details, speech_scores
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.source_encoder import sound_settings_of
from legato.nn.kernels.threads import in_threads
from legato.nn.state import Memory
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
KEPT: Final = 1 << 30  # bytes of what the decoder looks at, of windows that are written side by side …
TOGETHER: Final = 240.0  # seconds of a long sound whose pieces are written side by side, where those have no one size
MOST_ROWS: Final = 128  # … and how many they are at most
LEAST: Final = 0.01  # seconds that are read as a window of their own
STRIDE: Final = 1.0  # seconds that a window begins behind the one before, at least


@dataclass
class Writer(Recognizer):
    """A model with an encoder of sound and a decoder, and what it takes to use it."""

    prompt: SpeechPrompt | None = None  # what writing begins with; left out: the EOS token

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = sound_settings_of(self.model.config)
        self.share: float = 0.0 if settings is None else settings.ctc  # λ
        self.begins = self.prompt or SpeechPrompt((self.tokenizer.eos_id,))
        self.timed = self.begins.timed(self.model.vocabulary)
        self.longest = min(LONGEST, longest_of(self.model)) - len(self.begins.tokens) - bool(self.begins.languages)
        most = None if settings is None else settings.max_frames
        seconds = WINDOW if most is None else min(WINDOW, most * self.extractor.hop / self.extractor.sampling_rate)
        if self.longest < 2:
            raise LegatoError(
                f"{self.model.config.name} writes up to {longest_of(self.model)} tokens, of which the prompt takes "
                f"{len(self.begins.tokens)}; nothing is left for what is said"
            )
        self.window: float = self.extractor.seconds or seconds
        self.rows, self.encoded_rows = self._rows()

    def _rows(self) -> tuple[int, int]:
        """How many windows are written side by side, and how many of them are read at once."""
        settings = sound_settings_of(self.model.config)
        if settings is None or not self.extractor.is_windowed():
            return max(1, int(TOGETHER // self.window)), MOST_ROWS
        states, config = settings.states_of(self.extractor.frames(0)), self.model.config
        layers = getattr(config, "decoder_layers", None) or config.layers
        row = 2 * 4 * layers * states * config.width
        if self.model.device.type != "cpu":
            return max(1, min(MOST_ROWS, 8 * KEPT // row)), MOST_ROWS
        # Several threads, each with its own. One window at a time leaves what its layers make in the cores' caches.
        return max(1, min(MOST_ROWS, KEPT // row // torch.get_num_threads())), 1

    def target_tokens(self, prompt: SpeechPrompt, *, timed: bool = False) -> TargetTokens:
        """What is searched behind a prompt; nothing that is no text, but for times where they are written."""
        eos, tokenizer = self.tokenizer.eos_id, self.tokenizer
        beyond = range(tokenizer.size, self.model.vocabulary)
        if timed:
            assert prompt.no_timestamps is not None
            beyond = range(tokenizer.size, prompt.no_timestamps + 1)
        never = {*prompt.suppress, *(tokenizer.special_ids - {eos}), *beyond}
        first, *forced = prompt.tokens
        return TargetTokens(first, eos, tuple(sorted(never)), prompt.suppress_first, tuple(forced))

    def pieces(self, waves: Waves) -> Iterator[tuple[list[int], list[float], Tensor, Tensor]]:
        """All sounds, those of like length side by side, longer ones in pieces: their numbers, the seconds at which
        each begins, samples (B, N) and lengths (B,)."""
        most = int(self.window * self.extractor.sampling_rate)
        for numbers, samples, lengths in self._windows(waves) if self.extractor.is_windowed() else waves.scored():
            if samples.shape[1] <= most:
                yield numbers, [0.0] * len(numbers), samples, lengths
                continue
            for number, row, length in zip(numbers, samples, lengths.tolist(), strict=True):
                parts = self._parts(row[:length])
                counts = torch.tensor([len(part) for part in parts])
                begins = [index * len(parts[0]) / self.extractor.sampling_rate for index in range(len(parts))]
                together = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
                for first in range(0, len(parts), self.rows):
                    some = slice(first, first + self.rows)
                    yield [number] * len(parts[some]), begins[some], together[some], counts[some]

    def _parts(self, samples: Tensor) -> list[Tensor]:
        """A long sound (N,) in as few pieces as can be, of one length."""
        count = -(-len(samples) // int(self.window * self.extractor.sampling_rate))
        return list(samples.split(-(-len(samples) // max(1, count)))) if len(samples) else [samples]

    def _windows(self, waves: Waves) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """All sounds, of which each becomes a window; longer ones alone."""
        threads = torch.get_num_threads() if self.model.device.type == "cpu" else 1
        fit = waves.lengths <= self.window * waves.rate
        order = [int(number) for number in np.argsort(-waves.lengths, kind="stable")]
        alone = [number for number in order if not fit[number]]
        order = [number for number in order if fit[number]]
        rows = max(1, min(self.rows, -(-len(order) // threads)))
        parts = [[number] for number in alone] + [order[at : at + rows] for at in range(0, len(order), rows)]
        for numbers in parts:
            yield numbers, *waves.take(numbers)

    def source(self, samples: Tensor, lengths: Tensor) -> Inputs:
        device = self.model.device
        return self.reader.read(Inputs(values=samples.to(device), lengths=lengths.to(device)))

    def transcribe(self, waves: Waves, beams: int = 1, nbest: int = 1, *, words: bool = False) -> list[Any]:
        if words and not self.share and self.timed is None:
            raise LegatoError(
                "this model writes with a decoder alone, which says no times; train one with model.encoder.ctc=0.3"
            )
        longer = waves.lengths > self.window * waves.rate
        sought = [number for number in range(len(waves)) if self.timed is not None and (words or longer[number])]
        if words and nbest > 1 and not self.share:
            raise ConfigError("times are written of the best text alone; leave out nbest")
        if nbest > 1 and longer.any():
            warn(f"sounds of more than {self.window:g} seconds are written piece by piece, and have one answer each")
        made: list[list[Any]] = [[] for _ in range(len(waves))]
        for number, whole in zip(sought, self._follow(waves.select(sought), beams), strict=True):
            made[number].append([whole])
        others = [number for number in range(len(waves)) if not made[number]]

        def write(piece: tuple[list[int], list[float], Tensor, Tensor]) -> list[tuple[int, Any]]:
            numbers, begins, samples, lengths = piece
            found = self._written(samples, lengths, max(beams, nbest), nbest, begins if words else None)
            return list(zip(numbers, found, strict=True))

        for found in in_threads(write, self.pieces(waves.select(others)), self.model.device) if others else ():
            for number, answers in found:
                made[others[number]].append(answers)
        return [parts[0] if len(parts) == 1 else [_joined([part[0] for part in parts])] for parts in made]

    # --- one window ----------------------------------------------------------------------------------

    @torch.no_grad()
    def _written(
        self, samples: Tensor, lengths: Tensor, beams: int, nbest: int, begins: Sequence[float] | None
    ) -> list[list[tuple[Heard, list[Word]]]]:
        memory = self._encoded(samples, lengths)
        logits = self.model.ctc_logits(memory)
        if logits is not None:
            check_finite(logits, self.model)
        said = None if logits is None else logits.float().log_softmax(-1)
        found = self._search_in(memory, self.begins, beams, nbest, said=said)
        ranked = [[Heard(self.text(h.tokens), h.tokens, h.logprob, h.score) for h in row] for row in found]
        if said is None:
            return [[(heard, []) for heard in row] for row in ranked]
        counts = memory.lengths
        assert counts is not None
        made = []
        for row, several in enumerate(ranked):
            frames, count = said[row : row + 1], counts[row : row + 1]
            times = [self._times(frames, count, heard, begins, row) for heard in several]
            made.append(list(zip(several, times, strict=True)))
        return made

    def _encoded(self, samples: Tensor, lengths: Tensor) -> Memory:
        parts = []
        rows = self.encoded_rows if self.extractor.is_windowed() else len(samples)
        for first in range(0, len(samples), rows):
            some = slice(first, first + rows)
            source = self.source(samples[some], lengths[some])
            parts.append(self.model.encode(Batch(source, source=source)))
        if len(parts) == 1:
            return parts[0]
        return Memory(torch.cat([part.states for part in parts]), None)  # windows, of one length

    def _search_in(
        self,
        memory: Memory,
        prompt: SpeechPrompt,
        beams: int,
        nbest: int,
        *,
        timed: bool = False,
        said: Tensor | None = None,
    ) -> list[list[Hypothesis]]:
        """The best of what the decoder writes of each row, behind a prompt; with what is `said` by CTC, of both."""
        if prompt.languages:
            return self._in_languages(memory, prompt, beams, nbest, timed=timed)
        rows, counts = len(memory.states), memory.lengths
        most = [self.longest] * rows if counts is None else [count + MORE for count in counts.tolist()]
        tokens = self.target_tokens(prompt, timed=timed)
        processor: LogitsProcessor | None = Timestamps(prompt, tokens.eos, tokens.suppress) if timed else None
        if said is not None:
            assert counts is not None
            processor = JointScores(said, counts, blank=self.blank, eos=tokens.eos, weight=self.share)
        return write_from(
            self.model,
            Batch(Inputs(values=memory.states)),
            tokens,
            # CTC knows how much there is to say.
            SearchOptions() if beams == 1 else beam_options({}, beams, 1.0 if said is None else 0.0, nbest),
            limits=[min(self.longest, each) for each in most],
            text_of=self.tokenizer.decode,
            memory=memory,
            processor=processor,
            normalised=said is not None,
        )

    def _in_languages(
        self, memory: Memory, prompt: SpeechPrompt, beams: int, nbest: int, *, timed: bool
    ) -> list[list[Hypothesis]]:
        """The same, each row in the language that the model takes it for."""
        return self._by_prompt(memory, self.spoken(memory, prompt), beams, nbest, timed=timed)

    def spoken(self, memory: Memory, prompt: SpeechPrompt) -> list[SpeechPrompt]:
        """The prompt of each row, in the language that the model takes it for where that is left open."""
        if not prompt.languages:
            return [prompt] * len(memory.states)
        rows = len(memory.states)
        first = Inputs.of([[prompt.tokens[0]]] * rows, self.model.device)
        logits = self.model.prefill(first, self.model.start(rows, 1, memory))
        known = torch.tensor(prompt.languages, device=logits.device)
        return [prompt.speaking(int(token)) for token in known[logits[:, known].argmax(-1)].tolist()]

    def _by_prompt(
        self, memory: Memory, prompts: Sequence[SpeechPrompt], beams: int, nbest: int, *, timed: bool
    ) -> list[list[Hypothesis]]:
        """What is written of each row behind its own prompt."""
        found: list[list[Hypothesis]] = [[] for _ in prompts]
        for prompt in dict.fromkeys(prompts):
            own = [row for row, other in enumerate(prompts) if other == prompt]
            part = Memory(memory.states[own], None if memory.lengths is None else memory.lengths[own])
            for row, result in zip(own, self._search_in(part, prompt, beams, nbest, timed=timed), strict=True):
                found[row] = result
        return found

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

    # --- windows that follow one another -------------------------------------------------------------

    @torch.no_grad()
    def _follow(self, waves: Waves, beams: int) -> list[tuple[Heard, list[Word]]]:
        """What is said in each sound and when, by the times that the model writes."""
        made = []
        for first in range(0, len(waves), self.rows):
            numbers = range(first, min(first + self.rows, len(waves)))
            read = [_Following(waves.take([number])[0][0], waves.rate) for number in numbers]
            while left := [each for each in read if each.goes_on]:
                self._read_on(left, beams)
            made += [(each.heard(), each.said) for each in read]
        return made

    def _read_on(self, read: Sequence[_Following], beams: int = 1) -> None:
        """The next window of each of some sounds; a language that is left open is heard in the first."""
        assert self.timed is not None
        parts = [each.window(self.window) for each in read]
        lengths = torch.tensor([len(part) for part in parts])
        memory = self._encoded(torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), lengths)
        if any(each.prompt is None for each in read):
            for each, prompt in zip(read, self.spoken(memory, self.timed), strict=True):
                each.prompt = each.prompt or prompt
        prompts = [each.prompt or self.timed for each in read]
        for each, found in zip(read, self._by_prompt(memory, prompts, beams, 1, timed=True), strict=True):
            self._take(each, found[0])

    @torch.no_grad()
    def passages(self, samples: Tensor) -> Iterator[Word]:
        rate = self.extractor.sampling_rate
        if self.timed is None:
            begin = 0
            for part in self._parts(samples):
                heard = self._written(part[None], torch.tensor([len(part)]), 1, 1, None)[0][0][0]
                if heard.text:
                    yield Word(heard.text, begin / rate, (begin + len(part)) / rate)
                begin += len(part)
            return
        read = _Following(samples, rate)
        while read.goes_on:
            before = len(read.said)
            self._read_on([read])
            yield from read.said[before:]

    def _take(self, read: _Following, written: Hypothesis) -> None:
        """Keep what was written of a window, and go on behind it."""
        assert self.timed is not None
        assert self.timed.no_timestamps is not None
        seconds = min(float(self.window), read.seconds - read.at)
        found, behind = segments(written.tokens, self.timed.no_timestamps + 1, seconds)
        for start, end, tokens in found:
            if text := self.text(tokens):
                last = min(seconds, end)
                read.said.append(Word(text, read.at + min(start, last), read.at + last))
                read.tokens += tokens
        read.logprob += written.logprob
        read.at += max(STRIDE, behind)

    # --- scores --------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(
        self, data: Transcripts, waves: Waves, beams: int = 1
    ) -> tuple[dict[str, Any], list[str], list[DetailTable]]:
        encoded = [ids[: self.longest - 1] for ids in self._encoded_texts(data)]
        total, tokens = 0.0, 0
        for numbers, _, samples, lengths in self.pieces(waves):
            if waves.lengths[numbers[0]] > self.window * waves.rate:
                continue  # of a sound that is read in pieces, nobody knows which piece says what
            wanted = [encoded[number] for number in numbers]
            source = self.source(samples, lengths)
            batch = written_batch(source, wanted, self.begins.tokens, self.tokenizer.eos_id)
            total += float(pair_loss(self.model, batch.to(self.model.device)).reported)
            tokens += batch.tokens
        written = [answers[0][0].text for answers in self.transcribe(waves, beams)]
        options = SearchOptions() if beams == 1 else beam_options({}, beams)
        scores = {"loss": total / max(1, tokens), **speech_scores(written, data.texts, self.normalizer)}
        counts = {"sounds": len(waves), "seconds": round(waves.seconds, 1)}
        name = search_name(options) + (f", CTC {self.share:g}" if self.share else "")
        return {**scores, **counts, "search": name}, written, speech_details(written, data.texts, data.names)

    def _encoded_texts(self, data: Transcripts) -> list[list[int]]:
        return encoded_texts(self.tokenizer, data.texts, spaced=self.begins.spaced)


@dataclass
class _Following:
    """A sound, and what was written of it so far."""

    samples: Tensor
    rate: int
    at: float = 0.0  # seconds, where the next window begins
    said: list[Word] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    prompt: SpeechPrompt | None = None  # with the language that was heard

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    @property
    def goes_on(self) -> bool:
        """Whether there is more to read than rounding leaves."""
        return self.seconds - self.at > LEAST

    def window(self, seconds: float) -> Tensor:
        first = int(self.at * self.rate)
        return self.samples[first : first + int(seconds * self.rate)]

    def heard(self) -> Heard:
        return Heard(" ".join(word.text for word in self.said), self.tokens, self.logprob, self.logprob)


def encoded_texts(tokenizer: AnyTokenizer, texts: Sequence[str], *, spaced: bool) -> list[list[int]]:
    """Transcripts as tokens; `spaced`: behind a space, as models learned them."""
    read = [f" {text}" for text in texts] if spaced else list(texts)
    return [[int(token) for token in ids] for ids in tokenizer.encode_many(read)]


def prompt_of(loaded: Loaded, language: str | None = None) -> SpeechPrompt:
    """What a model's writing begins with, as its folder says."""
    where = str(loaded.folder / "generation_config.json")
    prompt = SpeechPrompt.of(loaded.generation, loaded.start, loaded.tokenizer.id_of, language=language, where=where)
    return prompt.within(loaded.module.vocabulary, where)


def recognizer_of(loaded: Loaded, language: str | None = None) -> Recognizer:
    """What a model folder holds: a model that writes with a decoder, or one with a head for CTC."""
    if not loaded.module.is_encoder_decoder:
        if language is not None:
            raise ConfigError("this model writes one language; leave language out")
        return Recognizer.of(loaded)
    return Writer(loaded.module, loaded.tokenizer, feature_extractor(loaded), prompt=prompt_of(loaded, language))


def _joined(parts: Sequence[tuple[Heard, list[Word]]]) -> tuple[Heard, list[Word]]:
    """What was written of the pieces of a long sound, as one."""
    heard = [each for each, _ in parts]
    text = " ".join(each.text for each in heard if each.text)
    tokens = [token for each in heard for token in each.tokens]
    whole = Heard(text, tokens, sum(each.logprob for each in heard), sum(each.score for each in heard))
    return whole, [word for _, words in parts for word in words]
