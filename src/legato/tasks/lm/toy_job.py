"""Language modelling on a generated toy: questions whose answers can be checked.

A toy (`data.train=toy:recall`) is rows of a question and its answer: only the answer counts, and the score is how
many are right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.buckets import BatchShape
from legato.data.batching.examples import Example, ExampleBatches, collate_examples, next_tokens
from legato.data.cache import cached_tokenizer
from legato.data.digests import sha256_of
from legato.data.formats.text import Text
from legato.data.sources.toys import TOY, toy_rows
from legato.data.text.tokenizers import AnyTokenizer
from legato.decoding import SearchOptions, search
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Plan, Say, TaskJob
from legato.tasks.lm.next_token import next_token_loss
from legato.training.job import Loss


class ToyJob(TaskJob):
    """Training on a generated toy: questions whose answers can be checked."""

    task = "lm"
    metric = "accuracy"

    def __init__(self, plan: Plan, say: Say) -> None:
        data = plan.data
        self.toy = data.train.removeprefix(TOY)
        rows = {split: toy_rows(self.toy, data.toy, split, plan.seed) for split in ("train", "valid")}
        lines = "\n".join(_line(*row) for row in rows["train"])
        text = Text(data.train, [lines], sha256_of([lines]))
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, text))
        self.sizes = plan.sizes_for(self.tokenizer)
        train = _sequences(rows["train"], self.tokenizer)
        shape = BatchShape(plan.seed, plan.train.batch_tokens, name=data.train)
        self.valid = _sequences(rows["valid"], self.tokenizer)
        self.questions = rows["valid"]
        self.batches = ExampleBatches(train, shape, salt="rows")
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

    @property
    def use(self) -> str:  # type: ignore[override]
        return f"legato eval FOLDER data.test={TOY}{self.toy}"

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"toy": {"settings": self.plan.data.toy.model_dump(mode="json"), "seed": self.plan.seed}}


def evaluate_toy(loaded: Loaded, data: Any) -> dict[str, Any]:
    """How many unseen answers are right."""
    toy, seed = data.toy.as_trained(loaded.about.get("toy", {}))
    rows = toy_rows(data.test.removeprefix(TOY), toy, "test", seed)
    return {"data": data.test, "accuracy": _accuracy(loaded.module, _sequences(rows, loaded.tokenizer))}


def _line(source: str, target: str) -> str:
    return f"{source} = {target}"


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
