"""What a task is: rows in, examples, loss, prediction, score.

A task is a class that names its data section and builds a `Job` for the training loop. Adding one
touches one file; other packages add theirs through the entry point group `legato.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from legato.config import Section, validate
from legato.data.batching.batches import BatchShape
from legato.data.batching.examples import Example, scoring_batches
from legato.data.positions import Reading
from legato.data.processors import TEXT, HasProcessors, Processors
from legato.data.sources.files import SPLITS
from legato.data.sources.memory_tables import data_files, is_memory_table, memory_table, table_files
from legato.data.sources.table import Column
from legato.data.splits import PARTED
from legato.data.text.text_reader import parting
from legato.data.text.tokenizers import AnyTokenizer, TokenizerConfig
from legato.decoding.search_start import SearchStart
from legato.errors import ConfigError, DataError, brief, listed, suggest
from legato.evaluation.metrics import Metrics, printed_scores
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.folders.model_folder import save_model
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.models.model_with_head import HeadConfig, HeadSpec
from legato.nn.state import Output
from legato.registry import TASKS
from legato.tasks.defaults import Defaults, Given
from legato.tasks.model_card import model_card
from legato.tasks.predictions import Answer, Prediction
from legato.training.job import Job
from legato.version import __version__

if TYPE_CHECKING:  # who asks a model for something needs neither
    from legato.tasks.table_inputs import TableInputs
    from legato.training.config import TrainConfig

Say = Callable[[str], None]


@dataclass
class Plan:
    """The checked settings that a task prepares itself from; it may complete those of the model."""

    data: Any  # the task's own section
    tokenizer: TokenizerConfig
    model: ModelConfig
    train: TrainConfig
    seed: int
    device: torch.device
    loaded: Loaded | None = None  # the model to go on from (`from=MODEL`), whose tokenizer and sizes count
    head: HeadConfig = field(default_factory=HeadConfig)  # for tasks that put one on a model
    parts: Mapping[str, Loaded] = field(default_factory=dict)  # the models that parts of the model begin with
    shared: Processors | None = None  # those that a model of several tasks reads with, in every one of them

    @property
    def writer(self) -> Loaded | None:
        """The trained model whose tokenizer counts: that of the part which reads and writes words, or the whole."""
        return self.parts.get("text", self.loaded)

    def processors_for(self, train: Callable[[], AnyTokenizer], pairs: bool = False) -> Processors:
        """The loaded model's; without one, the tokenizer that `train` makes. It can separate `pairs` of texts."""
        if self.shared is not None:
            return self.shared
        if self.loaded is not None and not pairs:
            return self.loaded.processors
        found = train() if self.loaded is None else self.loaded.tokenizer
        return Processors(parting(found) if pairs and not self.model.uses_cls else found)

    def batch_shape(self, source: str, multiple: int = 8) -> BatchShape:
        """How the training rows of `source` are batched: for a GPU in few shapes, multiples of `multiple` wide.

        It prepares for each shape, and replays known ones.
        """
        train, few = self.train, self.device.type == "cuda"
        name = f"data.train={source}"
        return BatchShape(
            self.seed, train.batch_tokens, train.batch_rows, name, multiple if few else 1, fixed_shape=few
        )

    def base_info(self) -> dict[str, Any]:
        """What a model folder says of where the model came from."""
        base = self.writer
        if base is None:
            return {}
        # A tokenizer made elsewhere begins texts its own way, and may have fewer tokens than the model.
        told: dict[str, Any] = {"from": str(base.folder)}
        if base.processors.has_text and base.tokenizer.follows_own_template:
            told["published"] = True
            if base.module.can_generate:
                told["ends"] = list(base.ends)  # there may be more than the tokenizer's
        return told


class TaskJob(HasProcessors, Job):
    """A job that also knows what its data fixes of a model, its data's hashes and its final scores."""

    task: ClassVar[str]  # the name that its model folders have
    hashes: dict[str, str]
    head: HeadSpec | None = None  # what is put on the model
    labels: list[str] | None = None  # the names of that head's answers
    use: str  # how to use the model, for its card
    first_token: int | None = None  # the token that writing begins with; left out: the EOS token
    generation: Mapping[str, Any] = MappingProxyType({})  # what else generation_config.json says

    def __init__(self, plan: Plan, say: Say) -> None:
        """`say` something to the person who trains."""
        self.plan, self.say = plan, say

    @cached_property
    def sizes(self) -> Sizes:
        """What the data fixes of a model."""
        if self.plan.writer is not None:
            return self.plan.writer.module.sizes
        if not self.processors.has_text:
            return Sizes(0)
        return Sizes(self.target.size, None if self.target is self.tokenizer else self.tokenizer.size)

    @property
    def model_config(self) -> ModelConfig:
        """The model's settings, with what the data fixes of them."""
        return self.plan.model

    @property
    def metrics(self) -> Metrics:  # type: ignore[override]
        return TASKS.get(self.task).metrics

    def initialise(self, model: Any) -> None:
        """Fill weights that start as something else than drawn at random."""

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What a model folder remembers, to read, predict and score as in training."""
        return {}

    def validate(self, model: Any) -> dict[str, float]:
        return self.score(model, "valid")

    def final(self, model: Any) -> dict[str, Any]:
        """The scores to publish: `valid.perplexity`, `test.perplexity` and so on."""
        return {
            f"{split}.{name}": value
            for split in ("valid", "test")
            if split == "valid" or split in self.hashes
            for name, value in self.score(model, split).items()
        }

    def score(self, model: Any, split: str) -> dict[str, Any]:
        """The final scores on one split."""
        raise NotImplementedError

    def write(self, model: Any, folder: Path, metrics: dict[str, float]) -> None:
        base = self.plan.writer
        card = model_card(
            model,
            self.task,
            self.use,
            scores=printed_scores(self.metrics, metrics, search=self.search),
            hashes=self.hashes,
            data=self.plan.data,
            folder=None if base is None else base.folder,
        )
        about = {"version": __version__, "data": self.hashes, "metrics": metrics}
        about |= {**self.plan.base_info(), **self.about(metrics)}
        save_model(
            folder,
            model,
            self.processors,
            task=self.task,
            about=about,
            card=card,
            start=self.first_token,
            generation=self.generation,
        )


class Task:
    """A job to train models for: what it reads, learns, scores and predicts."""

    name: ClassVar[str]
    summary: ClassVar[str]
    pipeline: ClassVar[str | None] = None  # what Hugging Face's hub calls the task
    default_model: ClassVar[str] = "lstm"
    Job: ClassVar[type[TaskJob]]  # how it is trained
    Data: ClassVar[type[Section]]
    needs: ClassVar[str] = "=FILE"  # what `data.train` and `data.test` are set to, for somebody who has set neither
    tuples: ClassVar[tuple[str, ...]] = ()  # the columns of rows that are tuples in memory, as in "text label"
    Options: ClassVar[type[Section] | None] = None  # how to predict, `--beams` and so on; None: it does not
    Input: ClassVar[type | tuple[type, ...]] = str  # what it predicts from
    texts: ClassVar[int] = 1  # that such a text has, with tabs between them
    input_name: ClassVar[str] = "text"  # the same, for people
    lists_answers: ClassVar[bool] = False  # whether there are several where nobody says how many
    any_number: ClassVar[bool] = False  # whether all answers together are what is predicted, and there may be none
    processors: ClassVar[tuple[str, ...]] = (TEXT,)  # the kinds that its data are read with (data/processors.py)
    metrics: ClassVar[Metrics] = ()  # its figures: `valid.accuracy` and `test.accuracy` are of `accuracy`
    continues: ClassVar[bool] = False  # whether it can begin with a trained model (`from=MODEL`)
    headed: ClassVar[bool] = False  # whether it puts a head on a model
    rows: ClassVar[bool] = False  # whether its batches may be so many rows (`train.batch_rows`)
    generated: ClassVar[tuple[str, ...]] = ()  # its sources that are no file: toys, and texts that are there always
    compared: ClassVar[Mapping[str, Any]] = {}  # what models have to have in common, so that their tokens are as many

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        """What the task knows better than the general defaults, given what a user has set."""
        return Defaults()

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> TaskJob:
        """Read the data and make batches of it."""
        cls.require(plan.data, "train")
        return cls.Job(plan, say)

    @classmethod
    def require(cls, data: Any, split: str) -> None:
        """Refuse settings that do not say where a split is, or name a toy of other tasks."""
        sources = data.model_dump(include=set(SPLITS))
        if sources[split] is None:
            raise ConfigError(f"'data.{split}' is needed; set data.{split}{cls.needs.format(split=split)}")
        for source in sources.values():
            if isinstance(source, str) and source.startswith(PARTED) and source not in cls.generated:
                homes = [name for name in TASKS.names() if source in TASKS.get(name).generated]
                own = f"{cls.name} has {listed(cls.generated) if cls.generated else 'none such: name a file'}"
                if homes:
                    raise ConfigError(f"{source} is for {listed(homes)}; {own}")
                if cls.generated:
                    raise ConfigError(f"there is no {brief(source)}; {suggest(source, cls.generated)}")

    @classmethod
    def members(cls, loaded: Loaded) -> dict[str, Loaded]:
        """What a folder holds for each of several tasks, by their names; for most, nothing."""
        return {}

    @classmethod
    def data_for(cls, loaded: Loaded, given: Mapping[str, Any]) -> Section:
        """The data section that `evaluate` takes, of the settings that somebody gives."""
        return validate(cls.Data, given, "data")

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        """The task's scores on `data.test`."""
        raise NotImplementedError

    @classmethod
    def read_file(
        cls, source: str, about: Mapping[str, Any], columns: Sequence[Column] | None = None, *, alone: bool = False
    ) -> TableInputs | None:
        """What `predict` takes of a file (see `read_inputs`); None: it is no table, and each line is a text."""
        from legato.tasks.file_inputs import file_kind
        from legato.tasks.table_inputs import is_table

        kind = file_kind(source)
        if kind in ("picture", "sound"):
            raise DataError(f"{source} is a {kind}, and {cls.name} reads text; give a file of that")
        return cls.read_inputs(source, about, columns, alone=alone) if is_table(source) else None

    @classmethod
    def inputs_of(cls, texts: Sequence[str]) -> list[str]:
        """What `predict` takes of the words of a command line: each of them, or several together."""
        return list(texts)

    @classmethod
    def read_inputs(
        cls, source: str, about: Mapping[str, Any], columns: Sequence[Column] | None = None, *, alone: bool = False
    ) -> TableInputs:
        """What `predict` takes of a table, by the columns that a model's folder remembers in `about`.

        `columns` are what somebody names instead; `alone` asks for one text a row, where rows may have two.
        """
        if columns is None and not alone:
            with suppress(DataError):  # there are texts, and nothing else
                return cls.training_inputs(source, about)
        from legato.tasks.table_inputs import read_inputs

        return read_inputs(source, columns=columns, count=1 if alone else cls.texts)

    @classmethod
    def training_inputs(cls, source: str, about: Mapping[str, Any]) -> TableInputs:
        """The same of a table as training reads it; a DataError where it is no such table."""
        raise DataError(f"{source} has no texts that {cls.name} is trained on")

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        """One prediction an input, in order. One that cannot be read has a `problem` instead of answers."""
        raise NotImplementedError

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading | None:
        """One input as its model reads it, for who looks inside; `written` is what a decoder reads.

        Its positions are those of the batch; what the model's parts see of them, the model says (`stream_positions`).
        None: it reads nothing but text, and as any model does (inspect/readings.py).
        """
        return None

    @classmethod
    def search_start(cls, loaded: Loaded, given: Any, start: SearchStart) -> SearchStart:
        """What its encoder–decoder's search of one input begins with, for who looks at the search: `start` has what
        all have, and a task adds what its own search has beside that."""
        return start

    @classmethod
    def show(cls, prediction: Prediction, *, scores: bool = False, alignments: bool = False) -> list[str]:
        """The lines in which people read a prediction, one an answer: its columns, with tabs between them."""
        return ["\t".join(cls.columns(answer, scores, alignments)) for answer in prediction.answers]

    @classmethod
    def columns(cls, answer: Answer, scores: bool, alignments: bool) -> list[str]:
        """What is shown of an answer: its score where `scores` are asked for, its text, its probability if any."""
        share = answer.more.get("probability")
        before = [f"{answer.score:.4f}"] if scores and share is None else []
        line = " ".join(answer.text.replace("\t", " ").splitlines())  # one line, one column
        return [*before, line, *([] if share is None else [f"{share:.4f}"])]


def penalised(total: Tensor, output: Output, count: Tensor | int) -> Tensor:
    """A loss summed over `count` tokens or rows, with the model's penalties, which are means over those.

    What differs between batches is counted where it lies: a recorded step must not remember another batch's number.
    """
    for penalty in output.auxiliary.values():
        total = total + penalty * count
    return total


@torch.no_grad()
def head_outputs(model: SequenceModel, rows: Sequence[Example], pad: int) -> list[Tensor]:
    """What the head says of each row, on the CPU; rows of like length are read side by side."""
    made: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers, batch in scoring_batches(rows, pad=pad):
        logits = model(batch.to(model.device)).logits.float().cpu()
        check_finite(logits, model)
        for number, row in zip(numbers, logits, strict=True):
            made[number] = row
    return made


def evaluated(loaded: Loaded, data: Mapping[str, Any]) -> dict[str, Any]:
    """The scores of a model on `data.test`, be that a file or a table in memory."""
    task: type[Task] = TASKS.get(loaded.task)
    with data_files(data, task.tuples) as settings:
        return task.evaluate(loaded, task.data_for(loaded, settings))


def rows_in_memory(loaded: Loaded, inputs: Any) -> Any:
    """What a model predicts from the rows of a table in memory, as of a file; other `inputs` as they are."""
    task: type[Task] = TASKS.get(loaded.task)
    rows = inputs if isinstance(inputs, list | tuple) else []
    if isinstance(inputs, task.Input) or not (rows or is_memory_table(inputs)):
        return inputs
    if rows and task.Input is str and all(isinstance(row, tuple) and set(map(type, row)) == {str} for row in rows):
        return ["\t".join(part.replace("\t", " ") for part in row) for row in rows]
    if rows and (isinstance(rows[0], task.Input) or not all(isinstance(row, Mapping) for row in rows)):
        return inputs
    with table_files({"inputs": memory_table("inputs", inputs, ["text"])}) as files:
        return task.read_inputs(files["inputs"], loaded.about).texts


def member_of(loaded: Loaded, name: str | None) -> Loaded:
    """What a folder of several tasks holds for one of them, which may be left out where it is the only one."""
    members = TASKS.get(loaded.task).members(loaded)
    if not members and name in (None, loaded.task):
        return loaded
    if name is None and len(members) == 1:
        name = next(iter(members))
    if name not in members:
        known = f"it has {', '.join(members)}" if members else f"it is a model for {loaded.task}"
        said = "say which task" if name is None else f"there is no task '{brief(name)}'"
        raise ConfigError(f"{loaded.folder}: {said}; {known}")
    return members[name]


def as_trained(data: Any, key: str, about: Mapping[str, Any]) -> Any:
    """A setting of `data` as somebody gives it now, or else as the model's folder remembers it from training."""
    chosen = data.model_dump(include={key})[key]
    return chosen if key in data.model_fields_set or about.get(key) is None else about[key]


def word_numbers(tokenizer: AnyTokenizer, ids: Sequence[int]) -> list[int]:
    """The number of the word that each token belongs to, as spaces separate them; -1 for a special token."""
    numbers, current, apart = [], -1, True
    for index in ids:
        if index in tokenizer.special_ids:
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

    `source` and `target` are the tokens' word numbers. What lies on special tokens is no word's.
    """
    sums = _tokens_of_words(target) @ weights @ _tokens_of_words(source).T  # (words written, words read)
    return [(int(best), word) for word, best in enumerate(sums.argmax(1))] if sums.numel() else []


def _tokens_of_words(numbers: Sequence[int]) -> Tensor:
    """1 where a token (column) belongs to a word (row)."""
    words = torch.arange(max(numbers, default=-1) + 1)
    return (words[:, None] == torch.tensor(numbers, dtype=torch.long)).float()
