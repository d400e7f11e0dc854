"""Visual chat: answer about a picture (Liu et al. 2023, LLaVA).

A dialogue becomes one text by the chat template, as in `chat`; the picture stands before what its first user says, an
image token for each patch. The loss is on the assistant's answers alone:

    L = - Σ_{t in answers} log P(w_t | picture, w_1 … w_{t-1})

In two stages, the second of which goes on from the first (or with adapt=lora for train.frozen=vision: then the
language model has adapters, and the projector learns beside them):

    legato train visual-chat data.train=d.jsonl from.vision=CLIP from.text=LM train.frozen=[vision,text] out=runs/1
    legato train visual-chat data.train=d.jsonl from=runs/1 train.frozen=vision out=runs/2
    legato generate runs/2 "What is on the picture?" --image photo.jpg --chat

What the model writes in place of a dialogue's last answer is scored as well (evaluation/visual_chat.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from legato.data.batching.batch import Batch
from legato.data.batching.examples import Example, scoring_batches
from legato.data.batching.picture_batches import PictureBatches, Pixels, with_pictures
from legato.data.cache import cached_tokenizer
from legato.data.formats.picture_dialogues import (
    PROMPT,
    PictureDialogues,
    last_answer,
    read_picture_dialogues,
    talked_scenes,
)
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.scenes import SCENES
from legato.data.positions import Reading
from legato.data.processors import TEXT, Processors
from legato.data.sources.patterns import Source, source_name
from legato.data.splits import Encoding, SplitData, TableFormat, ValidShare, completed, hold_out_named
from legato.data.text.tokenizers import Tokenizer
from legato.decoding import SearchOptions
from legato.decoding.options import MAX_BEAMS, MAX_TOKENS
from legato.errors import ConfigError
from legato.evaluation.lm import safe_exp
from legato.evaluation.visual_chat import METRICS, by_kind, dialogue_details, dialogue_scores
from legato.folders.loaded import Loaded
from legato.models.llava import LlavaConfig, LlavaModel, patches_of
from legato.tasks.base import Plan, Say, Task, TaskJob, as_trained
from legato.tasks.chat.task import LONGEST, all_text, pad_answers, template_of
from legato.tasks.defaults import Defaults, Given, TrainDefaults
from legato.tasks.encoder_decoder import search_name
from legato.tasks.lm.job import next_token_loss
from legato.tasks.picture_data import (
    PictureData,
    PictureReader,
    PictureSource,
    encoder_model,
    encoder_processor,
    image_processor,
    scenes_about,
)
from legato.tasks.visual_chat.picture_talk import (
    IMAGE,
    PictureTalk,
    choose_image_token,
    llava_of,
    refuse_spelt,
    write_answers,
)
from legato.tasks.visual_chat.reading import talk_reading
from legato.training.job import Loss

PAD_TO = 32  # few shapes on a GPU


class VisualChatData(SplitData, PictureData):
    """Where the dialogues and their pictures are."""

    train: Source | None = Field(
        None, description="a table with pictures and messages, or captions, a hub name, or toy:scenes"
    )
    valid: Source | None = Field(None, description="left out: the dialogues of a share of the training pictures")
    system: str | None = Field(None, description="what a dialogue begins with that has no system message")
    prompt: str = Field(PROMPT, min_length=1, description="what is asked of pictures that have captions alone")
    format: TableFormat = "auto"
    encoding: Encoding = "utf-8"
    valid_share: ValidShare = 0.05
    window: int | None = Field(
        None, ge=2, description=f"tokens of a dialogue, more are cut; left out: the model's, at most {LONGEST}"
    )
    metric: Literal["loss", "cider", "bleu_4", "accuracy"] = Field(
        "loss", description="what decides which model is best"
    )
    scored: int = Field(
        200, ge=0, description="dialogues of data.valid whose last answers are written, and scored; of data.test all"
    )
    beams: int = Field(1, ge=1, le=MAX_BEAMS, description="of what is written to be scored at the end")
    length_penalty: float = Field(1.0, ge=0, le=10, description="of the same: scores are log p / length^this")
    max_tokens: int = Field(64, ge=1, le=MAX_TOKENS, description="of an answer that is written to be scored")


def dialogues(data: Any, about: Mapping[str, Any]) -> PictureSource[PictureDialogues]:
    """What reads pictures and what was said of them, as somebody says now or else as the folder remembers."""
    said = {key: as_trained(data, key, about) for key in ("system", "prompt")}
    return PictureSource(partial(read_picture_dialogues, **said), {SCENES: partial(talked_scenes, **said)})


@torch.no_grad()
def answer_scores(
    model: LlavaModel, rows: Sequence[Example], pixels: Pixels, processor: ImageProcessor, padding: int
) -> dict[str, float]:
    """The mean loss of an answer's token, and its perplexity."""
    total, tokens = 0.0, 0
    for chosen, batch in scoring_batches(rows, pad=padding):
        taken = pixels.take(np.array([rows[number].picture for number in chosen]))
        seen = with_pictures(batch, processor.scaled(taken.to(model.device)), "images").to(model.device)
        total += float(next_token_loss(model, seen).reported)
        tokens += batch.tokens
    loss = total / max(tokens, 1)
    return {"loss": loss, "perplexity": safe_exp(loss), "tokens": tokens}


def spread(count: int, total: int) -> list[int]:
    """So many of all rows, or all, spread evenly."""
    count = min(count, total)
    return [row * total // count for row in range(count)]


def search_options(data: Any, about: dict[str, Any], *, greedy: bool = False) -> SearchOptions:
    """How answers are written to be scored: as somebody says now, or else as the model's folder remembers."""
    beams, penalty, most = (as_trained(data, key, about) for key in ("beams", "length_penalty", "max_tokens"))
    if greedy or beams == 1:
        return SearchOptions(max_tokens=most)
    return SearchOptions(search="beam", beams=beams, length_penalty=penalty, max_tokens=most)


def written_for(
    model: LlavaModel,
    talk: PictureTalk,
    dialogues: PictureDialogues,
    rows: Sequence[int],
    pixels: Pixels,
    options: SearchOptions,
    ends: Collection[int],
) -> list[str]:
    """What the model writes in place of the last answers of some dialogues, whose album `pixels` are of."""
    _, numbers = dialogues.album()
    prompts = [talk.asked(dialogues, row) for row in rows]
    return write_answers(model, talk, prompts, [numbers[row] for row in rows], pixels, options, ends)


class VisualChatJob(TaskJob):
    """Training on dialogues about pictures."""

    task = "visual-chat"
    use = 'legato generate FOLDER "What is on the picture?" --image photo.jpg --chat'
    search = "greedy"

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data, config = plan.data, plan.model
        self.metric = data.metric
        if not isinstance(config, LlavaConfig):
            raise ConfigError(f"model={config.name} reads no pictures among its words; visual-chat needs model=llava")
        found = data.read(lambda source, split, train: self._read(source, split))
        self.dialogues = completed(found, self._hold_out)
        self.hashes = {split: dialogues.sha256 for split, dialogues in self.dialogues.items()}
        processor = encoder_processor(plan)
        self.processors = Processors(self._tokenizer(), others={"image": processor})
        chat = template_of(self.tokenizer, plan.writer)
        if config.image_token is None and "text" in plan.parts:
            token = choose_image_token(self.tokenizer, chat, plan.parts["text"].ends)
            config = config.model_copy(update={"image_token": token})
        self.settings = config
        token = self.sizes.vocabulary - 1 if config.image_token is None else config.image_token
        self.talk = PictureTalk(self.tokenizer, chat, token, patches_of(config, *(processor.shape or (0, 0))))
        self.max_length = min(data.window or LONGEST, config.max_length or LONGEST)
        self.rows = {split: self.talk.rows(each, self.max_length, say) for split, each in self.dialogues.items()}
        self.reader = PictureReader(plan, processor)
        album = {split: each.album()[0] for split, each in self.dialogues.items()}
        say(f"decoding {sum(map(len, album.values())):,} pictures …")
        self.pixels = {split: self.reader.pixels(pictures) for split, pictures in album.items()}
        self.scored: dict[str, Sequence[int]] = {split: range(len(each)) for split, each in self.dialogues.items()}
        self.scored["valid"] = spread(data.scored, len(self.dialogues["valid"]))
        self._refuse_metric()
        self.padding = self.tokenizer.pad_id or 0
        self.ends = self._ends()
        on_gpu = plan.device.type == "cuda"
        self.batches = PictureBatches(
            pad_answers(self.rows["train"], PAD_TO) if on_gpu else self.rows["train"],
            self.pixels["train"],
            plan.batch_shape(source_name(data.train), PAD_TO),
            place="images",
            positions=0,  # they are tokens
            augmentation=self.reader.changes,
            pad=self.padding,
        )
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in self.rows.items())
        say(f"data: {counts} dialogues; a picture is {self.talk.patches} tokens {self.talk.name}")

    def _refuse_metric(self) -> None:
        """Refuse a figure that the validation data do not have."""
        valid = self.dialogues["valid"]
        described, asked = by_kind([valid.references[row] for row in self.scored["valid"]])
        needed = {"cider": described, "bleu_4": described, "accuracy": asked}
        if not needed.get(self.metric, [True]):
            kind = "short answer" if self.metric == "accuracy" else "description"
            raise ConfigError(
                f"data.metric={self.metric} is of dialogues that end with a {kind}, and of the {len(valid):,} for "
                f"validation none that is scored does (data.scored={self.plan.data.scored}); use data.metric=loss"
            )

    @property
    def model_config(self) -> LlavaConfig:
        return self.settings

    def _read(self, source: Source, split: str) -> PictureDialogues:
        rows = dialogues(self.plan.data, {}).read(self.plan.data, source, split, self.plan.seed)
        if rows.note:
            self.say(f"data.{split}: {rows.note}")
        return rows

    def _hold_out(self, train: PictureDialogues) -> dict[str, PictureDialogues]:
        """A share of the pictures to validate with, each asked once what several captions answer."""
        parts = dict(hold_out_named(train, self.plan.data.valid_share, "picture"))
        return {**parts, "valid": parts["valid"].asked_once()}

    def _tokenizer(self) -> Any:
        if self.plan.writer is not None:
            return self.plan.writer.tokenizer
        train = self.dialogues["train"]
        for number, messages in enumerate(train.rows):  # it must not become a word
            refuse_spelt(IMAGE, messages, train.where(number))
        made = cached_tokenizer(self.plan.tokenizer, all_text(train))
        return made.with_special_tokens([IMAGE]) if isinstance(made, Tokenizer) else made

    def _ends(self) -> tuple[int, ...]:
        """The tokens that end an answer: the folder's, and the token that the template writes there."""
        before = set() if self.plan.writer is None else set(self.plan.writer.ends)
        written = {row.targets[-1] for row in self.rows["train"] if row.targets} & self.tokenizer.special_ids
        return tuple(sorted(before | written))

    def loss(self, model: LlavaModel, batch: Batch, state: Any) -> Loss:
        assert batch.images is not None
        images, _ = self.reader.read(batch.images)
        return next_token_loss(model, replace(batch, images=images), None, self.plan.train.label_smoothing)

    def validate(self, model: LlavaModel) -> dict[str, float]:
        scores = self._scores(model, "valid", search_options(self.plan.data, {}, greedy=True))
        return {key: value for key, value in scores.items() if isinstance(value, int | float)}

    def score(self, model: LlavaModel, split: str) -> dict[str, Any]:
        return self._scores(model, split, search_options(self.plan.data, {}))

    def _scores(self, model: LlavaModel, split: str, options: SearchOptions) -> dict[str, Any]:
        scores: dict[str, Any] = answer_scores(
            model, self.rows[split], self.pixels[split], self.reader.processor, self.padding
        )
        rows, references = self.scored[split], self.dialogues[split].references
        if not rows:
            return scores
        written = self.written(model, split, rows, options)
        scores |= dialogue_scores(written, [references[row] for row in rows])
        return {**scores, "search": search_name(options)}

    def written(self, model: LlavaModel, split: str, rows: Sequence[int], options: SearchOptions) -> list[str]:
        """What the model writes in place of the last answers of some dialogues."""
        return written_for(model, self.talk, self.dialogues[split], rows, self.pixels[split], options, self.ends)

    def samples(self, model: LlavaModel, count: int) -> list[str]:
        """What the model answers to validation questions, and what it should have."""
        valid = self.dialogues["valid"]
        rows = spread(count, len(valid))
        texts = self.written(model, "valid", rows, SearchOptions(max_tokens=60))
        shown = []
        for row, text in zip(rows, texts, strict=True):
            messages = valid.rows[row]
            last = last_answer(messages)
            said = f"{valid.pictures[row].name}: {messages[last - 1]['content'][:200]}"
            shown.append(f"{said}\n→ {text}   (wanted: {messages[last]['content'][:200]})")
        return shown

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        told = {"ends": list(self.ends), "window": self.max_length}
        told |= self.plan.data.model_dump(include={"beams", "length_penalty", "max_tokens", "system", "prompt"})
        return {**told, "columns": self.dialogues["train"].columns, **scenes_about(self.plan)}


class VisualChat(Task):
    """The `visual-chat` task."""

    name = "visual-chat"
    pipeline = "image-text-to-text"
    default_model = "llava"
    summary = "dialogues about pictures: learn to answer what is on them"
    Job = VisualChatJob
    Data = VisualChatData
    generated = (SCENES,)
    needs = "=FILE, a jsonl of pictures and dialogues"
    metrics = METRICS
    processors = (TEXT, "image")
    continues = True
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        """Of the first stage 1e-3, of the second 2e-5 to 2e-4 (version 1.5)."""
        usual = (
            TrainDefaults(lr=1e-4 if given.trained else 1e-3, schedule="cosine", warmup=None) if given.adamw else {}
        )
        usual["epochs"] = None if "steps" in given.train else 3
        if not given.toy or given.trained:
            return Defaults(train=usual)
        vision = encoder_model(given, "resnet", "vision")
        side = int(vision.get("vision", {}).get("image", 64))  # and a place of the usual grid is eight pixels wide
        text = {"layers": 2, "width": 128, "heads": 4, "length": (side // 8) ** 2 + 64}
        return Defaults(model={"text": text}, fixed=vision, train=usual, tokenizer={"name": "word"})

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        cls.require(data, "test")
        test, processor = dialogues(data, loaded.about).test(data, loaded), image_processor(loaded)
        model = llava_of(loaded)
        talk = PictureTalk.of(loaded)
        longest = data.window or loaded.about.get("window") or min(model.max_length or LONGEST, LONGEST)
        rows = talk.rows(test, longest, lambda note: None)
        pixels = Pixels(test.album()[0], processor, model.device, workers=data.workers)
        scores: dict[str, Any] = answer_scores(model, rows, pixels, processor, loaded.tokenizer.pad_id or 0)
        told = {"data": test.source, "sha256": test.sha256, "pictures": len(pixels)}
        chosen = spread(data.scored if "scored" in data.model_fields_set else len(test), len(test))
        if not chosen:
            return {**told, **scores}
        options = search_options(data, loaded.about)
        written = written_for(model, talk, test, chosen, pixels, options, loaded.ends)
        references = [test.references[row] for row in chosen]
        places = [f"{test.pictures[row].name}, {test.place(row)}" for row in chosen]
        scores |= {**dialogue_scores(written, references), "search": search_name(options)}
        return {**told, **scores, "details": dialogue_details(written, references, places)}

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        return talk_reading(loaded, given)
