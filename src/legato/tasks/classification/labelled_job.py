"""Training on what has labels, whatever it is that has them: texts, pictures.

    classes       P(c | x) = softmax(y)_c              loss: -log P(true class)
    multilabel    P(label l | x) = sigmoid(y_l)        loss: the mean over all labels
    regression    the value is y                       loss: (y - true value)²

What the labels mean, the loss and the scores are here; how rows are read is the task's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import BeforeValidator, Field, field_validator
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch
from legato.data.batching.batches import mix_seed
from legato.data.formats.labelled import Labelled
from legato.data.formats.labels import Labels, hold_out_rows
from legato.data.formats.strays import NO_LABEL, few, is_missing
from legato.data.sources.files import MAX_LINE
from legato.data.sources.patterns import Source
from legato.data.splits import Encoding, MaxLine, SplitData, TableFormat, ValidShare, completed
from legato.errors import ConfigError, DataError, brief
from legato.evaluation.classification import DECIDING
from legato.folders.about import label_kind
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec
from legato.nn.state import Output
from legato.tasks.base import Plan, Say, TaskJob, penalised
from legato.tasks.classification.classifier import Classifier, answers_of, losses, shown_text
from legato.training.job import Loss

LONE = 3  # classes with a single example that are named


class LabelledData(SplitData):
    """Where what has labels is, and what the labels are."""

    valid: Source | None = Field(None, description="left out: a share of the training rows")
    format: TableFormat = "auto"
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.1
    kind: Annotated[Literal["auto", "classes", "multilabel", "regression"], BeforeValidator(label_kind)] = Field(
        "auto",
        description="classes; multilabel: several each; regression; auto: fractions are a scale",
    )
    labels: list[str] | None = Field(
        None, description="the classes in their order, or names for the numbers 0, 1, …; left out: sorted"
    )
    unseen_labels: Literal["wrong", "refuse"] = Field(
        "wrong", description="labels that data.train lacks: count their rows as wrong, or refuse the file"
    )
    separator: str = Field(";", min_length=1, description="what separates the labels of a row that has several")
    class_weights: Literal["none", "balanced"] = Field(
        "none", description="balanced: in training a rare class counts as much as a frequent one"
    )
    metric: Literal[
        "auto", "accuracy", "f1", "macro_f1", "micro_f1", "exact", "matthews", "pearson", "spearman", "loss"
    ] = Field("auto", description="what decides which model is best; auto: accuracy, micro_f1 or spearman")

    @field_validator("labels", mode="before")
    @classmethod
    def _names_are_text(cls, names: Any) -> Any:
        """YAML reads 0 as a number, which names a class as well, and `no` as false, which does not."""
        if not isinstance(names, list):
            return names
        if any(isinstance(name, bool) for name in names):
            raise ValueError("holds a yes, no, true or false, which reads as a switch; put quotes around each name")
        return [str(name) for name in names]


class LabelledJob(TaskJob):
    """Training on rows and their labels."""

    labels: list[str]
    likelihood = False  # the loss is none of tokens
    data: dict[str, Any]  # the rows of each split: `Labelled`, or more than that
    rows: dict[str, list[Any]]  # the same as a model reads them
    unit: str = "text"  # what a row is, for people

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        self.check()
        self.data = self.read(say)
        self.hashes = {split: rows.sha256 for split, rows in self.data.items()}
        data, train = plan.data, self.data["train"]
        self.taught = plan.loaded is not None and plan.loaded.about.get("kind") == "regression"  # a head that goes on
        names = self.class_names(train, say)
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
        self.head = validate(
            HeadSpec, {**plan.head.model_dump(), "kind": "classes", "outputs": labels.outputs}, "head"
        )
        self.make_rows()
        if labels.kind == "regression" and data.kind == "auto":
            self._note_scale(say)
        self.tell(say)

    # --- what a task says of its rows -----------------------------------------------------------------

    def check(self) -> None:
        """Refuse settings that do not go together."""

    def read_split(self, source: Source, split: str, train: Any) -> Any:
        """The rows of a source; `train` are those of training, where they are read already."""
        raise NotImplementedError

    def hold_out(self, train: Any) -> dict[str, Any]:
        """The training rows without a share of them, and that share, `valid`."""
        data = self.plan.data
        return hold_out_rows(train, data.valid_share, data.kind, data.separator, data.labels)

    def class_names(self, train: Any, say: Say) -> list[str] | None:
        """The classes in their order, where something says them."""
        return self.plan.data.labels or self._numbered_as_before(train, say)

    def make_rows(self) -> None:
        """Make `processors`, `rows` and `batches` of `data` and `wanted`."""
        raise NotImplementedError

    def tell(self, say: Say) -> None:
        """Say what there is, and the first row as the model sees it."""

    def classifier(self, model: SequenceModel, split: str) -> Classifier:
        """What scores the rows of a split."""
        raise NotImplementedError

    def baseline(self) -> Any:
        """Something simpler to compare with, where that is asked for."""
        return None

    # --- labels ---------------------------------------------------------------------------------------

    def read(self, say: Say) -> dict[str, Any]:
        """The rows of each split."""

        def read(source: Source, split: str, train: Any) -> Any:
            rows = self.read_split(source, split, train)
            if rows.note:
                say(f"data.{split}: {rows.note}")
            return rows

        return completed(self.plan.data.read(read), self.hold_out)

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

    @property
    def counts(self) -> str:
        """How many rows there are, and what their labels are."""
        labels = self.meaning
        what = f"{labels.outputs} {'classes' if labels.kind == 'classes' else 'labels'}: {labels.listed()}"
        what = what if labels.names else "numbers on a scale"
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in self.data.items())
        return f"data: {counts} {self.unit}s; {what}"

    def initialise(self, model: Any) -> None:
        """A scale begins at its mean, so nothing has to climb there."""
        if self.meaning.kind == "regression" and not self.taught and model.head.bias is not None:
            with torch.no_grad():
                model.head.bias.fill_(float(np.mean(self.wanted["train"])))

    # --- learning -------------------------------------------------------------------------------------

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return self.loss_of(model(batch), batch)

    def loss_of(self, output: Output, batch: Batch) -> Loss:
        """The loss of what the model said of a batch."""
        assert output.logits is not None
        assert batch.labels is not None
        total = reported = losses(self.meaning.kind, output.logits, batch.labels).sum()
        smoothing = self.plan.train.label_smoothing
        if (smoothing or self.weights is not None) and self.meaning.kind == "classes":
            total = self.cross_entropy(output.logits.float(), batch.labels, smoothing).sum()
        return Loss(penalised(total, output, _counted(batch.labels).sum()), reported)

    def cross_entropy(self, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """The loss of classes in training, (B,), with weights and smoothed labels."""
        return F.cross_entropy(logits, labels, self.weights, reduction="none", label_smoothing=smoothing)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        scores, _ = self.classifier(model, "valid").scores(self.rows["valid"], self.wanted["valid"])
        return {name: value for name, value in scores.items() if not isinstance(value, str)}

    def final(self, model: SequenceModel) -> dict[str, Any]:
        plain = self.baseline()
        scores: dict[str, Any] = {}
        for split in (split for split in self.data if split != "train"):
            found, given = self.classifier(model, split).scores(self.rows[split], self.wanted[split])
            if self.meaning.kind == "classes" and len(given) > 1 and len(set(given.argmax(-1).tolist())) == 1:
                always = self.labels[int(given[0].argmax())]
                every = f"every {split} {self.unit}"
                self.say(f"note: the model answers '{always}' to {every}; train longer, or change train.lr")
            if plain is not None:
                found |= plain.scores(self.data[split].joined(), self.wanted[split])
            scores |= {f"{split}.{name}": value for name, value in found.items()}
        return scores

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation rows, what the model says of them, and what is true."""
        valid, rows = self.data["valid"], self.rows["valid"]
        chosen = sorted(range(len(valid)), key=lambda row: mix_seed("sample", valid.texts[row]))[:count]
        if not chosen:
            return []
        told = []
        texts, wanted = valid.joined(), self.wanted["valid"]
        given = self.classifier(model, "valid").found([rows[row] for row in chosen])
        for row, found in zip(chosen, given, strict=True):
            best = answers_of(self.meaning, found, 1)[0]
            sure = f" {best.score:.2f}" if "probability" in best.more else ""
            told.append(f"{shown_text(texts[row])}\n→ {best.text}{sure}   (true: {self.meaning.shown(wanted[row])})")
        return told

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        told: dict[str, Any] = {"kind": self.meaning.kind, "labels": self.labels, "numbered": self.meaning.numbered}
        told |= {"separator": self.meaning.separator, "columns": self.data["train"].columns}
        return {**told, "unseen_labels": self.plan.data.unseen_labels}


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
