"""Pictures and texts in one space: a picture near what describes it (CLIP).

The data are pictures with captions. Of the pairs of a batch, each picture has to find its own caption among all, and
each caption its picture; captions of one picture are no negatives of each other, and neither are equal captions.

    legato train image-text data.train=train.jsonl out=runs/i
    legato train image-text data.train=train.jsonl from.vision=efficientnet-lite0 train.frozen=[vision]
    legato predict runs/i photo.jpg --labels "a dog,a cat"
    legato predict runs/i "two dogs play" --search photos/
    legato embed runs/i --image photo.jpg
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator

from legato.config import Section
from legato.data.batching.batch import Batch
from legato.data.batching.batches import mix_seed
from legato.data.batching.picture_batches import PictureBatches, Pixels
from legato.data.image.scenes import SCENES
from legato.data.positions import Reading
from legato.data.processors import TEXT
from legato.data.text.text_reader import with_eos
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer
from legato.errors import ConfigError
from legato.evaluation.retrieval import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import Sizes
from legato.models.clip import CLIPConfig, CLIPModel
from legato.tasks.base import Plan, Say
from legato.tasks.captioning.captioned_job import CAPTIONED, CaptionedData, CaptionedJob
from legato.tasks.classification.prompting import listed_labels
from legato.tasks.defaults import Defaults, Given, Tuning, row_training
from legato.tasks.image_text.matcher import LABEL, Matcher, owners, pair_keys
from legato.tasks.image_text.reading import pair_reading
from legato.tasks.picture_data import PictureTask, encoder_model, positions_of, scenes_about
from legato.tasks.predictions import Answer, Prediction
from legato.training.job import Loss

ROWS = 128  # pairs in a batch: each has 127 others as negatives
SAMPLED = 64  # validation pictures among whose captions the samples are looked for


class ImageTextData(CaptionedData):
    """Where the pictures and captions are."""

    metric: Literal["recall", "text_recall_1", "image_recall_1", "loss"] = Field(
        "recall", description="what decides which model is best"
    )


class ImageTextOptions(Section):
    """How to predict."""

    labels: tuple[str, ...] | None = None  # the classes to choose from, by their names
    template: str = LABEL  # that a label is read in
    search: str | None = None  # a file of texts, or a folder of pictures, in which the nearest are looked for
    nbest: int | None = Field(None, ge=1)

    @field_validator("labels", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return listed_labels(value)


class ImageTextJob(CaptionedJob):
    """Training on pictures and their captions."""

    task = "image-text"
    use = 'legato predict FOLDER photo.jpg --labels "a dog,a cat"\nlegato embed FOLDER --image photo.jpg'
    likelihood = False  # the loss is none of tokens

    def __init__(self, plan: Plan, say: Say) -> None:
        assert isinstance(plan.model, CLIPConfig), "the defaults refuse others"
        if plan.data.augment.mixes:
            raise ConfigError("data.augment.mixup and cutmix make one picture of two, and no caption describes both")
        super().__init__(plan, say)
        train, text = self.parts["train"], plan.model.text_reader(self.tokenizer)
        _check_eos(plan.model.text.eos, text.alone[1], self.tokenizer)
        rows = text.texts(caption for each in train.captions for caption in each)
        rows = [
            replace(row, picture=owner, label=owner) for row, owner in zip(rows, owners(train), strict=True)
        ]  # by its label a row's picture is told from others
        self.batches = PictureBatches(
            rows,
            self.pixels["train"],
            plan.batch_shape(train.source),
            place="source",
            positions=positions_of(plan.model, self.reader.processor),
            augmentation=self.reader.changes,
            pad=text.padding,
            mixed=True,
        )
        self.speed_unit = self.batches.speed_unit
        self.pairs = self.batches.shape.batch_rows or 1
        if self.pairs < 2 * plan.train.accumulate:
            raise ConfigError(
                f"{self.pairs} pairs a step in {plan.train.accumulate} parts leave a pair no others to differ from; "
                "raise train.batch_rows, or lower train.accumulate"
            )
        say(f"{self.told()}; {len(rows):,} training captions, {self.pairs} pairs a step")
        if text.cut:
            say(f"note: {text.cut:,} training captions have more than {text.max_length} tokens; the rest is not read")
        shown = " ".join(self.tokenizer.token(token) for token in rows[0].ids[:24])
        say(f"the model will see: {train.names[0]} and {shown}")

    def make_tokenizer(self) -> AnyTokenizer:
        made = super().make_tokenizer()
        return with_eos(made) if self.plan.writer is None and isinstance(made, Tokenizer) else made

    @cached_property
    def sizes(self) -> Sizes:
        found = super().sizes
        return found if self.plan.writer is not None else replace(found, eos=self.tokenizer.eos_id)

    def matcher(self, model: CLIPModel) -> Matcher:
        return Matcher(model, self.tokenizer, self.reader.processor)

    def loss(self, model: CLIPModel, batch: Batch, state: Any) -> Loss:
        assert batch.source is not None
        assert batch.labels is not None
        source, _ = self.reader.read(batch.source)
        images, texts = model(replace(batch, source=source)).hidden.unbind(1)
        total = model.contrastive_losses(images, texts, pair_keys(batch.labels, batch.inputs.token_ids)).sum()
        return Loss(total, total)

    def score(self, model: CLIPModel, split: str) -> dict[str, Any]:
        matcher, rows = self.matcher(model), self.parts[split]
        images, texts = matcher.vectors(rows, self.pixels[split])
        return {"loss": matcher.loss(rows, images, texts, self.pairs), **matcher.score(rows, images, texts)}

    def samples(self, model: CLIPModel, count: int) -> list[str]:
        """Validation pictures, the nearest caption among those of some, and what people said."""
        names = self.parts["valid"].names
        chosen = sorted(range(len(names)), key=lambda row: mix_seed("sample", names[row]))[:SAMPLED]
        if not chosen or not count:
            return []
        few, matcher = self.parts["valid"].select(chosen), self.matcher(model)
        captions = [text for each in few.captions for text in each]
        images, texts = matcher.vectors(few, self.pixels["valid"].select(chosen))
        best = (images @ texts.T).argmax(1)
        return [
            f"{few.names[row]}\n→ {captions[best[row]]}\n= {few.captions[row][0]}"
            for row in range(min(count, len(few)))
        ]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"columns": self.parts["train"].columns, **scenes_about(self.plan)}

    batches: PictureBatches


def _check_eos(eos: int | str, behind: Sequence[int], tokenizer: AnyTokenizer) -> None:
    """Refuse a number of the EOS token, at which a text's vector is read, that ends no text."""
    if isinstance(eos, int) and eos not in behind:
        ends = f"end in {tokenizer.token(behind[-1])}, token {behind[-1]}" if behind else "have no token at their end"
        raise ConfigError(f"model.text.eos={eos} is where a text's vector is read, and texts {ends}; set that")


class ImageText(PictureTask):
    """The `image-text` task."""

    name = "image-text"
    pipeline = "zero-shot-image-classification"
    summary = "pictures and texts as vectors in one space: retrieval, classes by their names"
    default_model = "clip"
    Job = ImageTextJob
    Data = ImageTextData
    generated = (SCENES,)
    needs = "=FILE, a table with pictures and captions"
    tuples = ("image caption",)
    metrics = METRICS
    Options = ImageTextOptions
    input_name = "picture"
    processors = (TEXT, "image")
    continues = True
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        if not issubclass(given.config, CLIPConfig):
            name = given.model["name"]
            raise ConfigError(f"model={name} makes no vectors of pictures and texts; image-text needs model=clip")
        train = row_training(
            given, attention=5e-4, tuning=Tuning(full=1e-5), rows=ROWS, epochs=4 if given.toy else 30
        )
        if given.trained:
            return Defaults(train=train)
        model: dict[str, Any] = {"text": {"layers": 2, "width": 128, "length": 32}, "projection": 128}
        tokenizer: dict[str, Any] = {"name": "word"} if given.toy else {"name": "bpe", "lowercase": True}
        said = given.model.get("text")
        if isinstance(said, Mapping) and "name" in said:  # a trained tower, with its own tokenizer
            tokenizer = {}
        vision = encoder_model(given, "clip-vision", "vision")
        if given.toy and vision["vision"]["name"] == "clip-vision":
            vision["vision"] = {"layers": 3, "width": 128, **vision["vision"]}
        return Defaults(model=model if given.toy else {}, fixed=vision, train=train, tokenizer=tokenizer)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        matcher, test = Matcher.of(loaded), CAPTIONED.test(data, loaded)
        pixels = Pixels(test.pictures, matcher.processor, loaded.module.device, workers=data.workers)
        images, texts = matcher.vectors(test, pixels)
        matcher.texts.reader.warn_of_cuts()
        told = {"data": test.source, "sha256": test.sha256}
        return {**told, **matcher.score(test, images, texts), "details": matcher.details(test, images, texts)}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        matcher = Matcher.of(loaded)
        if options.search is not None:
            if options.labels is not None:
                raise ConfigError("give labels to choose from, or a place to search in, not both")
            return matcher.search(loaded, inputs, options.search, options.nbest or 5)
        if options.labels is None:
            raise ConfigError(
                f'{loaded.folder} knows what goes with what; say what to choose from: --labels "a dog,a cat", or '
                "--search with a file of texts or a folder of pictures"
            )
        return matcher.classify(inputs, options.labels, options.template, options.nbest or 1)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        return pair_reading(loaded, given)

    @classmethod
    def columns(cls, answer: Answer, scores: bool, alignments: bool) -> list[str]:
        cosine = [f"{answer.more['cosine']:.4f}"] if "cosine" in answer.more else []
        return [*super().columns(answer, scores and not cosine, alignments), *cosine]
