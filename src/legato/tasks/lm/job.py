"""Training and scoring: on running text, as one stream, as windows, or row by row; and on a generated toy.

A model that is two language models (ELMo, `models/elmo.py`) learns to guess the next word and the one before: on
windows of a text, or row by row, where both directions begin anew.

    L = ½ (mean_t -log P(w_{t+1} | w_1 … w_t)  +  mean_t -log P(w_{t-1} | w_t … w_T))

It is scored as every recurrent language model is, in one stream whose state is carried, once from each end of the
text. A toy (`data.train=toy:recall`) is rows of a question and its answer: only the answer counts, and the score is
how many are right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.batches import Array, Batches, BatchShape, Packed, Streams, Windows, WindowShape
from legato.data.batching.examples import Example, ExampleBatches, collate_examples, next_tokens
from legato.data.cache import cached_ids, cached_tokenizer, document_starts
from legato.data.digests import sha256_of
from legato.data.formats.text import Text
from legato.data.sources.toys import TOY, toy_rows
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, DataError
from legato.evaluation.lm import safe_exp, sliding_loss, stream_loss, text_metrics
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.elmo import ElmoModel
from legato.nn.pooling import at_positions
from legato.tasks.base import Plan, Say, TaskJob, penalised
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
    if isinstance(model, ElmoModel):
        return _score_both_ways(model, ids, text, rows, tokenizer)
    if model.max_length is None:
        total = stream_loss(model, ids, rows)
    else:
        context = window or min(model.max_length, CONTEXT)
        check_window(context, model.max_length, stride, "the model's longest text")
        stride = stride or max(1, context // 2)
        total = sliding_loss(model, ids, context, stride)
        told = {"context": context, "stride": stride}
    return {**text_metrics(total, ids.numpy(), text, tokenizer), **told}


def next_token_loss(model: SequenceModel, batch: Batch, state: Any = None, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the next token at the batch's positions, which alone are read, and the model's penalties."""
    assert batch.targets is not None
    if state is not None and batch.keep_state is not None:
        state = model.reset_state(state, batch.keep_state)
    output = model(batch, state)
    total, reported = model.nll(at_positions(output.hidden, batch.positions), batch.targets, smoothing)
    return Loss(penalised(total, output, (batch.targets != IGNORE).sum()), reported, output.state)


class LanguageJob(TaskJob):
    """Training on a text."""

    task = "lm"
    use = 'legato generate FOLDER "The " --search sample'
    metric = "loss"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data, train = plan.data, plan.train
        self.texts = read_splits(data)
        self.hashes = {split: text.sha256 for split, text in self.texts.items()}
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, self.texts["train"]))
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
        return self.score(model, "valid", self.rows)

    def score(self, model: SequenceModel, split: str, rows: int = 1) -> dict[str, float]:
        """Exact scores, the whole text in one stream; or as many as there are `rows`."""
        data, ids = self.plan.data, begin_with(self.start, self.ids[split])
        return score_text(model, ids, self.texts[split], rows, self.tokenizer, data.window, data.stride)

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


# --- both ways -------------------------------------------------------------------------------------


class TwoWayJob(LanguageJob):
    """Training on a text, read from both ends."""

    use = "legato train tagging data.train=FILE from=FOLDER adapt=head head.layers=mix head.lstm=1"

    def __init__(self, plan: Plan, say: Say) -> None:
        if str(plan.data.train).startswith(TOY):
            raise ConfigError(f"{plan.data.train} is for models that write; model={plan.model.name} learns from text")
        if plan.data.batching not in ("windows", "rows"):
            raise ConfigError(
                f"data.batching={plan.data.batching} reads a text from its left only, and model={plan.model.name} "
                "reads it both ways; use windows or rows"
            )
        if plan.data.window < 2:
            raise ConfigError("data.window=1 has no word before another to guess; set data.window=64")
        super().__init__(plan, say)

    @torch.no_grad()
    def initialise(self, model: SequenceModel) -> None:
        """Begin with guesses that are as frequent as the words: b_w = log P(w).

        Else the first thing to learn is how rare most words are, which bends all words' vectors one way.
        """
        if self.plan.loaded is None:
            counts = np.bincount(np.asarray(self.ids["train"]), minlength=self.sizes.vocabulary) + 1.0
            model.output.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return two_way_loss(model, batch, self.plan.train.label_smoothing)


def two_way_loss(model: SequenceModel, batch: Batch, smoothing: float = 0.0) -> Loss:
    """The mean of both directions' cross-entropies, summed over the batch's targets.

    Of a window w_0 … w_T, cut into inputs and the words that follow them, the backward model reads the inputs: it
    guesses all of them but the last.
    """
    assert isinstance(model, ElmoModel)
    assert batch.targets is not None
    output = model(batch)
    before, behind = model.halves(output.hidden)
    earlier = batch.inputs.token_ids.roll(1, 1)
    earlier[:, 0] = IGNORE
    if batch.inputs.lengths is not None:
        places = torch.arange(earlier.shape[1], device=earlier.device)
        earlier = earlier.masked_fill(places >= batch.inputs.lengths.unsqueeze(1), IGNORE)
    forward, forward_told = model.one_way(reverse=False).nll(before, batch.targets, smoothing)
    backward, backward_told = model.one_way(reverse=True).nll(behind, earlier, smoothing)
    # Counted where they lie: a recorded step must not remember another batch's number.
    share = (batch.targets != IGNORE).sum() / (earlier != IGNORE).sum().clamp(min=1)
    return Loss((forward + share * backward) / 2, (forward_told + share * backward_told) / 2)


def _score_both_ways(
    model: ElmoModel, ids: Tensor, text: Text, rows: int, tokenizer: AnyTokenizer
) -> dict[str, float]:
    """The figures of `text`, whose ids these are: the loss of both ways, the rest of the forward model but one.

    `rows` as in `stream_loss`. The backward model begins behind the text's last EOS token and ends at its first word,
    so both guess the words, and one EOS token each that the other does not.
    """
    forward = stream_loss(model.one_way(reverse=False), ids, rows)
    # The text begins with an EOS token; turned round it has to begin with one, too.
    end, words = ids[:1], ids[1:]
    turned = torch.cat([end, words.flip(0)]) if int(words[-1]) != int(end) else ids.flip(0)
    backward = stream_loss(model.one_way(reverse=True), turned, rows) / (len(turned) - 1)
    scores = text_metrics(forward, ids.numpy(), text, tokenizer)
    return {**scores, "loss": (forward / len(words) + backward) / 2, "backward_perplexity": safe_exp(backward)}


# --- toys ------------------------------------------------------------------------------------------


class ToyJob(TaskJob):
    """Training on a generated toy: questions whose answers can be checked."""

    task = "lm"
    metric = "accuracy"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data = plan.data
        self.use = f"legato eval FOLDER data.test={data.train}"
        toy = data.train.removeprefix(TOY)
        rows = {split: toy_rows(toy, data.toy, split, plan.seed) for split in ("train", "valid")}
        lines = "\n".join(" = ".join(row) for row in rows["train"])
        text = Text(data.train, [lines], sha256_of([lines]))
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, text))
        train = _sequences(rows["train"], self.tokenizer)
        shape = BatchShape(plan.seed, plan.train.batch_tokens, name=data.train)
        self.valid = _sequences(rows["valid"], self.tokenizer)
        self.questions = rows["valid"]
        self.batches = ExampleBatches(train, shape, salt="rows")
        self.hashes = {"train": f"{data.train} {data.toy.model_dump_json()} seed {plan.seed}"}
        say(f"data: {len(train):,} rows of {data.train}, such as: {' = '.join(rows['train'][0])}")

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return next_token_loss(model, batch, None, self.plan.train.label_smoothing)

    def score(self, model: SequenceModel, split: str) -> dict[str, float]:
        return {"accuracy": _accuracy(model, self.valid)}

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

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"toy": {"settings": self.plan.data.toy.model_dump(mode="json"), "seed": self.plan.seed}}


def evaluate_toy(loaded: Loaded, data: Any) -> dict[str, Any]:
    """How many unseen answers are right."""
    toy, seed = data.toy.as_trained(loaded.about.get("toy", {}))
    rows = toy_rows(data.test.removeprefix(TOY), toy, "test", seed)
    return {"data": data.test, "accuracy": _accuracy(loaded.module, _sequences(rows, loaded.tokenizer))}


def _sequences(rows: list[tuple[str, str]], tokenizer: AnyTokenizer) -> list[Example]:
    """Each row between two EOS tokens, of which the answer is learned."""
    eos = tokenizer.eos_id
    sequences = []
    for source, target in rows:
        question = [eos, *tokenizer.encode(f"{source} =").tolist()]
        sequences.append(([*question, *tokenizer.encode(target).tolist(), eos], len(question)))
    return next_tokens(sequences)


@torch.no_grad()
def _accuracy(model: SequenceModel, sequences: list[Example], rows: int = 256) -> float:
    """The share of rows whose whole answer is the most probable one, token by token."""
    right = 0
    for start in range(0, len(sequences), rows):
        batch = collate_examples(sequences[start : start + rows]).to(model.device)
        assert batch.targets is not None
        predicted: Tensor = model.readout(model(batch).hidden).argmax(-1)  # (B, T)
        right += int(((predicted == batch.targets) | (batch.targets == IGNORE)).all(1).sum())
    return right / len(sequences)
