"""What tasks want where nothing else was said: typed tables of defaults, laid under what a user has set.

A trained model is tuned in few epochs with small steps, larger ones where little of it moves (`adapt=`), a new head
among them; one from scratch wants more of both. Small data are read again and again until there were steps enough
(`min_steps`). What is tuned has a table (`Tuning`) for each kind of input, chosen by measuring (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict

from legato.models.base import ModelConfig
from legato.registry import MODELS

LENGTH: Final = 256  # positions of a model from scratch, unless something else is said
ROWS: Final = 32  # of a step
SMALL_WIDTH: Final = 512
WARMED: Final = ("linear", "cosine", "inverse-sqrt")  # schedules that begin with a slow rise


@dataclass(frozen=True)
class Given:
    """What a user has set of each section, not checked yet: what is wrong in it, the check that follows names."""

    data: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    model: Mapping[str, Any]  # with a name
    train: Mapping[str, Any]
    head: Mapping[str, Any]
    adapt: str = "full"
    trained: bool = False  # whether there is a model to go on from, whose settings and tokenizer count

    @property
    def config(self) -> type[ModelConfig]:
        """The class of the model's settings."""
        return MODELS.get(str(self.model["name"])).Config

    @property
    def recurrent(self) -> bool:
        """Whether the model is a recurrent or a window network, which take larger steps than Transformers."""
        return self.config.network in ("recurrent", "window")

    @property
    def convolutional(self) -> bool:
        """Whether the model is a convolutional network, with batch norms."""
        return self.config.network == "convolutional"

    @property
    def small(self) -> bool:
        """Whether the model is known to be narrow, and so takes larger steps."""
        width = str(self.model.get("width", ""))
        return width.isdecimal() and len(width) < 10 and int(width) <= SMALL_WIDTH

    @property
    def timed(self) -> bool:
        """Whether the settings say how long to train."""
        return not {"steps", "epochs"}.isdisjoint(self.train)

    @property
    def toy(self) -> bool:
        """Whether the data are generated: their symbols are words, and their rows are separate."""
        from legato.data.sources.toys import TOY

        return str(self.data.get("train", "")).startswith(TOY)

    @property
    def adamw(self) -> bool:
        """Whether the optimiser is the one that the tables' rates are for; others have rates of their own."""
        return self.train.get("optimizer", "adamw") == "adamw"

    def window(self, usual: int) -> tuple[int | str, int]:
        """The positions of the model, and those of a row of data: as many as the other has where one is left out.

        A position that no row reaches is never trained: it should not be there.
        """
        length = self.model.get("length", self.data.get("window") or usual)
        whole = str(length).isdecimal() and len(str(length)) < 10
        return length, min(int(length), usual) if whole else usual


class TrainDefaults(TypedDict, total=False):
    """Defaults of `train.*`."""

    batch_rows: int
    batch_tokens: int
    beta2: float
    clip: float
    epochs: int | None
    frozen: tuple[str, ...]
    head_lr: float
    label_smoothing: float
    lr: float
    min_steps: int
    samples: int
    schedule: str
    warmup: None  # as many steps as the run allows
    weight_decay: float


@dataclass(frozen=True)
class Tuning:
    """How a trained model is tuned: a table of one kind of input."""

    full: float = 5e-5  # rate where all of it is tuned
    part: float = 1e-3  # … where a little of it is, beside the head
    head: float = 1e-3  # … where the head alone is
    head_lr: float | None = None  # of the head where all is tuned; None: as everything
    epochs: int = 3
    min_steps: int = 0  # so many at least, where nobody says how long
    frozen: tuple[str, ...] = ()  # what stays as it is where all else is tuned

    def training(self, given: Given) -> TrainDefaults:
        """Defaults of `train.*` that a choice of `adapt=` has of its own; a rate that is set is everything's."""
        if given.adapt != "full":
            return TrainDefaults(lr=self.head if given.adapt == "head" else self.part)
        settings = TrainDefaults(lr=self.full)
        if self.head_lr is not None and "lr" not in given.train:
            settings["head_lr"] = self.head_lr
        if self.frozen:
            settings["frozen"] = self.frozen
        return settings


@dataclass(frozen=True)
class Defaults:
    """What a task knows better than the general defaults, section by section."""

    data: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    train: TrainDefaults = field(default_factory=TrainDefaults)
    head: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # of the model, whatever it was before

    def sections(self) -> dict[str, dict[str, Any]]:
        named = {"data": self.data, "tokenizer": self.tokenizer, "model": self.model, "head": self.head}
        return {name: dict(section) for name, section in named.items()} | {"train": {**self.train}}


# Of published encoders of pictures. Batch norms that follow few steps would divide by averages of other weights.
TUNED_PICTURES: Final = Tuning(full=1e-4, head=5e-3, head_lr=5e-3, epochs=10, min_steps=300)
TUNED_CONVOLUTIONS: Final = replace(TUNED_PICTURES, full=3e-4, frozen=("norms",))
TUNED_TEXTS: Final = Tuning(min_steps=500)
TUNED_SMALL_TEXTS: Final = replace(TUNED_TEXTS, full=1e-4)


def scratch_model(given: Given, length: Any = None, pooler: bool = False) -> dict[str, Any]:
    """Defaults of `model.*` from scratch: it reads both ways, has `length` positions, and guesses no words."""
    config = given.config
    if config.both_ways:
        return dict(config.both_ways)
    usual: dict[str, Any] = {"length": length or LENGTH} if config.has_length() else {}
    return usual | {head: pooler if head == "pooler" else False for head in config.pretraining_heads}


def tagger_model(given: Given, words: bool) -> dict[str, Any]:
    """The same for tagging; recurrent models and the window suit some 200,000 `words` of training text."""
    usual, network = scratch_model(given), given.config.network
    if network == "recurrent":
        usual |= {"tied": False, "layers": 1, "width": 400, "embedding": 200, "dropout": 0.5}
        return {**usual, "characters": 100 if words else 0}
    if network == "window":
        usual |= {"context": 2, "width": 300, "embedding": 100, "dropout": 0.5}
    return usual


def scratch_tokenizer(given: Given, words: bool = False) -> dict[str, Any]:
    """Defaults of `tokenizer.*` from scratch; letters are of whole words, and so are vectors (`words`)."""
    config = given.config
    if words or config.network == "characters" or str(given.model.get("characters", 0)) != "0":
        return {"name": "word", "min_count": 2}
    if config.uses_cls:
        return masked_tokenizer(given)
    return {"name": "bpe" if config.network == "attention" else "wordpiece"}


def masked_tokenizer(given: Given) -> dict[str, Any]:
    """Defaults of `tokenizer.*` of a model that hides words: its own kind, with its own special tokens."""
    usual = dict(given.config.masked_tokenizer)
    if "masked" in given.tokenizer:  # settings of an earlier run, whose special tokens were BERT's
        usual.pop("special_tokens", None)
    return usual


def row_training(
    given: Given,
    *,
    recurrent: float = 1e-3,
    attention: float = 3e-4,
    tuning: Tuning | None = None,
    rows: int = ROWS,
    epochs: int | None = None,
    min_steps: int = 0,
    beta2: float | None = None,
) -> TrainDefaults:
    """Defaults of `train.*` for tasks with texts as rows.

    From scratch: the rates of `recurrent` and window models, and of Transformers (`attention`). For a trained model:
    those of `tuning`.
    """
    if given.trained:
        table = tuning or Tuning()
        usual = TrainDefaults(weight_decay=0.01, beta2=0.999, schedule="linear", **table.training(given))
        return completed(given, usual, rows, table.epochs, table.min_steps)
    usual = TrainDefaults(lr=recurrent if given.recurrent else attention, weight_decay=0.01, schedule="linear")
    if beta2 is not None:
        usual["beta2"] = beta2
    return completed(given, usual, rows, epochs, min_steps)


def tagger_training(given: Given) -> TrainDefaults:
    """… for tagging."""
    if given.recurrent and not given.trained:
        return completed(given, TrainDefaults(lr=2e-3, schedule="cosine", clip=5.0), ROWS, 30)
    alone = given.adapt == "head" and not given.head.get("lstm")  # a last layer, which wants the largest steps
    tuning = Tuning(full=1e-4, head=5e-3 if alone else 1e-3, epochs=5)
    return row_training(given, attention=5e-4, tuning=tuning, epochs=20, beta2=0.98)


def completed(
    given: Given, usual: TrainDefaults, rows: int | None, epochs: int | None, min_steps: int = 0
) -> TrainDefaults:
    """Without what contradicts the settings: another optimiser has rates of its own, and steps win over epochs."""
    made = TrainDefaults()
    if rows is not None and "batch_tokens" not in given.train:
        made["batch_rows"] = rows
    if epochs is not None and given.train.get("steps") is None:
        made["epochs"] = epochs
    if min_steps and not given.timed:
        made["min_steps"] = min_steps
    if not given.adamw:
        return made
    if given.train.get("schedule", usual.get("schedule")) in WARMED:
        made["warmup"] = None
    return {**made, **usual}


def encoder_decoder_training(given: Given) -> TrainDefaults:
    """Defaults of `train.*` that encoder–decoders want."""
    usual = TrainDefaults(batch_tokens=4096, label_smoothing=0.1, samples=3)
    if given.adamw:
        usual |= TrainDefaults(schedule="inverse-sqrt", lr=0.001, beta2=0.98)
    if given.train.get("schedule", "inverse-sqrt") in WARMED:
        usual["warmup"] = None
    return usual
