"""`legato.train` for people who type it: every usual setting is an argument, and the trained model comes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from legato.config import merge, nested, settings_of
from legato.errors import ConfigError, brief
from legato.runs import train as runs
from legato.training.config import TrainConfig

if TYPE_CHECKING:
    from legato.model import Model

Files = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A file, a folder, a dataset's name on the hub, `toy:…`, `builtin:…`; or several files, as a task takes them."""


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
    settings: Mapping[str, Any] | None = None,
    *,
    train: Files | Mapping[str, Any] | None = None,
    valid: Files | None = None,
    test: Files | None = None,
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
        settings: any settings by their dotted names, such as `{"model.width": 256}`.
        train, valid, test: the data. Without `valid` a part of `train` is held out.
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
    """
    if "what" in more:  # as the first argument was called
        task = more.pop("what")
    settings = settings_of(settings)
    if hasattr(model, "folder"):
        raise ConfigError("model= names an architecture, such as 'lstm'; a trained model to go on from is from_=")
    section = train if isinstance(train, Mapping) else {}  # settings of the loop, as a YAML file groups them
    named = {
        "data.train": None if train is section else _files("train", train),
        "data.valid": _files("valid", valid),
        "data.test": _files("test", test),
        "from": None if from_ is None else str(getattr(from_, "folder", from_)),
        "out": None if out is None else str(out),
        "resume": None if resume is None else str(resume),
    }
    short = {"model": model, "adapt": adapt, "tokenizer": tokenizer, "seed": seed, "device": device}
    timed = {"train.lr": lr, "train.epochs": epochs, "train.steps": steps}
    given: dict[str, Any] = {key: value for key, value in {**named, **short, **timed}.items() if value is not None}
    if section:
        given["train"] = _checked(section)
    spelled = {key.rpartition(".")[2] for key in given}  # an argument stands over the same name in `settings`
    others = {k: v for k, v in settings.items() if k not in spelled or isinstance(v, Mapping)}
    before = nested({**others, **more})
    result = runs.train(task, merge(before, nested(given)), quiet=quiet)
    return TrainedRun(**vars(result))


def _checked(section: Mapping[str, Any]) -> dict[str, Any]:
    """A group of settings of the loop; columns of data are none."""
    strange = [key for key in section if key not in TrainConfig.model_fields]
    if strange:
        _files("train", section)
    return dict(section)


def _files(argument: str, value: Any) -> str | list[str] | None:
    """The names of files, as settings have them."""
    if value is None or isinstance(value, str | PathLike):
        return None if value is None else str(value)
    if isinstance(value, Sequence) and value and all(isinstance(name, str | PathLike) for name in value):
        return [str(name) for name in value]
    kind = type(value).__name__
    raise ConfigError(
        f"{argument}= takes the name of a file, a folder or a dataset, not a {brief(kind)}; write it to a file first "
        f"(df.to_csv('{argument}.csv')) and name that"
    )
