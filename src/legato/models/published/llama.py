"""LLaMA, Mistral, Qwen 2 and Qwen 3 in Hugging Face's folders: their config entries and tensor names, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from legato.errors import FolderError, brief
from legato.models.llama import LlamaConfig, LlamaModel
from legato.models.published.entries import Entry, Epsilon, Flag, Share, Size, Switch
from legato.models.published.family import HeadNames, Published, refuse_unless
from legato.schema import OPEN, TypedDict, with_config

Positive = Annotated[float, Field(gt=0, le=1e12)]


@with_config(OPEN)
class RotaryEntries(TypedDict, total=False):
    """What is said of rotary positions."""

    rope_type: str
    type: str  # as it was called before
    rope_theta: Positive
    factor: Positive
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Size


LLAMA3 = {"low_freq_factor": "low", "high_freq_factor": "high", "original_max_position_embeddings": "length"}
LAYER_TYPES = {False: "full_attention", True: "sliding_attention"}  # theirs, for those with a window


class Llama(Published):
    """The map between `LlamaModel` and `LlamaForCausalLM`; its relatives' differ in a few entries."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    Model = LlamaModel
    lora_targets = ("q_proj", "v_proj")
    heads = HeadNames("last", {"head": "score"}, bias=False, tags="score", body_of_spans="transformer.")
    common: ClassVar[Mapping[str, Entry]] = {  # to all relatives
        "hidden_size": Entry(Size, "width"),
        "num_hidden_layers": Entry(Size, "layers"),
        "num_attention_heads": Entry(Size, "heads"),
        "num_key_value_heads": Entry(Size | None, "kv_heads", None),
        "head_dim": Entry(Size | None, "head_width", None),
        "intermediate_size": Entry(Size, "feedforward"),
        "max_position_embeddings": Entry(Size, "length"),
        "hidden_act": Entry(str, None, "silu", {"silu": "swiglu", "swish": "swiglu"}),
        "rms_norm_eps": Entry(Epsilon, "eps", 1e-6),
        "resid_pdrop": Entry(Share, "dropout", 0.0),  # theirs has none, and leaves it be
        "attention_dropout": Entry(Share, "dropout_attention", 0.0),
        "rope_theta": Entry(Positive, "theta", 10000.0),
        "rope_scaling": Entry(RotaryEntries | None),
        "rope_parameters": Entry(RotaryEntries | None),
    }
    entries: ClassVar[Mapping[str, Entry]] = {
        **common,
        "attention_bias": Entry(Flag, "bias", False),
        "mlp_bias": Entry(Flag, "bias_feedforward", False),
    }
    fixed: ClassVar[Mapping[str, Any]] = {"partial_rotary_factor": 1.0}
    tied = False
    body = "model."
    parts: ClassVar[Mapping[str, str]] = {
        "embedding": "model.embed_tokens",
        "stack.norm": "model.norm",
        "output": "lm_head",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "model.layers."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention_norm": "input_layernorm",
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm",
        "attention.output": "self_attn.o_proj",
        "feedforward_norm": "post_attention_layernorm",
        "feedforward.inner": ("mlp.gate_proj", "mlp.up_proj"),
        "feedforward.outer": "mlp.down_proj",
    }
    ignored = r"\.rotary_emb\.inv_freq$"  # the positions' angles were kept as a tensor once

    @classmethod
    def heights(cls, module: LlamaModel) -> Mapping[str, tuple[int, ...]]:
        config = module.config
        shared = (config.kv_heads or config.heads) * config.head_size
        return {"attention.qkv": (config.heads * config.head_size, shared, shared)}

    @classmethod
    def written_settings(cls, module: LlamaModel) -> dict[str, Any]:
        config = module.config
        sizes = {
            "feedforward": config.inner,
            "kv_heads": config.kv_heads or config.heads,
            "head_width": config.head_size,
        }
        return {**super().written_settings(module), **sizes}

    @classmethod
    def other_entries(cls, module: LlamaModel) -> dict[str, Any]:
        return {"hidden_act": "silu", **_rope(module.config)}

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        settings = super().settings(config, tensors, where)
        return {**settings, "family": cls.model_type, **_read_rope(config, where)}


class Mistral(Llama):
    """The map between `LlamaModel` and `MistralForCausalLM`."""

    model_type = "mistral"
    architecture = "MistralForCausalLM"
    heads = HeadNames("last", {"head": "score"}, bias=False, tags="score")
    entries: ClassVar[Mapping[str, Entry]] = {
        **Llama.common,
        "num_key_value_heads": Entry(Size | None, "kv_heads", 8),
        "sliding_window": Entry(Size | None, "window", 4096),
    }


class Qwen2(Llama):
    """The map between `LlamaModel` and `Qwen2ForCausalLM`."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
    entries: ClassVar[Mapping[str, Entry]] = {
        **Llama.common,
        "num_key_value_heads": Entry(Size | None, "kv_heads", 32),
        "sliding_window": Entry(Size | None, "window", 4096),
        "use_sliding_window": Entry(Switch),
        "max_window_layers": Entry(int | None, None, 28),
        "layer_types": Entry(list[str] | None),
    }

    @classmethod
    def other_entries(cls, module: LlamaModel) -> dict[str, Any]:
        config = module.config
        windowed = [window is not None for window in config.windows]
        return {
            **super().other_entries(module),
            "use_sliding_window": config.window is not None,
            "max_window_layers": windowed.index(True) if any(windowed) else config.layers,
            "layer_types": [LAYER_TYPES[window] for window in windowed],
        }

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        settings = super().settings(config, tensors, where)
        window = settings["window"] if config.get("use_sliding_window") else None
        layers = settings["layers"]
        kinds, first = config.get("layer_types"), config.get("max_window_layers", 28)
        if kinds is None:
            whole = layers if window is None or first is None else max(0, min(first, layers))
            kinds = [LAYER_TYPES[False]] * whole + [LAYER_TYPES[True]] * (layers - whole)
        if len(kinds) != layers or any(kind not in LAYER_TYPES.values() for kind in kinds):
            wanted = f"{' or '.join(LAYER_TYPES.values())} for each of {layers} layers"
            raise FolderError(f"{where}/config.json: layer_types should name {wanted}")
        chosen = [layer for layer, kind in enumerate(kinds) if kind == LAYER_TYPES[True]]
        if window is None and chosen:
            raise FolderError(f"{where}/config.json: layer_types names {LAYER_TYPES[True]}, but there is no window")
        windowed = None if window is None or len(chosen) == layers else chosen
        return {**settings, "window": window, "window_layers": windowed}


class Qwen3(Qwen2):
    """The map between `LlamaModel` and `Qwen3ForCausalLM`."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    entries: ClassVar[Mapping[str, Entry]] = {
        **Qwen2.entries,
        "head_dim": Entry(Size | None, "head_width", 128),
        "attention_bias": Entry(Flag, "bias", False),
    }


def _rope(config: LlamaConfig) -> dict[str, Any]:
    """The entries about rotary positions, as transformers 5 reads them, and as those before it do."""
    scaling, kind = config.scaling.model_dump(), config.scaling.type
    old: dict[str, Any] | None = None
    if kind != "none":
        old = {"type": kind} if kind == "linear" else {their: scaling[our] for their, our in LLAMA3.items()}
        old |= {"rope_type": kind, "factor": scaling["factor"]}
    new = {"rope_type": "default", **(old or {}), "rope_theta": config.theta}
    return {"rope_theta": config.theta, "rope_scaling": old, "rope_parameters": new}


def _read_rope(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    refuse_unless(found, {"partial_rotary_factor": 1.0}, where)
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise FolderError(
            f"{where}/config.json: rotary positions of type '{brief(kind)}', which Legato does not have; "
            "it has default, linear and llama3"
        )
    settings = {"theta": found["rope_theta"]} if "rope_theta" in found else {}
    if kind == "default":
        return settings
    scaling = {"type": kind, "factor": found.get("factor")}
    if kind == "llama3":
        found = {"original_max_position_embeddings": config["max_position_embeddings"], **found}
        scaling |= {our: found.get(their) for their, our in LLAMA3.items()}
    return {**settings, "scaling": scaling}
