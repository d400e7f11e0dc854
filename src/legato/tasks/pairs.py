"""What tasks that turn one sequence into another share: the loss, and reading the model's answers out.

Sequences are ids here: sources end with the end mark (and begin with a tag where there are tags), targets
have neither mark. What is read and written is the task's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batch import IGNORE, Batch
from legato.data.pair_batches import collate_pairs, collate_sources
from legato.data.tokenizers import AnyTokenizer, Ids
from legato.decoding import Hypothesis, SearchOptions, search
from legato.errors import ConfigError
from legato.evaluation.language import smoothed_nats
from legato.models.base import SequenceModel
from legato.registry import MODELS
from legato.training.job import Loss

# Sentences decoded side by side: enough to keep the device busy, few enough for the logits of a beam.
ROWS = {"cuda": 256}
FEW_ROWS = 32

# Tokens of the longest source, target or tree where a model has no positions that end: sentences have hundreds. What
# is longer is a word without end, and a model that has not learned to stop would write on for as long.
LONGEST = 4096

# How batches are padded for a GPU: it prepares for each new shape, which takes it long, and replays known ones.
GPU_SHAPES: dict[str, Any] = {"pad_to": 8, "alike": True}

ConstraintOf = Callable[[int], Callable[[list[int]], Any]]
"""From a source's number to what may follow the tokens so far (see decoding/search.py)."""


def fill_training(train: Any) -> Any:
    """Defaults of `train.*` that encoder–decoders want, where nothing else was said."""
    if not isinstance(train, dict):
        return train
    defaults: dict[str, Any] = {"batch_tokens": 4096, "label_smoothing": 0.1, "samples": 3}
    if train.get("optimizer", "adamw") == "adamw":
        defaults |= {"schedule": "inverse-sqrt", "lr": 0.001, "beta2": 0.98}
    if train.get("schedule", "inverse-sqrt") in ("inverse-sqrt", "cosine", "linear"):
        defaults["warmup"] = None  # as many as the run allows
    return {**defaults, **train}


def longest_of(model: SequenceModel) -> int:
    """The most tokens that are read, and written."""
    return LONGEST if model.longest is None else model.longest


def require_source(model: str, task: str) -> None:
    """Refuse a model without an encoder: first of all, for its settings are not those that the task's models have."""
    if not MODELS.get(model).reads_source:
        known = [name for name in MODELS.names() if _reads_source(name)]
        hint = f"; model=seq2seq model.cell={model} is its like" if model in ("elman", "gru", "lstm") else ""
        raise ConfigError(f"model={model} reads no source, which {task} has; use {' or '.join(known)}{hint}")


def _reads_source(name: str) -> bool:
    try:
        return bool(MODELS.get(name).reads_source)
    except ConfigError:  # another package's, broken
        return False


@dataclass(frozen=True)
class Writing:
    """What decoding has to know of the target side: where it begins and ends, and what it never holds."""

    start: int
    eos: int
    suppress: tuple[int, ...] = ()

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, start: int | None = None) -> Writing:
        eos = tokenizer.eos_id
        return cls(eos if start is None else start, eos, tuple(sorted(tokenizer.marks - {eos})))


def beam_options(
    about: dict[str, Any], beams: int | None = None, length_penalty: float | None = None, nbest: int = 1
) -> SearchOptions:
    """How to predict: what was asked for, and otherwise what the model's folder says of itself."""
    asked = {
        "search": "beam",
        "beams": max(about.get("beams", 4), nbest) if beams is None else beams,
        "nbest": nbest,
        "length_penalty": about.get("length_penalty", 1.0) if length_penalty is None else length_penalty,
    }
    return validate(SearchOptions, asked)


def pair_loss(model: SequenceModel, batch: Batch, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the target given the source; what is minimised has smoothed labels."""
    assert batch.targets is not None
    hidden, targets = model(batch).hidden.flatten(0, 1), batch.targets.flatten()  # (N, D), (N,)
    if hidden.device.type == "cpu" and batch.lengths is not None:  # on a GPU, asking which would cost more
        there = targets != IGNORE
        hidden, targets = hidden[there], targets[there]
    return Loss(*smoothed_nats(model.readout(hidden), targets, smoothing))


def batches_of(
    sources: Sequence[Ids], targets: Sequence[Ids], writing: Writing, tokens: int = 8192
) -> Iterator[Batch]:
    """All pairs once, by length, in batches of about so many tokens: for scoring."""
    order = np.argsort([len(s) + len(t) for s, t in zip(sources, targets, strict=True)], kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order):
            widest = max(len(sources[order[stop]]), len(targets[order[stop]]) + 1)
            if (stop + 1 - start) * widest > tokens:
                break
            stop += 1
        rows = order[start:stop]
        yield collate_pairs([sources[i] for i in rows], [targets[i] for i in rows], writing.start, writing.eos)
        start = stop


@torch.no_grad()
def mean_loss(model: SequenceModel, batches: Iterator[Batch]) -> float:
    """Nats a target token, the end mark counted."""
    total, tokens = 0.0, 0
    for batch in batches:
        total += float(pair_loss(model, batch.to(model.device)).reported)
        tokens += batch.tokens
    return total / max(tokens, 1)


def decode(
    model: SequenceModel,
    sources: Sequence[Ids],
    writing: Writing,
    options: SearchOptions,
    *,
    limits: Sequence[int],
    constraint: ConstraintOf | None = None,
    rows: int | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every source, in their order; batched by length inside.

    `limits` are the most tokens of each.
    """
    rows = rows or ROWS.get(model.device.type, FEW_ROWS)
    order = np.argsort([-len(source) for source in sources], kind="stable")  # the longest first: memory fails early
    found: list[list[Hypothesis]] = [[] for _ in sources]
    with torch.no_grad():
        for start in range(0, len(order), rows):
            chosen = [int(i) for i in order[start : start + rows]]
            source, lengths = collate_sources([sources[i] for i in chosen])
            batch = Batch(source, source=source, source_lengths=lengths).to(model.device)
            allowed = None if constraint is None else [constraint(i) for i in chosen]
            most = [limits[i] for i in chosen]
            results = search(
                model,
                [[writing.start]] * len(chosen),
                options.model_copy(update={"max_tokens": max(most)}),
                eos=writing.eos,
                suppress=writing.suppress,
                limits=most,
                memory=model.encode(batch),
                sources=[sources[i].tolist() for i in chosen],
                constraint=None if allowed is None else lambda prompt, made, a=allowed: a[prompt](made),  # type: ignore[misc]
            )
            for index, result in zip(chosen, results, strict=True):
                found[index] = result
    return found


@torch.no_grad()
def align(model: SequenceModel, source: Ids, target: Sequence[int], writing: Writing) -> Tensor:
    """How much each target token, and the end, looks at each source token: (T + 1, S)."""
    batch = collate_pairs([source], [np.asarray(target, dtype=np.int32)], writing.start, writing.eos)
    return model.align(batch.to(model.device))[0].float().cpu()
