"""`legato.train` for people who type it: every usual setting is an argument, and the trained model comes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from legato.config import merge, nested, settings_of
from legato.data.sources.memory_tables import split_data
from legato.errors import ConfigError
from legato.registry import TASKS
from legato.runs import train as runs
from legato.runs.recipes import settings_for, task_named
from legato.training.config import TrainConfig

if TYPE_CHECKING:
    from legato.model import Model

Files = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A file, a folder, a pattern of files, a dataset's name on the hub, `toy:…`, `builtin:…`; or several of those."""

Data = Files | Any
"""Files, or a table in memory: a list of texts, tuples or dicts, a dict of columns, a DataFrame, a Dataset."""


@dataclass(repr=False)
class TrainedRun(runs.Result):
    """A finished run: its folder, its figures and its best model.

    >>> run = legato.train("lm", train="a.txt", model="lstm", steps=300)     # doctest: +SKIP
    >>> run.metrics["valid.perplexity"], run.model.generate("The ")          # doctest: +SKIP
    """

    @cached_property
    def model(self) -> Model:
        """The run's best model, loaded when it is first used."""
        from legato.loading import load

        return load(self.run)


def train(
    task: str | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | Data | None = None,
    *,
    train: Data | None = None,
    valid: Data | None = None,
    test: Data | None = None,
    model: str | None = None,
    from_: str | PathLike[str] | Model | None = None,
    adapt: str | None = None,
    tokenizer: str | None = None,
    lr: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    out: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    quiet: bool = False,
    **more: Any,
) -> TrainedRun:
    """Train a model: what `legato train TASK key=value …` does. Returns the run, whose `model` predicts.

    Arguments:
        task: a task (`lm`, `classification`, …), a recipe (`lm/ptb-lstm`) or a YAML file; or all settings as a dict.
        settings: any settings by their dotted names, such as `{"model.width": 256}`; or the data, as in `train`.
        train, valid, test: the data: files, or a table in memory, of which the run keeps a copy. Without `valid` a
            part of `train` is held out.
        model: the architecture to train from scratch, such as `lstm`; `legato models` lists them.
        from_: a trained model to go on from: a folder, a run, a name on the hub, or a `Model`.
        adapt: with `from_`, how much of it is trained: `full`, `head`, `lora` or `bitfit`.
        tokenizer: for a new model: `char`, `bpe`, `word`, …
        lr, epochs, steps: the learning rate, and how long to train.
        seed, device: of random numbers; `auto`, `cpu`, `cuda` or `mps`.
        out: the run's folder; without one the next free name under `runs/`.
        resume: a run to go on with, in place of a task.
        quiet: print warnings only.
        more: any other setting, as `batch_rows=16`.

    >>> legato.train("lm", train="a.txt", model="lstm", lr=3e-3, out="runs/x")           # doctest: +SKIP
    >>> legato.train("classification", train="reviews.csv", from_="MODEL", adapt="lora")  # doctest: +SKIP
    >>> legato.train("classification", train=[("a fine film", "good"), …], steps=300)     # doctest: +SKIP
    """
    if "what" in more:  # as the first argument was called
        task = more.pop("what")
    if train is None and settings is not None and not isinstance(settings, Mapping):
        train, settings = settings, None  # data beside the task, as the shell takes it
    if train is None and not isinstance(more.get("data", {}), Mapping):
        train = more.pop("data")
    if isinstance(task, str) and isinstance(train, str) and task_named(train) and not task_named(task):
        task, train = train, task
    settings = settings_of(settings)
    if isinstance(task, Mapping):
        settings, task = {**task, **settings}, None
    if hasattr(model, "folder"):
        raise ConfigError("model= names an architecture, such as 'lstm'; a trained model to go on from is from_=")
    # Settings of the loop, as a YAML file groups them; a dict of columns is data.
    section = train if isinstance(train, Mapping) and all(key in TrainConfig.model_fields for key in train) else {}
    data = {"train": None if section else train, "valid": valid, "test": test}
    section_of_data = merge(nested(settings), nested(more)).get("data")
    if not isinstance(section_of_data, Mapping):
        section_of_data = {}
    data = {split: section_of_data.get(split) if value is None else value for split, value in data.items()}
    files, tables = split_data(data, lambda: _tuples(task, settings), section_of_data.get("root"))
    named = {
        **{f"data.{split}": names for split, names in files.items()},
        "from": None if from_ is None else str(getattr(from_, "folder", from_)),
        "out": None if out is None else str(out),
        "resume": None if resume is None else str(resume),
    }
    short = {"model": model, "adapt": adapt, "tokenizer": tokenizer, "seed": seed, "device": device}
    timed = {"train.lr": lr, "train.epochs": epochs, "train.steps": steps}
    given: dict[str, Any] = {key: value for key, value in {**named, **short, **timed}.items() if value is not None}
    if section:
        given["train"] = dict(section)
    spelled = {key.rpartition(".")[2] for key in given}  # an argument stands over the same name in `settings`
    others = {k: v for k, v in settings.items() if k not in spelled or isinstance(v, Mapping)}
    before = nested({**others, **more})
    result = runs.train(task, merge(before, nested(given)), quiet=quiet, tables=tables)
    return TrainedRun(**vars(result))


def _tuples(what: str | None, settings: Mapping[str, Any]) -> Sequence[str]:
    """The columns of rows that are tuples, for a task or what it is named by."""
    named = None if what is None else settings_for(what).get("task")
    name = task_named(str(named or settings.get("task")))
    return TASKS.get(name).tuples if name else ()
