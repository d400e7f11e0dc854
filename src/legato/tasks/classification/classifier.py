"""A model that says what kind of text something is: rows in, what the head says of them, and what a person reads.

Both halves of the task use it: training, which validates with it, and `legato predict` and `legato eval`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.examples import Example
from legato.data.formats.labelled import Labelled
from legato.data.formats.labels import UNSEEN, Labels
from legato.data.formats.text_pairs import tidy
from legato.data.text.text_reader import TextReader
from legato.errors import ConfigError, FolderError, LegatoError, brief
from legato.evaluation.classification import (
    THRESHOLD,
    Array,
    classification_details,
    classification_scores,
    probabilities,
)
from legato.evaluation.metrics import DetailTable
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import head_outputs
from legato.tasks.predictions import Answer, Prediction

SHOWN = 100  # characters of a text in a table


@dataclass
class Classifier:
    """A model with its head, how it reads texts, and what its outputs mean."""

    model: SequenceModel
    reader: TextReader
    labels: Labels
    pair: bool | None = None  # whether it reads two texts at once; None: either

    @classmethod
    def of(cls, loaded: Loaded) -> Classifier:
        """What a model folder holds; one without a head for classes is refused."""
        labels, about = labels_of(loaded), loaded.about
        reader = loaded.module.config.text_reader(loaded.tokenizer, about.get("max_length"))
        return cls(loaded.module, reader, labels, about.get("pair"))

    def outputs(self, rows: Sequence[Example]) -> Tensor:
        """What the head says of each row, (N, C), in order."""
        return torch.stack(head_outputs(self.model, rows, self.reader.padding))

    def found(self, rows: Sequence[Example]) -> Array:
        """The probabilities of each row's classes or labels (N, C), or its value (N,)."""
        return probabilities(self.labels.kind, self.outputs(rows).numpy())

    def scores(self, rows: Sequence[Example], wanted: Sequence[Any]) -> tuple[dict[str, Any], Array]:
        """Loss and scores of rows against their encoded labels, and what was found."""
        logits, kind = self.outputs(rows), self.labels.kind
        found = probabilities(kind, logits.numpy())
        labels = torch.tensor(np.asarray(wanted), dtype=torch.long if kind == "classes" else torch.float32)
        known = labels != UNSEEN if kind == "classes" else torch.ones(len(labels), dtype=torch.bool)
        labels = labels[:, : self.labels.outputs] if kind == "multilabel" else labels
        loss = float(losses(kind, logits[known], labels[known]).mean()) if known.any() else 0.0
        return {"loss": loss, **classification_scores(self.labels, found, wanted)}, found

    def score(self, data: Labelled, unseen: str = "wrong") -> tuple[dict[str, Any], list[DetailTable]]:
        """The scores of labelled texts, and what went wrong; `unseen` as in `Labels.encode`."""
        check_parts(data, self.pair)
        wanted = self.labels.encode(data, unseen=unseen)
        rows = rows_of(self.reader, data)
        self.reader.warn_of_cuts()
        scores, found = self.scores(rows, wanted)
        texts = [shown_text(text) for text in data.joined()]
        places = [f"{data.unit} {line:,}" for line in data.lines]
        return scores, classification_details(self.labels, found, wanted, texts, places)

    def predict(self, texts: Sequence[str], nbest: int = 1) -> list[Prediction]:
        """What each text is; the two of a pair are one text with a tab between them."""
        made = [Prediction(text) for text in texts]
        singles: dict[int, str] = {}
        pairs: dict[int, tuple[str, str]] = {}
        for number, text in enumerate(texts):
            parts, made[number].problem = parts_of(text, self.pair)
            if len(parts) == 2:
                pairs[number] = parts[0], parts[1]
            elif parts:
                singles[number] = parts[0]
        # Apart, since the rows of a batch have segments all or none.
        for numbers, rows in (
            (singles, self.reader.texts(singles.values())),
            (pairs, self.reader.pairs(pairs.values())),
        ):
            for number, found in zip(numbers, self.found(rows) if rows else (), strict=True):
                made[number].answers = answers_of(self.labels, found, nbest)
        self.reader.warn_of_cuts()
        return made


def labels_of(loaded: Loaded) -> Labels:
    """What the outputs of a folder's model mean; one without a head for classes is refused."""
    about = loaded.about
    kind, names = about.get("kind", "classes"), [str(name) for name in about.get("labels") or []]
    shape = loaded.module.shape
    if shape is None or shape.kind != "classes" or (kind != "regression" and len(names) != shape.outputs):
        raise FolderError(
            f"{loaded.folder} holds no classifier: its model has no head that names classes; train one: "
            f"legato train {loaded.task} from={loaded.folder}"
        )
    # Folders made elsewhere name their classes, and people's data numbers them.
    numbered = about.get("numbered", not any(name.isdecimal() for name in names))
    return Labels(kind, names, about.get("separator", ";"), numbered)


def class_names(loaded: Loaded) -> list[str]:
    """The classes or labels of a folder's classifier, in the order of its outputs; any other model is refused."""
    names: list[str] = []
    with suppress(FolderError):
        names = labels_of(loaded).names
    if not names:  # of a number on a scale there are none
        raise LegatoError(
            f"{loaded.folder} is a model for {loaded.task} and has no classes, so it has no labels and no "
            "predict_proba; predict(…, probabilities=True) gives what there is"
        )
    return names


def rows_of(reader: TextReader, data: Labelled, wanted: Sequence[Any] | None = None) -> list[Example]:
    """The texts as a model reads them, with what there is to learn of each."""
    if data.seconds is None:
        rows = reader.texts(data.texts)
    else:
        rows = reader.pairs(zip(data.texts, data.seconds, strict=True))
    for row, label in zip(rows, wanted or [], strict=False):
        row.label = label
    return rows


def losses(kind: str, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of each row, (B,); 0 for rows that only fill a batch up (class IGNORE, or nan)."""
    logits = logits.float()
    if kind == "classes":
        return F.cross_entropy(logits, labels, reduction="none")
    there = ~labels.isnan()
    wanted = labels.nan_to_num()
    if kind == "multilabel":
        each = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")  # (B, C)
        return (each * there).mean(-1)
    return (logits.squeeze(-1) - wanted).square() * there


def parts_of(text: str, pair: bool | None) -> tuple[list[str], str | None]:
    """A text, or the two of a pair, which a tab parts, and what is wrong with it; `pair` None takes either."""
    first, tab, second = text.partition("\t")
    if pair and not tab:
        return [], "this model reads pairs: write two texts with a tab between them"
    parts = [first, second] if tab and pair is not False else [text]
    parts = [tidy(part) for part in parts]
    if not all(parts):
        return [], "the text is empty" if len(parts) == 1 else "one text of the pair is empty"
    return parts, None


def answers_of(labels: Labels, found: Any, nbest: int) -> list[Answer]:
    """What a person reads of one row's probabilities (C,), or of its value."""
    if labels.kind == "regression":
        return [Answer(f"{found:.4f}", float(found), {"value": float(found)})]
    shares = {name: float(share) for name, share in zip(labels.names, found, strict=True)}
    if labels.kind == "multilabel":
        there = [name for name in labels.names if shares[name] >= THRESHOLD]
        return [Answer(labels.separator.join(there), max(found), {"labels": there, "probabilities": shares})]
    best = sorted(labels.names, key=lambda name: -shares[name])[:nbest]
    answers = [Answer(name, shares[name], {"probability": shares[name]}) for name in best]
    answers[0].more["probabilities"] = shares
    return answers


def check_parts(data: Labelled, pair: bool | None) -> None:
    """Refuse pairs where single texts were learned, and single texts where pairs were."""
    if pair is None or pair == (data.seconds is not None):
        return
    if pair:
        raise ConfigError(
            f"{data.source}: the model reads pairs, and these were read as single texts; if the second text has a "
            "column, set data.columns=[FIRST,SECOND,LABEL]"
        )
    raise ConfigError(f"{data.source}: the model reads single texts, not pairs; set data.columns=[TEXT,LABEL]")


def shown_text(text: str) -> str:
    """A text for a table: on one line, and not too long; of a pair, both."""
    parts = text.split("\t", 1)
    return " ‖ ".join(brief(part, SHOWN // len(parts)) for part in parts)
