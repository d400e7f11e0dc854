"""Training on pictures with captions, whatever is learned of them: what is read and held out, words, pixels."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from legato.data.cache import cached_tokenizer
from legato.data.formats.captions import Captions, captioned_scenes, read_captions
from legato.data.formats.text import Text
from legato.data.image.scenes import SCENES
from legato.data.processors import Processors
from legato.data.sources.patterns import Source
from legato.data.splits import completed, hold_out_named
from legato.data.text.tokenizers import AnyTokenizer
from legato.tasks.base import Plan, Say, TaskJob
from legato.tasks.picture_data import PictureReader, PictureSource, PictureTableData, encoder_processor

CAPTIONED: Final = PictureSource(read_captions, {SCENES: captioned_scenes})


class CaptionedData(PictureTableData):
    """Where the pictures and captions are."""

    train: Source | None = Field(None, description="a table with pictures and captions, a hub name or toy:scenes")


class CaptionedJob(TaskJob):
    """Training on pictures and their captions."""

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        data = plan.data
        self.metric = data.metric
        found = data.read(lambda source, split, train: self._read(source, split))
        self.parts = completed(found, lambda train: hold_out_named(train, data.valid_share, "picture"))
        self.hashes = {split: rows.sha256 for split, rows in self.parts.items()}
        processor = encoder_processor(plan)
        self.processors = Processors(self.make_tokenizer(), others={"image": processor})
        self.reader = PictureReader(plan, processor)
        say(f"decoding {sum(map(len, self.parts.values())):,} pictures …")
        self.pixels = {split: self.reader.pixels(rows.pictures) for split, rows in self.parts.items()}

    def _read(self, source: Source, split: str) -> Captions:
        rows = CAPTIONED.read(self.plan.data, source, split, self.plan.seed)
        if rows.note:
            self.say(f"data.{split}: {rows.note}")
        return rows

    def make_tokenizer(self) -> AnyTokenizer:
        """That of the model that it goes on from, or one that is trained on the captions."""
        if self.plan.writer is not None:
            return self.plan.writer.tokenizer
        train = self.parts["train"]
        said = [self.as_learned(text) for each in train.captions for text in each]
        return cached_tokenizer(self.plan.tokenizer, Text(train.source, said, train.sha256 + self.told_style()))

    def as_learned(self, text: str) -> str:
        """A caption as the model reads or writes it."""
        return text

    def told_style(self) -> str:
        """What tells captions as they are learned from others of the same data."""
        return ""

    def told(self) -> str:
        """How many pictures there are, how large, and how many words."""
        counts = ", ".join(f"{len(rows):,} {split}" for split, rows in self.parts.items())
        height, width = self.reader.processor.shape or (0, 0)
        words = f"vocabulary {self.tokenizer.size:,} ({self.tokenizer.name})"
        return f"data: {counts} pictures of {height} × {width} pixels; {words}"
