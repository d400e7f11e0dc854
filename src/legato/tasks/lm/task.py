"""Language modelling: predict the next token of a text.

The data is any text, read as one stream (recurrent models carry their state along it), as independent windows
(Transformers, with the documents of a text packed so that none sees another), or row by row. Generated toys
(`data.train=toy:recall`) are rows, too.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from legato.data.cache import cached_ids
from legato.data.sources.corpora import CORPUS_SOURCES
from legato.data.sources.patterns import Source
from legato.data.sources.toys import TOY, TOY_SOURCES, ToyConfig
from legato.errors import ConfigError
from legato.evaluation.lm import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.registry import MODELS
from legato.tasks.base import Plan, Say, Task
from legato.tasks.defaults import Defaults, Given, TrainDefaults
from legato.tasks.lm.job import LanguageJob, ToyJob, TwoWayJob, begin_with, check_window, evaluate_toy, score_text
from legato.tasks.text_data import TextData, read_split

WINDOW = 256  # tokens that a Transformer reads at once, unless somebody says otherwise


class LanguageData(TextData):
    """Where the text is and how it is cut."""

    train: Source | None = Field(None, description="a file, hub name, builtin:stdlib or toy:NAME")
    batching: Literal["streams", "packed", "windows", "rows"] = Field(
        "streams",
        description="one text with the state carried; windows with documents packed; windows; each row by itself",
    )
    window: int = Field(64, ge=1, description="tokens a window: how far gradients reach back")
    stride: int | None = Field(
        None, ge=1, description="tokens that each window scores where no state is carried; left out: half of it"
    )
    forget: float = Field(0.0, ge=0, lt=1, description="chance that a stream forgets its state at a window")
    toy: ToyConfig = ToyConfig()


class LanguageModelling(Task):
    """The `lm` task."""

    name = "lm"
    pipeline = "text-generation"
    summary = "language modelling: predict the next token; generate text"
    Data = LanguageData
    generated = (*CORPUS_SOURCES, *TOY_SOURCES)
    needs = "=FILE, or data.{split}=builtin:stdlib to try"
    tuples = ("text",)
    metrics = METRICS
    continues = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        # A toy's symbols are words, and its rows are separate.
        data: dict[str, Any] = {"batching": "rows"} if given.toy else {}
        tokenizer, model = {"name": "word"} if given.toy else {}, {}
        if given.config.has_length():
            if not given.toy:
                model["length"], window = given.window(WINDOW)
                data = {"batching": "packed", "window": window}
            # What is new wants larger steps than what is trained.
            rate = 1e-4 if given.trained and given.adapt == "full" else 1e-3
            train = TrainDefaults(lr=rate, warmup=None, weight_decay=0.1) if given.adamw else {}
            return Defaults(data, tokenizer, model, train)
        if MODELS.get(str(given.model["name"])).two_ways:
            return Defaults({"batching": "windows", **data}, {"name": "word"})
        return Defaults(data, tokenizer)

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> LanguageJob | ToyJob:
        name, model = plan.model.name, MODELS.get(plan.model.name)
        if model.is_encoder_decoder:
            raise ConfigError(
                f"model={name} reads one text and writes another, which lm does not have; "
                "use model=lstm, or the translation task"
            )
        if plan.model.reads_both_ways and plan.model.both_ways:
            setting = next(iter(plan.model.both_ways))
            raise ConfigError(
                f"model.{setting}=true reads the very words that lm predicts; leave it out for language modelling"
            )
        if model.step is SequenceModel.step and not model.two_ways:
            raise ConfigError(
                f"model={name} reads both ways, the very words that lm predicts, too; use model=gpt2, or the mlm task"
            )
        cls.require(plan.data, "train")
        if model.two_ways:
            return TwoWayJob(plan, say)
        if str(plan.data.train).startswith(TOY):
            return ToyJob(plan, say)
        _check_batching(plan)
        return LanguageJob(plan, say)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        if str(data.test).startswith(TOY):
            return evaluate_toy(loaded, data)
        model, tokenizer = loaded.module, loaded.tokenizer
        if not (model.can_generate or model.two_ways):
            raise ConfigError(f"{loaded.folder} holds a model that reads both ways, so it predicts no next token")
        text = read_split(data, data.test, "test")
        window = data.window if "window" in data.model_fields_set else loaded.about.get("window")
        ids = begin_with(tokenizer.prompt("")[0], cached_ids(text, tokenizer))
        scores = score_text(model, ids, text, 1, tokenizer, window, data.stride)
        return {"data": text.source, "sha256": text.sha256, **scores}


def _check_batching(plan: Plan) -> None:
    data, name, length = plan.data, plan.model.name, plan.model.max_length
    if length is None and data.batching == "packed":
        raise ConfigError(
            f"data.batching=packed keeps documents apart, which model={name} cannot; use streams, windows or rows"
        )
    if length is None:
        return
    if data.batching == "streams":
        raise ConfigError(f"data.batching=streams carries a state, which model={name} does not have; use packed")
    check_window(data.window, length, data.stride, "model.length")
