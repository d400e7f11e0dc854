"""CLIP in Hugging Face's folders: their config entries and tensor names, and ours.

Their config.json has a section for each tower. In the first folders the EOS token has the number 2, which it never
had: there a text's vector is read at the token of the highest number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from torch import Tensor

from legato.models.base import SequenceModel, Sizes
from legato.models.clip import CLIPModel, CLIPVision, CLIPVisionConfig
from legato.models.published.entries import ACTIVATIONS, Entry, Epsilon, Share, Size, Token, value_at
from legato.models.published.family import Published

QUICK: Final = {"quick_gelu": "quick-gelu", **ACTIVATIONS}
HIGHEST: Final = 2  # the EOS token of a folder whose texts end in the highest number
TEXT, VISION = "text_config", "vision_config"
VOCABULARY = f"{TEXT}.vocab_size"
WORDS: Final = 49408  # tokens of a folder that does not say


def tower_entries(theirs: str, ours: str, width: int, heads: int) -> dict[str, Entry]:
    """The entries that both towers have, with what they are where they are left out; both names begin so."""
    return {
        f"{theirs}hidden_size": Entry(Size, f"{ours}width", width),
        f"{theirs}num_hidden_layers": Entry(Size, f"{ours}layers", 12),
        f"{theirs}num_attention_heads": Entry(Size, f"{ours}heads", heads),
        f"{theirs}intermediate_size": Entry(Size, f"{ours}feedforward", 4 * width),
        f"{theirs}hidden_act": Entry(str, f"{ours}activation", "quick_gelu", QUICK),
        f"{theirs}attention_dropout": Entry(Share, f"{ours}dropout_attention", 0.0),
        f"{theirs}layer_norm_eps": Entry(Epsilon, f"{ours}eps", 1e-5),
    }


def vision_entries(theirs: str, ours: str) -> dict[str, Entry]:
    """Those of the vision tower."""
    return {
        **tower_entries(theirs, ours, 768, 12),
        f"{theirs}image_size": Entry(Size, f"{ours}image", 224),
        f"{theirs}patch_size": Entry(Size, f"{ours}patch", 32),
    }


def vision_parts(theirs: str, ours: str) -> dict[str, str]:
    """The parts of the vision tower outside of blocks."""
    return {
        f"{ours}patches.whole": f"{theirs}embeddings.class_embedding",
        f"{ours}patches.positions": f"{theirs}embeddings.position_embedding.weight",
        f"{ours}patches.projection": f"{theirs}embeddings.patch_embedding",
        f"{ours}norm_before": f"{theirs}pre_layrnorm",  # so it is spelt there
        f"{ours}norm": f"{theirs}post_layernorm",
    }


class Tower(Published):
    """What the maps of both towers, and of one alone, have in common."""

    lora_targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    words: ClassVar[bool] = False
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.output": "self_attn.out_proj",
        "attention_norm": "layer_norm1",
        "feedforward.inner": "mlp.fc1",
        "feedforward.outer": "mlp.fc2",
        "feedforward_norm": "layer_norm2",
    }
    ignored: ClassVar[str] = r"\.position_ids$"  # 0, 1, 2, …, which older versions kept as a tensor


class CLIPVisionTower(Tower):
    """The map between `CLIPVision` and `CLIPVisionModel`."""

    model_type: ClassVar[str] = "clip_vision_model"
    architecture: ClassVar[str] = "CLIPVisionModel"
    Model: ClassVar[type[SequenceModel]] = CLIPVision
    entries: ClassVar[Mapping[str, Entry]] = vision_entries("", "")
    fixed: ClassVar[Mapping[str, Any]] = {"num_channels": 3}
    body: ClassVar[str] = "vision_model."  # newer folders leave it out
    parts: ClassVar[Mapping[str, str]] = vision_parts("vision_model.", "")
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "vision_model.encoder.layers."}

    @classmethod
    def written_settings(cls, module: CLIPVision) -> dict[str, Any]:
        return {**super().written_settings(module), "feedforward": module.config.inner}

    @classmethod
    def other_entries(cls, module: CLIPVision) -> dict[str, Any]:
        return dict(cls.fixed)


class CLIP(Tower):
    """The map between `CLIPModel` and theirs of that name."""

    model_type: ClassVar[str] = "clip"
    architecture: ClassVar[str] = "CLIPModel"
    Model: ClassVar[type[SequenceModel]] = CLIPModel
    entries: ClassVar[Mapping[str, Entry]] = {
        **vision_entries(f"{VISION}.", "vision."),
        **tower_entries(f"{TEXT}.", "text.", 512, 8),
        f"{TEXT}.max_position_embeddings": Entry(Size, "text.length", 77),
        f"{TEXT}.eos_token_id": Entry(Token, "text.eos", WORDS - 1),
        VOCABULARY: Entry(Size, default=WORDS),
        "projection_dim": Entry(Size, "projection", 512),
        f"{TEXT}_dict": Entry(dict[str, Any] | None),
        f"{VISION}_dict": Entry(dict[str, Any] | None),
    }
    fixed: ClassVar[Mapping[str, Any]] = {f"{VISION}.num_channels": 3}
    parts: ClassVar[Mapping[str, str]] = {
        **vision_parts("vision_model.", "vision."),
        "text.embedding": "text_model.embeddings.token_embedding",
        "text.positions": "text_model.embeddings.position_embedding",
        "text.stack.norm": "text_model.final_layer_norm",
        "vision_projection": "visual_projection",
        "text_projection": "text_projection",
        "logit_scale": "logit_scale",
    }
    stacks: ClassVar[Mapping[str, str]] = {
        "vision.stack.layers.": "vision_model.encoder.layers.",
        "text.stack.layers.": "text_model.encoder.layers.",
    }

    @classmethod
    def refusal(cls, module: CLIPModel) -> str | None:
        eos = module.config.text.eos
        if not isinstance(module.vision, CLIPVision):
            return f"their CLIP has a vision tower of one kind, and this one has {module.config.vision.name}"
        if eos == "last":
            return "their CLIP reads a text's vector at its EOS token, this one at whatever is last (text.eos=last)"
        if eos == HIGHEST:
            return f"their CLIP takes an EOS token of the number {HIGHEST} for the one of the highest number"
        return None

    @classmethod
    def written_settings(cls, module: CLIPModel) -> dict[str, Any]:
        settings, config = super().written_settings(module), module.config
        if isinstance(config.vision, CLIPVisionConfig):
            settings["vision"]["feedforward"] = config.vision.inner
        settings["text"]["feedforward"] = config.text.inner
        if config.text.eos == "highest":
            settings["text"]["eos"] = HIGHEST
        return settings

    @classmethod
    def other_entries(cls, module: CLIPModel) -> dict[str, Any]:
        sections = {TEXT: "clip_text_model", VISION: "clip_vision_model"}
        told: dict[str, Any] = {f"{section}.model_type": kind for section, kind in sections.items()}
        told |= {f"{section}.projection_dim": module.config.projection for section in sections}
        told |= {f"{TEXT}.{token}_token_id": None for token in ("bos", "pad")}  # left out: those of the base model
        return {**told, VOCABULARY: module.vocabulary, f"{VISION}.num_channels": 3}

    @classmethod
    def load(
        cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str, into: SequenceModel | None = None
    ) -> SequenceModel:
        """Where an older folder says a section twice, the other one (`text_config_dict`) is what counts."""
        again = {section: config[f"{section}_dict"] for section in (TEXT, VISION) if config.get(f"{section}_dict")}
        return super().load({**config, **again}, tensors, where, into)

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        settings = super().settings(config, tensors, where)
        if settings["text"]["eos"] == HIGHEST:
            settings["text"]["eos"] = "highest"
        return settings

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> Sizes:
        return Sizes(value_at(config, VOCABULARY, WORDS))
