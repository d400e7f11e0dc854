"""Language modelling: predict the next token of a text.

The data is any text, read as one stream (recurrent models carry their state along it), as independent
windows, or row by row. A generated toy task (`data.train=toy:recall`) is rows of a question and its
answer: only the answer counts, and the score is how many are right.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from legato import __version__
from legato.config import Section, validate
from legato.data.batch import IGNORE, Batch
from legato.data.batches import Batches, Rows, Streams, Windows, collate
from legato.data.cache import cached_ids, cached_tokenizer
from legato.data.text import Text, hold_out, read_text
from legato.data.tokenizers import AnyTokenizer
from legato.data.toys import ToyConfig, toy_rows
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, DataError
from legato.evaluation.language import language_metrics, nats, smoothed_nats, stream_loss
from legato.folders.model_folder import Loaded, save_model
from legato.models.base import SequenceModel, Sizes, count_parameters
from legato.registry import MODELS
from legato.tasks.base import Plan, Say, model_card
from legato.training.loop import Loss

TOY = "toy:"


class LanguageData(Section):
    """Where the text is and how it is cut."""

    train: str | None = Field(None, description="a file, hub name, builtin:stdlib or toy:NAME")
    valid: str | None = Field(None, description="left out: the last share of the training text")
    test: str | None = Field(None, description="scored at the end, with the best model")
    root: str | None = Field(None, description="folder that relative names lie in")
    column: str | None = Field(None, description="of a csv, tsv, jsonl or parquet file")
    encoding: str = Field("utf-8", description="of text files")
    max_line: int = Field(10_000_000, ge=0, description="longest line accepted, in characters; 0 for any")
    valid_share: float = Field(0.1, gt=0, lt=1, description="share held out when data.valid is left out")
    batching: Literal["streams", "windows", "rows"] = Field(
        "streams", description="one text with the state carried, windows of it, or each row by itself"
    )
    window: int = Field(64, ge=1, description="tokens a window: how far gradients reach back")
    forget: float = Field(0.02, ge=0, lt=1, description="chance that a stream forgets its state at a window")
    toy: ToyConfig = ToyConfig()


class LanguageModelling:
    """The `lm` task."""

    name: ClassVar[str] = "lm"
    summary: ClassVar[str] = "language modelling: predict the next token; generate text"
    Data: ClassVar[type[Section]] = LanguageData

    @classmethod
    def adjust(cls, settings: dict[str, Any]) -> dict[str, Any]:
        data = settings.get("data") or {}
        if isinstance(data, dict) and str(data.get("train", "")).startswith(TOY):
            # A toy's symbols are words, and its rows are separate.
            settings = {**settings, "data": {"batching": "rows", **data}}
            settings["tokenizer"] = {"name": "word", **(settings.get("tokenizer") or {})}
        return settings

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> LanguageJob | ToyJob:
        if getattr(plan.model, "bidirectional", False):
            raise ConfigError(
                "model.bidirectional=true reads the very words that lm predicts; leave it out for language modelling"
            )
        if MODELS.get(plan.model.name).reads_source:
            raise ConfigError(
                f"model={plan.model.name} reads one text and writes another, which lm does not have; "
                "use model=lstm, or the translation task"
            )
        if plan.data.train is None:
            raise ConfigError("'data.train' is needed; set data.train=FILE, or data.train=builtin:stdlib to try")
        if plan.data.train.startswith(TOY):
            return ToyJob(plan, say)
        return LanguageJob(plan, say)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        model, tokenizer, about = loaded.module, loaded.tokenizer, loaded.about
        if data.test is None:
            raise ConfigError("'data.test' is needed; set data.test=FILE")
        if data.test.startswith(TOY):
            # The settings it was trained with, but for those that are given: unseen rows are unseen under its seed.
            trained = about.get("toy", {})
            toy = validate(ToyConfig, {**trained.get("settings", {}), **data.toy.model_dump(exclude_unset=True)})
            rows = _sequences(toy_rows(data.test.removeprefix(TOY), toy, "test", trained.get("seed", 0)), tokenizer)
            return {"data": data.test, "accuracy": _accuracy(model, rows)}
        text = _read(data, data.test, "test")
        scores = score_text(model, cached_ids(text, tokenizer), text, 1, tokenizer.unk_id)
        return {"data": text.source, "sha256": text.sha256, **scores}


def _read(data: LanguageData, source: str, split: str) -> Text:
    return read_text(
        source,
        root=data.root,
        column=data.column,
        encoding=data.encoding,
        max_line=data.max_line,
        split=split,
    )


def score_text(model: SequenceModel, encoded: Any, text: Text, rows: int, unknown: int | None) -> dict[str, float]:
    """The language-model figures of `text`, whose ids are `encoded`; `rows` as in `stream_loss`.

    Where tokens are `unknown`, their share is told: what they hide costs the model nothing.
    """
    ids = torch.from_numpy(np.asarray(encoded).astype(np.int64))
    if len(ids) < 2:
        raise DataError(f"{text.source} holds no token to predict")
    total = stream_loss(model, ids, rows)
    scores = {**language_metrics(total, len(ids) - 1, text.words, text.bytes), "tokens": len(ids) - 1}
    hidden = 0 if unknown is None else int((ids == unknown).sum())
    return {**scores, "unknown_share": hidden / len(ids)} if hidden else scores


class LanguageJob:
    """Training on a text."""

    metric = "loss"
    lower_is_better = True

    def __init__(self, plan: Plan, say: Say) -> None:
        data, train = plan.data, plan.train
        self.plan = plan
        self.texts = self._texts(data)
        self.hashes = {split: text.sha256 for split, text in self.texts.items()}
        self.tokenizer = cached_tokenizer(plan.tokenizer, self.texts["train"])
        self.sizes = Sizes(self.tokenizer.size)
        self.ids = {split: cached_ids(text, self.tokenizer) for split, text in self.texts.items()}
        ids, valid = self.ids["train"], self.ids["valid"]
        self.rows = max(1, train.batch_tokens // data.window)
        self.batches = self._batches(ids)
        if len(valid) < self.batches.tokens_per_step:
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
        return Streams(ids, forget=data.forget, **shape) if data.batching == "streams" else Windows(ids, **shape)

    def _texts(self, data: LanguageData) -> dict[str, Text]:
        assert data.train is not None
        train = _read(data, data.train, "train")
        if data.valid is not None:
            texts = {"train": train, "valid": _read(data, data.valid, "valid")}
        elif data.train.startswith("builtin:"):
            texts = {"train": train, "valid": _read(data, data.train, "valid")}
        else:
            kept, held = hold_out(train, data.valid_share)
            texts = {"train": kept, "valid": held}
        if data.test is not None:
            texts["test"] = _read(data, data.test, "test")
        return texts

    def _documents(self, window: int) -> list[tuple[list[int], int]]:
        """Each document between two end marks, cut where it is longer than a window."""
        eos = self.tokenizer.eos_id
        pieces = []
        for document in self.texts["train"].documents:
            ids = [eos, *self.tokenizer.encode(document).tolist()]
            if ids[-1] != eos or len(ids) == 1:  # where lines end in the mark, the last one has it already
                ids.append(eos)
            pieces += [(ids[i : i + window + 1], 0) for i in range(0, len(ids) - 1, window)]
        return pieces

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return next_token_loss(model, batch, state, self.plan.train.label_smoothing)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        return self._score(model, "valid", self.rows)

    def _score(self, model: SequenceModel, split: str, rows: int) -> dict[str, float]:
        return score_text(model, self.ids[split], self.texts[split], rows, self.tokenizer.unk_id)

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
        options = SearchOptions(search="sample", temperature=0.8, max_tokens=80, seed=1)
        eos = self.tokenizer.eos_id if self.tokenizer.ends_text else None
        found = search(model, [[self.tokenizer.eos_id]] * count, options, eos=eos)
        return [self.tokenizer.decode(best[0].tokens).strip() for best in found]

    def write(self, model: SequenceModel, folder: Path, metrics: dict[str, float]) -> None:
        use = 'legato generate FOLDER "The " --search sample'
        _write(folder, model, self.tokenizer, self.hashes, metrics, use, {})


def _write(
    folder: Path,
    model: SequenceModel,
    tokenizer: AnyTokenizer,
    hashes: dict[str, str],
    metrics: dict[str, float],
    use: str,
    more: dict[str, Any],
) -> None:
    card = model_card("lm", model.config.name, count_parameters(model), hashes, metrics, use)
    about = {"version": __version__, "data": hashes, "metrics": metrics, **more}
    save_model(folder, model, tokenizer, task="lm", about=about, card=card)


def next_token_loss(model: SequenceModel, batch: Batch, state: Any, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the next token, and the model's penalties weighted by the batch's tokens."""
    assert batch.targets is not None
    if state is not None and batch.keep is not None:
        state = model.forget(state, batch.keep)
    output = model(batch, state)
    if smoothing:
        logits = model.readout(output.hidden.flatten(0, 1))
        total, reported = smoothed_nats(logits, batch.targets.flatten(), smoothing)
    else:
        total = reported = nats(model, output.hidden, batch.targets)
    for penalty in output.auxiliary.values():
        total = total + penalty * batch.tokens
    return Loss(total, reported, output.state)


class ToyJob:
    """Training on a generated toy: questions whose answers can be checked."""

    metric = "accuracy"
    lower_is_better = False

    def __init__(self, plan: Plan, say: Say) -> None:
        data = plan.data
        self.toy = data.train.removeprefix(TOY)
        rows = {split: toy_rows(self.toy, data.toy, split, plan.seed) for split in ("train", "valid")}
        lines = "\n".join(_line(*row) for row in rows["train"])
        text = Text(data.train, [lines], hashlib.sha256(lines.encode()).hexdigest())
        self.tokenizer = cached_tokenizer(plan.tokenizer, text)
        self.sizes = Sizes(self.tokenizer.size)
        train = _sequences(rows["train"], self.tokenizer)
        self.valid = _sequences(rows["valid"], self.tokenizer)
        self.questions = rows["valid"]
        self.batches = Rows(train, batch_tokens=plan.train.batch_tokens, seed=plan.seed, name=data.train)
        self.hashes = {"train": f"{data.train} {data.toy.model_dump_json()} seed {plan.seed}"}
        self.plan = plan
        say(f"data: {len(train):,} rows of {data.train}, such as: {_line(*rows['train'][0])}")

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return next_token_loss(model, batch, None, self.plan.train.label_smoothing)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        return {"accuracy": _accuracy(model, self.valid)}

    def final(self, model: SequenceModel) -> dict[str, float]:
        return {"valid.accuracy": _accuracy(model, self.valid)}

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        asked = self.questions[:count]
        if not asked:
            return []
        eos = self.tokenizer.eos_id
        prompts = [[eos, *self.tokenizer.encode(f"{source} =").tolist()] for source, _ in asked]
        options = SearchOptions(max_tokens=max(len(target.split()) for _, target in asked) + 1)
        found = search(model, prompts, options, eos=eos)
        return [
            f"{source} = {self.tokenizer.decode(best[0].tokens)}   (right: {target})"
            for (source, target), best in zip(asked, found, strict=True)
        ]

    def write(self, model: SequenceModel, folder: Path, metrics: dict[str, float]) -> None:
        use = f"legato eval FOLDER data.test={TOY}{self.toy}"
        trained = {"settings": self.plan.data.toy.model_dump(mode="json"), "seed": self.plan.seed}
        _write(folder, model, self.tokenizer, self.hashes, metrics, use, {"toy": trained})


def _line(source: str, target: str) -> str:
    return f"{source} = {target}"


def _sequences(rows: list[tuple[str, str]], tokenizer: AnyTokenizer) -> list[tuple[list[int], int]]:
    """Each row as ids between two end marks, and how many of them are the question."""
    eos = tokenizer.eos_id
    sequences = []
    for source, target in rows:
        question = [eos, *tokenizer.encode(f"{source} =").tolist()]
        sequences.append(([*question, *tokenizer.encode(target).tolist(), eos], len(question)))
    return sequences


@torch.no_grad()
def _accuracy(model: SequenceModel, sequences: list[tuple[list[int], int]], rows: int = 256) -> float:
    """The share of rows whose whole answer is the most probable one, token by token."""
    right = 0
    for start in range(0, len(sequences), rows):
        batch = collate(sequences[start : start + rows]).to(model.device)
        assert batch.targets is not None
        predicted: Tensor = model.readout(model(batch).hidden).argmax(-1)  # (B, T)
        right += int(((predicted == batch.targets) | (batch.targets == IGNORE)).all(1).sum())
    return right / len(sequences)
