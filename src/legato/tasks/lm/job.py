"""Training and scoring on running text: as one stream, as windows, or row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from legato.data.batching.batch import Batch
from legato.data.batching.batches import Array, Batches, Streams, Windows, WindowShape
from legato.data.batching.buckets import BatchShape
from legato.data.batching.examples import ExampleBatches, next_tokens
from legato.data.batching.packing import Packed, document_starts
from legato.data.cache import cached_ids, cached_tokenizer
from legato.data.formats.text import Text
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, DataError
from legato.evaluation.lm import sliding_loss, stream_loss, text_metrics
from legato.models.base import SequenceModel
from legato.tasks.base import Plan, Say, TaskJob
from legato.tasks.lm.next_token import next_token_loss
from legato.tasks.text_data import read_splits
from legato.training.job import Loss

CONTEXT = 2048  # tokens read at once when scored, at most: some models can read so many that it would take days


def check_window(window: int, length: int, stride: int | None, name: str) -> None:
    if window > length:
        raise ConfigError(
            f"data.window={window} is more than {name}={length}, the most that the model reads; lower data.window"
        )
    if stride is not None and stride > window:
        raise ConfigError(f"data.stride={stride} would skip tokens: it is more than data.window={window}")


def begin_with(start: int, ids: Array) -> Array:
    """A text's ids behind `start`: what a published model begins with may not be what ends its texts."""
    return ids if len(ids) == 0 or int(ids[0]) == start else np.concatenate([np.array([start], ids.dtype), ids[1:]])


def score_text(
    model: SequenceModel,
    encoded: Any,
    text: Text,
    rows: int,
    tokenizer: AnyTokenizer,
    window: int | None = None,
    stride: int | None = None,
) -> dict[str, float]:
    """The language-model figures of `text`, whose ids are `encoded`.

    `rows` as in `stream_loss`, for models that carry a state; `window` and `stride` as in `sliding_loss`, for those
    that do not: left out, all that the model can read at once but no more than CONTEXT, and half of that; both are
    told, since the figures depend on them.
    """
    ids = torch.from_numpy(np.asarray(encoded).astype(np.int64))
    if len(ids) < 2:
        raise DataError(f"{text.source} holds no token to predict")
    told: dict[str, float] = {}
    if model.max_length is None:
        total = stream_loss(model, ids, rows)
    else:
        context = window or min(model.max_length, CONTEXT)
        check_window(context, model.max_length, stride, "the model's longest text")
        stride = stride or max(1, context // 2)
        total = sliding_loss(model, ids, context, stride)
        told = {"context": context, "stride": stride}
    return {**text_metrics(total, ids.numpy(), text, tokenizer), **told}


class LanguageJob(TaskJob):
    """Training on a text."""

    task = "lm"
    use = 'legato generate FOLDER "The " --search sample'
    metric = "loss"

    def __init__(self, plan: Plan, say: Say) -> None:
        data, train = plan.data, plan.train
        self.plan = plan
        self.texts = read_splits(data)
        self.hashes = {split: text.sha256 for split, text in self.texts.items()}
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, self.texts["train"]))
        self.sizes = plan.sizes_for(self.tokenizer)
        self.slides = plan.model.max_length is not None  # reads windows, and carries no state
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
        data, text, eos = self.plan.data, self.texts["train"], self.tokenizer.eos_id
        name = f"data.train={text.source}"
        if data.batching == "rows":
            rows = BatchShape(self.plan.seed, self.plan.train.batch_tokens, name=name)
            return ExampleBatches(next_tokens(self._documents(data.window), name), rows, salt="rows")
        shape = WindowShape(self.rows, data.window, self.plan.seed, self.plan.device, name)
        if data.batching == "streams":
            return Streams(ids, shape, forget=data.forget)
        if data.batching == "packed" and len(text.documents) > 1:  # one has no borders to mind
            return Packed(ids, document_starts(ids, text, self.tokenizer), shape, start=self.start, eos=eos)
        ring = ids if self.start == eos else np.append(begin_with(self.start, ids), ids.dtype.type(eos))
        return Windows(ring, shape)

    def _documents(self, window: int) -> list[tuple[list[int], int]]:
        """Each document between two EOS tokens, cut where it is longer than a window."""
        eos = self.tokenizer.eos_id
        pieces = []
        for document in self.texts["train"].documents:
            ids = [self.start, *self.tokenizer.encode(document).tolist()]
            if ids[-1] != eos or len(ids) == 1:  # where lines end in the token, the last one has it already
                ids.append(eos)
            pieces += [(ids[i : i + window + 1], 0) for i in range(0, len(ids) - 1, window)]
        return pieces

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return next_token_loss(model, batch, state, self.plan.train.label_smoothing)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        return self._score(model, "valid", self.rows)

    def _score(self, model: SequenceModel, split: str, rows: int) -> dict[str, float]:
        data, ids = self.plan.data, begin_with(self.start, self.ids[split])
        return score_text(model, ids, self.texts[split], rows, self.tokenizer, data.window, data.stride)

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        """Exact scores, the whole text in one stream."""
        return self._score(model, split, rows=1)

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        if not (count and model.can_generate):
            return []
        most = min(80, model.max_length or 80)
        options = SearchOptions(search="sample", nbest=count, temperature=0.8, max_tokens=most, seed=1)
        eos = self.tokenizer.eos_id if self.tokenizer.ends_text else None
        ends = () if self.plan.loaded is None else self.plan.loaded.ends
        [found] = search(model, [[self.start]], options, eos=eos, stop_tokens=ends)
        return [self.tokenizer.decode(text.tokens).strip() for text in found]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"window": self.plan.data.window} if self.slides else {}
