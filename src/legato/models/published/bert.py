"""BERT in Hugging Face's folders: their config entries and tensor names, and ours.

Their folders hold the encoder alone (`BertModel`), with its masked-word head (`BertForMaskedLM`), with both heads of
pre-training (`BertForPreTraining`) or with a task's head: what there is, is read.
"""

from __future__ import annotations

from typing import Any, ClassVar, Required

from torch import Tensor

from legato.models.base import Published
from legato.models.bert import BertConfig, BertModel
from legato.models.encoder import EncoderConfig, EncoderModel
from legato.models.published.encoder_names import block_names, both, has, ignored, renamed
from legato.models.published.entries import Entries, Epsilon, Share, Size
from legato.models.published.head_names import DROPOUT, HeadNames
from legato.models.published.tensor_names import (
    From,
    Names,
    activation_of,
    checked,
    entries_of,
    filled,
    is_tied,
    refuse_unless,
    to_hf,
    written_activation,
)
from legato.schema import OPEN, with_config

# A block's modules, and theirs, in the order in which they are stacked.
BLOCK = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feedforward.inner": ("intermediate.dense",),
    "feedforward.outer": ("output.dense",),
    "feedforward_norm": ("output.LayerNorm",),
}
WORD = "embeddings.word_embeddings.weight"
# Entries that ask for what we do not have.
EXPECTED = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}


@with_config(OPEN)
class BertEntries(Entries, total=False):
    """What is read of config.json; RoBERTa spells it alike."""

    vocab_size: Required[Size]
    hidden_size: Required[Size]
    num_hidden_layers: Required[Size]
    num_attention_heads: Required[Size]
    intermediate_size: Required[Size]
    max_position_embeddings: Required[Size]
    type_vocab_size: Size
    hidden_act: str
    hidden_dropout_prob: Share
    attention_probs_dropout_prob: Share
    layer_norm_eps: Epsilon


class Bert(Published):
    """The map between `BertModel` and Hugging Face's, with whatever heads."""

    model_type: ClassVar[str] = "bert"
    architecture: ClassVar[str] = "BertForPreTraining"
    Entries: ClassVar[type[Entries]] = BertEntries
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value")
    heads: ClassVar[HeadNames | None] = HeadNames("pooler", {"head": "classifier"}, body="bert.", dropouts=DROPOUT)

    @classmethod
    def names(cls, module: BertModel) -> Names:
        return _names(module.config, module.vocabulary)

    @classmethod
    def save(cls, module: BertModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = module.config
        heads = {
            (True, True): "BertForPreTraining",
            (True, False): "BertForMaskedLM",
            (False, True): "BertForNextSentencePrediction",
            (False, False): "BertModel",
        }
        entries = {
            "architectures": [heads[config.masked_words, config.next_sentence]],
            "max_position_embeddings": config.length,
            "type_vocab_size": config.segments,
            "layer_norm_eps": config.eps,
            **common_entries(module),
        }
        tensors = to_hf(module, _names(config, module.vocabulary))
        two_biases(tensors, "cls.predictions")
        return entries, tensors

    @classmethod
    def load(cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str) -> BertModel:
        entries_of(cls.Entries, config, where)
        refuse_unless(config, EXPECTED, where)
        theirs = renamed(tensors, "bert.", r"cls\.")
        settings = {
            **common_settings(config, where),
            "length": config["max_position_embeddings"],
            "segments": config.get("type_vocab_size", 2),
            "eps": config.get("layer_norm_eps", 1e-12),
            "tied": is_tied(config, theirs, f"bert.{WORD}", "cls.predictions.decoder.weight"),
            "masked_words": has(theirs, "cls.predictions."),
            "next_sentence": has(theirs, "cls.seq_relationship."),
        }
        if has(theirs, "bert.pooler.") and not settings["next_sentence"]:
            settings["pooler"] = True
        ours = checked(BertConfig, settings, where)
        one_bias(theirs, "cls.predictions")
        left = ignored(ours, r"cls\.predictions\.decoder")
        return filled(BertModel, ours, config["vocab_size"], _names, theirs, where, ignored=left)


def common_entries(module: EncoderModel) -> dict[str, Any]:
    """The entries that BERT and RoBERTa spell alike."""
    config: EncoderConfig = module.config
    return {
        "vocab_size": module.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": module.stack.shape.inner,
        "hidden_act": written_activation(config.activation),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout_attention,
        "tie_word_embeddings": config.tied,
    }


def common_settings(config: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings that those entries mean."""
    return {
        "layers": config["num_hidden_layers"],
        "width": config["hidden_size"],
        "heads": config["num_attention_heads"],
        "feedforward": config["intermediate_size"],
        "activation": activation_of(config, "hidden_act", "gelu", where),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "dropout_attention": config.get("attention_probs_dropout_prob", 0.1),
    }


def one_bias(tensors: dict[str, Tensor], head: str) -> None:
    """Keep one of the two names that their readout's bias has; where a file has both, theirs is the second."""
    found = tensors.pop(f"{head}.decoder.bias", None)
    if found is not None:
        tensors[f"{head}.bias"] = found


def two_biases(tensors: dict[str, Tensor], head: str) -> None:
    """Write it under both, as they do where the readout is not the embedding."""
    if f"{head}.decoder.weight" in tensors:
        tensors[f"{head}.decoder.bias"] = tensors[f"{head}.bias"].clone()


def body_names(prefix: str, layers: int, vocabulary: int, pooler: bool) -> dict[str, From]:
    """The names without heads, which are RoBERTa's too."""
    names = {
        "embedding.weight": From((f"{prefix}{WORD}",), rows=vocabulary),
        "positions.weight": From((f"{prefix}embeddings.position_embeddings.weight",)),
        "segments.weight": From((f"{prefix}embeddings.token_type_embeddings.weight",)),
        **both("embedding_norm", f"{prefix}embeddings.LayerNorm"),
        **block_names(layers, f"{prefix}encoder.layer.", BLOCK),
    }
    return names | (both("pooler", f"{prefix}pooler.dense") if pooler else {})


def _names(config: BertConfig, vocabulary: int) -> Names:
    names = body_names("bert.", config.layers, vocabulary, bool(config.pooler) or config.next_sentence)
    if config.masked_words:
        names |= both("head", "cls.predictions.transform.dense")
        names |= both("head_norm", "cls.predictions.transform.LayerNorm")
        names["output.bias"] = From(("cls.predictions.bias",), rows=vocabulary)
        if not config.tied:
            names["output.weight"] = From(("cls.predictions.decoder.weight",), rows=vocabulary)
    if config.next_sentence:
        names |= both("relation", "cls.seq_relationship")
    return names
