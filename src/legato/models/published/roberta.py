"""RoBERTa in Hugging Face's folders, and XLM-RoBERTa and CamemBERT, which are built alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from legato.errors import FolderError
from legato.models.base import SequenceModel
from legato.models.published.encoder_family import BLOCK, DROPOUT, ENTRIES, FIXED, PublishedEncoder, body_parts
from legato.models.published.entries import Entry, Token
from legato.models.published.family import HeadNames
from legato.models.roberta import RobertaModel


class Roberta(PublishedEncoder):
    """The map between `RobertaModel` and `RobertaForMaskedLM`, or `RobertaModel` where the head is missing."""

    model_type: ClassVar[str] = "roberta"
    architecture: ClassVar[str] = "RobertaForMaskedLM"
    Model: ClassVar[type[SequenceModel]] = RobertaModel
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value")
    heads: ClassVar[HeadNames | None] = HeadNames(
        "first", {"inner": "classifier.dense", "head": "classifier.out_proj"}, inner="tanh", dropouts=DROPOUT
    )
    entries: ClassVar[Mapping[str, Entry]] = {**ENTRIES, "pad_token_id": Entry(Token, "padding", 1)}
    fixed: ClassVar[Mapping[str, Any]] = FIXED
    body: ClassVar[str] = "roberta."
    parts: ClassVar[Mapping[str, str]] = {
        **body_parts("roberta."),
        "head": "lm_head.dense",
        "head_norm": "lm_head.layer_norm",
        "output.weight": "lm_head.decoder.weight",
        "output.bias": "lm_head.bias",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "roberta.encoder.layer."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = BLOCK
    present: ClassVar[Mapping[str, str]] = {"masked_words": "lm_head.", "pooler": "roberta.pooler."}

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        """Their positions are counted from the padding token's number + 1."""
        settings = super().settings(config, tensors, where)
        padding, rows = settings["padding"], settings["length"]
        if not 0 <= padding < rows - 1:
            raise FolderError(f"{where}/config.json: pad_token_id={padding} leaves no room in {rows} positions")
        return {**settings, "family": cls.model_type, "length": rows - padding - 1}

    @classmethod
    def written_settings(cls, module: RobertaModel) -> dict[str, Any]:
        return {**super().written_settings(module), "length": module.before + module.config.length}


class XLMRoberta(Roberta):
    model_type: ClassVar[str] = "xlm-roberta"
    architecture: ClassVar[str] = "XLMRobertaForMaskedLM"


class Camembert(Roberta):
    model_type: ClassVar[str] = "camembert"
    architecture: ClassVar[str] = "CamembertForMaskedLM"
