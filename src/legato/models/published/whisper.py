"""Whisper in Hugging Face's folders: their config entries and tensor names, and ours.

In memory several of their matrices are one of ours, stacked; their keys have no bias, so the biases that are stacked
are those of queries and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from legato.models.base import SequenceModel
from legato.models.published.entries import ACTIVATIONS, Entry, Share, Size
from legato.models.published.family import Published
from legato.models.whisper import WhisperModel

KEY_BIAS = "k_proj.bias"


class Whisper(Published):
    """The map between `WhisperModel` and `WhisperForConditionalGeneration`."""

    model_type: ClassVar[str] = "whisper"
    architecture: ClassVar[str] = "WhisperForConditionalGeneration"
    Model: ClassVar[type[SequenceModel]] = WhisperModel
    lora_targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    entries: ClassVar[Mapping[str, Entry]] = {
        "d_model": Entry(Size, "width"),
        "encoder_layers": Entry(Size, "layers"),
        "decoder_layers": Entry(Size, "decoder_layers"),
        "encoder_attention_heads": Entry(Size, "heads"),
        "decoder_attention_heads": Entry(Size, "heads"),
        "encoder_ffn_dim": Entry(Size, "feedforward"),
        "decoder_ffn_dim": Entry(Size, "feedforward"),
        "num_mel_bins": Entry(Size, "features", 80),
        "max_source_positions": Entry(Size, "source_length", 1500),
        "max_target_positions": Entry(Size, "length", 448),
        "activation_function": Entry(str, "activation", "gelu", ACTIVATIONS),
        "dropout": Entry(Share, "dropout", 0.0),
        "attention_dropout": Entry(Share, "dropout_attention", 0.0),
        "activation_dropout": Entry(Share, "dropout_activation", 0.0),
    }
    body: ClassVar[str] = "model."
    parts: ClassVar[Mapping[str, str]] = {
        "encoder.first": "model.encoder.conv1",
        "encoder.second": "model.encoder.conv2",
        "encoder.positions": "model.encoder.embed_positions.weight",
        "encoder.stack.norm": "model.encoder.layer_norm",
        "embedding": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "decoder.norm": "model.decoder.layer_norm",
        "output": "proj_out",
    }
    stacks: ClassVar[Mapping[str, str]] = {
        "encoder.stack.layers.": "model.encoder.layers.",
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

    @classmethod
    def their_names(cls, name: str) -> tuple[str, ...]:
        return tuple(their for their in super().their_names(name) if not their.endswith(KEY_BIAS))

    @classmethod
    def written_settings(cls, module: WhisperModel) -> dict[str, Any]:
        config = module.config
        sizes = {"decoder_layers": config.decoder_layers or config.layers, "feedforward": config.inner}
        return {**super().written_settings(module), **sizes}

    @classmethod
    def other_entries(cls, module: WhisperModel) -> dict[str, Any]:
        # Left out, they are those of the published models, which a smaller vocabulary lacks.
        return {"is_encoder_decoder": True, "bos_token_id": None, "pad_token_id": None}
