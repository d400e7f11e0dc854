"""LLaVA in Hugging Face's folders: a section and a prefix for each of its two models.

    vision_config, vision_tower.…               CLIP's vision tower, whose names are in `clip.py`
    text_config, language_model.…               LLaMA or a relative, whose names are in `llama.py`
    multi_modal_projector.linear_1, linear_2    between the two

Theirs takes any two models; these are the ones known here. Some folders have the names that the modules have in
memory, `model.language_model.…` with `lm_head` beside it. Of the text model the first folders say only in what it
differs from LLaMA of 7 billion parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from torch import Tensor

from legato.errors import FolderError, brief
from legato.models.base import Sizes
from legato.models.llava import LlavaModel
from legato.models.published.clip import QUICK, CLIPVisionTower
from legato.models.published.entries import Entry, Flag, Token
from legato.models.published.family import Published, refuse_unless
from legato.models.published.llama import Llama, Mistral, Qwen2, Qwen3
from legato.models.published.tensor_names import From, Names
from legato.schema import fit

TEXT, VISION = "text_config", "vision_config"
FAMILIES: Final[Mapping[str, type[Llama]]] = {form.model_type: form for form in (Llama, Mistral, Qwen2, Qwen3)}
LANGUAGE, TOWER = "language_model.", "vision_tower."  # how the names of the two models' tensors begin
READOUT = f"{LANGUAGE}lm_head.weight"
IN_MEMORY: Final = {  # how names begin that are those of modules, and how they do in folders
    "model.language_model.": f"{LANGUAGE}model.",
    "model.vision_tower.": TOWER,
    "model.multi_modal_projector.": "multi_modal_projector.",
    "lm_head.": f"{LANGUAGE}lm_head.",
}
SEVEN: Final = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}  # billion weights
LLAMA: Final = {**SEVEN, "vocab_size": 32000, "intermediate_size": 11008, "max_position_embeddings": 2048}
MISTRAL: Final = {
    **LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
QWEN: Final = {**SEVEN, "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768}
CLIP_LARGE: Final = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 336,
    "patch_size": 14,
}
# Where a folder does not say it, by the section's model_type; the first where it does not say that either.
USUAL_TEXT: Final = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN, "qwen3": {**QWEN, "head_dim": 128}}
USUAL_VISION: Final = {CLIPVisionTower.model_type: CLIP_LARGE}


def _under(prefix: str, source: From) -> From:
    return replace(source, names=tuple(prefix + name for name in source.names))


class Llava(Published):
    """The map between `LlavaModel` and `LlavaForConditionalGeneration`."""

    model_type = "llava"
    architecture = "LlavaForConditionalGeneration"
    Model = LlavaModel
    lora_targets = Llama.lora_targets
    words = False  # the text model's section says how many there are
    entries: ClassVar[Mapping[str, Entry]] = {
        TEXT: Entry(dict[str, Any] | None),
        VISION: Entry(dict[str, Any] | None),
        "image_token_index": Entry(Token, "image_token", 32000),
        "image_token_id": Entry(Token),  # another name of the same
        "projector_hidden_act": Entry(str, "activation", "gelu", QUICK),
        "multimodal_projector_bias": Entry(Flag, "bias", True),
        "vision_feature_layer": Entry(int, "layer", -2),
        "vision_feature_select_strategy": Entry(Literal["default", "full"]),
    }
    parts: ClassVar[Mapping[str, str]] = {
        "projector.inner": "multi_modal_projector.linear_1",
        "projector.outer": "multi_modal_projector.linear_2",
    }
    ignored = rf"{Llama.ignored}|{CLIPVisionTower.ignored}"

    @classmethod
    def refusal(cls, module: LlavaModel) -> str | None:
        """Why this model cannot be written so; None when it can."""
        if module.vision.published_as != CLIPVisionTower.model_type:
            return f"Hugging Face's LLaVA is known here with clip-vision, this model has {module.config.vision.name}"
        if module.text.published_as not in FAMILIES:
            return f"Hugging Face's LLaVA is known here with llama, this model has {module.config.text.name}"
        if module.config.projector != "mlp":
            return f"their projector has two layers, projector=mlp, this model's is {module.config.projector}"
        return None

    # --- names of tensors ------------------------------------------------------------------------------

    @classmethod
    def names(cls, module: LlavaModel) -> Names:
        text, vision = (
            FAMILIES[str(module.text.published_as)].names(module.text),
            CLIPVisionTower.names(module.vision),
        )
        return {
            **{f"text.{name}": _under(LANGUAGE, source) for name, source in text.items()},
            **{f"vision.{name}": _under(TOWER, source) for name, source in vision.items()},
            **super().names(module),
        }

    @classmethod
    def their_names(cls, name: str) -> tuple[str, ...]:
        return super().their_names(name) if name.startswith("projector.") else ()  # the parts' forms know theirs

    @classmethod
    def renamed(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            before = next((prefix for prefix in IN_MEMORY if name.startswith(prefix)), "")
            name = IN_MEMORY.get(before, "") + name.removeprefix(before)
            rest = name.removeprefix(TOWER)
            if rest != name and not rest.startswith(CLIPVisionTower.body):
                name = TOWER + CLIPVisionTower.body + rest
            found[name] = tensor
        return found

    # --- settings --------------------------------------------------------------------------------------

    @classmethod
    def save(cls, module: LlavaModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config, tensors = super().save(module)
        form = FAMILIES[str(module.text.published_as)]
        text, vision = form.entries_written(module.text), CLIPVisionTower.entries_written(module.vision)
        sections = {
            TEXT: {"model_type": form.model_type, **text},
            VISION: {"model_type": CLIPVisionTower.model_type, **vision},
        }
        return {**config, "tie_word_embeddings": text["tie_word_embeddings"], **sections}, tensors

    @classmethod
    def written_settings(cls, module: LlavaModel) -> dict[str, Any]:
        known = {"image_token": module.image_token, "layer": module.config.chosen_layer}
        return {**super().written_settings(module), **known}

    @classmethod
    def other_entries(cls, module: LlavaModel) -> dict[str, Any]:
        image = module.config.vision.image
        return {
            "vision_feature_select_strategy": "full" if module.config.whole else "default",
            "image_seq_length": module.patches_of(image, image),
        }

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        if config.get("image_token_id") is not None:
            config = {**config, "image_token_index": config["image_token_id"]}
        settings = super().settings(config, tensors, where)
        settings["whole"] = config.get("vision_feature_select_strategy") == "full"
        text, vision = _section(config, TEXT, USUAL_TEXT), _section(config, VISION, USUAL_VISION)
        if vision["model_type"] != CLIPVisionTower.model_type or text["model_type"] not in FAMILIES:
            raise FolderError(
                f"{where}/config.json: a {brief(text['model_type'])} that sees by a {brief(vision['model_type'])}; "
                f"Legato has LLaVA of {', '.join(FAMILIES)} with {CLIPVisionTower.model_type}"
            )
        of_text = {name.removeprefix(LANGUAGE): tensor for name, tensor in tensors.items()}
        settings["text"] = {"name": "llama", **_part(FAMILIES[text["model_type"]], text, of_text, where)}
        settings["vision"] = {"name": "clip-vision", **_part(CLIPVisionTower, vision, {}, where)}
        return settings

    @classmethod
    def copies(cls, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return (READOUT,) if settings["text"]["tied"] else ()

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> Sizes:
        return Sizes(_section(config, TEXT, USUAL_TEXT)["vocab_size"])


def _section(config: Mapping[str, Any], name: str, usual: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A part's section, with what it is where the folder does not say."""
    given = {"model_type": next(iter(usual)), **(config.get(name) or {})}
    section = {**usual.get(given["model_type"], {}), **given}
    tied = bool(config.get("tie_word_embeddings")) or bool(section.get("tie_word_embeddings"))
    return {**section, "tie_word_embeddings": tied}


def _part(form: type[Published], config: dict[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """A part's settings, by its own form."""
    checked = fit(config, form.Entries, f"{where}/config.json")
    refuse_unless(checked, form.fixed, where)
    return form.settings(checked, tensors, where)
