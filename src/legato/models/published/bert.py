"""BERT in Hugging Face's folders: their config entries and tensor names, and ours.

Their folders hold the encoder alone (`BertModel`), with its masked-word head (`BertForMaskedLM`), with both heads of
pre-training (`BertForPreTraining`) or with a task's head: what there is, is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from legato.models.base import SequenceModel
from legato.models.bert import BertModel
from legato.models.published.encoder_family import BLOCK, DROPOUT, ENTRIES, FIXED, PublishedEncoder, body_parts
from legato.models.published.entries import Entry
from legato.models.published.family import HeadNames


class Bert(PublishedEncoder):
    """The map between `BertModel` and Hugging Face's, with whatever heads."""

    model_type: ClassVar[str] = "bert"
    architecture: ClassVar[str] = "BertForPreTraining"
    Model: ClassVar[type[SequenceModel]] = BertModel
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value")
    heads: ClassVar[HeadNames | None] = HeadNames("pooler", {"head": "classifier"}, dropouts=DROPOUT)
    entries: ClassVar[Mapping[str, Entry]] = ENTRIES
    fixed: ClassVar[Mapping[str, Any]] = FIXED
    body: ClassVar[str] = "bert."
    parts: ClassVar[Mapping[str, str]] = {
        **body_parts("bert."),
        "head": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "output.weight": "cls.predictions.decoder.weight",
        "output.bias": "cls.predictions.bias",
        "relation": "cls.seq_relationship",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "bert.encoder.layer."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = BLOCK
    present: ClassVar[Mapping[str, str]] = {
        "masked_words": "cls.predictions.",
        "next_sentence": "cls.seq_relationship.",
        "pooler": "bert.pooler.",
    }

    @classmethod
    def architecture_of(cls, module: BertModel) -> str:
        heads = {
            (True, True): "BertForPreTraining",
            (True, False): "BertForMaskedLM",
            (False, True): "BertForNextSentencePrediction",
            (False, False): "BertModel",
        }
        return heads[module.config.masked_words, module.config.next_sentence]

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        settings = super().settings(config, tensors, where)
        pooler = settings.pop("pooler")  # left out: as next_sentence
        return {**settings, "pooler": True} if pooler and not settings["next_sentence"] else settings
