"""BERT (Devlin et al. 2019): an encoder that learns by guessing masked words, and which sentences follow each other.

The equations are in `models/encoder.py`; this file says how large BERT's parts are. Its names in
Hugging Face's folders are in `published/bert.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from legato.models.base import Sizes
from legato.models.encoder import EncoderConfig, EncoderModel


class BertConfig(EncoderConfig):
    """Settings of BERT."""

    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_words", "next_sentence", "pooler")

    name: Literal["bert"] = "bert"
    segments: int = Field(2, ge=1, description="kinds of sentences: a first and a second")
    eps: float = Field(1e-12, gt=0, description="in the norms' denominators")
    next_sentence: bool = Field(True, description="whether there is a head that says if the second sentence follows")
    pooler: bool | None = Field(
        None, description="whether the first token's state is made one vector for the text; left out: next_sentence"
    )

    @property
    def predicts_next_sentence(self) -> bool:
        return self.next_sentence

    @property
    def uses_segments(self) -> bool:
        return self.segments > 1

    @model_validator(mode="after")
    def _pooled_where_needed(self) -> BertConfig:
        if self.next_sentence and self.pooler is False:
            raise ValueError("next_sentence=true needs pooler=true")
        return self


class BertModel(EncoderModel):
    """An encoder with learned positions and segments."""

    Config = BertConfig
    summary = "BERT: a Transformer encoder that guesses masked words and next sentences"
    published = "bert"
    config: BertConfig

    def __init__(self, config: BertConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, eps=config.eps, segments=config.segments, pooler=bool(config.pooler))
