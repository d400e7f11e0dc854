"""A model that says what is on a picture in words: pixels in, the search, captions and their scores out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.data.batching.examples import Example
from legato.data.batching.picture_batches import Pixels, collate_with_pictures
from legato.data.formats.captions import Captions
from legato.data.image.image_processor import ImageProcessor
from legato.data.text.tokenizers import AnyTokenizer
from legato.decoding import Hypothesis, SearchOptions
from legato.evaluation.captioning import caption_details, caption_scores, caption_words
from legato.evaluation.metrics import DetailTable
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel
from legato.tasks.encoder_decoder import TargetTokens, longest_of, mean_loss, search_name, write_from
from legato.tasks.picture_data import image_processor

ROWS = {"cuda": 256}  # pictures that are described side by side
FEW_ROWS = 32
LONGEST = 64  # tokens of a caption


def caption_text(text: str) -> str:
    """A caption as it is compared: in lower case, without punctuation."""
    return " ".join(caption_words(text))


def caption_examples(
    data: Captions, tokenizer: AnyTokenizer, tokens: TargetTokens, *, longest: int | None, plain: bool
) -> list[Example]:
    """Every caption of every picture: what stands before each token, and the token; what is too long is cut."""
    texts = [caption_text(text) if plain else text for each in data.captions for text in each]
    owners = [number for number, each in enumerate(data.captions) for _ in each]
    most = min(LONGEST, longest or LONGEST) - 1
    found = []
    for ids, picture in zip(tokenizer.encode_many(texts), owners, strict=True):
        kept = [int(token) for token in ids[:most]]
        found.append(Example([tokens.start, *kept], targets=[*kept, tokens.eos], picture=picture))
    return found


@dataclass
class Captioner:
    """A model with what it takes to put pictures in and get captions out."""

    model: SequenceModel
    tokenizer: AnyTokenizer
    processor: ImageProcessor
    plain: bool = True  # whether it learned captions in lower case, without punctuation
    start: int | None = None

    def __post_init__(self) -> None:
        self.target_tokens = TargetTokens.of(self.tokenizer, self.start)
        self.rows = ROWS.get(self.model.device.type, FEW_ROWS)
        self.longest = min(LONGEST, longest_of(self.model))

    @classmethod
    def of(cls, loaded: Loaded) -> Captioner:
        processor = image_processor(loaded)
        return cls(loaded.module, loaded.target, processor, bool(loaded.about.get("plain", False)), loaded.start)

    def source(self, pixels: Tensor) -> Inputs:
        """Pixels (B, H, W, 3) as the encoder reads them."""
        return Inputs(values=self.processor.scaled(pixels.to(self.model.device, non_blocking=True)))

    @torch.no_grad()
    def describe(self, pixels: Pixels, options: SearchOptions, most: int | None = None) -> list[list[Hypothesis]]:
        """The best captions of every picture, in their order."""
        found: list[list[Hypothesis]] = []
        for _, part in pixels.scored(self.rows):
            source = self.source(part)
            found += write_from(
                self.model,
                Batch(source, source=source),
                self.target_tokens,
                options,
                limits=[min(most or self.longest, self.longest)] * len(part),
                text_of=self.tokenizer.decode,
            )
        return found

    def text(self, hypothesis: Hypothesis) -> str:
        return self.tokenizer.decode(hypothesis.tokens)

    def batches(self, examples: Sequence[Example], pixels: Pixels) -> Iterator[Batch]:
        """Every caption once, beside its picture."""
        order = sorted(range(len(examples)), key=lambda row: len(examples[row].ids))
        for first in range(0, len(order), self.rows):
            rows = [examples[row] for row in order[first : first + self.rows]]
            values = self.source(pixels.take(np.array([row.picture for row in rows]))).content
            yield collate_with_pictures(rows, values, "source", self.target_tokens.eos)

    def score(self, data: Captions, pixels: Pixels, options: SearchOptions) -> tuple[dict[str, Any], list[str]]:
        """The loss of all captions, the scores of those that the model writes, and these."""
        longest = self.model.max_length
        examples = caption_examples(data, self.tokenizer, self.target_tokens, longest=longest, plain=self.plain)
        loss = mean_loss(self.model, self.batches(examples, pixels))
        written = [self.text(best[0]) for best in self.describe(pixels, options)]
        scores: dict[str, Any] = {"loss": loss, **caption_scores(written, data.captions)}
        return {**scores, "captions": len(written), "search": search_name(options)}, written

    def details(self, data: Captions, written: Sequence[str]) -> list[DetailTable]:
        """The worst captions."""
        return caption_details(written, data.captions, data.names)

    @torch.no_grad()
    def looks(self, pixels: Tensor, tokens: Sequence[int]) -> Tensor:
        """How much each token of a caption, and its end, looked at each state of a picture (H, W, 3): (T + 1, S)."""
        source = self.source(pixels.unsqueeze(0))
        ids = torch.tensor([[self.target_tokens.start, *tokens]], device=self.model.device)
        return self.model.align(Batch(Inputs(ids), source=source))[0].float().cpu()
