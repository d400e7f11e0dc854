"""RoBERTa in Hugging Face's folders, and XLM-RoBERTa and CamemBERT, which are built alike."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from legato.errors import FolderError
from legato.models.base import Published
from legato.models.published.bert import (
    EXPECTED,
    WORD,
    BertEntries,
    body_names,
    common_entries,
    common_settings,
    one_bias,
    two_biases,
)
from legato.models.published.encoder_names import both, has, ignored, renamed
from legato.models.published.entries import Entries, Token
from legato.models.published.head_names import DROPOUT, HeadNames
from legato.models.published.tensor_names import (
    From,
    Names,
    checked,
    class_prefix,
    entries_of,
    filled,
    is_tied,
    refuse_unless,
    to_hf,
)
from legato.models.roberta import Family, RobertaConfig, RobertaModel
from legato.schema import OPEN, with_config


@with_config(OPEN)
class RobertaEntries(BertEntries, total=False):
    """What is read of config.json."""

    pad_token_id: Token


class Roberta(Published):
    """The map between `RobertaModel` and `RobertaForMaskedLM`, or `RobertaModel` where the head is missing."""

    model_type: ClassVar[Family] = "roberta"
    architecture: ClassVar[str] = "RobertaForMaskedLM"
    Entries: ClassVar[type[Entries]] = RobertaEntries
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value")
    heads: ClassVar[HeadNames | None] = HeadNames(
        "first",
        {"inner": "classifier.dense", "head": "classifier.out_proj"},
        inner="tanh",
        body="roberta.",
        dropouts=DROPOUT,
    )

    @classmethod
    def names(cls, module: RobertaModel) -> Names:
        return _names(module.config, module.vocabulary)

    @classmethod
    def save(cls, module: RobertaModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = module.config
        body = class_prefix(cls.architecture) + "Model"
        entries = {
            "architectures": [cls.architecture if config.masked_words else body],
            "max_position_embeddings": module.before + config.length,
            "pad_token_id": config.padding,
            "type_vocab_size": config.segments,
            "layer_norm_eps": config.eps,
            **common_entries(module),
        }
        tensors = to_hf(module, _names(config, module.vocabulary))
        two_biases(tensors, "lm_head")
        return entries, tensors

    @classmethod
    def load(cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str) -> RobertaModel:
        entries_of(cls.Entries, config, where)
        refuse_unless(config, EXPECTED, where)
        theirs = renamed(tensors, "roberta.", r"lm_head\.")
        padding, rows = config.get("pad_token_id", 1), config["max_position_embeddings"]
        if not 0 <= padding < rows - 1:
            raise FolderError(f"{where}/config.json: pad_token_id={padding} leaves no room in {rows} positions")
        settings = {
            **common_settings(config, where),
            "family": cls.model_type,
            "length": rows - padding - 1,
            "padding": padding,
            "segments": config.get("type_vocab_size", 2),
            "eps": config.get("layer_norm_eps", 1e-12),
            "tied": is_tied(config, theirs, f"roberta.{WORD}", "lm_head.decoder.weight"),
            "masked_words": has(theirs, "lm_head."),
            "pooler": has(theirs, "roberta.pooler."),
        }
        ours = checked(RobertaConfig, settings, where)
        one_bias(theirs, "lm_head")
        left = ignored(ours, r"lm_head\.decoder")
        return filled(RobertaModel, ours, config["vocab_size"], _names, theirs, where, ignored=left)


class XLMRoberta(Roberta):
    model_type: ClassVar[Family] = "xlm-roberta"
    architecture: ClassVar[str] = "XLMRobertaForMaskedLM"


class Camembert(Roberta):
    model_type: ClassVar[Family] = "camembert"
    architecture: ClassVar[str] = "CamembertForMaskedLM"


def _names(config: RobertaConfig, vocabulary: int) -> Names:
    names = body_names("roberta.", config.layers, vocabulary, config.pooler)
    if config.masked_words:
        names |= both("head", "lm_head.dense") | both("head_norm", "lm_head.layer_norm")
        names["output.bias"] = From(("lm_head.bias",), rows=vocabulary)
        if not config.tied:
            names["output.weight"] = From(("lm_head.decoder.weight",), rows=vocabulary)
    return names
