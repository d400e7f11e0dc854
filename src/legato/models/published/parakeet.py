"""Parakeet in Hugging Face's folders: their config entries and tensor names, and our Conformer's.

    parakeet_ctc         ParakeetForCTC: the encoder, in `encoder_config` and `encoder.…`, with a head for CTC
    parakeet_encoder     ParakeetEncoder: the same encoder alone

Their blocks drop nothing of what a sublayer adds, and sometimes whole blocks (`layerdrop`); ours the other way round.
Only training knows the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from torch import Tensor

from legato.data.processors import TEXT
from legato.errors import FolderError, brief
from legato.models.base import SequenceModel
from legato.models.conformer import ConformerModel
from legato.models.published.entries import Entry, Flag, Share, Size, Token
from legato.models.published.family import HeadNames, Published

ENCODER: Final = "parakeet_encoder"
SECTION, BODY = "encoder_config.", "encoder."  # how the encoder's entries and tensors begin, where there is a head


def encoder_entries(section: str) -> dict[str, Entry]:
    """The encoder's entries; what is left out is as it is there."""
    entries = {
        "hidden_size": Entry(Size, "width", 1024),
        "num_hidden_layers": Entry(Size, "layers", 24),
        "num_attention_heads": Entry(Size, "heads", 8),
        "intermediate_size": Entry(Size, "feedforward", 4096),
        "conv_kernel_size": Entry(Size, "kernel", 9),
        "subsampling_factor": Entry(Size, "subsampling", 8),
        "subsampling_conv_channels": Entry(Size, "channels", 256),
        "num_mel_bins": Entry(Size, "features", 80),
        "attention_bias": Entry(Flag, "bias", True),  # of the feed-forward layers, too
        "convolution_bias": Entry(Flag, "bias", True),
        "scale_input": Entry(Flag, "scale_input", True),
        "dropout": Entry(Share, "dropout", 0.1),
        "attention_dropout": Entry(Share, "dropout_attention", 0.1),
        "activation_dropout": Entry(Share),
        "layerdrop": Entry(Share),
    }
    return {section + name: entry for name, entry in entries.items()}


def fixed_entries(section: str) -> dict[str, Any]:
    """What we have only so."""
    fixed = {"hidden_act": "silu", "subsampling_conv_kernel_size": 3, "subsampling_conv_stride": 2}
    return {section + name: value for name, value in fixed.items()}


def encoder_parts(body: str) -> dict[str, str]:
    """Our modules before the blocks, and theirs: activations have numbers there, too."""
    places = {"first": 0, "depthwise.0": 2, "pointwise.0": 3, "depthwise.1": 5, "pointwise.1": 6}
    parts = {f"subsampling.{our}": f"{body}subsampling.layers.{number}" for our, number in places.items()}
    return {**parts, "subsampling.output": f"{body}subsampling.linear"}


class ParakeetEncoder(Published):
    """The map between `ConformerModel` and their encoder alone."""

    model_type: ClassVar[str] = ENCODER
    architecture: ClassVar[str] = "ParakeetEncoder"
    Model: ClassVar[type[SequenceModel]] = ConformerModel
    lora_targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    section: ClassVar[str] = ""
    entries: ClassVar[Mapping[str, Entry]] = encoder_entries("")
    fixed: ClassVar[Mapping[str, Any]] = fixed_entries("")
    words: ClassVar[bool] = False
    parts: ClassVar[Mapping[str, str]] = encoder_parts("")
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "layers."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "feedforward_1_norm": "norm_feed_forward1",
        "feedforward_1.inner": "feed_forward1.linear1",
        "feedforward_1.outer": "feed_forward1.linear2",
        "attention_norm": "norm_self_att",
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": "self_attn.o_proj",
        "attention.distance": "self_attn.relative_k_proj",
        "attention.content_bias": "self_attn.bias_u",
        "attention.distance_bias": "self_attn.bias_v",
        "convolution_norm": "norm_conv",
        "convolution.inner": "conv.pointwise_conv1",
        "convolution.depthwise": "conv.depthwise_conv",
        "convolution.norm": "conv.norm",
        "convolution.outer": "conv.pointwise_conv2",
        "feedforward_2_norm": "norm_feed_forward2",
        "feedforward_2.inner": "feed_forward2.linear1",
        "feedforward_2.outer": "feed_forward2.linear2",
        "norm": "norm_out",
    }
    trailing: ClassVar[Mapping[str, int]] = {"convolution.inner.weight": 1, "convolution.outer.weight": 1}

    @classmethod
    def refusal(cls, module: Any) -> str | None:
        config = module.config
        if config.window is not None:
            return f"Hugging Face's Parakeet has no window, and this one window={config.window}"
        if config.width % 2:
            return f"Hugging Face's Parakeet has an even width, and this one width={config.width}"
        if config.features % config.subsampling:
            return (
                "Hugging Face's Parakeet has features that its subsampling divides, and this one "
                f"features={config.features} and subsampling={config.subsampling}"
            )
        return None

    @classmethod
    def architecture_of(cls, module: Any) -> str:
        return cls.architecture

    @classmethod
    def written_settings(cls, module: Any) -> dict[str, Any]:
        return {**super().written_settings(module), "feedforward": module.config.inner}

    @classmethod
    def other_entries(cls, module: Any) -> dict[str, Any]:
        told = {"model_type": ENCODER, "activation_dropout": module.config.dropout, "layerdrop": 0.0}
        return {cls.section + name: value for name, value in told.items()}


class ParakeetCTC(ParakeetEncoder):
    """The map between `ConformerModel` and their encoder in a model that has a head for CTC."""

    model_type: ClassVar[str] = "parakeet_ctc"
    architecture: ClassVar[str] = "ParakeetForCTC"
    heads: ClassVar[HeadNames | None] = HeadNames(
        "first", {}, dropouts={"ctc": ()}, ends={"ctc": "ForCTC"}, task_of={"ctc": "speech"}
    )
    section: ClassVar[str] = SECTION
    entries: ClassVar[Mapping[str, Entry]] = {
        "vocab_size": Entry(Size),
        "pad_token_id": Entry(Token | None),
        **encoder_entries(SECTION),
    }
    fixed: ClassVar[Mapping[str, Any]] = fixed_entries(SECTION)
    body: ClassVar[str] = BODY
    parts: ClassVar[Mapping[str, str]] = encoder_parts(BODY)
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": f"{BODY}layers."}

    @classmethod
    def processors(cls) -> tuple[str, ...]:
        return (*cls.Model.processors, TEXT)  # it writes with a tokenizer

    @classmethod
    def without_head(cls) -> type[Published]:
        return ParakeetEncoder

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        size, blank = config.get("vocab_size"), config.get("pad_token_id")
        if size is not None and blank not in (None, size - 1):
            raise FolderError(
                f"{where}/config.json: pad_token_id, the blank, is {brief(blank)}; Legato has only the last of "
                f"vocab_size={size}"
            )
        return super().settings(config, tensors, where)
