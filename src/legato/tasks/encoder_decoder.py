"""What tasks that turn one sequence into another share: the loss, and reading the model's answers out.

Sequences are ids here: sources end with the EOS token (and begin with a tag where there are tags), targets
have neither. What is read and written is the task's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from legato.config import Section, validate
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.batches import BatchShape, scoring_order
from legato.data.batching.pair_batches import PairBatches, TokenDraw, collate_pairs
from legato.data.batching.sound_batches import written_batch
from legato.data.formats.text_pairs import Pairs, filter_lengths
from legato.data.positions import SOURCE, TARGET, Positions, Reading, named_tokens, shown_token
from legato.data.processors import TEXT
from legato.data.text.tokenizers import AnyTokenizer, Ids, Tokenizer
from legato.decoding import Hypothesis, SearchOptions, search
from legato.decoding.frontier import LogitsProcessor
from legato.decoding.options import MAX_BEAMS, MAX_NBEST
from legato.errors import ConfigError
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.nn.losses.vocabulary import smoothed_nll
from legato.nn.state import Output
from legato.registry import MODELS
from legato.tasks.base import TaskJob, penalised
from legato.training.job import Loss

# Sentences decoded side by side: enough to keep the device busy, few enough for the logits of a beam.
ROWS = {"cuda": 256}
FEW_ROWS = 32

# Tokens of the longest source, target or tree where a model has no positions that end: sentences have hundreds. What
# is longer is a word without end, and a model that has not learned to stop would write on for as long.
LONGEST = 4096

ConstraintOf = Callable[[int], Callable[[list[int]], Any]]
"""From a source's number to what may follow the tokens so far (see decoding/search.py)."""


def longest_of(model: SequenceModel) -> int:
    """The most tokens that are read, and written."""
    return LONGEST if model.max_length is None else model.max_length


def require_source(model: str, task: str) -> None:
    """Refuse a model without an encoder: first of all, for its settings are not those that the task's models have."""
    if not MODELS.get(model).is_encoder_decoder:
        known = [name for name in MODELS.names() if _reads_source(name)]
        recurrent = MODELS.get(model).Config.network == "recurrent"
        hint = f"; model=seq2seq model.cell={model} is its like" if recurrent else ""
        raise ConfigError(f"model={model} reads no source, which {task} has; use {' or '.join(known)}{hint}")


def _reads_source(name: str) -> bool:
    """Whether a model has an encoder, which reads text where nothing else is put in its place."""
    try:
        return bool(MODELS.get(name).is_encoder_decoder and MODELS.get(name).processors == (TEXT,))
    except ConfigError:  # another package's, broken
        return False


class BeamOptions(Section):
    """How to predict."""

    beams: int | None = Field(None, ge=1, le=MAX_BEAMS)
    nbest: int = Field(1, ge=1, le=MAX_NBEST)
    length_penalty: float | None = Field(None, ge=0, le=10)


@dataclass(frozen=True)
class TargetTokens:
    """What decoding has to know of the target side: where it begins and ends, and what it never holds."""

    start: int
    eos: int
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()  # not held as the first token
    forced: tuple[int, ...] = ()  # what stands behind the start and is not searched for

    @property
    def prompt(self) -> tuple[int, ...]:
        return (self.start, *self.forced)

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, start: int | None = None) -> TargetTokens:
        eos = tokenizer.eos_id
        return cls(eos if start is None else start, eos, tuple(sorted(tokenizer.special_ids - {eos})))


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


def search_name(options: SearchOptions) -> str:
    """What a score of decoded answers is stated with: `greedy`, or `beam 4`."""
    return f"beam {options.width}" if options.width > 1 else "greedy"


def pair_loss(model: SequenceModel, batch: Batch, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the target given the source; what is minimised has smoothed labels."""
    return written_loss(model, model(batch), batch, smoothing)


def written_loss(model: SequenceModel, output: Output, batch: Batch, smoothing: float = 0.0) -> Loss:
    """The same of what the model has made of the batch."""
    assert batch.targets is not None
    hidden, targets = output.hidden.flatten(0, 1), batch.targets.flatten()  # (N, D), (N,)
    if hidden.device.type == "cpu" and batch.inputs.lengths is not None:  # on a GPU, asking which would cost more
        there = targets != IGNORE
        hidden, targets = hidden[there], targets[there]
    total, reported = smoothed_nll(model.readout(hidden), targets, smoothing)
    if output.auxiliary:
        total = penalised(total, output, (targets != IGNORE).sum())
    return Loss(total, reported)


def batches_of(
    sources: Sequence[Ids], targets: Sequence[Ids], target_tokens: TargetTokens, tokens: int = 8192
) -> Iterator[Batch]:
    """All pairs once, by length, in batches of about so many tokens: for scoring."""
    lengths = [len(s) + len(t) for s, t in zip(sources, targets, strict=True)]
    widths = [max(len(s), len(t) + 1) for s, t in zip(sources, targets, strict=True)]
    for rows in scoring_order(lengths, widths, tokens):
        chosen = [sources[i] for i in rows], [targets[i] for i in rows]
        yield collate_pairs(*chosen, target_tokens.start, target_tokens.eos)


@torch.no_grad()
def mean_loss(model: SequenceModel, batches: Iterator[Batch]) -> float:
    """Nats a target token, the EOS token counted."""
    total, tokens = 0.0, 0
    for batch in batches:
        total += float(pair_loss(model, batch.to(model.device)).reported)
        tokens += batch.tokens
    return total / max(tokens, 1)


def decode(
    model: SequenceModel,
    sources: Sequence[Ids],
    target_tokens: TargetTokens,
    options: SearchOptions,
    *,
    limits: Sequence[int],
    constraint: ConstraintOf | None = None,
    text_of: Callable[[Sequence[int]], str] | None = None,
    rows: int | None = None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every source, in their order; batched by length inside.

    `limits` are the most tokens of each; `text_of` tells which of several would read the same.
    """
    rows = rows or ROWS.get(model.device.type, FEW_ROWS)
    order = np.argsort([-len(source) for source in sources], kind="stable")  # the longest first: memory fails early
    found: list[list[Hypothesis]] = [[] for _ in sources]
    with torch.no_grad():
        for start in range(0, len(order), rows):
            chosen = [int(i) for i in order[start : start + rows]]
            source = Inputs.of([sources[i].tolist() for i in chosen])
            results = write_from(
                model,
                Batch(source, source=source).to(model.device),
                target_tokens,
                options,
                limits=[limits[i] for i in chosen],
                sources=[sources[i].tolist() for i in chosen],
                allowed=None if constraint is None else [constraint(i) for i in chosen],
                text_of=text_of,
            )
            for index, result in zip(chosen, results, strict=True):
                found[index] = result
    return found


def write_from(
    model: SequenceModel,
    batch: Batch,
    target_tokens: TargetTokens,
    options: SearchOptions,
    *,
    limits: Sequence[int],
    sources: list[list[int]] | None = None,
    allowed: Sequence[Callable[[list[int]], Any]] | None = None,
    text_of: Callable[[Sequence[int]], str] | None = None,
    memory: Any = None,
    processor: LogitsProcessor | None = None,
    normalised: bool = False,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each row of `batch.source`, whatever it is, read side by side.

    `memory` is what the model's encoder made of it, where it was asked already. `sources` are
    the rows' tokens, where they have any; `allowed` says of each row what may follow.
    """
    return search(
        model,
        [target_tokens.prompt] * len(limits),
        options.model_copy(update={"max_tokens": max(limits)}),
        eos=target_tokens.eos,
        suppress=target_tokens.suppress,
        suppress_first=target_tokens.suppress_first,
        limits=list(limits),
        memory=model.encode(batch) if memory is None else memory,
        sources=sources,
        text_of=text_of,
        constraint=None if allowed is None else lambda prompt, made: allowed[prompt](made),
        processor=processor,
        normalised=normalised,
    )


@torch.no_grad()
def align(model: SequenceModel, source: Ids, target: Sequence[int], target_tokens: TargetTokens) -> Tensor:
    """How much each target token, and the end, looks at each source token: (T + 1, S)."""
    batch = collate_pairs([source], [np.asarray(target, dtype=np.int32)], target_tokens.start, target_tokens.eos)
    return model.align(batch.to(model.device))[0].float().cpu()


def written_reading(
    source: Inputs, places: Positions, tokenizer: AnyTokenizer, prompt: Sequence[int], ids: Sequence[int], eos: int
) -> Reading:
    """What an encoder reads, and the tokens that a decoder reads behind a prompt, for who looks inside."""
    read = named_tokens(tokenizer, [*prompt, *ids])
    streams = {SOURCE: places, TARGET: read}
    return Reading(written_batch(source, [ids], prompt, eos), streams, [*read.names[1:], shown_token(tokenizer, eos)])


def text_reading(loaded: Loaded, source: Sequence[int], written: str) -> Reading:
    """The tokens of a source, and of a text that is written of it."""
    return ids_reading(loaded, source, [int(index) for index in loaded.target.encode(written)])


def ids_reading(loaded: Loaded, source: Sequence[int], ids: Sequence[int]) -> Reading:
    """The tokens of a source, and those that are written of it, as many as the model reads."""
    target, tokens = loaded.target, TargetTokens.of(loaded.target, loaded.first_token)
    read, most = named_tokens(loaded.tokenizer, source), longest_of(loaded.module) - 1
    return written_reading(Inputs.of([source]), read, target, [tokens.start], ids[:most], tokens.eos)


class EncoderDecoderJob(TaskJob):
    """Training on pairs of sequences, which a greedy search validates."""

    search = "greedy"
    Predictor: ClassVar[type[Any]]  # of a model and its two tokenizers: what predicts with it, and scores
    batches: PairBatches
    tokenizer: Tokenizer
    target: Tokenizer
    target_tokens: TargetTokens
    parts: Mapping[str, Any]  # what was read
    valid: Any  # what of it each validation scores

    def predictor(self, model: SequenceModel) -> Any:
        return self.Predictor(model, self.tokenizer, self.target)

    def draw(self, kept: Sequence[int]) -> TokenDraw | None:
        """Other ids for the pairs that are kept, where there are any."""
        return None

    def paired(
        self,
        sources: list[Ids],
        targets: list[Ids],
        shape: BatchShape,
        ratio: float = 0.0,
        pairs: Pairs | None = None,
    ) -> PairBatches:
        """The training pairs that are neither too long nor of very different lengths; what is left out is said."""
        max_length, asked = self.plan.model.max_length, self.plan.data.max_length
        with_eos = [range(len(ids) + 1) for ids in targets]  # as long as with their EOS token
        kept, report = filter_lengths(sources, with_eos, min(asked, max_length or asked), ratio, pairs)
        if report.left_out:
            self.say(f"data.train: {report}")
        ids = [sources[i] for i in kept], [targets[i] for i in kept]
        start, eos = self.target_tokens.start, self.target_tokens.eos
        return PairBatches(*ids, shape, start=start, eos=eos, draw=self.draw(kept), max_length=max_length)

    @property
    def counts(self) -> str:
        """How many each split holds; of data.train, those that are too long are no longer there."""
        held = {split: len(part) for split, part in self.parts.items()} | {"train": len(self.batches.sources.lengths)}
        return ", ".join(f"{count:,} {split}" for split, count in held.items())

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return pair_loss(model, batch, self.plan.train.label_smoothing)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        scores = self.predictor(model).score(self.valid, SearchOptions())
        return {key: value for key, value in scores.items() if isinstance(value, int | float)}

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        return self.predictor(model).score(self.parts[split], beam_options(self.about({})))

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"beams": self.plan.data.beams, "length_penalty": self.plan.data.length_penalty}
