"""Questions about pictures (VQA): what is on the table? how many chairs are there?

An answer is one of those that stand in the training data: a class. Where several things are to be named, with commas
between them, they are one set, and that is a class of its own. Where a row has choices, the answer is one of them.

    legato train vqa data.train=train.tsv model.encoder=resnet out=runs/v
    legato train vqa data.train=train.tsv model.blind=true out=runs/blind        what the questions alone give away
    legato predict runs/v photo.jpg "What is on the table?"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from legato.data.batching.batch import Batch
from legato.data.batching.examples import ExampleBatches
from legato.data.batching.picture_batches import PictureBatches
from legato.data.cache import cached_tokenizer
from legato.data.formats.text import Text
from legato.data.formats.vector_files import initialise_embedding
from legato.data.formats.visual_questions import (
    VisualQuestions,
    questioned_scenes,
    read_asked,
    read_visual_questions,
    stated_scenes,
)
from legato.data.image.scenes import SCENES, ScenesConfig
from legato.data.positions import Reading
from legato.data.processors import TEXT, Processors
from legato.data.sources.files import resolve_path
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column
from legato.data.splits import ValidShare, hold_out_named
from legato.errors import ConfigError, warn
from legato.evaluation.vqa import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.registry import MODELS
from legato.tasks.base import Say, Task, as_trained
from legato.tasks.classification.labelled_job import LabelledJob
from legato.tasks.classification.task import ClassificationOptions
from legato.tasks.defaults import Defaults, Given, Tuning, row_training
from legato.tasks.picture_data import (
    PictureReader,
    PictureSource,
    PictureTableData,
    encoder_model,
    encoder_processor,
    positions_of,
    scenes_about,
)
from legato.tasks.predictions import Prediction
from legato.tasks.table_inputs import TableInputs
from legato.tasks.vqa.answerer import PictureAnswerer, answer_name, paired, question_rows
from legato.tasks.vqa.reading import question_reading
from legato.training.job import Loss


class VQAData(PictureTableData):
    """Where the pictures, questions and answers are."""

    train: Source | None = Field(None, description="a table with pictures, questions and answers, or toy:scenes")
    valid: Source | None = Field(None, description="left out: the questions about a share of the training pictures")
    valid_share: ValidShare = 0.1
    answers: int | None = Field(
        None, ge=2, description="how many answers are learned, the most frequent ones; left out: all"
    )
    choices: bool | None = Field(
        None, description="answer with one of a row's choices; left out: where a table has a column of them"
    )
    statements: bool = Field(False, description="of toy:scenes, statements that are true or false, for questions")
    vectors: str | None = Field(None, description="GloVe or word2vec text file that the embedding begins with")
    max_length: int | None = Field(None, ge=1, description="tokens; longer questions are cut; left out: none are")
    metric: Literal["accuracy", "loss"] = Field("accuracy", description="what decides which model is best")

    # What other labels may be: answers are classes, named by what stands in the data.
    kind: ClassVar[str] = "classes"
    labels: ClassVar[list[str] | None] = None
    separator: ClassVar[str] = ";"
    unseen_labels: ClassVar[str] = "wrong"
    class_weights: ClassVar[str] = "none"


def questions(choices: bool | None, statements: bool = False) -> PictureSource[VisualQuestions]:
    """What reads questions, with the `choices` that a row has for its answer; of scenes perhaps `statements`."""

    def drawn(scenes: ScenesConfig, split: str, seed: int) -> VisualQuestions:
        if statements:
            return _named(stated_scenes(scenes, split, seed))
        return _named(questioned_scenes(scenes, split, seed, bool(choices)))

    return PictureSource(
        lambda source, files, **how: _named(read_visual_questions(source, files, choices=choices, **how)),
        {SCENES: drawn},
    )


def _named(rows: VisualQuestions) -> VisualQuestions:
    """With answers as classes are called."""
    return replace(rows, labels=[answer_name(answer) for answer in rows.labels])


class VQAJob(LabelledJob):
    """Training on questions about pictures."""

    task = "vqa"
    unit = "question"
    use = 'legato predict FOLDER photo.jpg "What is on the table?"'
    pictures: PictureReader | None = None  # None: the model is blind

    def check(self) -> None:
        plan = self.plan
        model = MODELS.get(plan.model.name)
        lacks = [kind for kind in (TEXT, "image") if kind not in model.processors]
        if lacks:
            reads = "pictures beside a question" if "image" in lacks else "questions beside a picture"
            raise ConfigError(f"model={plan.model.name} reads no {reads}; use model=vqa")
        self.blind = "image" not in model.processors_of(plan.model)
        if plan.data.augment.mixes:
            raise ConfigError("data.augment.mixup and cutmix make one picture of two, and no question is about both")
        if plan.data.vectors is not None and plan.loaded is not None:
            raise ConfigError("from=MODEL brings its own embedding; leave out data.vectors")

    def read_split(self, source: Source, split: str, train: Any) -> VisualQuestions:
        data = self.plan.data
        return questions(data.choices, data.statements).read(data, source, split, self.plan.seed)

    def hold_out(self, train: Any) -> dict[str, Any]:
        return hold_out_named(train, self.plan.data.valid_share, "picture")

    def read(self, say: Say) -> dict[str, Any]:
        """The rows of each split; of training, those whose answers are learned."""
        parts, most = super().read(say), self.plan.data.answers
        if most is None:
            return parts
        train = parts["train"]
        counts = sorted(Counter(train.labels).items(), key=lambda item: (-item[1], item[0]))
        kept = {name for name, _ in counts[:most]}
        rows = [row for row, label in enumerate(train.labels) if label in kept]
        if len(rows) < len(train):
            rest = f"{len(counts) - len(kept):,} others, of {len(train) - len(rows):,} questions, are not"
            say(f"the {len(kept):,} most frequent answers are learned; {rest}")
        return {**parts, "train": train.select(rows)}

    def class_names(self, train: Any, say: Say) -> list[str] | None:
        return None

    def make_rows(self) -> None:
        plan, train = self.plan, self.data["train"]
        text = Text(train.source, train.texts, train.sha256)
        tokenizer = plan.processors_for(lambda: cached_tokenizer(plan.tokenizer, text)).tokenizer
        processor = None if self.blind else encoder_processor(plan)
        self.processors = Processors(tokenizer, others={} if processor is None else {"image": processor})
        self.reader = plan.model.text_reader(tokenizer, plan.data.max_length)
        self.rows = {
            split: question_rows(self.reader, rows, self.meaning, self.wanted[split])
            for split, rows in self.data.items()
        }
        self.album = {split: rows.album()[0] for split, rows in self.data.items()}
        shape = plan.batch_shape(train.source)
        if processor is None:
            self.batches = ExampleBatches(self.rows["train"], shape, pad=self.reader.padding, salt="pictures")
            return
        self.pictures = PictureReader(plan, processor)
        self.say(f"decoding {sum(map(len, self.album.values())):,} pictures …")
        self.pixels = {split: self.pictures.pixels(album) for split, album in self.album.items()}
        self.batches = PictureBatches(
            self.rows["train"],
            self.pixels["train"],
            shape,
            place="images",
            positions=positions_of(plan.model, processor),
            augmentation=self.pictures.changes,
            pad=self.reader.padding,
        )
        self.speed_unit = self.batches.speed_unit

    def tell(self, say: Say) -> None:
        pictures = ", ".join(f"{len(album):,} {split}" for split, album in self.album.items())
        shape = "" if self.pictures is None else " of {} × {} pixels".format(*self.pixels["train"].shape[:2])
        say(f"{self.counts}; {pictures} pictures{shape}; vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})")
        shown = " ".join(self.tokenizer.token(int(token)) for token in self.rows["train"][0].ids[:24])
        picture = "no picture" if self.blind else self.data["train"].pictures[0].name
        say(f"the model will see: {picture} and {shown} → {self.meaning.shown(self.wanted['train'][0])}")

    def initialise(self, model: Any) -> None:
        data = self.plan.data
        if data.vectors is not None:
            initialise_embedding(model, self.tokenizer, resolve_path(data.vectors, data.root), self.say)

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        if self.pictures is not None and batch.images is not None:
            batch = replace(batch, images=self.pictures.read(batch.images)[0])
        return self.loss_of(model(batch), batch)

    def classifier(self, model: SequenceModel, split: str) -> PictureAnswerer:
        processor = None if self.pictures is None else self.pictures.processor
        pixels, truth = None if self.pictures is None else self.pixels[split], self.data[split].labels
        return PictureAnswerer(model, self.reader, self.meaning, processor=processor, pixels=pixels, truth=truth)

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        data = self.plan.data
        told = {"choices": data.choices, "max_length": data.max_length}
        told |= {"statements": True} if data.statements else {}
        return {**super().about(metrics), **told, **scenes_about(self.plan)}


class VQA(Task):
    """The `vqa` task."""

    name = "vqa"
    pipeline = "visual-question-answering"
    summary = "answers to questions about pictures"
    default_model = "vqa"
    Job = VQAJob
    Data = VQAData
    generated = (SCENES,)
    needs = "=FILE, a table with pictures, questions and answers"
    tuples = ("image question answer",)
    metrics = METRICS
    Options = ClassificationOptions
    Input: ClassVar[type | tuple[type, ...]] = (tuple, str)
    input_name = "question"
    processors = (TEXT, "image")
    continues = True
    rows = True
    headed = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        epochs = 3 if given.toy else 20  # a scene has many questions, and there are as many scenes as one likes
        train = row_training(given, recurrent=1e-3, attention=1e-3, tuning=Tuning(full=1e-4), rows=64, epochs=epochs)
        blind = str(given.model.get("blind", False)).lower() == "true"
        encoder = {} if blind or "encoder" not in given.config.model_fields else encoder_model(given, "resnet")
        tokenizer = {"name": "word", "lowercase": True, "min_count": 1 if given.toy else 2}
        return Defaults(fixed=encoder, train=train, tokenizer=tokenizer)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        answerer = PictureAnswerer.of(loaded)
        choices, statements = (as_trained(data, key, loaded.about) for key in ("choices", "statements"))
        test = questions(choices, bool(statements)).test(data, loaded)
        scores, details = answerer.score(test)
        if note := answerer.labels.unseen_note(test, "data.test"):
            warn(note)
        told = {"data": test.source, "sha256": test.sha256, "questions": len(test), "pictures": len(test.album()[0])}
        return {**told, **scores, "details": details}

    @classmethod
    def inputs_of(cls, texts: Sequence[str]) -> list[str]:
        return paired(texts)

    @classmethod
    def read_inputs(
        cls, source: str, about: Mapping[str, Any], columns: Sequence[Column] | None = None, *, alone: bool = False
    ) -> TableInputs:
        return TableInputs(*read_asked(source, columns))

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        return PictureAnswerer.of(loaded).predict(inputs, options.nbest)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        return question_reading(loaded, given)
