"""Audio classification: what is heard in a sound? A class, such as a word or a speaker, several labels, or a number.

The data is a folder with a folder of sounds for each class, a table with a column of sounds and one of labels, or a
dataset on the hub. Any model that reads sound can learn it, from scratch or from a trained one (`from=MODEL`), all of
it or a part (`adapt=…`).

    legato train audio-classification data.train=sounds/ model=conformer out=runs/a
    legato predict runs/a a.wav
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from legato.data.audio.labelled_sounds import LabelledSounds, read_labelled_sounds
from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.examples import Example, collate_examples
from legato.data.batching.sound_batches import SoundBatches, Waves
from legato.data.formats.labels import Labels
from legato.data.positions import INPUT, Reading
from legato.data.processors import Processors
from legato.data.sources.patterns import Source
from legato.errors import warn
from legato.evaluation.classification import METRICS, classification_details
from legato.evaluation.metrics import DetailTable
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Say, as_trained
from legato.tasks.classification.classifier import Classifier, answers_of, labels_of
from legato.tasks.classification.labelled_job import LabelledData, LabelledJob
from legato.tasks.classification.task import ClassificationOptions
from legato.tasks.defaults import Defaults, Given
from legato.tasks.predictions import Prediction
from legato.tasks.sound_data import (
    SoundData,
    SoundReader,
    SoundTask,
    feature_extractor,
    framed_sound,
    readable_sounds,
    require_hearing,
    sound_settings,
    sound_shape,
    sound_training,
)
from legato.training.job import Loss


class AudioClassificationData(LabelledData, SoundData):
    """Where the sounds and labels are, and what the labels are."""

    train: Source | None = Field(None, description="a folder of class folders, a table with sounds, or a hub name")


@dataclass
class SoundClassifier(Classifier):
    """A model with its head, how it reads sounds, and what its outputs mean."""

    reader: Any  # a SoundReader
    labels: Labels
    waves: Waves | None = None  # of the sounds whose numbers the rows have

    @classmethod
    def of(cls, loaded: Loaded) -> SoundClassifier:
        return cls(loaded.module, SoundReader(feature_extractor(loaded)), labels_of(loaded))

    @torch.no_grad()
    def outputs(self, rows: Sequence[Example]) -> Tensor:
        assert self.waves is not None, "rows have numbers of sounds, which are not there"
        chosen = self.waves.select([row.picture for row in rows])
        made: list[Tensor] = [torch.empty(0)] * len(rows)
        device = self.model.device
        for numbers, samples, lengths in chosen.scored():
            inputs = self.reader.read(Inputs(values=samples.to(device), lengths=lengths.to(device)))
            logits = self.model(Batch(inputs)).logits.float().cpu()
            check_finite(logits, self.model)
            for number, row in zip(numbers, logits, strict=True):
                made[number] = row
        return torch.stack(made)

    def on(self, waves: Waves) -> SoundClassifier:
        """The same for these sounds; rows have their numbers."""
        return SoundClassifier(self.model, self.reader, self.labels, waves=waves)

    def score(self, data: Any, unseen: str = "wrong") -> tuple[dict[str, Any], list[DetailTable]]:
        assert isinstance(data, LabelledSounds)
        waves = Waves(data.sounds, self.reader.extractor.sampling_rate, self.model.device)
        wanted = self.labels.encode(data, unseen=unseen)
        scores, found = self.on(waves).scores(sound_rows(len(data)), wanted)
        places = [data.place(row) for row in range(len(data))]
        return scores, classification_details(self.labels, found, wanted, data.texts, places, "sound")

    def predict(self, texts: Sequence[Any], nbest: int = 1) -> list[Prediction]:
        """What each sound is: a file's name, its bytes, or samples with their rate."""
        rate = self.reader.extractor.sampling_rate
        made, read = readable_sounds(texts, rate)
        if read:
            found = self.on(Waves(list(read.values()), rate, self.model.device)).found(sound_rows(len(read)))
            for number, row in zip(read, found, strict=True):
                made[number].answers = answers_of(self.labels, row, nbest)
        return made


def sound_rows(count: int, wanted: Sequence[Any] | None = None) -> list[Example]:
    """So many sounds in their order, with what there is to learn of each."""
    labels = [None] * count if wanted is None else wanted
    return [Example([], label=label, picture=number) for number, label in enumerate(labels)]


class AudioClassificationJob(LabelledJob):
    """Training on sounds and their labels."""

    task = "audio-classification"
    unit = "sound"
    use = "legato predict FOLDER recording.wav"

    def read_split(self, source: Source, split: str, train: Any) -> LabelledSounds:
        data = self.plan.data
        return read_labelled_sounds(source, data.files(split), audio=data.audio, columns=data.columns)

    def make_rows(self) -> None:
        plan, data = self.plan, self.plan.data
        settings = sound_settings(plan)
        extractor = settings.feature_extractor() if plan.loaded is None else feature_extractor(plan.loaded)
        self.processors = Processors(others={"audio": extractor})
        self.reader = SoundReader(extractor, data.augment, plan.seed)
        self.say(f"decoding {sum(map(len, self.data.values())):,} sounds …")
        self.waves = {
            split: Waves(rows.sounds, extractor.sampling_rate, plan.device, workers=data.workers)
            for split, rows in self.data.items()
        }
        self.rows = {split: sound_rows(len(rows), self.wanted[split]) for split, rows in self.data.items()}
        train = self.rows["train"]

        def make(inputs: Inputs, rows: Sequence[int]) -> Batch:
            return replace(collate_examples([train[row] for row in rows]), inputs=inputs)

        shape = sound_shape(plan, self.data["train"].source)
        self.batches = SoundBatches(self.waves["train"], make, shape, augmentation=self.reader.changes)
        self.speed_unit = self.batches.speed_unit

    def recordable(self, batch: Batch) -> bool:
        return False  # sounds of a batch are as long as they are

    def tell(self, say: Say) -> None:
        seconds = sum(waves.seconds for waves in self.waves.values())
        say(f"{self.counts}; {seconds / 60:,.1f} minutes")
        first = self.data["train"]
        say(f"the model will hear: {first.texts[0]} → {self.meaning.shown(self.wanted['train'][0])}")

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return self.loss_of(model(replace(batch, inputs=self.reader.read(batch.inputs))), batch)

    def classifier(self, model: SequenceModel, split: str) -> SoundClassifier:
        return SoundClassifier(model, self.reader, self.meaning, waves=self.waves[split])


class AudioClassification(SoundTask):
    """The `audio-classification` task."""

    name = "audio-classification"
    pipeline = "audio-classification"
    summary = "what is heard in a sound: classes such as words or speakers, several labels, or a number"
    default_model = "conformer"
    Job = AudioClassificationJob
    Data = AudioClassificationData
    needs = "=FOLDER, with a folder of sounds for each class, or a table"
    tuples = ("audio label",)
    metrics = METRICS
    Options = ClassificationOptions
    processors = ("audio",)
    continues = True
    rows = True
    headed = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        require_hearing(given)
        epochs, steps = (5, 300) if given.trained else (30, 800)
        train = sound_training(given, epochs=epochs, samples=1, attention=3e-4, min_steps=steps)
        data = {} if given.trained else {"augment": {"frequency_masks": 2, "time_masks": 2}}
        return Defaults(data=data, train=train)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        classifier = SoundClassifier.of(loaded)
        test = read_labelled_sounds(data.test, data.files("test"), audio=data.audio, columns=data.columns)
        scores, details = classifier.score(test, as_trained(data, "unseen_labels", loaded.about))
        if note := classifier.labels.unseen_note(test, "data.test"):
            warn(note)
        return {"data": test.source, "sha256": test.sha256, "sounds": len(test), **scores, "details": details}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        return SoundClassifier.of(loaded).predict(inputs, options.nbest)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        source, states = framed_sound(loaded, given)
        return Reading(Batch(source), {INPUT: states})
