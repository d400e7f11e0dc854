"""Captioning: what is on a picture, in words.

An encoder reads the picture as a grid of states, a decoder writes the caption and looks at the grid while it does
(Xu et al. 2015), or has one vector of it (`model.attention=none`; Vinyals et al. 2015), or is a Transformer's.

    legato train captioning data.train=train.jsonl model=seq2seq model.encoder=resnet out=runs/c
    legato train captioning data.train=train.jsonl model=seq2seq from.encoder=efficientnet-lite0 train.encoder_lr=0
    legato predict runs/c photo.jpg
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from legato.data.batching.batch import Batch
from legato.data.batching.batches import mix_seed
from legato.data.batching.picture_batches import PictureBatches, Pixels
from legato.data.cache import cached_tokenizer
from legato.data.formats.captions import Captions, captioned_scenes, read_captions
from legato.data.formats.picture_rows import hold_out_pictures
from legato.data.formats.text import Text
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.scenes import SCENES, ScenesConfig
from legato.data.processors import TEXT, Processors
from legato.data.sources.files import MAX_LINE
from legato.data.splits import Encoding, MaxLine, SplitData, TableFormat, ValidShare, completed
from legato.decoding import SearchOptions
from legato.decoding.options import MAX_BEAMS, MAX_TOKENS
from legato.evaluation.captioning import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.base import Answer, Plan, Prediction, Say, TaskJob
from legato.tasks.captioning.captioner import Captioner, caption_examples, caption_text
from legato.tasks.defaults import Defaults, Given, TrainDefaults
from legato.tasks.defaults import completed as completed_training
from legato.tasks.encoder_decoder import BeamOptions, TargetTokens, beam_options, pair_loss, require_source
from legato.tasks.picture_data import (
    PictureData,
    PictureReader,
    PictureTask,
    encoder_model,
    encoder_processor,
    positions_of,
    readable,
    scenes_about,
)
from legato.training.job import Loss


class CaptioningData(SplitData[str], PictureData):
    """Where the pictures and captions are."""

    train: str | None = Field(None, description="a table with pictures and captions, a hub name or toy:scenes")
    valid: str | None = Field(None, description="left out: a share of the training pictures")
    format: TableFormat = "auto"
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.05
    plain: bool = Field(True, description="learn captions in lower case, without punctuation, as they are scored")
    metric: Literal["cider", "bleu_4", "loss"] = Field("cider", description="what decides which model is best")
    scored: int = Field(1000, ge=1, description="validation pictures that are described at each validation, greedily")
    beams: int = Field(3, ge=1, le=MAX_BEAMS, description="of the scores at the end, and of legato predict")
    length_penalty: float = Field(1.0, ge=0, le=10, description="of the same: scores are log p / length^this")


class CaptioningOptions(BeamOptions):
    """How to predict."""

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)


def read_split(data: Any, source: str, split: str, seed: int, scenes: ScenesConfig | None = None) -> Captions:
    """The pictures that `source` names."""
    if source == SCENES:
        return captioned_scenes(scenes or data.scenes, split, seed)
    return read_captions(source, data.files(split), images=data.images, columns=data.columns)


class CaptioningJob(TaskJob):
    """Training on pictures and their captions."""

    task = "captioning"
    search = "greedy"
    use = "legato predict FOLDER photo.jpg"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data = plan.data
        self.metric = data.metric
        found = data.read(lambda source, split, train: self._read(source, split))
        self.parts = completed(found, lambda train: hold_out_pictures(train, data.valid_share))
        self.hashes = {split: rows.sha256 for split, rows in self.parts.items()}
        processor = encoder_processor(plan)
        self.processors = Processors(self._tokenizer(), others={"image": processor})
        self.reader = PictureReader(plan, processor)
        say(f"decoding {sum(map(len, self.parts.values())):,} pictures …")
        self.pixels = {split: self.reader.pixels(rows.pictures) for split, rows in self.parts.items()}
        valid = self.parts["valid"]
        count = min(data.scored, len(valid))
        self.valid = valid.select([row * len(valid) // count for row in range(count)])
        self.valid_pixels = self.pixels["valid"] if count == len(valid) else self.reader.pixels(self.valid.pictures)
        self.target_tokens = TargetTokens.of(self.tokenizer)
        train = self.parts["train"]
        longest = plan.model.max_length
        rows = caption_examples(train, self.tokenizer, self.target_tokens, longest=longest, plain=data.plain)
        self.batches = PictureBatches(
            rows,
            self.pixels["train"],
            plan.batch_shape(train.source),
            place="source",
            positions=positions_of(plan.model, processor),
            augmentation=self.reader.changes,
            pad=self.target_tokens.eos,
        )
        say(self._told(processor))
        say(f"the model will see: {train.names[0]} → {self.tokenizer.decode(rows[0].ids[1:])}")

    def _read(self, source: str, split: str) -> Captions:
        rows = read_split(self.plan.data, source, split, self.plan.seed)
        if rows.note:
            self.say(f"data.{split}: {rows.note}")
        return rows

    def _tokenizer(self) -> Any:
        train, plan = self.parts["train"], self.plan
        if plan.loaded is not None:
            return plan.loaded.tokenizer
        said = [caption_text(text) if plan.data.plain else text for each in train.captions for text in each]
        return cached_tokenizer(plan.tokenizer, Text(train.source, said, train.sha256 + str(plan.data.plain)))

    def _told(self, processor: ImageProcessor) -> str:
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in self.parts.items())
        height, width = processor.shape or (0, 0)
        words = f"vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})"
        return f"data: {counts} pictures of {height} × {width} pixels; {words}"

    def captioner(self, model: SequenceModel) -> Captioner:
        return Captioner(model, self.tokenizer, self.reader.processor, self.plan.data.plain)

    def loss(self, model: SequenceModel, batch: Batch, state: Any) -> Loss:
        assert batch.source is not None
        source, _ = self.reader.read(batch.source)
        return pair_loss(model, replace(batch, source=source), self.plan.train.label_smoothing)

    def validate(self, model: SequenceModel) -> dict[str, float]:
        scores, _ = self.captioner(model).score(self.valid, self.valid_pixels, SearchOptions())
        return {key: value for key, value in scores.items() if isinstance(value, int | float)}

    def score(self, model: SequenceModel, split: str) -> dict[str, Any]:
        return self.captioner(model).score(self.parts[split], self.pixels[split], beam_options(self.about({})))[0]

    def samples(self, model: SequenceModel, count: int) -> list[str]:
        """Validation pictures, what the model says of them, and what people said."""
        names = self.valid.names
        chosen = sorted(range(len(names)), key=lambda row: mix_seed("sample", names[row]))[:count]
        if not chosen:
            return []
        captioner, rows = self.captioner(model), self.valid.select(chosen)
        found = captioner.describe(self.reader.pixels(rows.pictures), SearchOptions())
        return [
            f"{name}\n→ {captioner.text(best[0])}\n= {said[0]}"
            for name, best, said in zip(rows.names, found, rows.captions, strict=True)
        ]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        data = self.plan.data
        told = {"beams": data.beams, "length_penalty": data.length_penalty, "plain": data.plain}
        return {**told, "columns": self.parts["train"].columns, **scenes_about(self.plan)}


class Captioning(PictureTask):
    """The `captioning` task."""

    name = "captioning"
    summary = "what is on a picture, in words"
    default_model = "seq2seq"
    Job = CaptioningJob
    Data = CaptioningData
    needs = "=FILE, a table with pictures and captions"
    metrics = METRICS
    Options = CaptioningOptions
    processors = (TEXT, "image")
    continues = True
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        require_source(str(given.model["name"]), cls.name)
        usual = TrainDefaults(lr=1e-3, beta2=0.98, schedule="cosine")
        epochs = 3 if given.toy else 20  # a scene has many captions, and there are as many scenes as one likes
        train = TrainDefaults(label_smoothing=0.1, samples=3, **completed_training(given, usual, 64, epochs))
        tokenizer = {"name": "word", "min_count": 1 if given.toy else 5}
        model = {"layers": 1, "width": 128} if given.toy and not given.trained else {}
        return Defaults(model=model, fixed=encoder_model(given, "resnet"), train=train, tokenizer=tokenizer)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        captioner = Captioner.of(loaded)
        scenes, seed = data.scenes.as_trained(loaded.about.get("toy", {}))
        test = read_split(data, data.test, "test", seed, scenes)
        pixels = Pixels(test.pictures, captioner.processor, loaded.module.device, workers=data.workers)
        given = data.model_dump(include={"beams", "length_penalty"} & data.model_fields_set)
        scores, written = captioner.score(test, pixels, beam_options(loaded.about, **given))
        told = {"data": test.source, "sha256": test.sha256, "pictures": len(test)}
        return {**told, **scores, "details": captioner.details(test, written)}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        captioner = Captioner.of(loaded)
        search = beam_options(loaded.about, options.beams, options.length_penalty, options.nbest)
        made, read = readable(list(inputs), captioner.processor)
        if read:
            pixels = Pixels(list(read.values()), captioner.processor, loaded.module.device)
            for number, best in zip(read, captioner.describe(pixels, search, options.max_tokens), strict=True):
                made[number].answers = [
                    Answer(captioner.text(h), h.score, {"logprob": h.logprob, "finished": h.finished}) for h in best
                ]
        return made
