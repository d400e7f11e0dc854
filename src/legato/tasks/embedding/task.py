"""Embedding: vectors that lie near each other where texts mean the same.

The data are pairs: texts that belong together (a third column may hold one that does not), or texts and a score of
how alike they are. The vectors are a model's states, pooled (text_vectors.py); nothing is added to the model.

    pairs     multiple negatives ranking: among all partners in the batch, find the own one
    scores    CoSENT: pairs in the order of their scores; or the cosine itself (data.loss=cosine)

    legato train embedding data.train=pairs.tsv from=MODEL out=runs/e
    legato eval runs/e data.test=sts-dev.csv data.columns=[6,7,5]
    legato predict runs/e "how do I reset it?" --search faq.txt
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from legato.config import Section
from legato.data.batching.batch import Batch
from legato.data.batching.examples import GroupBatches, flattened
from legato.data.cache import cached_tokenizer
from legato.data.formats.scored_pairs import ScoredPairs, hold_out_scored_pairs, read_scored_pairs
from legato.data.formats.text import Text
from legato.data.formats.text_pairs import tidy
from legato.data.sources.files import MAX_LINE
from legato.data.sources.patterns import Source
from legato.data.splits import Encoding, MaxLine, SplitData, TableFormat, ValidShare, completed
from legato.errors import ConfigError, brief, warn
from legato.evaluation.embedding import METRICS, correlations, cosines, furthest, retrieval
from legato.evaluation.metrics import DetailTable
from legato.folders.loaded import Loaded
from legato.folders.sentence_encoder import SentenceEncoder, told_sentences
from legato.models.base import SequenceModel
from legato.nn.losses import contrast
from legato.registry import MODELS
from legato.tasks.base import Plan, Say, Task, TaskJob, penalised
from legato.tasks.defaults import LENGTH, Defaults, Given, row_training, scratch_model, scratch_tokenizer
from legato.tasks.embedding.text_vectors import POOL_MODES, TextVectors, VectorArray, rows_of, search_file
from legato.tasks.predictions import Answer, Prediction
from legato.tasks.table_inputs import TableInputs
from legato.training.job import Loss

ROWS = 64  # pairs in a batch: each has 63 others as negatives
SCORED = 64  # texts embedded side by side in scoring; changes no result
WORST = 10  # pairs in the table of those furthest off


class EmbeddingData(SplitData):
    """Where the pairs are, and what is learned from them."""

    train: Source | None = Field(None, description="a csv, tsv, jsonl or parquet file of pairs, or a hub name")
    valid: Source | None = Field(None, description="left out: a share of the training pairs")
    columns: list[str | int] | None = Field(
        None,
        description="[first,second], [first,second,negative] or [first,second,score]: names, or numbers from 1; "
        "left out: guessed, and said",
    )
    valid_columns: list[str | int] | None = Field(
        None, description="the same of data.valid and data.test; left out: data.columns"
    )
    format: TableFormat = "auto"
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.1
    loss: Literal["auto", "contrast", "cosent", "cosine"] = Field(
        "auto", description="auto: cosent where there are scores, else contrast"
    )
    scale: float = Field(20.0, gt=0, description="what cosines are multiplied with in contrast and cosent")
    symmetric: bool = Field(False, description="contrast: the second text must find the first, too")
    pool: Literal["auto", "mean", "cls", "max", "last"] = Field(
        "auto", description="how tokens become one vector; auto: as the model says, else mean"
    )
    max_length: int | None = Field(
        None, ge=4, description="tokens; longer texts are cut; left out: as the model says, else 256"
    )


class EmbeddingOptions(Section):
    """How to predict."""

    nbest: int = Field(5, ge=1)
    search: str | None = None  # a file, whose lines are searched


def _problem(pair: list[str]) -> str | None:
    if len(pair) == 1:
        return "give two texts with a tab between them, or search for lines like it in a file (--search FILE)"
    if len(pair) > 2:
        return f"{len(pair)} texts separated by tabs; give two"
    return None if all(pair) else "one text of the pair is empty"


# --- pairs and their scores ------------------------------------------------------------------------


def read_split(data: Any, source: Source, split: str) -> ScoredPairs:
    """The pairs that `source` names, read as `data` says."""
    columns = data.columns if split == "train" or data.valid_columns is None else data.valid_columns
    return read_scored_pairs(source, data.files(split), columns=columns)


def vectors_of(vectors: TextVectors, pairs: ScoredPairs) -> tuple[VectorArray, VectorArray]:
    """Vectors of the first texts and of the second ones, (N, D) each; a text that comes again is read once."""
    places: dict[str, int] = {}
    numbers = [[places.setdefault(text, len(places)) for text in side] for side in (pairs.first, pairs.second)]
    found = vectors.embed(list(places), SCORED)
    return found[numbers[0]], found[numbers[1]]


def scores_of(left: VectorArray, right: VectorArray, pairs: ScoredPairs) -> dict[str, float]:
    """Correlations with the scores; without any, how well partners are found."""
    if pairs.scores is None:
        return retrieval(left, right, pairs.second)
    return correlations(cosines(left, right), pairs.scores)


def _worst(found: Any, pairs: ScoredPairs) -> DetailTable:
    assert pairs.scores is not None
    rows: list[list[Any]] = [
        [f"{pairs.unit} {pairs.lines[row]}", float(found[row]), pairs.scores[row]]
        + [brief(text) for text in (pairs.first[row], pairs.second[row])]
        for row in furthest(found, pairs.scores, WORST)
    ]
    return "furthest off", ["where", "cosine", "score", "first", "second"], rows


# --- training --------------------------------------------------------------------------------------


class EmbeddingJob(TaskJob):
    """Training on pairs."""

    task = "embedding"
    use = 'legato embed FOLDER --file texts.txt --out vectors.npy\nlegato predict FOLDER "query" --search texts.txt'
    likelihood = False  # the loss is none of tokens

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data = plan.data
        if MODELS.get(plan.model.name).is_encoder_decoder:
            raise ConfigError(
                f"model={plan.model.name} reads one text and writes another; use an encoder, a decoder or lstm"
            )
        found = data.read(lambda source, split, train: read_split(data, source, split))
        self.pairs = completed(found, lambda train: hold_out_scored_pairs(train, data.valid_share))
        self.hashes = {split: pairs.sha256 for split, pairs in self.pairs.items()}
        train, valid = self.pairs["train"], self.pairs["valid"]
        self.loss_name = self._loss_name(train)
        self.metric = "mrr" if valid.scores is None else "spearman"
        texts = [text for group in train.groups for text in group]
        text = Text(train.source, texts, train.sha256)
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, text))
        self.how = self._how()
        config = plan.model if plan.loaded is None else plan.loaded.module.config
        reader = config.text_reader(self.tokenizer, self.how.most)
        rows, size = rows_of(texts, self.tokenizer, reader, self.how), len(train.groups[0])
        groups = [rows[start : start + size] for start in range(0, len(rows), size)]
        tokens = sum(len(row.ids) for row in rows)
        known = train.scores or [0.0, 1.0]
        self.least, self.spread = min(known), (max(known) - min(known)) or 1.0
        self.batches = GroupBatches(groups, plan.batch_shape(train.source), train.scores, pad=reader.padding)
        if self.loss_name != "cosine" and self.batches.rows < 2 * plan.train.accumulate:
            raise ConfigError(
                f"{self.batches.rows} pairs a step in {plan.train.accumulate} parts leave a pair no others to differ "
                "from; raise train.batch_rows, or lower train.accumulate"
            )
        note = "" if data.columns is not None else f" (reading {train.note})"
        say(
            f"data: {len(train):,} training and {len(valid):,} validation pairs{note}, {tokens:,} tokens, "
            f"vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})"
        )
        cut = sum(len(row.ids) >= (reader.max_length or len(row.ids) + 1) for row in rows)
        if cut:
            say(f"note: {cut:,} training texts fill all of {reader.max_length} tokens; what is beyond is not read")
        say(f"loss: {self.loss_name}, {self.batches.rows} pairs a step; vectors by {' and '.join(self.how.modes)}")
        shown = [" ".join(self.tokenizer.token(token) for token in row.ids[:16]) for row in groups[0]]
        score = "" if train.scores is None else f" ({train.scores[0]:g})"
        say(f"the model will see: {' | '.join(shown)}{score}")

    def _loss_name(self, train: ScoredPairs) -> str:
        asked = self.plan.data.loss
        if asked == "auto":
            return "contrast" if train.scores is None else "cosent"
        if asked != "contrast" and train.scores is None:
            raise ConfigError(
                f"data.loss={asked} learns from scores, and {train.source} has none; name their column: "
                "data.columns=[first,second,score]"
            )
        if asked == "contrast" and train.scores is not None:
            raise ConfigError(
                f"data.loss=contrast learns from pairs that belong together, and {train.source} has scores; "
                "name two columns only, or leave out data.loss"
            )
        return str(asked)

    def _how(self) -> SentenceEncoder:
        """How vectors are made: as the model says that we go on from, unless something else is asked for."""
        data, loaded = self.plan.data, self.plan.loaded
        how = loaded.sentences if loaded is not None else None
        how = how or SentenceEncoder(normalise=True)
        limits = [data.max_length or how.most or LENGTH, self.plan.model.max_length]
        how = replace(how, most=min(limit for limit in limits if limit is not None), transformer="")
        return how if data.pool == "auto" else replace(how, modes=(POOL_MODES[data.pool],))

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        flat = flattened(batch.inputs)
        output = model(Batch(flat))
        assert flat.lengths is not None
        vectors = self.how.pool(output.hidden.float(), flat.lengths)
        vectors = vectors.view(*batch.inputs.token_ids.shape[:2], -1)  # (B, K, D)
        keys = contrast.text_keys(batch.inputs.token_ids)  # (B, K)
        if batch.inputs.characters is not None:  # words that the vocabulary lacks differ by their letters
            keys = keys + contrast.text_keys(batch.inputs.characters.flatten(2))
        reported = self._losses(vectors, keys, batch.labels)
        return Loss(penalised(reported, output, batch.rows), reported)

    def _losses(self, vectors: Tensor, keys: Tensor, scores: Tensor | None) -> Tensor:
        """The summed loss of rows of vectors (B, K, D)."""
        data = self.plan.data
        if self.loss_name == "contrast" or scores is None:
            return contrast.contrast(vectors, keys, data.scale, data.symmetric).sum()
        found = contrast.cosines(vectors)
        if self.loss_name == "cosent":
            return contrast.cosent(found, scores, data.scale) * len(found)
        return (found - (scores - self.least) / self.spread).square().sum()  # the best pairs at 1, the worst at 0

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        pairs = self.pairs[split]
        left, right = vectors_of(TextVectors(model, self.tokenizer, self.how), pairs)
        return {"loss": self._loss_of(left, right, pairs), **scores_of(left, right, pairs)}

    def _loss_of(self, left: VectorArray, right: VectorArray, pairs: ScoredPairs) -> float:
        """The mean loss over pairs, in batches as large as in training; without negatives of their own."""
        both = torch.from_numpy(np.stack([left, right], 1))  # (N, 2, D)
        names: dict[str, int] = {}
        keys = [
            [names.setdefault(t, len(names)) for t in pair] for pair in zip(pairs.first, pairs.second, strict=True)
        ]
        scores = None if pairs.scores is None else torch.tensor(pairs.scores)
        total = 0.0
        for start in range(0, len(pairs), self.batches.rows):
            part = slice(start, start + self.batches.rows)
            known = None if scores is None else scores[part]
            total += float(self._losses(both[part], torch.tensor(keys[part]), known))
        return total / len(pairs)

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation pairs and their cosines."""
        valid = self.pairs["valid"]
        rows = [(number * 7919) % len(valid) for number in range(min(count, len(valid)))]
        few = valid.select(rows, valid.source)
        if not rows:
            return []
        found = cosines(*vectors_of(TextVectors(model, self.tokenizer, self.how), few))
        truth = ["" if few.scores is None else f"   (score: {few.scores[row]:g})" for row in range(len(few))]
        return [
            f"{first}\n{second}\n→ {cosine:.2f}{true}"
            for first, second, cosine, true in zip(few.first, few.second, found, truth, strict=True)
        ]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"sentences": told_sentences(self.how)}

    batches: GroupBatches


class Embedding(Task):
    """The `embedding` task."""

    name = "embedding"
    pipeline = "sentence-similarity"
    summary = "vectors that are near where texts mean the same: similarity and search"
    Job = EmbeddingJob
    Data = EmbeddingData
    needs = "=FILE, a table with two columns of texts"
    tuples = ("sentence1 sentence2", "sentence1 sentence2 score")
    metrics = METRICS
    Options = EmbeddingOptions
    texts = 2
    continues = True
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        heads = [head for head in given.config.pretraining_heads if head != "pooler"]
        return Defaults(
            model=scratch_model(given, given.data.get("max_length")),
            tokenizer=scratch_tokenizer(given),
            train=row_training(given, rows=ROWS),
            fixed=dict.fromkeys(heads, False),  # a trained encoder's heads go, too: nothing guesses words
        )

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        test = read_split(data, data.test, "test")
        if data.columns is None and data.valid_columns is None:
            warn(f"data.test: reading {test.note}")
        vectors = TextVectors.of(loaded)
        left, right = vectors_of(vectors, test)
        vectors.reader.warn_of_cuts()
        told: dict[str, Any] = {"data": test.source, "sha256": test.sha256, "pairs": len(test)}
        told |= scores_of(left, right, test)
        if test.scores is not None:
            told |= {"signature": f"cosine|scipy:{version('scipy')}", "details": [_worst(cosines(left, right), test)]}
        return told

    @classmethod
    def training_inputs(cls, source: str, about: Mapping[str, Any]) -> TableInputs:
        pairs = read_split(EmbeddingData(), source, "test")
        return TableInputs([f"{a}\t{b}" for a, b in zip(pairs.first, pairs.second, strict=True)], pairs.note)

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        if options.search is not None:
            return search_file(loaded, inputs, options.search, options.nbest)
        pairs = [[tidy(part) for part in text.split("\t")] for text in inputs]
        good = [pair for pair in pairs if _problem(pair) is None]
        vectors = TextVectors.of(loaded)
        left, right = (vectors.embed([pair[side] for pair in good], SCORED) for side in (0, 1))
        vectors.reader.warn_of_cuts()
        answers = iter(cosines(left, right).tolist())
        found = []
        for text, pair in zip(inputs, pairs, strict=True):
            problem = _problem(pair)
            score = 0.0 if problem else float(next(answers))
            answer = [] if problem else [Answer(f"{score:.4f}", score, {"cosine": score})]
            found.append(Prediction(text, answer, problem))
        return found

    @classmethod
    def columns(cls, answer: Answer, scores: bool, alignments: bool) -> list[str]:
        cosine = [f"{answer.more['cosine']:.4f}"] if "line" in answer.more else []  # of a line that is like the text
        return [*super().columns(answer, scores, alignments), *cosine]
