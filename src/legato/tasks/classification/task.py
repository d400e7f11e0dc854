"""Classification: what kind of text is this? One class, several labels at once, or a number on a scale.

The data is a table with a column of texts, or two of them for pairs, and one of labels. Any model that reads a text
can learn it, from scratch or from a trained one (`from=MODEL`), all of it or a part (`adapt=…`).

    classes       P(c | text) = softmax(y)_c           loss: -log P(true class)
    multilabel    P(label l | text) = sigmoid(y_l)     loss: the mean over all labels
    regression    the value is y                       loss: (y - true value)²

    legato train classification data.train=train.tsv data.valid=dev.tsv from=MODEL adapt=lora out=runs/c
    legato predict runs/c "a gem of a film"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from legato.config import Section
from legato.data.batching.examples import ExampleBatches
from legato.data.cache import cached_tokenizer
from legato.data.formats.labelled import Labelled, read_labelled
from legato.data.formats.text import Text
from legato.data.formats.vector_files import initialise_embedding
from legato.data.positions import Reading, row_reading
from legato.data.sources.files import resolve_path
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column
from legato.errors import ConfigError, DataError, warn
from legato.evaluation.classification import METRICS, Baseline
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Say, Task, as_trained
from legato.tasks.classification.classifier import Classifier, check_parts, parts_of, rows_of
from legato.tasks.classification.labelled_job import LabelledData, LabelledJob
from legato.tasks.defaults import (
    TUNED_SMALL_TEXTS,
    TUNED_TEXTS,
    Defaults,
    Given,
    row_training,
    scratch_model,
    scratch_tokenizer,
)
from legato.tasks.predictions import Prediction
from legato.tasks.table_inputs import TableInputs, read_inputs

MANY = 50_000  # texts whose tokenising takes so long that it is told


class ClassificationData(LabelledData):
    """Where the texts and labels are, and what the labels are."""

    train: Source | None = Field(None, description="a csv, tsv, jsonl or parquet file, or a hub name")
    columns: list[str | int] | None = Field(
        None,
        description="[text,label] or [first,second,label]: names, or numbers from 1; left out: guessed",
    )
    vectors: str | None = Field(None, description="GloVe or word2vec text file that the embedding begins with")
    max_length: int | None = Field(None, ge=8, description="tokens; longer texts are cut; left out: the model's")
    baseline: bool = Field(False, description="also fit logistic regression on TF-IDF of words and word pairs")


class ClassificationOptions(Section):
    """How to predict."""

    nbest: int = Field(1, ge=1)


# --- reading ---------------------------------------------------------------------------------------


def read_split(data: Any, source: Source, split: str, like: Sequence[str | int] | None = None) -> Labelled:
    """The rows that `source` names, read as `data` says; `like` are the columns of a table that was read before."""
    return read_labelled(source, data.files(split), columns=data.columns, like=like)


# --- training --------------------------------------------------------------------------------------


class ClassificationJob(LabelledJob):
    """Training on texts and their labels."""

    task = "classification"

    def check(self) -> None:
        data, most = self.plan.data, self.plan.model.max_length
        if data.vectors is not None and self.plan.loaded is not None:
            raise ConfigError("from=MODEL brings its own embedding; leave out data.vectors")
        if data.max_length is not None and most is not None and data.max_length > most:
            raise ConfigError(
                f"data.max_length={data.max_length} is more than the {most} tokens that the model reads"
            )

    def read_split(self, source: Source, split: str, train: Labelled | None) -> Labelled:
        rows = read_split(self.plan.data, source, split, train.columns if train else None)
        check_parts(rows, (train or rows).seconds is not None)
        return rows

    def make_rows(self) -> None:
        plan, train = self.plan, self.data["train"]
        self.pair = train.seconds is not None
        self.unit = "pair" if self.pair else "text"
        self.use = "legato predict FOLDER " + ("$'a first text\\ta second one'" if self.pair else '"a gem of a film"')
        text = Text(train.source, [*train.texts, *(train.seconds or [])], train.sha256)
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, text), pairs=self.pair)
        self.reader = plan.model.text_reader(self.tokenizer, plan.data.max_length)
        count = sum(map(len, self.data.values()))
        if count >= MANY:
            self.say(f"tokenising {count:,} texts …")
        self.rows = {split: rows_of(self.reader, rows, self.wanted[split]) for split, rows in self.data.items()}
        self.batches = ExampleBatches(self.rows["train"], plan.batch_shape(train.source), pad=self.reader.padding)

    def tell(self, say: Say) -> None:
        say(f"{self.counts}; vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})")
        max_length = self.reader.max_length
        full = sum(len(row.ids) == max_length for row in self.rows["train"])
        if full:
            say(f"note: {full:,} training {self.unit}s fill all of {max_length} tokens; what is beyond is not read")
        first = self.rows["train"][0].ids
        shown = " ".join(self.tokenizer.token(int(token)) for token in first[:24])
        truth = self.meaning.shown(self.wanted["train"][0])
        say(f"the model will see: {shown}{' …' * (len(first) > 24)} → {truth}")

    def initialise(self, model: Any) -> None:
        data = self.plan.data
        if data.vectors is not None:
            initialise_embedding(model, self.tokenizer, resolve_path(data.vectors, data.root), self.say)
        super().initialise(model)

    def classifier(self, model: SequenceModel, split: str) -> Classifier:
        return Classifier(model, self.reader, self.meaning, self.pair)

    def baseline(self) -> Baseline | None:
        if not self.plan.data.baseline:
            return None
        return Baseline(self.meaning, self.data["train"].joined(), self.wanted["train"])

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {**super().about(metrics), "pair": self.pair, "max_length": self.plan.data.max_length}


class Classification(Task):
    """The `classification` task."""

    name = "classification"
    pipeline = "text-classification"
    summary = "classes, labels or numbers for texts and pairs of texts"
    Job = ClassificationJob
    Data = ClassificationData
    needs = "=FILE, a table of texts and labels"
    tuples = ("text label", "sentence1 sentence2 label")
    metrics = METRICS
    Options = ClassificationOptions
    continues = True
    rows = True
    headed = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        trained = given.trained
        # From scratch, one token that stands for the text takes long to learn.
        head = {"pool": "mean"} if given.config.uses_cls and not trained else {}
        return Defaults(
            model=scratch_model(given, given.data.get("max_length"), pooler=given.head.get("pool") == "pooler"),
            tokenizer=scratch_tokenizer(given, words=given.data.get("vectors") is not None),
            train=row_training(given, tuning=TUNED_SMALL_TEXTS if given.small else TUNED_TEXTS),
            head=head,
        )

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        classifier, like = Classifier.of(loaded), loaded.about.get("columns")
        test = read_split(data, data.test, "test", like)
        unseen = as_trained(data, "unseen_labels", loaded.about)
        scores, details = classifier.score(test, unseen)
        if note := classifier.labels.unseen_note(test, "data.test"):
            warn(note)
        if data.baseline:
            if data.train is None:
                raise ConfigError("data.baseline=true is fitted to training rows; set data.train=FILE")
            train, labels = read_split(data, data.train, "train", like), classifier.labels
            plain = Baseline(labels, train.joined(), labels.encode(train))
            scores |= plain.scores(test.joined(), labels.encode(test, unseen=unseen))
        told = {"data": test.source, "sha256": test.sha256, "texts": len(test)}
        told["columns"] = ", ".join(map(str, test.columns))
        return {**told, **scores, "details": details}

    @classmethod
    def read_inputs(
        cls, source: str, about: Mapping[str, Any], columns: Sequence[Column] | None = None, *, alone: bool = False
    ) -> TableInputs:
        trained = about.get("columns")
        return read_inputs(source, trained and trained[:-1], columns, 2 if about.get("pair") else 1)

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        return Classifier.of(loaded).predict(inputs, options.nbest)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        classifier = Classifier.of(loaded)
        reader = classifier.reader
        parts, problem = parts_of(given, classifier.pair)
        if problem is not None:
            raise DataError(problem)
        rows = reader.texts(parts) if len(parts) == 1 else reader.pairs([(parts[0], parts[1])])
        reader.warn_of_cuts()
        return row_reading(rows[0], loaded.tokenizer, reader.padding)
