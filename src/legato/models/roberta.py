"""RoBERTa (Liu et al. 2019): BERT trained longer, on masked words alone.

The equations are in `models/encoder.py`. What differs from BERT: there is one kind of sentence, no next-sentence
head, the masked-word head's activation is always GELU, and in Hugging Face's folders positions are counted from the
padding token's number + 1. XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) are the same in other
languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from legato.models.base import Sizes
from legato.models.encoder import EncoderConfig, EncoderModel

Family = Literal["roberta", "xlm-roberta", "camembert"]


class RobertaConfig(EncoderConfig):
    """Settings of RoBERTa."""

    pretraining_heads: ClassVar[tuple[str, ...]] = ("masked_words", "pooler")

    masked_tokenizer: ClassVar[Mapping[str, Any]] = {"name": "bpe", "masked": True, "special_tokens": "roberta"}

    name: Literal["roberta"] = "roberta"
    family: Family = Field("roberta", description="roberta, xlm-roberta or camembert: what it is saved as")
    segments: int = Field(1, ge=1, description="kinds of sentences; with one, all are alike")
    eps: float = Field(1e-5, gt=0, description="in the norms' denominators")
    padding: int = Field(
        0, ge=0, description="the padding token's number; the position table has so many rows more, and one"
    )
    pooler: bool = Field(False, description="whether the first token's state is made one vector for the text")

    @property
    def uses_segments(self) -> bool:
        return self.segments > 1


class RobertaModel(EncoderModel):
    """An encoder with learned positions."""

    Config = RobertaConfig
    summary = "RoBERTa: BERT without the sentence pairs"
    head_activation = "gelu"
    plain_head: ClassVar[Mapping[str, Any]] = {"pool": "first", "inner": "tanh"}
    config: RobertaConfig

    def __init__(self, config: RobertaConfig, sizes: Sizes) -> None:
        before = config.padding + 1
        super().__init__(config, sizes, eps=config.eps, segments=config.segments, before=before, pooler=config.pooler)

    @property
    def published(self) -> str:  # type: ignore[override]  # one class here, several there
        return self.config.family
