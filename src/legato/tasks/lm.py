"""Language modelling: predict the next token of a text.

The data is any text, read as one stream (recurrent models carry their state along it), as independent windows
(Transformers, with the documents of a text packed so that none sees another), or row by row. Generated toys
(`data.train=toy:recall`) are in `lm_toys.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from legato.config import Section
from legato.data.batch import Batch
from legato.data.batches import Array, Batches, Rows, Streams, Windows
from legato.data.cache import cached_ids, cached_tokenizer
from legato.data.packing import Packed, document_starts
from legato.data.text import Text
from legato.data.toys import ToyConfig
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, DataError
from legato.evaluation.language import language_metrics, sliding_loss, stream_loss
from legato.folders.model_folder import Loaded
from legato.models.base import SequenceModel
from legato.registry import MODELS
from legato.tasks.base import Plan, Say
from legato.tasks.lm_toys import TOY, ToyJob, evaluate_toy
from legato.tasks.next_token import next_token_loss, write_model
from legato.tasks.texts import TextData, read_split, read_splits
from legato.training.adapt import adapt_name
from legato.training.job import Loss

WINDOW = 256  # tokens that a Transformer reads at once, unless somebody says otherwise
CONTEXT = 2048  # and when scored at most: some models can read so many that it would take days


class LanguageData(TextData):
    """Where the text is and how it is cut."""

    train: str | None = Field(None, description="a file, hub name, builtin:stdlib or toy:NAME")
    batching: Literal["streams", "packed", "windows", "rows"] = Field(
        "streams",
        description="one text with the state carried; windows with documents packed; windows; each row by itself",
    )
    window: int = Field(64, ge=1, description="tokens a window: how far gradients reach back")
    stride: int | None = Field(
        None, ge=1, description="tokens that each window scores where no state is carried; left out: half of it"
    )
    forget: float = Field(0.02, ge=0, lt=1, description="chance that a stream forgets its state at a window")
    toy: ToyConfig = ToyConfig()


class LanguageModelling:
    """The `lm` task."""

    name: ClassVar[str] = "lm"
    summary: ClassVar[str] = "language modelling: predict the next token; generate text"
    Data: ClassVar[type[Section]] = LanguageData
    figures: ClassVar[tuple[str, ...]] = (
        *("loss", "perplexity", "word_perplexity", "bits_per_byte", "backward_perplexity"),
        *("accuracy", "tokens", "context", "stride", "unknown_share"),
    )
    continues: ClassVar[bool] = True

    @classmethod
    def adjust(cls, settings: dict[str, Any]) -> dict[str, Any]:
        data = settings.get("data") or {}
        if isinstance(data, dict) and str(data.get("train", "")).startswith(TOY):
            # A toy's symbols are words, and its rows are separate.
            settings = {**settings, "data": {"batching": "rows", **data}}
            settings["tokenizer"] = {"name": "word", **(settings.get("tokenizer") or {})}
        model = settings.get("model")
        name = str(model.get("name", "")) if isinstance(model, dict) else ""
        if name in MODELS and MODELS.get(name).Config.has_length():
            settings = _fill_for_transformers(settings)
        elif name in MODELS and _two_ways(MODELS.get(name)):
            settings = _fill_for_two_ways(settings)
        return settings

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> LanguageJob | ToyJob:
        name, model = plan.model.name, MODELS.get(plan.model.name)
        if model.reads_source:
            raise ConfigError(
                f"model={name} reads one text and writes another, which lm does not have; "
                "use model=lstm, or the translation task"
            )
        if getattr(plan.model, "bidirectional", False):
            raise ConfigError(
                "model.bidirectional=true reads the very words that lm predicts; leave it out for language modelling"
            )
        if model.step is SequenceModel.step and not _two_ways(model):
            raise ConfigError(
                f"model={name} reads both ways, the very words that lm predicts, too; use model=gpt2, or the mlm task"
            )
        if plan.data.train is None:
            raise ConfigError("'data.train' is needed; set data.train=FILE, or data.train=builtin:stdlib to try")
        if _two_ways(model):
            from legato.tasks.two_way_lm import TwoWayJob

            return TwoWayJob(plan, say)
        if plan.data.train.startswith(TOY):
            return ToyJob(plan, say)
        _check_batching(plan)
        return LanguageJob(plan, say)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        if data.test is None:
            raise ConfigError("'data.test' is needed; set data.test=FILE")
        if data.test.startswith(TOY):
            return evaluate_toy(loaded, data)
        model, tokenizer = loaded.module, loaded.tokenizer
        two_ways = _two_ways(model)
        if not (model.generates or two_ways):
            raise ConfigError(f"{loaded.folder} holds a model that reads both ways, so it predicts no next token")
        text = read_split(data, data.test, "test")
        if two_ways:
            from legato.tasks.two_way_lm import evaluate_both_ways

            return {"data": text.source, "sha256": text.sha256, **evaluate_both_ways(loaded, text)}
        ids = _behind(tokenizer.prompt("")[0], cached_ids(text, tokenizer))
        window = data.window if "window" in data.model_fields_set else loaded.about.get("window")
        scores = score_text(model, ids, text, 1, tokenizer.unk_id, window, data.stride)
        return {"data": text.source, "sha256": text.sha256, **scores}


def _two_ways(model: Any) -> bool:
    """Whether it is two language models, a forward and a backward one (`two_way_lm.py`)."""
    return getattr(model, "two_ways", False)


def _fill_for_two_ways(settings: dict[str, Any]) -> dict[str, Any]:
    """Defaults of models that read both ways word by word, where nothing else was said."""
    data, tokenizer = (settings.get(name) or {} for name in ("data", "tokenizer"))
    if isinstance(data, dict):
        settings = {**settings, "data": {"batching": "windows", **data}}
    if isinstance(tokenizer, dict) and settings.get("from") is None:
        settings = {**settings, "tokenizer": {"name": "word", **tokenizer}}
    return settings


def _fill_for_transformers(settings: dict[str, Any]) -> dict[str, Any]:
    """Defaults that Transformers want, where nothing else was said."""
    data, model, train = (settings.get(name) or {} for name in ("data", "model", "train"))
    if not all(isinstance(section, dict) for section in (data, model, train)):
        return settings
    if not str(data.get("train", "")).startswith(TOY):
        # A place that no window reaches is never trained: it should not be there.
        model = {"length": data.get("window") or WINDOW, **model}
        window = min(int(model["length"]), WINDOW) if str(model["length"]).isdigit() else WINDOW
        data = {"batching": "packed", "window": window, **data}
    if train.get("optimizer", "adamw") == "adamw":
        little = adapt_name(settings.get("adapt")) != "full"  # what is new wants larger steps than what is trained
        rate = 1e-3 if settings.get("from") is None or little else 1e-4
        train = {"lr": rate, "warmup": None, "weight_decay": 0.1, **train}
    return {**settings, "data": data, "model": model, "train": train}


def _check_batching(plan: Plan) -> None:
    data, name, length = plan.data, plan.model.name, getattr(plan.model, "length", None)
    if length is None and data.batching == "packed":
        raise ConfigError(
            f"data.batching=packed keeps documents apart, which model={name} cannot; use streams, windows or rows"
        )
    if length is None:
        return
    if data.batching == "streams":
        raise ConfigError(f"data.batching=streams carries a state, which model={name} does not have; use packed")
    _check_window(data.window, length, data.stride, "model.length")


def _check_window(window: int, length: int, stride: int | None, name: str) -> None:
    if window > length:
        raise ConfigError(
            f"data.window={window} is more than {name}={length}, the most that the model reads; lower data.window"
        )
    if stride is not None and stride > window:
        raise ConfigError(f"data.stride={stride} would skip tokens: it is more than data.window={window}")


def _behind(start: int, ids: Array) -> Array:
    """A text's ids behind `start`: what a published model begins with may not be what ends its texts."""
    return ids if len(ids) == 0 or int(ids[0]) == start else np.concatenate([np.array([start], ids.dtype), ids[1:]])


def score_text(
    model: SequenceModel,
    encoded: Any,
    text: Text,
    rows: int,
    unknown: int | None,
    window: int | None = None,
    stride: int | None = None,
) -> dict[str, float]:
    """The language-model figures of `text`, whose ids are `encoded`.

    `rows` as in `stream_loss`, for models that carry a state; `window` and `stride` as in `sliding_loss`, for those
    that do not: left out, all that the model can read at once but no more than CONTEXT, and half of that; both are
    told, since the figures depend on them. Where tokens are `unknown`, their share is told: what they hide costs the
    model nothing.
    """
    ids = torch.from_numpy(np.asarray(encoded).astype(np.int64))
    if len(ids) < 2:
        raise DataError(f"{text.source} holds no token to predict")
    told: dict[str, float] = {}
    if model.longest is None:
        total = stream_loss(model, ids, rows)
    else:
        context = window or min(model.longest, CONTEXT)
        _check_window(context, model.longest, stride, "the model's longest text")
        stride = stride or max(1, context // 2)
        total = sliding_loss(model, ids, context, stride)
        told = {"context": context, "stride": stride}
    scores = {**language_metrics(total, len(ids) - 1, text.words, text.bytes), "tokens": len(ids) - 1, **told}
    hidden = 0 if unknown is None else int((ids == unknown).sum())
    return {**scores, "unknown_share": hidden / len(ids)} if hidden else scores


class LanguageJob:
    """Training on a text."""

    metric = "loss"
    lower_is_better = True

    def __init__(self, plan: Plan, say: Say) -> None:
        data, train = plan.data, plan.train
        self.plan = plan
        self.texts = read_splits(data)
        self.hashes = {split: text.sha256 for split, text in self.texts.items()}
        self.tokenizer = plan.tokenizer_for(lambda: cached_tokenizer(plan.tokenizer, self.texts["train"]))
        self.sizes = plan.sizes_for(self.tokenizer)
        self.slides = getattr(plan.model, "length", None) is not None  # reads windows, and carries no state
        self.start = self.tokenizer.prompt("")[0]  # what a text is read behind
        self.ids = {split: cached_ids(text, self.tokenizer) for split, text in self.texts.items()}
        ids, valid = self.ids["train"], self.ids["valid"]
        self.rows = max(1, train.batch_tokens // data.window)
        self.batches = self._batches(ids)
        if len(valid) < self.batches.tokens_per_step and not self.slides:
            raise DataError(
                f"data.valid={self.texts['valid'].source} holds {len(valid):,} tokens, fewer than one batch of "
                f"{self.batches.tokens_per_step:,}; give a longer text or lower train.batch_tokens"
            )
        say(
            f"data: {len(ids):,} training and {len(valid):,} validation tokens, vocabulary {self.tokenizer.size:,} "
            f"({self.tokenizer.name})"
        )
        seen = " ".join(repr(self.tokenizer.token(int(i))) for i in ids[1:17])
        say(f"the model will see: {seen} …")

    def _batches(self, ids: Any) -> Batches:
        data, seed = self.plan.data, self.plan.seed
        name = f"data.train={self.texts['train'].source}"
        if data.batching == "rows":
            tokens = self.plan.train.batch_tokens
            return Rows(self._documents(data.window), batch_tokens=tokens, seed=seed, name=name)
        shape = {
            "rows": self.rows,
            "window": data.window,
            "seed": seed,
            "device": self.plan.device,
            "name": name,
        }
        if data.batching == "streams":
            return Streams(ids, forget=data.forget, **shape)
        text, eos = self.texts["train"], self.tokenizer.eos_id
        if data.batching == "packed" and len(text.documents) > 1:  # one has no borders to mind
            return Packed(ids, document_starts(ids, text, self.tokenizer), start=self.start, eos=eos, **shape)
        ring = ids if self.start == eos else np.append(_behind(self.start, ids), ids.dtype.type(eos))
        return Windows(ring, **shape)

    def _documents(self, window: int) -> list[tuple[list[int], int]]:
        """Each document between two end marks, cut where it is longer than a window."""
        eos = self.tokenizer.eos_id
        pieces = []
        for document in self.texts["train"].documents:
            ids = [self.start, *self.tokenizer.encode(document).tolist()]
            if ids[-1] != eos or len(ids) == 1:  # where lines end in the mark, the last one has it already
                ids.append(eos)
            pieces += [(ids[i : i + window + 1], 0) for i in range(0, len(ids) - 1, window)]
        return pieces

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return next_token_loss(model, batch, state, self.plan.train.label_smoothing)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        return self._score(model, "valid", self.rows)

    def _score(self, model: SequenceModel, split: str, rows: int) -> dict[str, float]:
        data, ids = self.plan.data, _behind(self.start, self.ids[split])
        return score_text(model, ids, self.texts[split], rows, self.tokenizer.unk_id, data.window, data.stride)

    def final(self, model: SequenceModel) -> dict[str, float]:
        """Exact scores, the whole text in one stream."""
        scores = {}
        for split in ("valid", "test"):
            if split in self.texts:
                for name, value in self._score(model, split, rows=1).items():
                    scores[f"{split}.{name}"] = value
        return scores

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        if not (count and model.generates):
            return []
        most = min(80, model.longest or 80)
        options = SearchOptions(search="sample", nbest=count, temperature=0.8, max_tokens=most, seed=1)
        eos = self.tokenizer.eos_id if self.tokenizer.ends_text else None
        ends = () if self.plan.loaded is None else self.plan.loaded.ends
        [found] = search(model, [[self.start]], options, eos=eos, stop_tokens=ends)
        return [self.tokenizer.decode(text.tokens).strip() for text in found]

    def write(self, model: SequenceModel, folder: Path, metrics: dict[str, float]) -> None:
        use = 'legato generate FOLDER "The " --search sample'
        more = {"window": self.plan.data.window} if self.slides else {}
        write_model(folder, model, self.tokenizer, self.hashes, metrics, use, {**more, **self.plan.origin()})
