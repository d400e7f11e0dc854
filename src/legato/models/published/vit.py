"""The Vision Transformer in Hugging Face's folders: their config entries and tensor names, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from legato.models.base import SequenceModel
from legato.models.published.entries import ACTIVATIONS, Entry, Epsilon, Flag, Share, Size
from legato.models.published.family import HeadNames, Published
from legato.models.vit import ViTModel


class ViT(Published):
    """The map between `ViTModel` and theirs of that name, with whatever heads."""

    model_type: ClassVar[str] = "vit"
    architecture: ClassVar[str] = "ViTModel"
    Model: ClassVar[type[SequenceModel]] = ViTModel
    lora_targets: ClassVar[tuple[str, ...]] = ("query", "value")
    heads: ClassVar[HeadNames | None] = HeadNames(
        "first",
        {"head": "classifier"},
        dropouts={"classes": ()},
        ends={"classes": "ForImageClassification"},
        task_of={"classes": "image-classification"},
    )
    entries: ClassVar[Mapping[str, Entry]] = {
        "hidden_size": Entry(Size, "width"),
        "num_hidden_layers": Entry(Size, "layers"),
        "num_attention_heads": Entry(Size, "heads"),
        "intermediate_size": Entry(Size, "feedforward"),
        "image_size": Entry(Size, "image", 224),
        "patch_size": Entry(Size, "patch", 16),
        "hidden_act": Entry(str, "activation", "gelu", ACTIVATIONS),
        "hidden_dropout_prob": Entry(Share, "dropout", 0.0),
        "attention_probs_dropout_prob": Entry(Share, "dropout_attention", 0.0),
        "layer_norm_eps": Entry(Epsilon, "eps", 1e-12),
        "qkv_bias": Entry(Flag, "bias_qkv", True),
    }
    words: ClassVar[bool] = False
    fixed: ClassVar[Mapping[str, Any]] = {"num_channels": 3, "pooler_act": "tanh"}
    body: ClassVar[str] = "vit."
    parts: ClassVar[Mapping[str, str]] = {
        "patches.whole": "vit.embeddings.cls_token",
        "patches.positions": "vit.embeddings.position_embeddings",
        "patches.projection": "vit.embeddings.patch_embeddings.projection",
        "stack.norm": "vit.layernorm",
        "pooler": "vit.pooler.dense",
    }
    leading: ClassVar[Mapping[str, int]] = {"patches.whole": 2, "patches.positions": 1}
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "vit.encoder.layer."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention.qkv": (
            "attention.attention.query",
            "attention.attention.key",
            "attention.attention.value",
        ),
        "attention.output": "attention.output.dense",
        "attention_norm": "layernorm_before",
        "feedforward.inner": "intermediate.dense",
        "feedforward.outer": "output.dense",
        "feedforward_norm": "layernorm_after",
    }
    ignored: ClassVar[str] = r"^classifier\.|mask_token$"

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        pooler = any(name.startswith("vit.pooler.") for name in tensors)
        return {**super().settings(config, tensors, where), "pooler": pooler}

    @classmethod
    def written_settings(cls, module: Any) -> dict[str, Any]:
        return {**super().written_settings(module), "feedforward": module.stack.shape.inner}
