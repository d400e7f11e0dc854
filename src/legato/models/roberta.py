"""RoBERTa (Liu et al. 2019): BERT trained longer, on masked words alone.

The equations are in `models/encoder.py`. What differs from BERT: there is one kind of sentence, no next-sentence
head, the masked-word head's activation is always GELU, and in Hugging Face's folders positions are counted from the
padding token's number + 1. XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020) are the same in other
languages.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from legato.errors import FolderError
from legato.models.base import ModelConfig, Sizes
from legato.models.bert import (
    EXPECTED,
    WORD,
    BertEntries,
    body_names,
    common_entries,
    common_settings,
    one_bias,
    two_biases,
)
from legato.models.encoder import EncoderConfig, EncoderModel, both, has, ignored, renamed
from legato.models.entries import Entries, Token
from legato.models.names import (
    From,
    Names,
    checked,
    class_prefix,
    entries_of,
    filled,
    give_tensors,
    is_tied,
    refuse_unless,
)
from legato.schema import OPEN, with_config

Family = Literal["roberta", "xlm-roberta", "camembert"]


class RobertaConfig(EncoderConfig):
    """Settings of RoBERTa."""

    name: Literal["roberta"] = "roberta"
    family: Family = Field("roberta", description="roberta, xlm-roberta or camembert: what it is saved as")
    segments: int = Field(1, ge=1, description="kinds of sentences; with one, all are alike")
    eps: float = Field(1e-5, gt=0, description="in the norms' denominators")
    padding: int = Field(
        0, ge=0, description="the padding token's number; the position table has so many rows more, and one"
    )
    pooler: bool = Field(False, description="whether the first token's state is made one vector for the text")


class RobertaModel(EncoderModel):
    """An encoder with learned positions."""

    Config: ClassVar[type[ModelConfig]] = RobertaConfig
    summary: ClassVar[str] = "RoBERTa: BERT without the sentence pairs"
    config: RobertaConfig

    def __init__(self, config: RobertaConfig, sizes: Sizes) -> None:
        super().__init__(
            config,
            sizes,
            eps=config.eps,
            segments=config.segments,
            before=config.padding + 1,
            head_activation="gelu",
            pooler=config.pooler,
        )

    @property
    def published(self) -> str:  # type: ignore[override]  # one class here, several there
        return self.config.family


@with_config(OPEN)
class RobertaEntries(BertEntries, total=False):
    """What is read of config.json."""

    pad_token_id: Token


class Roberta:
    """The map between `RobertaModel` and `RobertaForMaskedLM`, or `RobertaModel` where the head is missing."""

    model_type: ClassVar[Family] = "roberta"
    architecture: ClassVar[str] = "RobertaForMaskedLM"
    Entries: ClassVar[type[Entries]] = RobertaEntries

    @classmethod
    def refusal(cls, module: RobertaModel) -> str | None:
        return None

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
        tensors = give_tensors(module, _names(config, module.vocabulary))
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
