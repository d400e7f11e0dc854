"""Speech: what is said in a sound, in words.

An encoder reads frames of the sound, and at each of its states says a token or none (CTC; Graves et al. 2006). Tokens
are characters where nothing else is said.

    legato train speech data.train=train.tsv out=runs/s
    legato train speech data.train=toy:sounds model=deepspeech out=runs/digits
    legato predict runs/s a.wav b.flac
    legato predict runs/s a.wav --timestamps
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field

from legato.config import Section, validate
from legato.data.audio.sound_files import as_sound
from legato.data.audio.toy_sounds import SOUNDS, ToySoundsConfig
from legato.data.audio.transcripts import Transcripts, read_transcripts, toy_transcripts
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.batches import mix_seed
from legato.data.batching.sound_batches import SoundBatches, Waves, sound_batch, written_batch
from legato.data.cache import cached_tokenizer
from legato.data.formats.text import Text
from legato.data.positions import Reading
from legato.data.processors import TEXT, Processors
from legato.data.sources.files import MAX_LINE
from legato.data.sources.patterns import Source
from legato.data.splits import Encoding, MaxLine, SplitData, TableFormat, ValidShare, completed, hold_out_named
from legato.data.text.vocabularies import TokenizerConfig
from legato.decoding.options import MAX_BEAMS, MAX_NBEST
from legato.decoding.search_start import SearchStart
from legato.decoding.speech import ctc
from legato.decoding.speech.speech_prompt import SpeechPrompt
from legato.errors import ConfigError, DataError
from legato.evaluation.speech import METRICS, require_normalizer
from legato.folders.loaded import Loaded
from legato.folders.special_tokens import prompt_entries
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec
from legato.models.sound_encoder import HearingConfig
from legato.nn.losses.ctc import ctc_nll
from legato.registry import MODELS
from legato.tasks.base import Plan, Say, TaskJob, penalised
from legato.tasks.defaults import Defaults, Given
from legato.tasks.encoder_decoder import written_loss
from legato.tasks.predictions import Answer, Prediction
from legato.tasks.sound_data import (
    SoundData,
    SoundReader,
    SoundTask,
    as_trained_toy,
    feature_extractor,
    has_source,
    readable_sounds,
    require_hearing,
    sound_encoder,
    sound_settings,
    sound_shape,
    sound_training,
    toy_about,
)
from legato.tasks.speech.language_model import fusion_with
from legato.tasks.speech.reading import speech_reading, speech_search_start
from legato.tasks.speech.recognizer import Recognizer, Word, outputs_of
from legato.tasks.speech.writer import LONGEST, Writer, encoded_texts, prompt_of, recognizer_of
from legato.training.job import Loss

SMALL: Final = {"layers": 2, "width": 64, "channels": 16}  # of an encoder for sounds that are made
SHORT: Final = {"layers": 2, "width": 64, "heads": 4, "source_length": 250, "length": 64}  # of Whisper for them
FUSED: Final = 8  # beams with a language model, where nobody says how many


class SpeechData(SplitData, SoundData):
    """Where the sounds and transcripts are, and how they are learned and scored."""

    train: Source | None = Field(None, description="a table with sounds and transcripts, a hub name or toy:sounds")
    valid: Source | None = Field(None, description="left out: a share of the training sounds")
    format: TableFormat = "auto"
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.05
    sounds: ToySoundsConfig = ToySoundsConfig()

    metric: Literal["wer", "cer", "loss"] = Field("wer", description="what decides which model is best")
    beams: int = Field(1, ge=1, le=MAX_BEAMS, description="of the scores at the end, and of legato predict")
    lm: str | None = Field(
        None, description="of the scores at the end: a language model in the search, a folder or a hub name"
    )
    lm_weight: float = Field(0.3, ge=0, le=100, description="what its log probabilities are multiplied with")
    length_bonus: float = Field(0.0, ge=-100, le=100, description="added for each token that the search writes")
    normalizer: Literal["whisper"] | None = Field(
        None, description="whisper: of scores at the end also WER after Whisper's normaliser of English"
    )
    language: str | None = Field(None, description="that is spoken, of a model of several, such as en")

    def transcripts(self, source: Source, split: str, seed: int, toy: ToySoundsConfig | None = None) -> Transcripts:
        """The sounds and transcripts that `source` names."""
        if source == SOUNDS:
            return toy_transcripts(toy or self.sounds, split, seed)
        return read_transcripts(source, self.files(split), audio=self.audio, columns=self.columns)


class SpeechOptions(Section):
    """How to predict."""

    beams: int | None = Field(None, ge=1, le=MAX_BEAMS)
    nbest: int = Field(1, ge=1, le=MAX_NBEST)
    timestamps: bool = False
    language: str | None = None
    lm: str | None = None
    lm_weight: float = Field(0.3, ge=0, le=100)
    length_bonus: float = Field(0.0, ge=-100, le=100)


class SpeechJob(TaskJob):
    """Training on sounds and their transcripts."""

    task = "speech"
    search = "greedy"
    use = "legato predict FOLDER recording.wav"
    likelihood = False  # a path has as many factors as frames

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        require_normalizer(plan.data.normalizer)
        data, settings = plan.data, sound_settings(plan)
        self.metric = data.metric
        found = data.read(lambda source, split, train: self._read(source, split))
        self.parts = completed(found, lambda train: hold_out_named(train, data.valid_share, "sound"))
        self.hashes = {split: rows.sha256 for split, rows in self.parts.items()}
        extractor = settings.feature_extractor() if plan.loaded is None else feature_extractor(plan.loaded)
        self.processors = Processors(self._make_tokenizer(), others={"audio": extractor})
        self.reader = SoundReader(extractor, data.augment, plan.seed)
        say(f"decoding {sum(map(len, self.parts.values())):,} sounds …")
        self.waves = {
            split: Waves(rows.sounds, extractor.sampling_rate, plan.device, workers=data.workers)
            for split, rows in self.parts.items()
        }
        self.writes = MODELS.get(plan.model.name).is_encoder_decoder  # with a decoder
        outputs = outputs_of(self.tokenizer, None if plan.writer is None else plan.writer.module.shape)
        self.blank, self.share = outputs - 1, settings.ctc if self.writes else 1.0
        if self.writes:
            self.prompt = self._prompt()
        if data.language is not None and not self.generation.get("lang_to_id"):
            raise ConfigError("data.language is for a trained model of several languages; leave it out")
        if not self.writes:
            spec = {"kind": "ctc", "outputs": outputs}
            self.head = validate(HeadSpec, {**plan.head.model_dump(), **spec}, "head")
        self.batches = self._batches(settings)
        self.speed_unit = self.batches.speed_unit
        counts = ", ".join(
            f"{len(rows):,} {split} ({self.waves[split].seconds / 60:,.1f} min)" for split, rows in self.parts.items()
        )
        say(f"data: {counts} sounds; vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})")
        train = self.parts["train"]
        say(f"the model will hear: {train.names[0]} → {train.texts[0]}")

    def _read(self, source: Source, split: str) -> Transcripts:
        rows: Transcripts = self.plan.data.transcripts(source, split, self.plan.seed)
        if rows.note:
            self.say(f"data.{split}: {rows.note}")
        return rows

    def _make_tokenizer(self) -> Any:
        """That of the model that it goes on from, or one that is trained on the transcripts."""
        writer, train = self.plan.writer, self.parts["train"]
        if writer is not None and writer.processors.has_text:
            return writer.tokenizer
        config = self.plan.tokenizer if writer is None else TokenizerConfig(name="char")  # an encoder writes nothing
        return cached_tokenizer(config, Text(train.source, train.texts, train.sha256))

    def _prompt(self) -> SpeechPrompt:
        """What the decoder's writing begins with: as a model that others made has it, or the EOS token."""
        found, language = self.plan.loaded, self.plan.data.language
        if found is None or not found.module.is_encoder_decoder:
            return SpeechPrompt((self.tokenizer.eos_id,))
        prompt = prompt_of(found, language)
        if prompt.languages:
            raise ConfigError(
                f"{found.folder} writes {len(prompt.languages)} languages; say which one is spoken, such as "
                "data.language=en"
            )
        self.first_token, self.generation = prompt.tokens[0], prompt_entries(found.generation)
        if language is not None:  # what was learned is what is written where nobody says otherwise
            self.generation["forced_decoder_ids"] = [list(pair) for pair in enumerate(prompt.tokens[1:], start=1)]
        return prompt

    def _batches(self, settings: HearingConfig) -> SoundBatches:
        """Those of the training sounds whose transcripts fit into their states."""
        self._leave_out_longer()
        plan, train, waves = self.plan, self.parts["train"], self.waves["train"]
        spaced = self.writes and self.prompt.spaced
        encoded = encoded_texts(self.tokenizer, train.texts, spaced=spaced)
        extractor = self.reader.extractor
        fastest = 1 + plan.data.augment.speed
        states = [settings.states_of(extractor.frames(int(count / fastest), padded=False)) for count in waves.lengths]
        fits = [row for row, ids in enumerate(encoded) if not self.share or ctc.alignable(states[row], ids)]
        if len(fits) < len(encoded):
            first = min(set(range(len(encoded))).difference(fits))
            needed = ctc.frames_needed(encoded[first])
            told = f"{train.where(first)}: what is said needs {needed} states, and its sound has {states[first]}"
            if not fits:
                raise DataError(f"no transcript fits its sound; {told}; lower model.subsampling")
            self.say(f"note: {len(encoded) - len(fits):,} sounds are left out, too short for what they say; {told}")
            self.parts["train"] = train = train.select(fits)
            self.waves["train"] = waves = waves.select(fits)
            encoded = [encoded[row] for row in fits]
        self._tell_unknown(encoded)

        if self.writes:
            most = min(LONGEST, plan.model.max_length or LONGEST) - len(self.prompt.tokens)
            if most < 1:
                raise ConfigError(f"model.length={plan.model.max_length} leaves no token for what is said; raise it")
            encoded = [ids[:most] for ids in encoded]

        def make(inputs: Inputs, rows: Sequence[int]) -> Batch:
            wanted = [encoded[row] for row in rows]
            if self.writes:
                return written_batch(inputs, wanted, self.prompt.tokens, self.tokenizer.eos_id)
            return sound_batch(inputs, wanted)

        shape = sound_shape(plan, train.source, fixed=not self.writes)
        counts = [len(ids) for ids in encoded]
        changes, window = self.reader.changes, extractor.seconds
        return SoundBatches(waves, make, shape, augmentation=changes, window=window, tokens=counts)

    def _leave_out_longer(self) -> None:
        """Training sounds that are longer than the windows that the model reads."""
        window, train, waves = self.reader.extractor.seconds, self.parts["train"], self.waves["train"]
        if window is None:
            return
        slowest = waves.lengths / (1 - self.plan.data.augment.speed)
        fits = np.flatnonzero(slowest <= window * waves.rate).tolist()
        if len(fits) == len(waves):
            return
        first = min(set(range(len(waves))).difference(fits))
        told = f"{train.where(first)}: {waves.lengths[first] / waves.rate:,.1f} seconds"
        if not fits:
            raise DataError(f"every sound is longer than the {window} seconds that this model reads; {told}")
        left_out = len(waves) - len(fits)
        self.say(f"note: {left_out:,} sounds are left out, longer than the {window} seconds that are read; {told}")
        self.parts["train"], self.waves["train"] = train.select(fits), waves.select(fits)

    def _tell_unknown(self, encoded: list[list[int]]) -> None:
        unknown = self.tokenizer.unk_id
        rows = [row for row, ids in enumerate(encoded) if unknown is not None and unknown in ids]
        if rows:
            train = self.parts["train"]
            self.say(
                f"note: {len(rows):,} training transcripts have characters or words that the vocabulary lacks, and "
                f"are learned with <unk>; the first: {train.source}: {train.texts[rows[0]][:80]}"
            )

    def recordable(self, batch: Batch) -> bool:
        return batch.fixed_shape

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        assert batch.targets is not None
        if self.writes:
            return self._written_loss(model, batch)
        inputs = self.reader.read(batch.inputs)
        output = model(replace(batch, inputs=inputs))
        assert output.logits is not None
        total = ctc_nll(output.logits, model.state_lengths(inputs), batch.targets, self.blank).sum()
        return Loss(penalised(total, output, batch.tokens), total)

    def _written_loss(self, model: SequenceModel, batch: Batch) -> Loss:
        """(1 − λ) the decoder's and λ CTC's; what is reported is the decoder's."""
        assert batch.source is not None
        assert batch.targets is not None
        targets, source = batch.targets, self.reader.read(batch.source)
        batch = replace(batch, source=source)
        output = model(batch)
        found = written_loss(model, output, batch, self.plan.train.label_smoothing)
        if output.logits is None or model.source_encoder is None:
            return found
        said = targets.masked_fill(targets == self.tokenizer.eos_id, IGNORE)
        lengths = model.source_encoder.state_lengths(source)
        also = ctc_nll(output.logits, lengths, said, self.blank).sum()
        return Loss((1 - self.share) * found.total + self.share * also, found.reported)

    def recognizer(self, model: SequenceModel) -> Recognizer:
        if self.writes:
            return Writer(model, self.tokenizer, self.reader.extractor, prompt=self.prompt)
        return Recognizer(model, self.tokenizer, self.reader.extractor)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        scores, _, _ = self.recognizer(model).score(self.parts["valid"], self.waves["valid"])
        return {key: value for key, value in scores.items() if isinstance(value, int | float)}

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        recognizer, data = self.recognizer(model), self.plan.data
        recognizer.normalizer = data.normalizer
        beams = _fused(recognizer, data, data.beams if "beams" in data.model_fields_set else None, self.about({}))
        return recognizer.score(self.parts[split], self.waves[split], beams)[0]

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation sounds, what the model writes of them, and what is said."""
        rows, waves = self.parts["valid"], self.waves["valid"]
        chosen = sorted(range(len(rows)), key=lambda row: mix_seed("sample", rows.names[row]))[:count]
        if not chosen:
            return []
        some = waves.select(chosen)
        return [
            f"{rows.names[row]}\n→ {heard[0][0].text}\n= {rows.texts[row]}"
            for row, heard in zip(chosen, self.recognizer(model).transcribe(some), strict=True)
        ]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"beams": self.plan.data.beams, "columns": self.parts["train"].columns, **toy_about(self.plan)}


class Speech(SoundTask):
    """The `speech` task."""

    name = "speech"
    pipeline = "automatic-speech-recognition"
    summary = "what is said in a sound, in words"
    default_model = "conformer"
    Job = SpeechJob
    Data = SpeechData
    generated = (SOUNDS,)
    needs = "=FILE, a table with sounds and transcripts"
    tuples = ("audio text",)
    metrics = METRICS
    Options = SpeechOptions
    processors = (TEXT, "audio")
    continues = True
    headed = True
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        require_hearing(given, writes=True)
        train = sound_training(given, epochs=10 if given.toy or given.trained else 60, samples=3)
        writes = has_source(given)
        whisper = not writes and MODELS.get(str(given.model["name"])).is_encoder_decoder  # all of one piece
        if writes or (whisper and not given.trained):
            train["label_smoothing"] = 0.1
        data: dict[str, Any] = {}
        model: dict[str, Any] = {}
        if given.toy and not given.trained:
            data = {"sounds": {"count": 2000}}
            if not whisper and "batch_rows" not in given.train:
                data["batch_seconds"] = 8
            model = {"layers": 1, "width": 64} if writes else SHORT if whisper else SMALL
        elif not given.trained:
            data = {"augment": {"frequency_masks": 2, "time_masks": 5}}
        fixed = sound_encoder(given, SMALL) if writes else {}
        return Defaults(
            fixed=fixed,
            data=data,
            model=model,
            train=train,
            tokenizer={"name": "word" if given.toy else "char"},
            head={"dropout": 0.1},
        )

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        require_normalizer(data.normalizer)
        recognizer = recognizer_of(loaded, data.language)
        recognizer.normalizer = data.normalizer
        toy, seed = as_trained_toy(data, loaded.about)
        test = data.transcripts(data.test, "test", seed, toy)
        waves = Waves(test.sounds, recognizer.extractor.sampling_rate, loaded.module.device, workers=data.workers)
        beams = _fused(recognizer, data, data.beams if "beams" in data.model_fields_set else None, loaded.about)
        scores, _, details = recognizer.score(test, waves, beams)
        return {"data": test.source, "sha256": test.sha256, **scores, "details": details}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        recognizer = recognizer_of(loaded, options.language)
        rate = recognizer.extractor.sampling_rate
        made, read = readable_sounds(inputs, rate)
        if read:
            beams = _fused(recognizer, options, options.beams, loaded.about)
            waves = Waves(list(read.values()), rate, loaded.module.device)
            found = recognizer.transcribe(waves, beams, options.nbest, words=options.timestamps)
            for number, several in zip(read, found, strict=True):
                made[number].answers = [
                    Answer(heard.text, heard.score, {"logprob": heard.logprob, **_timed(words, options.timestamps)})
                    for heard, words in several
                ]
        return made

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        return speech_reading(loaded, given, written)

    @classmethod
    def search_start(cls, loaded: Loaded, given: Any, start: SearchStart) -> SearchStart:
        return speech_search_start(loaded, start)

    @classmethod
    def passages(cls, loaded: Loaded, sound: Any, language: str | None = None) -> Iterator[Word]:
        """What is said in a long recording, piece by piece while it is read: each text, and from when to when.

        >>> for text, start, end in Speech.passages(model.loaded, "lecture.mp3"): ...  # doctest: +SKIP
        """
        recognizer = recognizer_of(loaded, language)
        samples = as_sound(sound).load(recognizer.extractor.sampling_rate)
        yield from recognizer.passages(torch.from_numpy(samples))

    @classmethod
    def show(cls, prediction: Prediction, *, scores: bool = False, alignments: bool = False) -> list[str]:
        """A line for each answer; with time stamps, one for each word: when it begins, when it ends, the word."""
        lines = []
        for answer in prediction.answers:
            if "words" not in answer.more:
                lines.append("\t".join(cls.columns(answer, scores, alignments)))
            lines += [
                f"{word['start']:.2f}\t{word['end']:.2f}\t{word['word']}" for word in answer.more.get("words", ())
            ]
        return lines


def _fused(recognizer: Recognizer, given: Any, beams: int | None, about: Mapping[str, Any]) -> int:
    """Put a language model into the search, where one is given; the width of the beam."""
    place, weight, bonus = given.lm, given.lm_weight, given.length_bonus
    if isinstance(recognizer, Writer):
        if place is not None:
            raise ConfigError("a language model is asked in CTC's search, and this model has a decoder; leave out lm")
        return beams or int(about.get("beams", 1))
    recognizer.fusion = fusion_with(
        place, weight, bonus, recognizer.tokenizer, recognizer.blank + 1, recognizer.model.device
    )
    usual: int = about.get("beams", 1)
    return beams or (max(FUSED, usual) if recognizer.fusion is not None else usual)


def _timed(words: Sequence[Any], wanted: bool) -> dict[str, Any]:
    if not wanted:
        return {}
    return {"words": [{"word": word.text, "start": word.start, "end": word.end} for word in words]}
