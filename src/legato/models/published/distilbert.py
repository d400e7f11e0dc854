"""DistilBERT in Hugging Face's folders: their config entries and tensor names, and ours."""

from __future__ import annotations

from typing import Any, ClassVar, Required

from torch import Tensor

from legato.models.base import Published
from legato.models.distilbert import DistilBertConfig, DistilBertModel
from legato.models.published.encoder_names import block_names, both, has, ignored, renamed
from legato.models.published.entries import Entries, Flag, Share, Size
from legato.models.published.head_names import HeadNames
from legato.models.published.tensor_names import (
    From,
    Names,
    activation_of,
    checked,
    entries_of,
    filled,
    is_tied,
    to_hf,
    written_activation,
)
from legato.schema import OPEN, with_config

# A block's modules, and theirs, in the order in which they are stacked.
BLOCK = {
    "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "attention.output": ("attention.out_lin",),
    "attention_norm": ("sa_layer_norm",),
    "feedforward.inner": ("ffn.lin1",),
    "feedforward.outer": ("ffn.lin2",),
    "feedforward_norm": ("output_layer_norm",),
}
BODY = "distilbert."
WORD = f"{BODY}embeddings.word_embeddings.weight"
READOUT = "vocab_projector"


@with_config(OPEN)
class DistilBertEntries(Entries, total=False):
    """What is read of config.json."""

    vocab_size: Required[Size]
    dim: Required[Size]
    n_layers: Required[Size]
    n_heads: Required[Size]
    hidden_dim: Required[Size]
    max_position_embeddings: Required[Size]
    activation: str
    dropout: Share
    attention_dropout: Share
    sinusoidal_pos_embds: Flag


class DistilBert(Published):
    """The map between `DistilBertModel` and `DistilBertForMaskedLM`, or theirs of that name without the head."""

    model_type: ClassVar[str] = "distilbert"
    architecture: ClassVar[str] = "DistilBertForMaskedLM"
    Entries: ClassVar[type[Entries]] = DistilBertEntries
    lora_targets: ClassVar[tuple[str, ...]] = ("q_lin", "v_lin")
    heads: ClassVar[HeadNames | None] = HeadNames(
        "first",
        {"inner": "pre_classifier", "head": "classifier"},
        inner="relu",
        body="distilbert.",
        dropouts={"classes": ("seq_classif_dropout",), "tags": ("dropout",), "spans": ("qa_dropout",)},
    )

    @classmethod
    def names(cls, module: DistilBertModel) -> Names:
        return _names(module.config, module.vocabulary)

    @classmethod
    def save(cls, module: DistilBertModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = module.config
        entries = {
            "architectures": [cls.architecture if config.masked_words else "DistilBertModel"],
            "vocab_size": module.vocabulary,
            "max_position_embeddings": config.length,
            "sinusoidal_pos_embds": config.sinusoidal,
            "dim": config.width,
            "n_layers": config.layers,
            "n_heads": config.heads,
            "hidden_dim": module.stack.shape.inner,
            "activation": written_activation(config.activation),
            "dropout": config.dropout,
            "attention_dropout": config.dropout_attention,
            "tie_word_embeddings": config.tied,
        }
        return entries, to_hf(module, _names(config, module.vocabulary))

    @classmethod
    def load(cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str) -> DistilBertModel:
        entries_of(cls.Entries, config, where)
        theirs = renamed(tensors, BODY, "vocab_")
        settings = {
            "layers": config["n_layers"],
            "width": config["dim"],
            "heads": config["n_heads"],
            "feedforward": config["hidden_dim"],
            "activation": activation_of(config, "activation", "gelu", where),
            "length": config["max_position_embeddings"],
            "dropout": config.get("dropout", 0.1),
            "dropout_attention": config.get("attention_dropout", 0.1),
            "sinusoidal": config.get("sinusoidal_pos_embds", False),
            "tied": is_tied(config, theirs, WORD, f"{READOUT}.weight"),
            "masked_words": has(theirs, "vocab_"),
        }
        ours = checked(DistilBertConfig, settings, where)
        left = ignored(ours, READOUT)
        return filled(DistilBertModel, ours, config["vocab_size"], _names, theirs, where, ignored=left)


def _names(config: DistilBertConfig, vocabulary: int) -> Names:
    names = {
        "embedding.weight": From((WORD,), rows=vocabulary),
        "positions.weight": From((f"{BODY}embeddings.position_embeddings.weight",)),
        **both("embedding_norm", f"{BODY}embeddings.LayerNorm"),
        **block_names(config.layers, f"{BODY}transformer.layer.", BLOCK),
    }
    if config.masked_words:
        names |= both("head", "vocab_transform") | both("head_norm", "vocab_layer_norm")
        names["output.bias"] = From((f"{READOUT}.bias",), rows=vocabulary)
        if not config.tied:
            names["output.weight"] = From((f"{READOUT}.weight",), rows=vocabulary)
    return names
