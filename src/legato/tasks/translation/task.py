"""Translation: any text to any text.

The data is pairs: two aligned files, two columns of a table, a dataset on the hub, or a generated toy. Both
sides share one vocabulary of subwords, or have one each (`data.joint=false`). With `data.directions`, one
model learns many languages: a tag before the source, `>>de<<`, chooses the language that is written, and a
direction that was never trained can be asked for.

    legato train translation data.train=[a.en,a.de] data.valid=[b.en,b.de] model=transformer out=runs/t
    legato predict runs/t "A dog runs."
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from legato.config import validate
from legato.data.batching.pair_batches import PairBatches, Side, TokenDraw
from legato.data.cache import cached_tokenizer
from legato.data.digests import sha256_of
from legato.data.formats.text import Text
from legato.data.formats.text_pairs import Pairs, clean, hold_out_pairs, read_pairs
from legato.data.positions import Reading
from legato.data.processors import Processors
from legato.data.sources.files import MAX_LINE
from legato.data.sources.patterns import Source
from legato.data.sources.toys import TOY, TOY_SOURCES, ToyConfig, toy_rows
from legato.data.splits import Encoding, MaxLine, SplitData, ValidShare, completed
from legato.data.text.bpe_dropout import BpeDropout
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.data.text.vocabularies import DEFAULT_SIZE, PAD
from legato.decoding import SearchOptions
from legato.decoding.options import MAX_BEAMS, MAX_TOKENS
from legato.errors import ConfigError, listed, suggest
from legato.evaluation.translation import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Plan, Say, Task
from legato.tasks.defaults import Defaults, Given, encoder_decoder_training
from legato.tasks.encoder_decoder import (
    BeamOptions,
    EncoderDecoderJob,
    TargetTokens,
    beam_options,
    longest_of,
    require_source,
    text_reading,
)
from legato.tasks.predictions import Answer, Prediction
from legato.tasks.table_inputs import TableInputs
from legato.tasks.translation.translator import NAMED, Translator, tag_token, tags_of

FEW = 100  # pairs: a score of fewer says little


class TranslationData(SplitData):
    """Where the pairs are and how they are prepared."""

    train: Source | None = Field(
        None, description="[a.en,a.de], a tsv, csv, jsonl or parquet file, a hub name or toy:NAME"
    )
    valid: Source | None = Field(None, description="left out: a share of the training pairs")
    columns: list[str | int] | None = Field(
        None, description="[source,target] of a table: names, or numbers from 1; left out: guessed, and said"
    )
    format: Literal["auto", "tsv", "csv", "jsonl", "parquet"] = Field(
        "auto", description="auto: by the file's ending"
    )
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    directions: list[str] | None = Field(
        None, description="[en-de,de-en,…] of files named as train.{}: one model for all, tags choose the target"
    )
    test_directions: list[str] | None = Field(
        None, description="directions to score at the end, also untrained ones; left out: those of training"
    )
    tag_column: str | int | None = Field(None, description="column of a table that holds the target's language")
    valid_share: ValidShare = 0.02
    test_share: float = Field(0.0, ge=0, lt=1, description="share held out as data.test, when that is left out")
    joint: bool = Field(True, description="one vocabulary for both sides; false: one each")
    bpe_dropout: float = Field(0.0, ge=0, lt=1, description="chance that a merge is skipped, drawn anew each epoch")
    max_length: int = Field(256, ge=1, description="tokens; longer training pairs are left out")
    max_ratio: float = Field(6.0, ge=0, description="longer side over shorter; beyond it left out; 0 for any")
    metric: Literal["bleu", "loss"] = Field("bleu", description="what decides which model is best")
    scored: int = Field(1000, ge=1, description="validation sentences that are translated for bleu, greedily")
    beams: int = Field(4, ge=1, le=MAX_BEAMS, description="of the scores at the end, and of legato predict")
    length_penalty: float = Field(1.0, ge=0, le=10, description="of the same: scores are log p / length^this")
    toy: ToyConfig = ToyConfig()

    @field_validator("max_ratio")
    @classmethod
    def _a_ratio_is_at_least_one(cls, ratio: float) -> float:
        if 0 < ratio < 1:
            raise ValueError("is below 1, and the longer side is never shorter; 0 accepts any")
        return ratio


class TranslationOptions(BeamOptions):
    """How to predict."""

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    to: str | None = None  # the language to write, for a model of many
    alignments: bool = False


def _read(data: TranslationData, source: Source, split: str) -> Pairs:
    return read_pairs(
        source,
        data.files(split),
        columns=data.columns,
        directions=(data.test_directions if split == "test" else None) or data.directions,
        tag_column=data.tag_column,
    )


def _toy_pairs(source: Any, toy: ToyConfig, seed: int, split: str) -> Pairs:
    rows = toy_rows(str(source).removeprefix(TOY), toy, split, seed)
    sources, targets = [list(side) for side in zip(*rows, strict=True)]
    lines, digest = list(range(1, len(rows) + 1)), sha256_of([repr(rows)])
    return Pairs(source=str(source), sources=sources, targets=targets, lines=lines, sha256=digest)


class TranslationJob(EncoderDecoderJob):
    """Training on pairs."""

    task = "translation"
    Predictor = Translator
    parts: dict[str, Pairs]

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        self.metric = plan.data.metric
        self.parts = self._read()
        self.hashes = {split: pairs.sha256 for split, pairs in self.parts.items()}
        self.tags = sorted({tag for pairs in self.parts.values() for tag in pairs.tags or []})
        self.use = 'legato predict FOLDER "A dog runs."' + (f" --to {self.tags[0]}" if self.tags else "")
        self.processors = Processors(*self._tokenizers())
        self.target_tokens = TargetTokens.of(self.target)
        self.batches = self._batches()
        self.valid = self._shortened(self.parts["valid"])
        size = (
            f"{self.target.size:,}" if self.sizes.source is None else f"{self.sizes.source:,} → {self.target.size:,}"
        )
        say(f"data: {self.counts} pairs, vocabulary {size} ({self.target.name})")
        say(f"the model will see: {self._preview()}")

    def _preview(self) -> str:
        """The first training pair, cut as the model gets it."""
        sides = (self.tokenizer, self.batches.sources.row(0)), (self.target, self.batches.targets.row(0))
        return " → ".join(
            " ".join(repr(side.token(int(i))) for i in ids[:16]) + " …" * (len(ids) > 16) for side, ids in sides
        )

    def _read(self) -> dict[str, Pairs]:
        data = self.plan.data

        def read(source: Source, split: str, train: Pairs | None) -> Pairs:
            toy = str(source).startswith(TOY)
            pairs = _toy_pairs(source, data.toy, self.plan.seed, split) if toy else _read(data, source, split)
            pairs, report = clean(pairs)
            if pairs.note:
                self.say(f"data.{split}: {pairs.note}")
            if report.left_out:
                self.say(f"data.{split}: {report}")
            # No language may be asked for that nothing teaches; another direction into a known one is fine.
            known = set((train or pairs).tags or [])
            if unknown := sorted(set(pairs.tags or []) - known):
                near = suggest(unknown[0], known)
                raise ConfigError(f"data.{split} asks for '{unknown[0]}', which no training pair is in; {near}")
            return pairs

        found = data.read(read)

        def hold_out(train: Pairs) -> dict[str, Pairs]:
            parts = hold_out_pairs(train, data.valid_share, 0.0 if "test" in found else data.test_share)
            for split, part in parts.items():
                if split != "train" and len(part) < FEW:
                    pairs = "1 pair is" if len(part) == 1 else f"{len(part)} pairs are"
                    share = f"data.{split}_share={data.valid_share if split == 'valid' else data.test_share:g}"
                    rough = f"only {pairs} held out, so its scores are rough"
                    self.say(f"data.{split}: {rough}; raise {share}, or give data.{split}")
            return parts

        return completed(found, hold_out)

    def _tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        train, config = self.parts["train"], self.plan.tokenizer
        special_tokens = [PAD, *map(tag_token, self.tags)]
        if self.plan.data.joint:
            joint = self._tokenizer(config, [*train.sources, *train.targets], "both", special_tokens)
            return joint, joint
        source = self._tokenizer(config, train.sources, "source", special_tokens)
        return source, self._tokenizer(config, train.targets, "target", [PAD])

    def _tokenizer(
        self, config: TokenizerConfig, texts: list[str], side: str, special_tokens: list[str]
    ) -> Tokenizer:
        digest = sha256_of([f"{self.hashes['train']} {side}"])
        if config.name in ("bpe", "unigram", "wordpiece"):  # the special tokens count among the vocabulary's size
            size = (config.size or DEFAULT_SIZE) - len(special_tokens)
            config = config.model_copy(update={"size": max(size, 257 if config.name == "bpe" else 1)})
        text = Text(self.parts["train"].source, texts, digest)
        return cached_tokenizer(config, text).with_special_tokens(special_tokens)

    def _batches(self) -> PairBatches:
        train = self.parts["train"]
        end, tags = self.tokenizer.eos_id, tags_of(train)
        heads = {tag: [] if tag is None else [self.tokenizer.id_of(tag_token(tag))] for tag in set(tags)}
        encoded = self.tokenizer.encode_many(train.sources)
        sources = [np.array([*heads[tag], *ids, end], dtype=np.int32) for ids, tag in zip(encoded, tags, strict=True)]
        targets = list(self.target.encode_many(train.targets))
        return self.paired(sources, targets, self.plan.batch_shape(train.source), self.plan.data.max_ratio, train)

    def draw(self, kept: Sequence[int]) -> TokenDraw | None:
        """Cuts of the pairs' texts that are new in each epoch."""
        if not self.plan.data.bpe_dropout:
            return None
        train = self.parts["train"].select(kept)
        dropout, seed = self.plan.data.bpe_dropout, self.plan.seed
        read = BpeDropout(self.tokenizer, dropout, seed)
        write = read if self.target is self.tokenizer else BpeDropout(self.target, dropout, seed)
        heads = [self.tokenizer.id_of(tag_token(tag)) or 0 for tag in train.tags] if train.tags else None
        cut = {
            "source": (read, read.read(train.sources, "source", before=heads, after=[self.tokenizer.eos_id])),
            "target": (write, write.read(train.targets, "target")),
        }

        def draw(pairs: Any, epoch: int, side: Side) -> Any:
            dropper, words = cut[side]
            return dropper.draw(words, pairs, epoch)

        return draw

    def _shortened(self, pairs: Pairs) -> Pairs:
        """The validation pairs that are translated at each validation, from all over: directions come in turn."""
        count = min(self.plan.data.scored, len(pairs))
        return pairs if count == len(pairs) else pairs.select([i * len(pairs) // count for i in range(count)])

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        translator, valid, max_length = self.predictor(model), self.valid, longest_of(model)
        read = (translator.source_ids(text, tag) for text, tag in zip(valid.sources, tags_of(valid), strict=True))
        sources = dict(islice(((i, ids) for i, ids in enumerate(read) if len(ids) <= max_length), count))
        found = translator.translate(list(sources.values()), SearchOptions())
        return [
            f"{valid.sources[index]}\n→ {self.target.decode(best[0].tokens)}\n= {valid.targets[index]}"
            for index, best in zip(sources, found, strict=True)
        ]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        data = self.plan.data
        told = super().about(metrics)
        if self.tags:
            told["tags"] = self.tags
        if data.directions:
            told["directions"] = data.directions
        if data.columns:
            told["columns"] = data.columns
        if str(data.train).startswith(TOY):
            told["toy"] = {"settings": data.toy.model_dump(mode="json"), "seed": self.plan.seed}
        return told


class Translation(Task):
    """The `translation` task."""

    name = "translation"
    pipeline = "translation"
    default_model = "transformer"
    summary = "any text to any text: translation, summaries, spelling"
    Job = TranslationJob
    Data = TranslationData
    generated = TOY_SOURCES
    needs = "=[source file,target file], or a table"
    tuples = ("source target",)
    metrics = METRICS
    Options = TranslationOptions

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        require_source(str(given.model["name"]), cls.name)
        toy: dict[str, Any] = {"data": {"beams": 1}, "tokenizer": {"name": "word"}} if given.toy else {}
        return Defaults(train=encoder_decoder_training(given), **toy)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        translator = Translator(loaded.module, loaded.tokenizer, loaded.target, loaded.start)
        if translator.tags and not (data.directions or data.test_directions or data.tag_column):
            # The directions of training, where the test has a place for languages.
            trained = loaded.about.get("directions")
            if not (trained and isinstance(data.test, str) and "{}" in data.test):
                raise ConfigError(
                    f"{loaded.folder} writes {listed(translator.tags, NAMED)}; say which: data.directions=[en-de] "
                    "and data.test=test.{}, or data.tag_column of a table"
                )
            data = data.model_copy(update={"directions": trained})
        if str(data.test).startswith(TOY):
            toy, seed = data.toy.as_trained(loaded.about.get("toy", {}))
            pairs, report = clean(_toy_pairs(data.test, toy, seed, "test"))
        else:
            pairs, report = clean(_read(data, data.test, "test"))
        given = data.model_dump(include={"beams", "length_penalty"} & data.model_fields_set)
        scores = translator.score(pairs, beam_options(loaded.about, **given))
        told = {"left_out": str(report)} if report.left_out else {}
        return {"data": pairs.source, "sha256": pairs.sha256, **scores, **told}

    @classmethod
    def training_inputs(cls, source: str, about: Mapping[str, Any]) -> TableInputs:
        pairs = _read(validate(TranslationData, {"columns": about.get("columns")}), source, "test")
        return TableInputs(pairs.sources, f"{source}: {pairs.note}")

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        translator = Translator(loaded.module, loaded.tokenizer, loaded.target, loaded.start)
        return translator.predict(inputs, options, loaded.about)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        translator = Translator(loaded.module, loaded.tokenizer, loaded.target, loaded.start)
        return text_reading(loaded, translator.read(given).tolist(), written or "")

    @classmethod
    def columns(cls, answer: Answer, scores: bool, alignments: bool) -> list[str]:
        """… and with `alignments` pairs of a source and a target word, counted from 0, as Pharaoh writes them."""
        pairs = " ".join(f"{source}-{target}" for source, target in answer.more.get("word_alignment", []))
        return [*super().columns(answer, scores, alignments), *([pairs] if alignments else [])]
