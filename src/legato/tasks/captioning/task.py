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
from legato.data.image.scenes import SCENES
from legato.data.positions import Reading
from legato.data.processors import TEXT
from legato.decoding import SearchOptions
from legato.decoding.options import MAX_BEAMS, MAX_TOKENS
from legato.decoding.search_start import SearchStart
from legato.evaluation.captioning import METRICS
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.models.seq2seq import Seq2SeqConfig
from legato.tasks.base import Plan, Say
from legato.tasks.captioning.captioned_job import CAPTIONED, CaptionedData, CaptionedJob
from legato.tasks.captioning.captioner import Captioner, caption_examples, caption_text
from legato.tasks.defaults import Defaults, Given, TrainDefaults
from legato.tasks.defaults import completed as completed_training
from legato.tasks.encoder_decoder import (
    BeamOptions,
    TargetTokens,
    beam_options,
    longest_of,
    pair_loss,
    require_source,
    written_reading,
)
from legato.tasks.picture_data import PictureTask, encoder_model, placed_picture, positions_of, readable, scenes_about
from legato.tasks.predictions import Answer, Prediction
from legato.training.job import Loss


class CaptioningData(CaptionedData):
    """Where the pictures and captions are, and how they are learned and scored."""

    plain: bool = Field(True, description="learn captions in lower case, without punctuation, as they are scored")
    metric: Literal["cider", "bleu_4", "loss"] = Field("cider", description="what decides which model is best")
    scored: int = Field(1000, ge=1, description="validation pictures that are described at each validation, greedily")
    beams: int = Field(3, ge=1, le=MAX_BEAMS, description="of the scores at the end, and of legato predict")
    length_penalty: float = Field(1.0, ge=0, le=10, description="of the same: scores are log p / length^this")


class CaptioningOptions(BeamOptions):
    """How to predict."""

    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)


class CaptioningJob(CaptionedJob):
    """Training on pictures and their captions."""

    task = "captioning"
    search = "greedy"
    use = "legato predict FOLDER photo.jpg"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data, processor = plan.data, self.reader.processor
        valid = self.parts["valid"]
        count = min(data.scored, len(valid))
        scored = [row * len(valid) // count for row in range(count)]
        self.valid, self.valid_pixels = valid.select(scored), self.pixels["valid"]
        if count < len(valid):
            self.valid_pixels = self.valid_pixels.select(scored)
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
        self.speed_unit = self.batches.speed_unit
        say(self.told())
        say(f"the model will see: {train.names[0]} → {self.tokenizer.decode(rows[0].ids[1:])}")

    def as_learned(self, text: str) -> str:
        return caption_text(text) if self.plan.data.plain else text

    def told_style(self) -> str:
        return str(self.plan.data.plain)

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
        found = captioner.describe(self.valid_pixels.select(chosen), SearchOptions())
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
    pipeline = "image-to-text"
    summary = "what is on a picture, in words"
    default_model = "seq2seq"
    Job = CaptioningJob
    Data = CaptioningData
    generated = (SCENES,)
    needs = "=FILE, a table with pictures and captions"
    tuples = ("image caption",)
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
        model: dict[str, Any] = {"layers": 1, "width": 128} if given.toy and not given.trained else {}
        if issubclass(given.config, Seq2SeqConfig) and "attention" not in given.model and not given.trained:
            model |= {
                "attention": "mlp",
                "context_gate": True,
            }  # the products of other scores look at nothing for long
        return Defaults(model=model, fixed=encoder_model(given, "resnet"), train=train, tokenizer=tokenizer)

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        captioner = Captioner.of(loaded)
        test = CAPTIONED.test(data, loaded)
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

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        source, places = placed_picture(loaded, given)
        tokens = TargetTokens.of(loaded.target, loaded.first_token)
        ids = [int(index) for index in loaded.target.encode(written or "")[: longest_of(loaded.module) - 1]]
        return written_reading(source, places, loaded.target, [tokens.start], ids, tokens.eos)

    @classmethod
    def search_start(cls, loaded: Loaded, given: Any, start: SearchStart) -> SearchStart:
        longest = Captioner.of(loaded).longest
        return replace(start, limit=longest, usual=longest)
