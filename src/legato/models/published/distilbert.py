"""DistilBERT in Hugging Face's folders: their config entries and tensor names, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from legato.models.base import SequenceModel
from legato.models.distilbert import DistilBertModel
from legato.models.published.encoder_family import PublishedEncoder
from legato.models.published.entries import ACTIVATIONS, Entry, Flag, Share, Size
from legato.models.published.family import HeadNames


class DistilBert(PublishedEncoder):
    """The map between `DistilBertModel` and `DistilBertForMaskedLM`, or theirs of that name without the head."""

    model_type: ClassVar[str] = "distilbert"
    architecture: ClassVar[str] = "DistilBertForMaskedLM"
    Model: ClassVar[type[SequenceModel]] = DistilBertModel
    lora_targets: ClassVar[tuple[str, ...]] = ("q_lin", "v_lin")
    heads: ClassVar[HeadNames | None] = HeadNames(
        "first",
        {"inner": "pre_classifier", "head": "classifier"},
        inner="relu",
        dropouts={"classes": ("seq_classif_dropout",), "tags": ("dropout",), "spans": ("qa_dropout",)},
    )
    entries: ClassVar[Mapping[str, Entry]] = {
        "dim": Entry(Size, "width"),
        "n_layers": Entry(Size, "layers"),
        "n_heads": Entry(Size, "heads"),
        "hidden_dim": Entry(Size, "feedforward"),
        "max_position_embeddings": Entry(Size, "length"),
        "activation": Entry(str, "activation", "gelu", ACTIVATIONS),
        "dropout": Entry(Share, "dropout", 0.1),
        "attention_dropout": Entry(Share, "dropout_attention", 0.1),
        "sinusoidal_pos_embds": Entry(Flag, "sinusoidal", False),
    }
    body: ClassVar[str] = "distilbert."
    parts: ClassVar[Mapping[str, str]] = {
        "embedding": "distilbert.embeddings.word_embeddings",
        "positions": "distilbert.embeddings.position_embeddings",
        "embedding_norm": "distilbert.embeddings.LayerNorm",
        "head": "vocab_transform",
        "head_norm": "vocab_layer_norm",
        "output": "vocab_projector",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "distilbert.transformer.layer."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "feedforward.inner": "ffn.lin1",
        "feedforward.outer": "ffn.lin2",
        "feedforward_norm": "output_layer_norm",
    }
    present: ClassVar[Mapping[str, str]] = {"masked_words": "vocab_"}
