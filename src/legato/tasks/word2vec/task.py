"""word2vec: a vector for each word, learned from the words near it.

    legato train word2vec data.train=T.txt model.mode=cbow out=runs/w
    legato predict runs/w "great" "king - man + woman"

The vectors are types': *die* is the same in "to die" and in "roll the die". A line is a sentence, and windows stay
within it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from legato.config import Section
from legato.data.batching.batch import Batch
from legato.data.batching.skip_grams import SkipGrams
from legato.data.cache import cached_ids, cached_tokenizer
from legato.data.formats.text import Text
from legato.data.sources.corpora import CORPUS_SOURCES
from legato.data.sources.files import resolve_path
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import ConfigError, DataError
from legato.evaluation.word2vec import METRICS, analogy_scores, nearest, similarity_scores
from legato.folders.finite_scores import check_finite
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.word2vec import Word2VecModel
from legato.tasks.base import Plan, Say, Task, TaskJob
from legato.tasks.defaults import Defaults, Given, TrainDefaults
from legato.tasks.predictions import Answer, Prediction
from legato.tasks.text_data import TextData, read_split, read_splits
from legato.training.job import Loss

VALID_SEED = 1  # of the windows and negatives that are scored: always the same ones
SHOWN = 6  # neighbours of a sample


class Word2VecData(TextData):
    """Where the text is, and which words count as near."""

    window: int = Field(5, ge=1, description="words on each side, at most; how many is drawn for each word")
    negatives: int = Field(5, ge=1, description="words drawn at random for each pair")
    subsample: float = Field(
        1e-3, ge=0, lt=1, description="share of the text beyond which words are left out; 0: all"
    )
    analogies: str | None = Field(None, description="a file of 'man king woman queen' lines to score with")
    similarity: str | None = Field(None, description="a file of 'word word score' lines to score with")


class Word2VecOptions(Section):
    """How to predict."""

    nbest: int = Field(10, ge=1)


def _vectors_of(loaded: Loaded) -> Word2VecModel:
    if not isinstance(loaded.module, Word2VecModel):
        raise DataError(f"{loaded.folder} holds a {loaded.module.config.name}, not vectors of words")
    check_finite(loaded.module.embedding.weight, loaded.module)
    return loaded.module


def _neighbours(vectors: Tensor, tokenizer: AnyTokenizer, text: str, count: int) -> Prediction:
    """The words nearest to a word, or to a sum: `king - man + woman`."""
    wanted, given, sign = torch.zeros_like(vectors[0]), [], 1
    for word in text.split():
        if word in ("+", "-"):
            sign = 1 if word == "+" else -1
            continue
        known = find_word(tokenizer, word)
        if known is None:
            return Prediction(text, problem=f"'{word}' is no word of the model's vocabulary")
        wanted = wanted + sign * torch.nn.functional.normalize(vectors[known], dim=0)
        given.append(known)
        sign = 1
    if not given:
        return Prediction(text, problem="there is no word; write one, or a sum such as 'king - man + woman'")
    found, cosines = nearest(vectors, wanted[None], count, {*given, *_left_out(tokenizer), tokenizer.eos_id})
    answers = [
        Answer(tokenizer.token(index), cosine, {"word": text, "cosine": cosine})
        for index, cosine in zip(found[0], cosines[0], strict=True)
        if cosine > -torch.inf
    ]
    return Prediction(text, answers)


def find_word(tokenizer: AnyTokenizer, word: str) -> int | None:
    """The number of a word; None where it has none, and for special tokens."""
    found = tokenizer.id_of(word)
    found = tokenizer.id_of(word.lower()) if found is None else found
    return None if found in (tokenizer.unk_id, *tokenizer.special_ids) else found


def _left_out(tokenizer: AnyTokenizer) -> list[int]:
    """What is no word, the end of a line aside."""
    unknown = [] if tokenizer.unk_id is None else [tokenizer.unk_id]
    return sorted({*tokenizer.special_ids, *unknown} - {tokenizer.eos_id})


def word_scores(vectors: Tensor, tokenizer: AnyTokenizer, data: Word2VecData) -> dict[str, float]:
    """Analogies and similarity, where there are files of them."""
    find = partial(find_word, tokenizer)
    scores: dict[str, float] = {}
    hidden = [*_left_out(tokenizer), tokenizer.eos_id]
    if data.analogies is not None:
        scores |= analogy_scores(vectors, find, resolve_path(data.analogies, data.root), hidden)
    if data.similarity is not None:
        scores |= similarity_scores(vectors, find, resolve_path(data.similarity, data.root))
    return scores


def _batches(
    text: Text, tokenizer: AnyTokenizer, data: Any, rows: int, seed: int, mode: str, counts: Any = None
) -> SkipGrams:
    ids = np.asarray(cached_ids(text, tokenizer))
    if counts is None:
        counts = np.bincount(ids, minlength=tokenizer.size)
    return SkipGrams(
        ids,
        counts,
        end=tokenizer.eos_id,
        left_out=_left_out(tokenizer),
        rows=rows,
        window=data.window,
        subsample=data.subsample,
        seed=seed,
        means=mode == "cbow",
        name=text.source,
    )


def score(model: SequenceModel, batches: SkipGrams, negatives: int) -> float:
    """The mean loss of a pair (CBOW: of a word) over one epoch of `batches`."""
    total, pairs = 0.0, 0
    for step in range(batches.steps_per_epoch):
        batch = batches.at(step).to(model.device)
        total += float(model.contrast(batch, negatives))  # type: ignore[operator]
        pairs += batch.tokens
    return total / max(pairs, 1)


class Word2VecJob(TaskJob):
    """Training on a text."""

    task = "word2vec"
    use = 'legato predict FOLDER "great"'
    likelihood = False  # the loss is none of tokens
    metric = "loss"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        if plan.model.name != "word2vec":
            raise ConfigError(
                f"word2vec trains vectors, and model={plan.model.name} is more than those; leave it out"
            )
        self.texts = read_splits(plan.data)
        self.hashes = {split: text.sha256 for split, text in self.texts.items()}
        self.processors = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, self.texts["train"]))
        ids = cached_ids(self.texts["train"], self.tokenizer)
        self.counts = np.bincount(ids, minlength=self.tokenizer.size)
        rows = plan.train.batch_tokens
        self.batches = self._split("train", rows, plan.seed)
        self.scored = {
            split: self._split(split, min(rows, 4096), VALID_SEED) for split in self.texts if split != "train"
        }
        kept = self.batches.steps_per_epoch * self.batches.rows
        say(
            f"data: {len(ids):,} training tokens, some {kept:,} an epoch after subsampling, vocabulary "
            f"{self.tokenizer.size:,} ({self.tokenizer.name})"
        )
        first = self.batches.at(0)
        assert first.targets is not None
        near = [self.tokenizer.token(int(i)) for i in first.targets[0] if i >= 0]
        centre = self.tokenizer.token(int(first.inputs.token_ids[0, 0]))
        say(f"the model will see: {centre!r} near {' '.join(map(repr, near))} …")

    def _split(self, split: str, rows: int, seed: int) -> SkipGrams:
        mode = self.plan.model.mode  # type: ignore[attr-defined]
        return _batches(self.texts[split], self.tokenizer, self.plan.data, rows, seed, mode, self.counts)

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        total = model.contrast(batch, self.plan.data.negatives)  # type: ignore[operator]
        return Loss(total, total)

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        assert isinstance(model, Word2VecModel)
        scores = {"loss": score(model, self.scored[split], self.plan.data.negatives)}
        return scores | word_scores(model.embedding.weight, self.tokenizer, self.plan.data)

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Common words of some length, and those nearest to them."""
        assert isinstance(model, Word2VecModel)
        common = np.argsort(-self.counts, kind="stable")[: 20 * count + 200]
        words = [int(i) for i in common if (name := self.tokenizer.token(int(i))).isalpha() and len(name) > 4]
        shown = words[:: max(1, len(words) // max(count, 1))][:count]
        vectors, said = model.embedding.weight, []
        for word in shown:
            hidden = [word, *_left_out(self.tokenizer), self.tokenizer.eos_id]
            found, cosines = nearest(vectors, vectors[word][None], SHOWN, hidden)
            near = zip(map(self.tokenizer.token, found[0]), cosines[0], strict=True)
            listed = ", ".join(f"{name} {cosine:.2f}" for name, cosine in near)
            said.append(f"{self.tokenizer.token(word)} → {listed}")
        return said

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"window": self.plan.data.window}


class Word2Vec(Task):
    """The `word2vec` task."""

    name = "word2vec"
    pipeline = "feature-extraction"
    default_model = "word2vec"
    lists_answers = True
    summary = "word vectors: one for each word, from the words near it"
    Job = Word2VecJob
    Data = Word2VecData
    generated = CORPUS_SOURCES
    needs = "=FILE, or data.{split}=builtin:stdlib to try"
    tuples = ("text",)
    metrics = METRICS
    Options = Word2VecOptions

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        words = given.tokenizer.get("name", "word") == "word"
        train = TrainDefaults(batch_tokens=4096, epochs=None if "steps" in given.train else 5, schedule="linear")
        if given.adamw:
            train["lr"] = 0.01
        return Defaults(tokenizer={"name": "word", "min_count": 5} if words else {}, train=train)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        module = _vectors_of(loaded)
        told: dict[str, Any] = {}
        if data.test is not None:
            text = read_split(data, data.test, "test")
            batches = _batches(text, loaded.tokenizer, data, 4096, VALID_SEED, module.config.mode)
            told = {"data": text.source, "sha256": text.sha256, "loss": score(module, batches, data.negatives)}
        elif data.analogies is None and data.similarity is None:
            raise ConfigError(
                "'data.test' is needed; set data.test=FILE, data.analogies=FILE or data.similarity=FILE"
            )
        told.setdefault("data", data.analogies or data.similarity)
        return told | word_scores(module.embedding.weight, loaded.tokenizer, data)

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        vectors = _vectors_of(loaded).embedding.weight
        return [_neighbours(vectors, loaded.tokenizer, text, options.nbest) for text in inputs]

    @classmethod
    def columns(cls, answer: Answer, scores: bool, alignments: bool) -> list[str]:
        return [*super().columns(answer, scores, alignments), f"{answer.more['cosine']:.4f}"]
