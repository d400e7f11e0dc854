"""Predictions: what a model makes of its inputs, as Python, `--json` and the server have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legato.errors import LegatoError, brief, suggest


@dataclass(repr=False)
class Answer:
    """One of the things that a model makes of an input. What the task adds is in `more`, and is an attribute, too.

    >>> Answer("good", 0.9, {"probability": 0.9}).probability
    0.9
    """

    text: str
    score: float  # by which answers are sorted
    more: dict[str, Any] = field(default_factory=dict)  # what the task adds, as JSON has it

    @property
    def label(self) -> str:
        """The text, by the name that a classifier's has."""
        return self.text

    def __getattr__(self, name: str) -> Any:
        more = self.__dict__.get("more", {})  # a copy has none yet
        if name in more:
            return more[name]
        raise AttributeError(f"this prediction has no '{name}'; {suggest(name, ['text', 'score', *more])}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.more]

    def __repr__(self) -> str:
        name = "probability" if "probability" in self.more else "score"
        return f"Answer({brief(self.text)!r}, {name}={getattr(self, name):.4g})"


@dataclass(repr=False)
class Prediction:
    """What a model makes of an input: its answers, best first, or why there is none. It prints as its text.

    The attributes of the best answer are the prediction's: `text`, `score`, and what `legato predict --json` has of
    the task, such as `probability`, `probabilities`, `tags`, `value` or `box`.

    >>> shares = {"bad": 0.1, "good": 0.9}
    >>> prediction = Prediction("a fine film", [Answer("good", 0.9, {"probability": 0.9, "probabilities": shares})])
    >>> prediction
    Prediction('good', probability=0.9)
    >>> prediction.label, prediction.probability, prediction.probabilities["bad"]
    ('good', 0.9, 0.1)
    """

    input: str
    answers: list[Answer] = field(default_factory=list)
    problem: str | None = None

    @property
    def best(self) -> Answer:
        """The first of its answers."""
        if not self.answers:
            raise LegatoError(self.problem or "the model finds nothing in this input, so there is no best answer")
        return self.answers[0]

    @property
    def text(self) -> str:
        """The best answer."""
        return self.best.text

    @property
    def label(self) -> str:
        """The best answer, by the name that a classifier's has."""
        return self.best.label

    @property
    def score(self) -> float:
        """By which answers are sorted."""
        return self.best.score

    @property
    def probability(self) -> float | None:
        """Of the best answer; None where the task knows none."""
        share: float | None = self.best.more.get("probability")
        return share

    @property
    def spans(self) -> list[dict[str, Any]]:
        """Places in the input, each with its `text`, `start`, `end` and `probability`: a tagger's entities, with
        their `type`, and a reader's answers."""
        if self.answers and "entities" in self.best.more:
            entities: list[dict[str, Any]] = self.best.more["entities"]
            return entities
        return [{"text": answer.text, **answer.more} for answer in self.answers if "start" in answer.more]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "answers" not in self.__dict__:  # as copy and pickle ask for
            raise AttributeError(name)
        if not self.answers:
            raise AttributeError(f"this prediction has no '{name}': {self.problem or 'there are no answers'}")
        return getattr(self.best, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(self.answers[0].more if self.answers else ())]

    def __str__(self) -> str:
        return self.text if self.answers else ""

    def __repr__(self) -> str:
        if not self.answers:
            return "Prediction(no answers)" if self.problem is None else f"Prediction(problem={self.problem!r})"
        shown = repr(self.best).removeprefix("Answer(").removesuffix(")")
        spans = f", {len(self.spans)} spans" if "entities" in self.best.more else ""
        return f"Prediction({shown}{spans}{f', {len(self.answers)} answers' if len(self.answers) > 1 else ''})"

    def as_json(self) -> dict[str, Any]:
        answers = [{"text": a.text, "score": a.score, **a.more} for a in self.answers]
        told: dict[str, Any] = {"input": self.input, "answers": answers}
        return told if self.problem is None else {**told, "problem": self.problem}


class Predictions(list[Prediction]):
    """A prediction for each input, in order: a list that can become a table."""

    def check(self, kind: str = "") -> None:
        """Raise the problem of the first input that has one, behind its number where it is one of a `kind`."""
        for number, prediction in enumerate(self, start=1):
            if prediction.problem is not None:
                raise LegatoError((f"{kind} {number}: " if kind else "") + prediction.problem)

    def table(self, labels: Sequence[str]) -> NDArray[np.float64]:
        """A classifier's probabilities, (N, labels)."""
        rows = [[prediction.probabilities[label] for label in labels] for prediction in self]
        return np.array(rows, dtype=np.float64).reshape(len(self), len(labels))

    def to_pandas(self) -> Any:
        """A table with a row for each answer, whose index is the number of its input, from 0.

        >>> model.predict(texts, probabilities=True).to_pandas()                          # doctest: +SKIP
        """
        try:
            import pandas
        except ImportError:
            raise LegatoError("a table needs pandas: pip install pandas") from None
        rows, numbers = [], []
        for number, prediction in enumerate(self):
            row: dict[str, Any] = {"input": prediction.input}
            if not prediction.answers:
                rows.append(row if prediction.problem is None else {**row, "problem": prediction.problem})
                numbers.append(number)
            for answer in prediction.answers:
                columns = {"text": answer.text, "score": answer.score}
                for name, value in answer.more.items():
                    several = isinstance(value, dict)  # the probabilities of all classes: a column for each
                    columns |= {f"{name}.{key}": one for key, one in value.items()} if several else {name: value}
                rows.append({**row, **columns})
                numbers.append(number)
        return pandas.DataFrame(rows, index=numbers)
