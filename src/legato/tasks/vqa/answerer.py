"""A model that answers questions about pictures: both in, an answer of those that it learned out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batches import Array
from legato.data.batching.examples import Example, collate_examples
from legato.data.batching.picture_batches import Pixels, with_pictures
from legato.data.formats.labels import UNSEEN, Labels
from legato.data.formats.text_pairs import tidy
from legato.data.formats.visual_questions import VisualQuestions
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import UNNAMED, Picture, as_picture
from legato.data.image.pictures import ENDINGS
from legato.data.text.text_reader import TextReader
from legato.errors import LegatoError, brief
from legato.evaluation.classification import probabilities
from legato.evaluation.metrics import DetailTable
from legato.evaluation.vqa import answer_details, answer_scores, answer_set, surest_errors, wordnet_similarity
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.model_with_head import body_of
from legato.tasks.classification.classifier import Classifier, answers_of, labels_of, losses
from legato.tasks.picture_data import image_processor
from legato.tasks.predictions import Prediction

ROWS = {"cuda": 256}  # questions that are read side by side
FEW_ROWS = 64


def answer_name(text: str) -> str:
    """An answer as a class: in lower case, without punctuation and articles; several things in the alphabet's order.

    >>> answer_name("The Tape_dispenser, a book")
    'book, tape dispenser'
    """
    return ", ".join(sorted(answer_set(text))) or text.lower()


def question_rows(
    reader: TextReader, data: VisualQuestions, labels: Labels, wanted: Sequence[Any] | None = None
) -> list[Example]:
    """The questions as a model reads them, with the number of each one's picture and what there is to learn."""
    _, numbers = data.album()
    rows = reader.texts(data.texts)
    for number, row in enumerate(rows):
        row.picture = numbers[number]
        row.label = None if wanted is None else wanted[number]
        if data.choices is not None:
            row.choices = chosen_among(labels, data.choices[number])
    return rows


def chosen_among(labels: Labels, choices: Sequence[str]) -> list[int] | None:
    """The places of the choices among all answers; None where none of them was learned, or there are none."""
    places = {name: place for place, name in enumerate(labels.names)}
    known = {places[name] for name in map(answer_name, choices) if name in places}
    return sorted(known) or None


@dataclass
class PictureAnswerer(Classifier):
    """A model with its head, how it reads questions and pictures, and what its outputs mean."""

    model: SequenceModel
    reader: TextReader
    labels: Labels
    processor: ImageProcessor | None = None  # None: it is blind
    pixels: Pixels | None = None  # of the pictures whose numbers the rows have
    truth: Sequence[str] = ()  # the right answer to each row, where it is scored

    @classmethod
    def of(cls, loaded: Loaded) -> PictureAnswerer:
        labels, kinds = labels_of(loaded), body_of(loaded.module).processors_of(loaded.module.config)
        processor = image_processor(loaded) if "image" in kinds else None
        reader = loaded.module.config.text_reader(loaded.tokenizer, loaded.about.get("max_length"))
        return cls(loaded.module, reader, labels, processor=processor)

    def on(self, pictures: Sequence[Picture], truth: Sequence[str] = ()) -> PictureAnswerer:
        """The same for these pictures; rows have their numbers."""
        pixels = None if self.processor is None else Pixels(pictures, self.processor, self.model.device)
        return PictureAnswerer(
            self.model, self.reader, self.labels, processor=self.processor, pixels=pixels, truth=truth
        )

    @torch.no_grad()
    def outputs(self, rows: Sequence[Example]) -> Tensor:
        made: list[Tensor] = [torch.empty(0)] * len(rows)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number].ids))
        size = ROWS.get(self.model.device.type, FEW_ROWS)
        for start in range(0, len(order), size):
            numbers = order[start : start + size]
            those = [rows[number] for number in numbers]
            batch = collate_examples(those, pad=self.reader.padding).to(self.model.device)
            if self.processor is not None and self.pixels is not None:
                pixels = self.pixels.take(np.array([row.picture for row in those]))
                values = self.processor.scaled(pixels.to(self.model.device, non_blocking=True))
                batch = with_pictures(batch, values, "images")
            logits = self.model(batch).logits.float().cpu()
            check_finite(logits, self.model)
            for number, row in zip(numbers, logits, strict=True):
                made[number] = row
        return torch.stack(made)

    def found(self, rows: Sequence[Example]) -> Array:
        return self._shares(rows, self.outputs(rows))

    def _shares(self, rows: Sequence[Example], logits: Tensor) -> Array:
        """The probabilities of all answers (N, C); of a row with choices, 0 for all that are none of them."""
        allowed = torch.ones_like(logits, dtype=torch.bool)
        for number, row in enumerate(rows):
            if row.choices is not None:
                allowed[number] = False
                allowed[number, row.choices] = True
        return probabilities("classes", logits.masked_fill(~allowed, -torch.inf).numpy())

    def scores(self, rows: Sequence[Example], wanted: Sequence[Any]) -> tuple[dict[str, Any], Array]:
        """The loss over all answers, which open questions have, and the scores of those that are given."""
        logits, labels = self.outputs(rows), torch.tensor(np.asarray(wanted))
        known = labels != UNSEEN
        loss = float(losses("classes", logits[known], labels[known]).mean()) if known.any() else 0.0
        found = self._shares(rows, logits)
        return {"loss": loss, **answer_scores(self.said(found), self.truth, wordnet_similarity())}, found

    def said(self, found: Array) -> list[str]:
        """The answers of which each row is surest."""
        return [self.labels.names[place] for place in found.argmax(1)]

    def score(self, data: Any, unseen: str = "wrong") -> tuple[dict[str, Any], list[DetailTable]]:
        assert isinstance(data, VisualQuestions)
        wanted = self.labels.encode(data, unseen=unseen)
        pictures, _ = data.album()
        rows = question_rows(self.reader, data, self.labels)
        self.reader.warn_of_cuts()
        scores, found = self.on(pictures, data.labels).scores(rows, wanted)
        said = self.said(found)
        places = [data.place(row) for row in range(len(data))]
        worst = surest_errors(said, data.labels, found.max(1).tolist(), data.texts, data.names, places)
        return scores, [*answer_details(said, data.labels), worst]

    def predict(self, texts: Sequence[Any], nbest: int = 1) -> list[Prediction]:
        """The answer to each, as `asked_of` says what that may be."""
        made, rows, pictures = [], {}, []
        for number, given in enumerate(texts):
            made.append(Prediction("\t".join(map(_shown, _parts(given)[:2]))))
            try:
                picture, question, choices = asked_of(given)
                if self.processor is not None:
                    pixels = self.processor.pixels(as_picture(picture).load())
                    pictures.append(Picture(made[number].input, draw=pixels.view))
                rows[number] = self._row(question, choices, len(pictures) - 1)
            except LegatoError as problem:
                made[number].problem = str(problem)
        found = self.on(pictures).found(list(rows.values())) if rows else ()
        for number, shares in zip(rows, found, strict=True):
            made[number].answers = [
                answer for answer in answers_of(self.labels, shares, nbest) if answer.score > 0 or nbest == 1
            ]
        self.reader.warn_of_cuts()
        return made

    def _row(self, question: str, choices: Sequence[str], picture: int) -> Example:
        row = self.reader.texts([question])[0]
        row.picture, row.choices = picture, chosen_among(self.labels, choices)
        if choices and row.choices is None:
            raise LegatoError(f"none of the choices {brief(', '.join(choices))} is an answer that the model learned")
        return row


def _parts(given: Any) -> list[Any]:
    if isinstance(given, str):
        return list(given.split("\t", 1))
    return list(given) if isinstance(given, tuple | list) else [given]


def asked_of(given: Any) -> tuple[Any, str, Sequence[str]]:
    """A picture, a question and choices, of what somebody gives: a picture and a question, and perhaps a list of
    choices; or the first two in a text, with a tab between them.
    """
    parts = _parts(given)
    if len(parts) == 1:
        raise LegatoError(_alone(parts[0]))
    if len(parts) not in (2, 3) or not isinstance(parts[1], str):
        raise LegatoError(f"give a picture and a question, not {brief(repr(tuple(parts)))}")
    question = tidy(parts[1].encode("utf-8", "replace").decode())  # a command line may hold half characters
    if not question:
        raise LegatoError(f"there is no question about {_shown(parts[0])}; write one")
    if parts[0] is None or (isinstance(parts[0], str) and not parts[0].strip()):
        raise LegatoError(_alone(question))
    choices = parts[2] if len(parts) == 3 else ()
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise LegatoError(f"choices are a list of texts, not {brief(repr(choices))}")
    return parts[0], question, choices


def _alone(given: Any) -> str:
    """What is missing beside a picture, or beside a question."""
    if isinstance(given, str) and not names_picture(given):
        return f"the question '{brief(given)}' has no picture; name one before it: photo.jpg \"{brief(given)}\""
    picture = "the picture" if _shown(given) == UNNAMED else f"the picture {_shown(given)}"
    return f'{picture} has no question; write one behind it: photo.jpg "What is on the table?"'


def names_picture(text: str) -> bool:
    """Whether a word looks like a picture's name rather than like a question."""
    return text.lower().endswith(ENDINGS) or (len(text) < 4096 and "\0" not in text and Path(text).is_file())


def _shown(given: Any) -> str:
    if isinstance(given, Picture):
        return given.name
    return str(given) if isinstance(given, str | Path) else UNNAMED


def paired(texts: Sequence[str]) -> list[str]:
    """Pictures and questions in turn, as words of a command line, to one text for each two."""
    found, waiting = [], None
    for text in texts:
        if "\t" in text and waiting is None:
            found.append(text)
        elif waiting is None:
            if not names_picture(text):
                raise LegatoError(_alone(text))
            waiting = text
        else:
            if names_picture(text):
                raise LegatoError(_alone(waiting))
            found.append(f"{waiting}\t{text}")
            waiting = None
    if waiting is not None:
        raise LegatoError(_alone(waiting))
    return found
