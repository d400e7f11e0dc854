"""Marian in Hugging Face's folders: their config entries and tensor names, and ours.

Marian (Junczys-Dowmunt et al. 2018) is the encoder–decoder Transformer with norms after each sublayer,
sinusoidal positions and one embedding for source, target and readout; the OPUS-MT models are published so.
In memory several of their matrices are one of ours, stacked; the map says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from legato.errors import FolderError
from legato.models.base import SequenceModel, Sizes
from legato.models.published.entries import Entry, Share, Size, Switch
from legato.models.published.family import EMBEDDING, Published
from legato.models.published.tensor_names import From, Names
from legato.models.transformer import TransformerModel

# Their activations, and ours; the first of several is what is written.
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "swish": "silu", "silu": "silu"}
BIAS = "final_logits_bias"
SHARED = "model.shared.weight"
SOURCE, TARGET, READOUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
NORMS = ("normalize_before", "normalize_embedding", "add_final_layer_norm")  # norms that we have nowhere


class Marian(Published):
    """The map between `TransformerModel` and `MarianMTModel`.

    Source and target may have embeddings of their own in a folder (`share_encoder_decoder_embeddings: false`).
    """

    model_type = "marian"
    architecture = "MarianMTModel"
    Model = TransformerModel
    lora_targets = ("q_proj", "v_proj")
    entries: ClassVar[Mapping[str, Entry]] = {
        "decoder_vocab_size": Entry(Size | None),
        "d_model": Entry(Size, "width"),
        "encoder_layers": Entry(Size, "layers"),
        "decoder_layers": Entry(Size, "decoder_layers"),
        "encoder_attention_heads": Entry(Size, "heads"),
        "decoder_attention_heads": Entry(Size, "heads"),
        "encoder_ffn_dim": Entry(Size, "feedforward"),
        "decoder_ffn_dim": Entry(Size, "feedforward"),
        "max_position_embeddings": Entry(Size, "length", 1024),
        "activation_function": Entry(str, "activation", "gelu", ACTIVATIONS),
        "dropout": Entry(Share, "dropout", 0.1),
        "attention_dropout": Entry(Share, "dropout_attention", 0.0),
        "activation_dropout": Entry(Share, "dropout_activation", 0.0),
        "scale_embedding": Entry(Switch, "scale", False),
        "share_encoder_decoder_embeddings": Entry(Switch, "shared", True),
        **dict.fromkeys(NORMS, Entry(Switch)),
    }
    body = "model."
    parts: ClassVar[Mapping[str, str]] = {
        EMBEDDING: SHARED,
        "source_embedding.weight": SOURCE,
        "output.weight": READOUT,  # its bias has a name and a shape of its own, see `save`
    }
    stacks: ClassVar[Mapping[str, str]] = {
        "encoder.layers.": "model.encoder.layers.",
        "decoder.layers.": "model.decoder.layers.",
    }
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": "self_attn.out_proj",
        "attention_norm": "self_attn_layer_norm",
        "cross.query": "encoder_attn.q_proj",
        "cross.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
        "cross.output": "encoder_attn.out_proj",
        "cross_norm": "encoder_attn_layer_norm",
        "feedforward.inner": "fc1",
        "feedforward.outer": "fc2",
        "feedforward_norm": "final_layer_norm",
    }
    ignored = r"^model\.(encoder|decoder)\.embed_positions\.weight$"  # sinusoids, made again

    @classmethod
    def refusal(cls, module: TransformerModel) -> str | None:
        """Why this model cannot be written as Marian; None when it can."""
        config = module.config
        reasons = {
            f"Marian's norms come after each sublayer, this model's before (norm={config.norm})": config.norm
            != "post",
            f"Marian's positions are sinusoidal, this model's {config.positions}": config.positions != "sinusoidal",
            f"Marian's attention sees everything, this model's a window of {config.window}": config.window
            is not None,
            f"Marian has no {config.activation} activation": config.activation not in ACTIVATIONS.values(),
            "Marian reads out with its embedding; this model has a readout of its own (tied=false)": not config.tied,
            f"Marian's norms have eps=1e-5, this model's {config.eps:g}": config.eps != 1e-5,
            "Marian's readout has a bias, this model's none": not config.bias_readout,
            "Marian has one embedding for source and target; this model has two": module.source_embedding is not None,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @classmethod
    def names(cls, module: TransformerModel) -> Names:
        names = super().names(module)
        return names if module.source_embedding is None else {**names, EMBEDDING: From((TARGET,))}

    @classmethod
    def save(cls, module: TransformerModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The entries of config.json but the token numbers, and the tensors under Hugging Face's names."""
        entries, tensors = super().save(module)
        return entries, {**tensors, BIAS: module.output.bias.detach()[None]}  # (1, V)

    @classmethod
    def written_settings(cls, module: TransformerModel) -> dict[str, Any]:
        config = module.config
        sizes = {"decoder_layers": config.decoder_layers or config.layers, "feedforward": config.inner}
        return {**super().written_settings(module), **sizes, "shared": True}

    @classmethod
    def other_entries(cls, module: TransformerModel) -> dict[str, Any]:
        return {"decoder_vocab_size": module.vocabulary, "is_encoder_decoder": True}

    @classmethod
    def load(
        cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str, into: SequenceModel | None = None
    ) -> SequenceModel:
        bias = tensors.get(BIAS)
        others = {name: tensor for name, tensor in tensors.items() if name != BIAS}
        module = super().load(config, others, where, into)
        if bias is not None and tuple(bias.shape) != (1, module.vocabulary):
            raise FolderError(
                f"{where}: '{BIAS}' should have shape {(1, module.vocabulary)}, but has {tuple(bias.shape)}"
            )
        with torch.no_grad():  # theirs may be left out, and is zero then
            module.output.bias.zero_() if bias is None else module.output.bias.copy_(bias[0])
        return module

    @classmethod
    def renamed(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The copies of one embedding are one tensor here; any of them will do."""
        shared = config.get("share_encoder_decoder_embeddings", True)
        tied = config.get("tie_word_embeddings", cls.tied)
        copies = (*((SHARED, SOURCE) if shared else ()), TARGET, *((READOUT,) if tied else ()))
        found = next((name for name in copies if name in tensors), None)
        left = {name: tensor for name, tensor in tensors.items() if name not in copies}
        return left if found is None else {**left, copies[0]: tensors[found]}

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        for name in NORMS:
            if config.get(name):
                raise FolderError(f"{where}/config.json: {name} is set, which Legato's Marian does not have")
        return super().settings(config, tensors, where)

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> Sizes:
        vocabulary = config["vocab_size"]
        if config.get("share_encoder_decoder_embeddings", True):
            return Sizes(vocabulary)
        return Sizes(config.get("decoder_vocab_size") or vocabulary, source=vocabulary)
