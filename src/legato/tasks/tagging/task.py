"""Tagging: say something of every word, such as its part of speech, or which name it belongs to.

    EU/B-ORG rejects/O German/B-MISC call/O

Any model that reads a text can learn it: a bidirectional LSTM over words and their letters, the window network, a
Transformer from scratch, or a trained encoder, tuned or frozen (`from=MODEL adapt=…`). Words that a tokenizer cuts
into pieces are tagged at the first of them. With `head.crf=true` neighbouring tags are scored
together (nn/losses/crf.py).

    legato train tagging data.train=eng.train data.valid=eng.testa data.test=eng.testb from=MODEL out=runs/ner
    legato predict runs/ner "EU rejects German call"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import torch.nn.functional as F

from legato.config import Section, validate
from legato.data.batching.batch import IGNORE, Batch
from legato.data.batching.batches import Batches
from legato.data.batching.examples import Example, ExampleBatches, RareWords
from legato.data.cache import cached_tokenizer
from legato.data.digests import sha256_of
from legato.data.formats.tag_schemes import OUTSIDE, Scheme, convert, guess_scheme, kind_of, labels_of, transitions
from legato.data.formats.text import Text
from legato.data.formats.vector_files import initialise_embedding, read_vectors
from legato.data.positions import Reading, row_reading
from legato.data.sources.files import resolve_path
from legato.data.text.tokenizers import Tokenizer
from legato.errors import ConfigError, DataError, FolderError, suggest, warn
from legato.evaluation.tagging import METRICS, signature
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec
from legato.nn.losses.crf import log_likelihood
from legato.registry import MODELS
from legato.tasks.base import Plan, Say, Task, TaskJob, as_trained, penalised
from legato.tasks.defaults import Defaults, Given, scratch_tokenizer, tagger_model, tagger_training
from legato.tasks.predictions import Prediction
from legato.tasks.table_inputs import TableInputs
from legato.tasks.tagging.tagger import NumberedWindows, Tagger, pad_characters, read_windows, read_words, shown_tags
from legato.tasks.tagging.tagging_data import (
    TaggingData,
    read_split,
    read_splits,
    refuse_strays,
    refuse_unseen,
    tags_in,
    told_repairs,
    unseen_note,
)
from legato.tasks.tagging.word_splitting import Splitting, splitting_of, word_places
from legato.training.job import Loss


def tagger_of(loaded: Loaded, data: Any = None) -> Tagger:
    """The tagger that a model folder holds; `data.valid_transitions` may be chosen anew."""
    about = loaded.about
    rules = bool(as_trained(data or TaggingData(), "valid_transitions", about))
    labels, shape = about.get("labels"), loaded.module.shape
    if not isinstance(labels, list) or shape is None or shape.outputs != len(labels):
        raise FolderError(f"{loaded.folder}: its config.json does not name the tags; was it trained for tagging?")
    reader = loaded.module.config.text_reader(loaded.tokenizer)
    scheme = about.get("scheme", "plain")
    zero_digits, splitting = bool(about.get("zero_digits", False)), str(about.get("splitting", "treebank"))
    if splitting not in get_args(Splitting):
        raise FolderError(f"{loaded.folder}: splitting is '{splitting}'; {suggest(splitting, get_args(Splitting))}")
    return Tagger(loaded.module, reader, labels, scheme, rules, zero_digits, cast(Splitting, splitting))


class TaggingJob(TaskJob):
    """Training on tagged sentences."""

    task = "tagging"
    labels: list[str]
    use = 'legato predict FOLDER "EU rejects German call"'
    likelihood = False  # the loss is none of tokens

    def __init__(self, plan: Plan, say: Say) -> None:
        data = plan.data
        if plan.loaded is None and plan.model.reads_characters and plan.tokenizer.name != "word":
            raise ConfigError(
                f"model={plan.model.name} reads the letters of whole words here, and "
                f"tokenizer={plan.tokenizer.name} cuts them; leave that out, or set model.characters=0"
            )
        super().__init__(plan, say)
        self._notes: list[str] = []  # said when nothing is wrong
        self._readings: dict[str, list[NumberedWindows]] = {}
        self.texts = read_splits(data)
        self.hashes = {split: text.sha256 for split, text in self.texts.items()}
        self.scheme = self._scheme()
        self.labels = self._labels()
        self.tags = {split: tags_in(text, self.scheme) for split, text in self.texts.items()}
        self.metric: str = data.metric or ("accuracy" if self.scheme == "plain" else "f1")
        if self.metric == "f1" and self.scheme == "plain":
            raise ConfigError("data.metric=f1 is for tags of names, such as B-PER; use data.metric=accuracy")
        self.zero_digits = self._zero_digits()
        self.splitting = splitting_of(self._words("train"))
        self.processors = plan.processors_for(self._train_tokenizer)
        self.reader = (plan.model if plan.loaded is None else plan.loaded.module.config).text_reader(self.tokenizer)
        rules = self.scheme != "plain" and data.valid_transitions and plan.head.crf
        allowed = transitions(self.labels, self.scheme).tolist() if rules else None
        shape = {"kind": "tags", "outputs": len(self.labels), "allowed": allowed}
        self.head = validate(HeadSpec, {**plan.head.model_dump(), **shape}, "head")
        self.batches = self._batches()
        self._tell()

    def _scheme(self) -> Scheme:
        """The scheme that is learned; what is said of the one that the files are in."""
        train, wanted = self.texts["train"], self.plan.data.scheme
        refuse_strays(train, wanted)
        written = guess_scheme(sentence.tags for sentence in train.sentences)
        usual: dict[Scheme, Scheme] = {"iob1": "iob2", "bilou": "iobes"}
        scheme: Scheme = usual.get(written, written) if wanted == "auto" else wanted
        if written == "plain" and scheme != "plain":
            raise ConfigError(
                f"data.scheme={scheme} is for tags of names, such as B-PER; those of {train.source} are none"
            )
        read = f"reading column {train.columns[0]} as words and {train.columns[1]} as tags"
        told = {"plain": "plain tags"}.get(written, f"names in {written.upper()}")
        self._notes.append(f"{train.source}: {read}, {told}")
        self._notes[0] += f", learned as {scheme.upper()}" if scheme != written else ""
        if scheme != "plain":
            for text in self.texts.values():
                if (note := told_repairs(text, written)) is not None:
                    self._notes.append(f"note: {note}")
        return scheme

    def _labels(self) -> list[str]:
        data, scheme = self.plan.data, self.scheme
        kinds = {kind_of(tag, scheme) for sentence in self.texts["train"].sentences for tag in sentence.tags}
        known = kinds if scheme == "plain" else kinds | {OUTSIDE}
        for split, text in self.texts.items():
            if split == "train" or data.unseen_tags == "refuse":
                refuse_unseen(text, known, scheme, "data.train")
            elif note := unseen_note(text, known, scheme, f"data.{split}"):
                self._notes.append(f"note: {note}")
        labels = labels_of(kinds, scheme)
        if len(labels) < 2:
            raise DataError(
                f"{self.texts['train'].source} has one tag, '{labels[0]}', so there is nothing to learn; set "
                "data.tag to the right column"
            )
        return labels

    def _zero_digits(self) -> bool:
        wanted, loaded = self.plan.data.zero_digits, self.plan.loaded
        if wanted is not None:
            return bool(wanted)
        if loaded is not None:
            return bool(loaded.about.get("zero_digits", False))  # as it has read before
        # Vectors that come from elsewhere know numbers as they are written.
        return self.plan.tokenizer.name == "word" and self.plan.tokenizer.path is None and not self.plan.data.vectors

    def _words(self, split: str) -> list[list[str]]:
        return [sentence.words for sentence in self.texts[split].sentences]

    def _train_tokenizer(self) -> Tokenizer:
        lines = [" ".join(read_words(words, self.zero_digits)) for words in self._words("train")]
        if self.plan.data.vectors is not None and self.plan.tokenizer.name == "word":
            lines += self._words_with_vectors()
        digest = sha256_of([f"{self.hashes['train']} {self.zero_digits} words {lines[-1]}"])
        return cached_tokenizer(self.plan.tokenizer, Text(self.texts["train"].source, lines, digest))

    def _words_with_vectors(self) -> list[str]:
        """Words of the other splits whose vectors are known: the model need not have seen them in training."""
        others = {word for split in self.texts if split != "train" for words in self._words(split) for word in words}
        others = set(read_words(sorted(others), self.zero_digits))
        known = read_vectors(self._vectors, others | {word.lower() for word in others})
        found = sorted(word for word in others if word in known.found or word.lower() in known.found)
        return [" ".join(found)] if found else []

    @property
    def _vectors(self) -> Path:
        return resolve_path(self.plan.data.vectors, self.plan.data.root)

    def _batches(self) -> Batches:
        plan, data = self.plan, self.plan.data
        rows = self._rows()
        shape = plan.batch_shape(self.texts["train"].source)
        batches: Batches = ExampleBatches(rows, shape, pad=self.reader.padding)
        unknown = self.tokenizer.unk_id
        if plan.loaded is None and self.tokenizer.name == "word" and unknown is not None and data.hide_rare:
            size = self.sizes.vocabulary
            batches = RareWords(batches, rows, size, unknown, share=data.hide_rare, seed=plan.seed)
        return batches

    def _rows(self) -> list[Example]:
        """The training sentences; one that the model cannot read at once is cut, each part with its tags in order."""
        numbers = {label: number for number, label in enumerate(self.labels)}
        sentences = [read_words(words, self.zero_digits) for words in self._words("train")]
        windows = read_windows(self.reader, sentences)
        for number, start, row in windows:
            tags = self.tags["train"][number][start : start + len(row.positions or ())]
            row.targets = [numbers[tag] for tag in convert(tags, self.scheme)]
        rows = [row for _, _, row in windows]
        if self.plan.device.type == "cuda":
            pad_characters(rows)
        if cut := len(rows) - len(sentences):
            self.say(
                f"note: sentences longer than the model's {self.reader.max_length} tokens were cut in {cut:,} places"
            )
        return rows

    def _tell(self) -> None:
        for note in self._notes:
            self.say(note)
        counts = ", ".join(f"{len(text.sentences):,} {split}" for split, text in self.texts.items())
        shown = ", ".join(self.labels[:12]) + (", …" if len(self.labels) > 12 else "")
        digits = ", digits read as 0" if self.zero_digits else ""
        self.say(
            f"data: {counts} sentences, {self.texts['train'].words:,} training words, {len(self.labels)} tags "
            f"({shown}), vocabulary {self.tokenizer.size:,} ({self.tokenizer.name}{digits})"
        )
        batch = self.batches.at(0)
        length = batch.inputs.token_ids.shape[1] if batch.inputs.lengths is None else int(batch.inputs.lengths[0])
        ids = batch.inputs.token_ids[0, : min(length, 24)].tolist()
        self.say("the model will see: " + " ".join(self.tokenizer.token(i) for i in ids) + " …" * (length > 24))

    def initialise(self, model: SequenceModel) -> None:
        """Begin with pre-trained vectors, where there are any."""
        if self.plan.data.vectors is not None:
            initialise_embedding(model, self.tokenizer, self._vectors, self.say)

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        return tagging_loss(model, batch, self.plan.train.label_smoothing)

    def final(self, model: SequenceModel) -> dict[str, Any]:
        return {**super().final(model), "signature": signature(self.scheme)}

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        tagger = self._tagger(model)
        if split not in self._readings:  # once, whatever the model has learned
            self._readings[split] = tagger.read(self._words(split))
        return tagger.score(self._readings[split], self.tags[split])[0]

    def _tagger(self, model: SequenceModel) -> Tagger:
        rules = self.plan.data.valid_transitions
        return Tagger(model, self.reader, self.labels, self.scheme, rules, self.zero_digits, self.splitting)

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation sentences with their tags."""
        words = [words for words in self._words("valid") if 4 <= len(words) <= 20][:count]
        tagger = self._tagger(model)
        guesses = tagger.choose(tagger.emissions(tagger.read(words)))
        return [shown_tags(one, guess.tags) for one, guess in zip(words, guesses, strict=True)]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        data = self.plan.data
        told: dict[str, Any] = {"labels": self.labels, "scheme": self.scheme}
        told |= {"columns": {"word": data.word, "tag": data.tag}, "valid_transitions": data.valid_transitions}
        told |= {"zero_digits": self.zero_digits, "splitting": self.splitting}
        return {**told, "unseen_tags": data.unseen_tags}


def tagging_loss(model: SequenceModel, batch: Batch, smoothing: float = 0.0) -> Loss:
    """Negative log-likelihood of the right tags, summed over words: each alone, or a sentence's together (CRF)."""
    output = model(batch)
    assert output.logits is not None
    assert batch.targets is not None
    crf = model.tag_crf
    if crf is not None:
        total = -log_likelihood(output.logits, crf.scores, batch.targets).sum()
        reported = total.detach()
    else:
        logits, targets = output.logits.float().flatten(0, 1), batch.targets.flatten()  # (N, C), (N,)
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
        reported = total.detach()
        if smoothing:
            reported = F.cross_entropy(logits.detach(), targets, ignore_index=IGNORE, reduction="sum")
    return Loss(penalised(total, output, (batch.targets != IGNORE).sum()), reported)


class Tagging(Task):
    """The `tagging` task."""

    name = "tagging"
    pipeline = "token-classification"
    summary = "a tag for every word: parts of speech, names and the like"
    Job = TaggingJob
    Data = TaggingData
    needs = " to a file with a word and its tag on each line"
    tuples = ("words tags",)
    metrics = METRICS
    Options = Section  # there is nothing to choose
    continues = True
    rows = True
    headed = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        name, config = str(given.model["name"]), given.config
        if MODELS.get(name).is_encoder_decoder:
            raise ConfigError(f"model={name} reads one text and writes another; use model=lstm, bert or window")
        # What does not attend reads whole words, be they as rare as they may.
        tokenizer = scratch_tokenizer(given) if config.network == "attention" else {"name": "word"}
        return Defaults(
            model=tagger_model(given, words={**tokenizer, **given.tokenizer}["name"] == "word"),
            tokenizer=tokenizer,
            train=tagger_training(given),
            head={"dropout": 0.0} if config.network == "recurrent" else {},  # its states are thinned out already
        )

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        tagger = tagger_of(loaded, data)
        columns = loaded.about.get("columns") or {}
        chosen = {key: as_trained(data, key, columns) for key in ("word", "tag")}
        text = read_split(data.model_copy(update=chosen), data.test, "test")
        kinds = {kind_of(label, tagger.scheme) for label in tagger.labels}
        if as_trained(data, "unseen_tags", loaded.about) == "refuse":
            refuse_unseen(text, kinds, tagger.scheme, str(loaded.folder))
        elif note := unseen_note(text, kinds, tagger.scheme, "data.test"):
            warn(note)
        words, gold = [sentence.words for sentence in text.sentences], tags_in(text, tagger.scheme)
        scores, guesses = tagger.score(tagger.read(words), gold)
        told = {"data": text.source, "sha256": text.sha256, "sentences": len(words), **scores}
        lines = [sentence.lines for sentence in text.sentences]
        details = tagger.details(words, gold, guesses, lines)
        return {**told, "signature": signature(tagger.scheme), "details": details}

    @classmethod
    def training_inputs(cls, source: str, about: Mapping[str, Any]) -> TableInputs:
        text = read_split(validate(TaggingData, about.get("columns") or {}), source, "test")
        return TableInputs([" ".join(sentence.words) for sentence in text.sentences])

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[str], options: Any) -> list[Prediction]:
        return tagger_of(loaded).predict(inputs)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        tagger = tagger_of(loaded)
        words = [given[start:end] for start, end in word_places(given, tagger.splitting)]
        ((_, row), *more) = tagger.read([words])[0]
        if more:
            raise DataError(f"the text is read in {1 + len(more)} windows, and one is looked at; shorten it")
        return row_reading(row, loaded.tokenizer, tagger.reader.padding)
