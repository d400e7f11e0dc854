"""A kind of input that is not text: a processor, a model that reads with it and a task, all from outside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

import legato
from legato.config import Section
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.errors import ConfigError, FolderError, LegatoError
from legato.evaluation.metrics import Metric
from legato.folders.loaded import Loaded
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.nn.state import Output
from legato.registry import MODELS, PROCESSORS, TASKS
from legato.runs.config import describe_settings
from legato.tasks.base import Plan, Say, Task, TaskJob
from legato.tasks.predictions import Answer, Prediction
from legato.training.job import Job, Loss


class Scaler:
    """Numbers with the mean of those in training taken off."""

    file: ClassVar[str] = "preprocessor_config.json"

    def __init__(self, mean: float) -> None:
        self.mean = mean

    @classmethod
    def load(cls, folder: Path) -> Scaler:
        return cls(json.loads((folder / cls.file).read_text())["mean"])

    def save(self, folder: Path) -> None:
        (folder / self.file).write_text(json.dumps({"mean": self.mean}))

    def fingerprint(self) -> str:
        return hashlib.sha256(repr(self.mean).encode()).hexdigest()

    def read(self, rows: Sequence[Sequence[float]]) -> Inputs:
        return Inputs(values=torch.tensor(rows) - self.mean)


class SumConfig(ModelConfig):
    name: Literal["sum"] = "sum"
    width: int = 2


class Sum(SequenceModel):
    """Two logits of a row of numbers."""

    Config = SumConfig
    summary = "two logits of a row of numbers"
    processors = ("numbers",)

    def __init__(self, config: Any, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.output = nn.Linear(config.width, 2)

    def forward(self, batch: Batch, state: Any = None) -> Output:
        assert batch.inputs.values is not None
        return Output(batch.inputs.values)


class SignData(Section):
    train: str | None = None


class SignOptions(Section):
    pass


class Sign(Task):
    """Whether the sum of a row of numbers is positive."""

    name = "sign"
    summary = "positive or negative"
    Data = SignData
    Options = SignOptions
    Input = tuple
    input_name = "row of numbers"
    default_model = "sum"
    processors = ("numbers",)
    metrics = (Metric("accuracy", "fraction", "up"),)

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> SignJob:
        return SignJob(plan)

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        scaler = loaded.processors.others["numbers"]
        assert isinstance(scaler, Scaler)
        scores = loaded.module.output(scaler.read(inputs).values).softmax(-1)  # (B, 2)
        return [
            Prediction(str(row), [Answer("+" if share[1] > 0.5 else "-", float(share.max()))])
            for row, share in zip(inputs, scores, strict=True)
        ]


class Rows:
    steps_per_epoch = 4
    tokens_per_step = 8

    def __init__(self, scaler: Scaler) -> None:
        self.scaler = scaler

    def at(self, step: int) -> Batch:
        drawn = torch.randn(8, 2, generator=torch.Generator().manual_seed(step)) + self.scaler.mean
        labels = (drawn.sum(1) > 2 * self.scaler.mean).long()
        return Batch(self.scaler.read(drawn.tolist()), labels=labels, tokens=8, read=8)


class SignJob(TaskJob):
    task = "sign"
    metric = "accuracy"
    likelihood = False
    use = "legato.load(FOLDER).predict((1.0, 2.0))"
    sizes = Sizes(1)

    def __init__(self, plan: Plan) -> None:
        self.plan, self.scaler = plan, Scaler(3.0)
        self.processors = Processors(others={"numbers": self.scaler})
        self.batches = Rows(self.scaler)
        self.hashes = {"valid": "drawn"}

    def _logits(self, model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.labels is not None
        return model.output(model(batch).hidden), batch.labels

    def loss(self, model: Any, batch: Batch, state: Any) -> Loss:
        total = nn.functional.cross_entropy(*self._logits(model, batch), reduction="sum")
        return Loss(total, total)

    def validate(self, model: Any) -> dict[str, float]:
        logits, labels = self._logits(model, self.batches.at(10**6))
        return {"accuracy": float((logits.argmax(-1) == labels).float().mean())}

    def score(self, model: Any, split: str) -> dict[str, Any]:
        return self.validate(model)


@pytest.fixture
def outside() -> Iterator[None]:
    MODELS.add("sum", Sum)
    TASKS.add("sign", Sign)
    PROCESSORS.add("numbers", Scaler)
    yield
    for registry, name in ((MODELS, "sum"), (TASKS, "sign"), (PROCESSORS, "numbers")):
        del registry._added[name]


@pytest.fixture
def trained(outside: None, tmp_path: Path) -> Path:
    legato.train("sign", {"train.steps": 80, "train.lr": 0.1}, out=str(tmp_path / "run"), device="cpu", quiet=True)
    return tmp_path / "run" / "best"


def test_a_model_that_reads_no_text_is_trained_saved_and_asked(trained: Path) -> None:
    assert not (trained / "tokenizer.json").exists()
    model = legato.load(trained, device="cpu")
    assert model.predict((5.0, 5.0)) == "+"
    assert model.predict([(5.0, 5.0), (2.0, 1.0)]) == ["+", "-"]
    with pytest.raises(LegatoError, match="row of numbers 1 is no row of numbers: 5"):
        model.predictions([5])
    with pytest.raises(LegatoError, match="reads no text but numbers, so it has no tokenizer"):
        _ = model.tokenizer


def test_it_goes_on_with_the_processors_that_it_began_with(trained: Path) -> None:
    run_folder = trained.parent
    assert legato.train(resume=str(run_folder), **{"train.steps": 84}, quiet=True).steps == 84


def test_a_processor_that_is_missing_is_named(trained: Path) -> None:
    (trained / "preprocessor_config.json").unlink()
    with pytest.raises(FolderError, match=r"best lacks preprocessor_config\.json, the numbers processor that its "):
        legato.load(trained)


def test_a_processor_of_another_model_is_refused(trained: Path) -> None:
    Scaler(4.0).save(trained)
    with pytest.raises(FolderError, match="its numbers processor is not the one that the model was trained with"):
        legato.load(trained)


def test_a_task_without_text_has_no_tokenizer_to_set(outside: None) -> None:
    with pytest.raises(ConfigError, match="sign reads no text, so it has no tokenizer"):
        legato.train("sign", {"tokenizer": "bpe"})


def test_its_settings_are_listed_without_a_tokenizer(outside: None) -> None:
    keys = [key for key, *_ in describe_settings({"task": "sign"})]
    assert "model.width" in keys
    assert not any(key.startswith("tokenizer") for key in keys)


def test_what_a_folder_says_of_processors_is_checked(trained: Path) -> None:
    config = json.loads((trained / "config.json").read_text())
    config["legato"]["processors"] = 5
    (trained / "config.json").write_text(json.dumps(config))
    with pytest.raises(FolderError, match=r"'legato\.processors' should hold"):
        legato.load(trained)


def test_a_task_that_says_nothing_of_its_figures_keeps_the_smallest_loss() -> None:
    job = Job()
    job.metric = "loss"
    assert job.lower_is_better
    job.metric = "accuracy"
    assert not job.lower_is_better
