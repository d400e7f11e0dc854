"""What a task is: rows in, examples, loss, prediction, score.

A task is a class that names its data section and builds a `Job` for the training loop. Adding one
touches one file; other packages add theirs through the entry point group `legato.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato.config import Section
from legato.data.text.text_reader import TextReader, parting
from legato.data.text.tokenizers import AnyTokenizer, TokenizerConfig
from legato.errors import ConfigError
from legato.folders.finite_scores import shown_score
from legato.folders.loaded import Loaded
from legato.folders.model_folder import save_model
from legato.models.base import ModelConfig, Sizes, count_parameters
from legato.models.model_with_head import HeadConfig, HeadSpec
from legato.training.config import TrainConfig
from legato.training.job import Job
from legato.version import __version__

Say = Callable[[str], None]


@dataclass
class Plan:
    """The checked settings that a task prepares itself from."""

    data: Any  # the task's own section
    tokenizer: TokenizerConfig
    model: ModelConfig
    train: TrainConfig
    seed: int
    device: torch.device
    loaded: Loaded | None = None  # the model to go on from (`from=MODEL`), whose tokenizer and sizes count
    head: HeadConfig = field(default_factory=HeadConfig)  # for tasks that put one on a model

    def tokenizer_for(self, train: Callable[[], AnyTokenizer], pairs: bool = False) -> AnyTokenizer:
        """The loaded model's tokenizer; without one, what `train` makes of the data. It can part `pairs` of texts."""
        found = train() if self.loaded is None else self.loaded.tokenizer
        return parting(found) if pairs and not TextReader.of(self.model, found).framed else found

    def sizes_for(self, tokenizer: AnyTokenizer) -> Sizes:
        return Sizes(tokenizer.size) if self.loaded is None else self.loaded.module.sizes

    def gpu_shapes(self, multiple: int) -> dict[str, Any]:
        """How batches are padded: for a GPU in few shapes, since it prepares for each, and replays known ones."""
        return {"pad_to": multiple, "fixed_shape": True} if self.device.type == "cuda" else {}

    def origin(self) -> dict[str, Any]:
        """What a model folder says of where the model came from."""
        if self.loaded is None:
            return {}
        # A tokenizer made elsewhere begins texts its own way, and may have fewer tokens than the model.
        told: dict[str, Any] = {"from": str(self.loaded.folder)}
        if self.loaded.tokenizer.follows_own_template:
            told["published"] = True
            if self.loaded.module.can_generate:
                told["ends"] = list(self.loaded.ends)  # there may be more than the tokenizer's
        return told


class TaskJob(Job):
    """A job that also knows what its data fixes of a model, its data's hashes and its final scores."""

    task: ClassVar[str]  # the name that its model folders have
    plan: Plan
    sizes: Sizes
    hashes: dict[str, str]
    tokenizer: AnyTokenizer
    target: AnyTokenizer | None = None  # of what is written, where it is another
    head: HeadSpec | None = None  # what is put on the model
    labels: list[str] | None = None  # the names of that head's answers
    use: str  # how to use the model, for its card

    def initialise(self, model: Any) -> None:
        """Fill weights that start as something else than drawn at random."""

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What a model folder remembers, to read, predict and score as in training."""
        return {}

    def final(self, model: Any) -> dict[str, Any]:
        """The scores to publish: `valid.perplexity`, `test.perplexity` and so on."""
        return {
            f"{split}.{name}": value
            for split in ("valid", "test")
            if split in self.hashes
            for name, value in self.score(model, split).items()
        }

    def score(self, model: Any, split: str) -> dict[str, Any]:
        """The final scores on one split."""
        raise NotImplementedError

    def write(self, model: Any, folder: Path, metrics: dict[str, float]) -> None:
        card = model_card(self.task, model.config.name, count_parameters(model), self.hashes, metrics, self.use)
        about = {"version": __version__, "data": self.hashes, "metrics": metrics}
        about |= {**self.plan.origin(), **self.about(metrics)}
        save_model(folder, model, self.tokenizer, target=self.target, task=self.task, about=about, card=card)


class Task:
    """A job to train models for: what it reads, learns, scores and predicts."""

    name: ClassVar[str]
    summary: ClassVar[str]
    Data: ClassVar[type[Section]]
    Options: ClassVar[type[Section] | None] = None  # how to predict, `--beams` and so on; None: it does not
    figures: ClassVar[tuple[str, ...] | None] = None  # its scores' names, behind `valid.` and `test.`; `bleu_*`: such
    continues: ClassVar[bool] = False  # whether it can begin with a trained model (`from=MODEL`)
    headed: ClassVar[bool] = False  # whether it puts a head on a model
    rows: ClassVar[bool] = False  # whether its batches may be so many rows (`train.batch_rows`)
    compared: ClassVar[Mapping[str, Any]] = {}  # what models have to have in common, so that their tokens are as many

    @classmethod
    def adjust(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Fill in what the task knows better than the defaults, before the settings are checked."""
        return settings

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> TaskJob:
        """Read the data and make batches of it."""
        raise NotImplementedError

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        """The task's scores on `data.test`."""
        raise NotImplementedError

    @classmethod
    def predict(cls, loaded: Loaded, texts: Sequence[str], options: Any) -> list[Prediction]:
        """One prediction a text, in order. A text that cannot be read has a `problem` instead of answers."""
        raise NotImplementedError


def require(data: Any, split: str, what: str) -> None:
    """Refuse settings that do not say where a split is; `what` goes on behind `set data.train`."""
    if data.model_dump(include={split})[split] is None:
        raise ConfigError(f"'data.{split}' is needed; set data.{split}{what}")


@dataclass
class Answer:
    """One of the things that a model makes of a text."""

    text: str
    score: float
    more: dict[str, Any] = field(default_factory=dict)  # what the task adds, as JSON has it


@dataclass
class Prediction:
    """What a model makes of a text: its answers, best first, or why there is none."""

    input: str
    answers: list[Answer] = field(default_factory=list)
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        answers = [{"text": a.text, "score": a.score, **a.more} for a in self.answers]
        told: dict[str, Any] = {"input": self.input, "answers": answers}
        return told if self.problem is None else {**told, "problem": self.problem}


def model_card(
    task: str, name: str, parameters: int, hashes: dict[str, str], metrics: dict[str, float], use: str
) -> str:
    """The README of a model folder: what it is, on what it was trained, how well it does, how to use it."""
    shown = {key: shown_score(value) for key, value in metrics.items()}
    scores = "\n".join(f"| {key.replace('_', ' ')} | {value} |" for key, value in shown.items())
    data = "\n".join(f"- {split}: sha256 `{digest}`" for split, digest in hashes.items())
    return (
        f"---\nlibrary_name: legato\ntags:\n- legato\n- {task}\n---\n\n# {name} for {task}\n\n"
        f"A model of {parameters:,} parameters, trained with Legato.\n\n"
        f"## Use\n\n```\n{use}\n```\n\n## Scores on the validation text\n\n| | |\n|---|---|\n{scores}\n\n"
        f"## Data\n\n{data}\n"
    )


def word_numbers(tokenizer: AnyTokenizer, ids: Sequence[int]) -> list[int]:
    """The number of the word that each token belongs to, as spaces part them; -1 for a mark, which is in none."""
    numbers, current, apart = [], -1, True
    for index in ids:
        if index in tokenizer.marks:
            numbers.append(-1)
            continue
        # What the token adds to a text: its name may not tell whether there is a space before it.
        text = (
            tokenizer.token(index) if tokenizer.pieces is None else tokenizer.pieces[index].decode("utf-8", "replace")
        )
        if text.strip():
            current += apart or text[0].isspace()
            apart = text[-1].isspace()
        else:
            apart = True
        numbers.append(max(current, 0))
    return numbers


def word_alignment(weights: Tensor, source: Sequence[int], target: Sequence[int]) -> list[tuple[int, int]]:
    """(source word, target word) for each target word: where most of its tokens' weights (T, S) lie.

    `source` and `target` are the tokens' word numbers. What lies on marks is no word's.
    """
    sums = _tokens_of_words(target) @ weights @ _tokens_of_words(source).T  # (words written, words read)
    return [(int(best), word) for word, best in enumerate(sums.argmax(1))] if sums.numel() else []


def _tokens_of_words(numbers: Sequence[int]) -> Tensor:
    """1 where a token (column) belongs to a word (row)."""
    words = torch.arange(max(numbers, default=-1) + 1)
    return (words[:, None] == torch.tensor(numbers, dtype=torch.long)).float()
