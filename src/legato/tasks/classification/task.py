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

import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BeforeValidator, Field, field_validator
from torch import Tensor

from legato.config import Section, validate
from legato.data.batching.batch import Batch
from legato.data.batching.batches import mix_seed
from legato.data.batching.examples import ExampleBatches
from legato.data.cache import cached_tokenizer
from legato.data.formats.labelled import Labelled, read_labelled
from legato.data.formats.labels import Labels, hold_out_rows
from legato.data.formats.strays import NO_LABEL, few, is_missing
from legato.data.formats.text import Text
from legato.data.formats.vector_files import initialise_embedding
from legato.data.sources.files import MAX_LINE, resolve_path
from legato.data.sources.table import Column
from legato.data.splits import Encoding, MaxLine, SplitData, TableFormat, ValidShare, completed
from legato.errors import ConfigError, DataError, brief
from legato.evaluation.classification import DECIDING, METRICS, Baseline
from legato.folders.about import label_kind
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec
from legato.tasks.base import Plan, Prediction, Say, Task, TaskJob, as_trained, penalised
from legato.tasks.classification.classifier import Classifier, answers_of, check_parts, losses, rows_of, shown_text
from legato.tasks.defaults import Defaults, Given, row_training, scratch_model, scratch_tokenizer
from legato.tasks.table_inputs import TableInputs, read_inputs
from legato.training.job import Loss

MANY = 50_000  # texts whose tokenising takes so long that it is told
LONE = 3  # classes with a single example that are named


class ClassificationData(SplitData[str]):
    """Where the texts and labels are, and what the labels are."""

    train: str | None = Field(None, description="a csv, tsv, jsonl or parquet file, or a hub name")
    valid: str | None = Field(None, description="left out: a share of the training rows")
    columns: list[str | int] | None = Field(
        None,
        description="[text,label] or [first,second,label]: names, or numbers from 1; left out: guessed",
    )
    format: TableFormat = "auto"
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.1
    kind: Annotated[Literal["auto", "classes", "multilabel", "regression"], BeforeValidator(label_kind)] = Field(
        "auto",
        description="classes; multilabel: several a text; regression; auto: fractions are a scale",
    )
    labels: list[str] | None = Field(
        None, description="the classes in their order, or names for the numbers 0, 1, …; left out: sorted"
    )
    unseen_labels: Literal["wrong", "refuse"] = Field(
        "wrong", description="labels that data.train lacks: count their texts as wrong, or refuse the file"
    )
    separator: str = Field(";", min_length=1, description="what separates the labels of a text that has several")
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="balanced: in training a rare class counts as much as a frequent one"
    )
    vectors: str | None = Field(None, description="GloVe or word2vec text file that the embedding begins with")
    max_length: int | None = Field(None, ge=8, description="tokens; longer texts are cut; left out: the model's")
    metric: Literal[
        "auto", "accuracy", "f1", "macro_f1", "micro_f1", "exact", "matthews", "pearson", "spearman", "loss"
    ] = Field("auto", description="what decides which model is best; auto: accuracy, micro_f1 or spearman")
    baseline: bool = Field(False, description="also score TF-IDF and logistic regression, fitted to data.train")

    @field_validator("labels", mode="before")
    @classmethod
    def _names_are_text(cls, names: Any) -> Any:
        """YAML reads 0 as a number, which names a class as well, and `no` as false, which does not."""
        if not isinstance(names, list):
            return names
        if any(isinstance(name, bool) for name in names):
            raise ValueError("holds a yes, no, true or false, which reads as a switch; put quotes around each name")
        return [str(name) for name in names]


class ClassificationOptions(Section):
    """How to predict."""

    nbest: int = Field(1, ge=1)


# --- reading ---------------------------------------------------------------------------------------


def read_split(data: Any, source: str, split: str, like: Sequence[str | int] | None = None) -> Labelled:
    """The rows that `source` names, read as `data` says; `like` are the columns of a table that was read before."""
    return read_labelled(source, data.files(split), columns=data.columns, like=like)


# --- training --------------------------------------------------------------------------------------


class ClassificationJob(TaskJob):
    """Training on texts and their labels."""

    task = "classification"
    labels: list[str]
    likelihood = False  # the loss is none of tokens

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data, most = plan.data, plan.model.max_length
        if data.vectors is not None and plan.loaded is not None:
            raise ConfigError("from=MODEL brings its own embedding; leave out data.vectors")
        if data.max_length is not None and most is not None and data.max_length > most:
            raise ConfigError(
                f"data.max_length={data.max_length} is more than the {most} tokens that the model reads"
            )
        self.data = self._read(say)
        self.hashes = {split: rows.sha256 for split, rows in self.data.items()}
        train = self.data["train"]
        self.pair = train.seconds is not None
        self.use = "legato predict FOLDER " + ("$'a first text\\ta second one'" if self.pair else '"a gem of a film"')
        self.taught = plan.loaded is not None and plan.loaded.about.get("kind") == "regression"  # a head that goes on
        names = data.labels or self._numbered_as_before(train, say)
        self.meaning = labels = Labels.of(train, data.kind, names, data.separator)
        self.labels = labels.names
        unseen = {"train": "refuse", "valid": data.unseen_labels, "test": data.unseen_labels}
        self.wanted = {split: labels.encode(rows, unseen=unseen[split]) for split, rows in self.data.items()}
        self.metric = _metric(data.metric, labels)
        self._note_lone(train, say)
        for split, rows in self.data.items():
            if note := labels.unseen_note(rows, f"data.{split}"):
                say(f"note: {note}")
        self.weights = self._class_weights()
        text = Text(train.source, [*train.texts, *(train.seconds or [])], train.sha256)
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, text), pairs=self.pair)
        self.head = validate(
            HeadSpec, {**plan.head.model_dump(), "kind": "classes", "outputs": labels.outputs}, "head"
        )
        self.reader = plan.model.text_reader(self.tokenizer, data.max_length)
        count = sum(map(len, self.data.values()))
        if count >= MANY:
            say(f"tokenising {count:,} texts …")
        self.rows = {split: rows_of(self.reader, rows, self.wanted[split]) for split, rows in self.data.items()}
        self.batches = ExampleBatches(self.rows["train"], plan.batch_shape(train.source), pad=self.reader.padding)
        self._tell(say)

    def _read(self, say: Say) -> dict[str, Labelled]:
        data = self.plan.data

        def read(source: str, split: str, train: Labelled | None) -> Labelled:
            rows = read_split(data, source, split, train.columns if train else None)
            check_parts(rows, (train or rows).seconds is not None)
            if rows.note:
                say(f"data.{split}: {rows.note}")
            return rows

        def hold_out(train: Labelled) -> dict[str, Labelled]:
            return hold_out_rows(train, data.valid_share, data.kind, data.separator, data.labels)

        return completed(data.read(read), hold_out)

    def _numbered_as_before(self, train: Labelled, say: Say) -> list[str] | None:
        """The classes of the model that it goes on from, where the data has numbers for those."""
        about = {} if self.plan.loaded is None else self.plan.loaded.about
        names = about.get("labels") if about.get("kind") == "classes" else None
        if not isinstance(names, list) or train.classes is not None or self.plan.data.kind not in ("auto", "classes"):
            return None
        numbers = {str(number) for number in range(len(names))}
        strays = [row for row, label in enumerate(train.labels) if str(label).strip() not in numbers]
        if numbers & set(names):
            return None
        if strays:
            first, others = strays[0], len(train) - len(strays)
            if few(len(strays), others) and not is_missing(train.labels[first], train.numeric):
                raise DataError(
                    f"{train.where(first)}: the label '{brief(train.labels[first])}' is none of the numbers 0 to "
                    f"{len(names) - 1} that the other {others:,} have for the model's classes; correct it, or name "
                    "the classes anew: data.labels=[…]"
                )
            return None
        told = ", ".join(f"{number} is '{name}'" for number, name in list(enumerate(names))[:3])
        say(f"data.train: its numbers stand for the model's classes: {told}{', …' * (len(names) > 3)}")
        return names

    def _class_weights(self) -> Tensor | None:
        """n / (k n_c) for each class c of k, as scikit-learn has it, so that the mean over the texts is 1."""
        if self.plan.data.class_weights == "none":
            return None
        if self.meaning.kind != "classes":
            raise ConfigError("data.class_weights=balanced is for classes, and these labels are of another kind")
        counts = np.bincount(self.wanted["train"], minlength=self.meaning.outputs)
        there = np.maximum(counts, 1)  # a class without an example is not met
        weights = counts.sum() / (np.count_nonzero(counts) * there)
        return torch.tensor(weights, dtype=torch.float32, device=self.plan.device)

    def _note_lone(self, train: Labelled, say: Say) -> None:
        for name in self.labels if self.plan.data.labels is None else ():
            if name.lower() in NO_LABEL:
                say(
                    f"note: '{name}' is read as a class; where it stands for a label that is missing, remove the rows"
                )
        lone = self.meaning.lone(train)
        for name, where in lone[:LONE]:
            say(f"note: the class '{name}' has one example alone ({where}), too few to be learned")
        if len(lone) > LONE:
            say(f"note: so have {len(lone) - LONE:,} other classes")

    def _note_scale(self, say: Say) -> None:
        """Say what a scale was guessed from, where most labels would be classes as well."""
        train = self.data["train"]
        parts = [row for row, number in enumerate(self.wanted["train"]) if not float(number).is_integer()]
        if parts and 2 * len(parts) < len(train):
            say(
                f"note: {len(parts):,} of {len(train):,} labels have fractions, the first '{train.labels[parts[0]]}' "
                f"({train.where(parts[0])}), so all are read as numbers on a scale; data.kind=classes reads them as "
                "classes, and data.kind=regression says that this is meant"
            )

    def _tell(self, say: Say) -> None:
        labels = self.meaning
        if labels.kind == "regression" and self.plan.data.kind == "auto":
            self._note_scale(say)
        what = f"{labels.outputs} {'classes' if labels.kind == 'classes' else 'labels'}: {labels.listed()}"
        what = what if labels.names else "numbers on a scale"
        texts = "texts" if self.data["train"].seconds is None else "pairs"
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in self.data.items())
        say(f"data: {counts} {texts}; {what}; vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})")
        max_length = self.reader.max_length
        full = sum(len(row.ids) == max_length for row in self.rows["train"])
        if full:
            say(f"note: {full:,} training {texts} fill all of {max_length} tokens; what is beyond is not read")
        first = self.rows["train"][0].ids
        shown = " ".join(self.tokenizer.token(int(token)) for token in first[:24])
        say(f"the model will see: {shown}{' …' * (len(first) > 24)} → {labels.shown(self.wanted['train'][0])}")

    def initialise(self, model: Any) -> None:
        """Vectors of words, where there are any; and a scale begins at its mean, so nothing has to climb there."""
        data = self.plan.data
        if data.vectors is not None:
            initialise_embedding(model, self.tokenizer, resolve_path(data.vectors, data.root), self.say)
        if self.meaning.kind == "regression" and not self.taught and model.head.bias is not None:
            with torch.no_grad():
                model.head.bias.fill_(float(np.mean(self.wanted["train"])))

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        output = model(batch)
        assert output.logits is not None
        assert batch.labels is not None
        total = reported = losses(self.meaning.kind, output.logits, batch.labels).sum()
        smoothing = self.plan.train.label_smoothing
        if (smoothing or self.weights is not None) and self.meaning.kind == "classes":
            logits = output.logits.float()
            total = F.cross_entropy(logits, batch.labels, self.weights, reduction="sum", label_smoothing=smoothing)
        return Loss(penalised(total, output, _counted(batch.labels).sum()), reported)

    def _classifier(self, model: SequenceModel) -> Classifier:
        return Classifier(model, self.reader, self.meaning, self.pair)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        scores, _ = self._classifier(model).scores(self.rows["valid"], self.wanted["valid"])
        return {name: value for name, value in scores.items() if not isinstance(value, str)}

    def final(self, model: SequenceModel) -> dict[str, Any]:
        plain = None
        if self.plan.data.baseline:
            plain = Baseline(self.meaning, self.data["train"].joined(), self.wanted["train"])
        scores: dict[str, Any] = {}
        for split in (split for split in self.data if split != "train"):
            found, given = self._classifier(model).scores(self.rows[split], self.wanted[split])
            if self.meaning.kind == "classes" and len(given) > 1 and len(set(given.argmax(-1).tolist())) == 1:
                always = self.labels[int(given[0].argmax())]
                self.say(
                    f"note: the model answers '{always}' to every {split} text; train longer, or change train.lr"
                )
            if plain is not None:
                found |= plain.scores(self.data[split].joined(), self.wanted[split])
            scores |= {f"{split}.{name}": value for name, value in found.items()}
        return scores

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation texts, what the model says of them, and what is true."""
        valid, rows = self.data["valid"], self.rows["valid"]
        chosen = sorted(range(len(valid)), key=lambda row: mix_seed("sample", valid.texts[row]))[:count]
        if not chosen:
            return []
        told = []
        texts, wanted = valid.joined(), self.wanted["valid"]
        for row, found in zip(chosen, self._classifier(model).found([rows[row] for row in chosen]), strict=True):
            best = answers_of(self.meaning, found, 1)[0]
            sure = f" {best.score:.2f}" if "probability" in best.more else ""
            told.append(f"{shown_text(texts[row])}\n→ {best.text}{sure}   (true: {self.meaning.shown(wanted[row])})")
        return told

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        told: dict[str, Any] = {"kind": self.meaning.kind, "labels": self.labels, "numbered": self.meaning.numbered}
        told |= {"separator": self.meaning.separator, "columns": self.data["train"].columns, "pair": self.pair}
        return {**told, "max_length": self.plan.data.max_length, "unseen_labels": self.plan.data.unseen_labels}


def _counted(labels: Tensor) -> Tensor:
    """Rows that are not there only to fill a batch up, (B,)."""
    there = ~labels.isnan() if labels.is_floating_point() else labels >= 0
    return there.all(-1) if labels.dim() > 1 else there


def _metric(wanted: str, labels: Labels) -> str:
    """The figure that decides, which the kind of labels must have."""
    known = DECIDING[labels.kind]
    if wanted == "auto":
        return known[0]
    if wanted == "f1" and labels.kind == "classes" and labels.outputs > 2:
        raise ConfigError(f"data.metric=f1 is of two classes, and there are {labels.outputs}; use macro_f1")
    if wanted not in (*known, "loss"):
        raise ConfigError(f"data.metric={wanted} is not measured for {labels.kind}; use {', '.join(known)} or loss")
    return wanted


class Classification(Task):
    """The `classification` task."""

    name = "classification"
    summary = "classes, labels or numbers for texts and pairs of texts"
    Job = ClassificationJob
    Data = ClassificationData
    needs = "=FILE, a table of texts and labels"
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
            train=row_training(given),
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
            warnings.warn(note, stacklevel=2)
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
