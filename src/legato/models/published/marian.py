"""Marian in Hugging Face's folders: their config entries and tensor names, and ours.

Marian (Junczys-Dowmunt et al. 2018) is the encoder–decoder Transformer with norms after each sublayer,
sinusoidal positions and one embedding for source, target and readout; the OPUS-MT models are published so.
In memory several of their matrices are one of ours, stacked; the map says which.
"""

from __future__ import annotations

from typing import Any, ClassVar, Required

import torch
from torch import Tensor

from legato.errors import FolderError
from legato.models.base import Published, Sizes
from legato.models.building import built
from legato.models.published.entries import Entries, Flag, Share, Size
from legato.models.published.tensor_names import (
    From,
    activation_of,
    checked,
    entries_of,
    from_hf,
    matched,
    to_hf,
)
from legato.models.transformer import TransformerConfig, TransformerModel
from legato.schema import OPEN, with_config

# A block's modules, and theirs, in the order in which they are stacked.
BLOCK = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.out_proj",),
    "attention_norm": ("self_attn_layer_norm",),
    "cross.query": ("encoder_attn.q_proj",),
    "cross.key_value": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "cross.output": ("encoder_attn.out_proj",),
    "cross_norm": ("encoder_attn_layer_norm",),
    "feedforward.inner": ("fc1",),
    "feedforward.outer": ("fc2",),
    "feedforward_norm": ("final_layer_norm",),
}
# Ours, and what they call it; the first is what is written.
ACTIVATIONS = {"relu": ("relu",), "gelu": ("gelu", "gelu_python"), "silu": ("swish", "silu")}
BIAS = "final_logits_bias"
SHARED = "model.shared.weight"
SOURCE, TARGET, READOUT = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
# Made again rather than read: they are sinusoids.
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")


@with_config(OPEN)
class MarianEntries(Entries, total=False):
    """What is read of config.json."""

    vocab_size: Required[Size]
    decoder_vocab_size: Size | None
    d_model: Required[Size]
    encoder_layers: Required[Size]
    decoder_layers: Required[Size]
    encoder_attention_heads: Required[Size]
    decoder_attention_heads: Required[Size]
    encoder_ffn_dim: Required[Size]
    decoder_ffn_dim: Required[Size]
    max_position_embeddings: Size
    activation_function: str
    dropout: Share
    attention_dropout: Share
    activation_dropout: Share
    scale_embedding: Flag | None
    share_encoder_decoder_embeddings: Flag | None
    normalize_before: Flag | None
    normalize_embedding: Flag | None
    add_final_layer_norm: Flag | None


class Marian(Published):
    """The map between `TransformerModel` and `MarianMTModel`."""

    model_type: ClassVar[str] = "marian"
    architecture: ClassVar[str] = "MarianMTModel"
    Entries: ClassVar[type[Entries]] = MarianEntries
    lora_targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")

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
            f"Marian has no {config.activation} activation": config.activation not in ACTIVATIONS,
            "Marian reads out with its embedding; this model has a readout of its own (tied=false)": not config.tied,
            "Marian has one embedding for source and target; this model has two": module.source_embedding is not None,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @classmethod
    def names(cls, module: TransformerModel) -> dict[str, From]:
        return {**_names(module.config), "embedding.weight": From((SHARED,))}

    @classmethod
    def save(cls, module: TransformerModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The entries of config.json but the token numbers, and the tensors under Hugging Face's names."""
        config = module.config
        tensors = to_hf(module, {**_names(config), "embedding.weight": From((SHARED,))})
        tensors[BIAS] = module.output.bias.detach()[None]  # (1, V)
        entries = {
            "vocab_size": module.vocabulary,
            "decoder_vocab_size": module.vocabulary,
            "d_model": config.width,
            "encoder_layers": config.layers,
            "decoder_layers": config.decoder_layers or config.layers,
            "encoder_attention_heads": config.heads,
            "decoder_attention_heads": config.heads,
            "encoder_ffn_dim": config.inner,
            "decoder_ffn_dim": config.inner,
            "activation_function": ACTIVATIONS[config.activation][0],
            "max_position_embeddings": config.length,
            "dropout": config.dropout,
            "attention_dropout": config.dropout_attention,
            "activation_dropout": config.dropout_activation,
            "scale_embedding": config.scale,
            "share_encoder_decoder_embeddings": True,
            "tie_word_embeddings": True,
            "is_encoder_decoder": True,
        }
        return entries, tensors

    @classmethod
    def load(cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str) -> TransformerModel:
        """The model that a folder holds; `where` names the folder in an error.

        Source and target may have embeddings of their own here (`share_encoder_decoder_embeddings: false`).
        """
        settings, sizes = _settings(config, where)
        theirs = {name: tensor for name, tensor in tensors.items() if name not in POSITIONS}
        copies = (TARGET, READOUT) if settings.tied else (TARGET,)
        if settings.shared:
            copies = (SHARED, SOURCE, *copies)
        # The copies of one embedding are one tensor here; any of them will do.
        found = next((name for name in copies if name in theirs), copies[0])
        theirs = {name: tensor for name, tensor in theirs.items() if name == found or name not in copies}
        names = {**_names(settings), "embedding.weight": From((found,))}
        if not settings.shared:
            names["source_embedding.weight"] = From((SOURCE,))
        if not settings.tied:
            names["output.weight"] = From((READOUT,))
        bias = theirs.pop(BIAS, None)
        if bias is not None and tuple(bias.shape) != (1, sizes.vocabulary):
            raise FolderError(
                f"{where}: '{BIAS}' should have shape {(1, sizes.vocabulary)}, but has {tuple(bias.shape)}"
            )
        module = built(
            lambda: TransformerModel(settings, sizes),
            tensors,
            lambda plan: matched(plan, names, theirs, where),
            where,
            drawn=False,
        )
        from_hf(module, names, theirs, where)
        with torch.no_grad():  # theirs may be left out, and is zero then
            module.output.bias.zero_() if bias is None else module.output.bias.copy_(bias[0])
        return module


def _names(config: TransformerConfig) -> dict[str, From]:
    """Our tensors of all blocks, and theirs that make each up."""
    names = {}
    for side, layers in (("encoder", config.layers), ("decoder", config.decoder_layers or config.layers)):
        for layer in range(layers):
            block = f"{side}.layers.{layer}"
            for ours, theirs in BLOCK.items():
                if side == "encoder" and ours.startswith("cross"):
                    continue
                for kind in ("weight", "bias"):
                    names[f"{block}.{ours}.{kind}"] = From(tuple(f"model.{block}.{their}.{kind}" for their in theirs))
    return names


def _settings(config: dict[str, Any], where: str) -> tuple[TransformerConfig, Sizes]:
    """Our settings for their config.json. What it leaves out is as in `MarianConfig`, but for the sizes."""
    entries_of(Marian.Entries, config, where)
    for ours, theirs in (
        ("encoder_attention_heads", "decoder_attention_heads"),
        ("encoder_ffn_dim", "decoder_ffn_dim"),
    ):
        if config[ours] != config[theirs]:
            counts = f"{config[ours]} and {config[theirs]}"
            raise FolderError(f"{where}/config.json: Legato needs {ours} and {theirs} to be equal, not {counts}")
    for name in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if config.get(name):
            raise FolderError(f"{where}/config.json: {name} is set, which Legato's Marian does not have")
    known = {theirs: ours for ours, names in ACTIVATIONS.items() for theirs in names}
    activation = activation_of(config, "activation_function", "gelu", where, known)
    shared = bool(config.get("share_encoder_decoder_embeddings", True))
    tied = bool(config.get("tie_word_embeddings", True))
    settings = {
        "layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "width": config["d_model"],
        "heads": config["encoder_attention_heads"],
        "feedforward": config["encoder_ffn_dim"],
        "activation": activation,
        "length": config.get("max_position_embeddings", 1024),
        "dropout": config.get("dropout", 0.1),
        "dropout_attention": config.get("attention_dropout", 0.0),
        "dropout_activation": config.get("activation_dropout", 0.0),
        "scale": bool(config.get("scale_embedding", False)),
        "shared": shared,
        "tied": tied,
    }
    found = checked(TransformerConfig, settings, where)
    vocabulary = config["vocab_size"]
    if shared:
        return found, Sizes(vocabulary)
    return found, Sizes(config.get("decoder_vocab_size") or vocabulary, source=vocabulary)
