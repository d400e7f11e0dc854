"""LLaMA, Mistral, Qwen 2 and Qwen 3 in Hugging Face's folders: their config entries and tensor names, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Required

from pydantic import Field
from torch import Tensor

from legato.errors import FolderError, brief
from legato.models.base import Published
from legato.models.llama import Family, LlamaConfig, LlamaModel
from legato.models.published.entries import Entries, Epsilon, Flag, Share, Size
from legato.models.published.head_names import HeadNames
from legato.models.published.tensor_names import (
    From,
    Names,
    activation_of,
    checked,
    class_prefix,
    entries_of,
    filled,
    is_tied,
    refuse_unless,
    to_hf,
    with_prefix,
)
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


@with_config(OPEN)
class LlamaEntries(Entries, total=False):
    """What is read of config.json, of all relatives."""

    vocab_size: Required[Size]
    hidden_size: Required[Size]
    num_hidden_layers: Required[Size]
    num_attention_heads: Required[Size]
    num_key_value_heads: Size | None
    head_dim: Size | None
    intermediate_size: Required[Size]
    max_position_embeddings: Required[Size]
    hidden_act: str
    rms_norm_eps: Epsilon
    resid_pdrop: Share
    attention_dropout: Share
    attention_bias: Flag
    mlp_bias: Flag
    rope_theta: Positive
    rope_scaling: RotaryEntries | None
    rope_parameters: RotaryEntries | None
    use_sliding_window: Flag | None
    sliding_window: Size | None
    max_window_layers: int | None
    layer_types: list[str] | None


class Llama(Published):
    """The map between `LlamaModel` and `LlamaForCausalLM`; its relatives' differ in a few entries."""

    model_type: ClassVar[Family] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    Entries: ClassVar[type[Entries]] = LlamaEntries
    lora_targets: ClassVar[tuple[str, ...]] = ("q_proj", "v_proj")
    heads: ClassVar[HeadNames | None] = HeadNames(
        "last", {"head": "score"}, bias=False, tags="score", body="model.", body_of_spans="transformer."
    )
    # What an entry is where config.json leaves it out.
    defaults: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def names(cls, module: LlamaModel) -> Names:
        return _names(module.config, module.vocabulary)

    @classmethod
    def save(cls, module: LlamaModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = module.config
        entries = {
            "architectures": [cls.architecture if module.has_readout else class_prefix(cls.architecture) + "Model"],
            "vocab_size": module.vocabulary,
            "hidden_size": config.width,
            "intermediate_size": config.inner,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads or config.heads,
            "head_dim": config.head_size,
            "hidden_act": "silu",
            "max_position_embeddings": config.length,
            "rms_norm_eps": config.eps,
            "attention_dropout": config.dropout_attention,
            "resid_pdrop": config.dropout,  # theirs has none, and leaves it be
            "tie_word_embeddings": config.tied,
            **_rope(config),
            **cls._own_entries(config),
        }
        return entries, to_hf(module, _names(config, module.vocabulary))

    @classmethod
    def _own_entries(cls, config: LlamaConfig) -> dict[str, Any]:
        return {"attention_bias": config.bias, "mlp_bias": config.bias_feedforward}

    @classmethod
    def load(cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str) -> LlamaModel:
        config = {**cls.defaults, **entries_of(cls.Entries, config, where)}
        refuse_unless(config, {"partial_rotary_factor": 1.0}, where)
        activation_of(config, "hidden_act", "silu", where, {"silu": "swiglu", "swish": "swiglu"})
        theirs = with_prefix(tensors, "model.", r"lm_head\.")
        settings = {
            "family": cls.model_type,
            "layers": config["num_hidden_layers"],
            "width": config["hidden_size"],
            "heads": config["num_attention_heads"],
            "kv_heads": config.get("num_key_value_heads"),
            "head_width": config.get("head_dim"),
            "feedforward": config["intermediate_size"],
            "length": config["max_position_embeddings"],
            "dropout": config.get("resid_pdrop", 0.0),
            "dropout_attention": config.get("attention_dropout", 0.0),
            "eps": config.get("rms_norm_eps", 1e-6),
            "tied": is_tied(config, theirs, "model.embed_tokens.weight", "lm_head.weight", default=False),
            **_read_rope(config, where),
            **cls._own_settings(config, where),
        }
        ours = checked(LlamaConfig, settings, where)
        # The positions' angles were kept as a tensor once; a tied readout is the embedding.
        left = r"\.rotary_emb\.inv_freq$" + (r"|^lm_head\." if ours.tied else "")
        return filled(LlamaModel, ours, config["vocab_size"], _names, theirs, where, ignored=left)

    @classmethod
    def _own_settings(cls, config: dict[str, Any], where: str) -> dict[str, Any]:
        return {"bias": config.get("attention_bias", False), "bias_feedforward": config.get("mlp_bias", False)}


class Mistral(Llama):
    """The map between `LlamaModel` and `MistralForCausalLM`."""

    model_type: ClassVar[Family] = "mistral"
    architecture: ClassVar[str] = "MistralForCausalLM"
    heads: ClassVar[HeadNames | None] = HeadNames("last", {"head": "score"}, bias=False, tags="score", body="model.")
    defaults: ClassVar[Mapping[str, Any]] = {"num_key_value_heads": 8, "sliding_window": 4096}

    @classmethod
    def _own_entries(cls, config: LlamaConfig) -> dict[str, Any]:
        return {"sliding_window": config.window}

    @classmethod
    def _own_settings(cls, config: dict[str, Any], where: str) -> dict[str, Any]:
        return {"window": config["sliding_window"]}


class Qwen2(Llama):
    """The map between `LlamaModel` and `Qwen2ForCausalLM`."""

    model_type: ClassVar[Family] = "qwen2"
    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }

    @classmethod
    def _own_entries(cls, config: LlamaConfig) -> dict[str, Any]:
        windowed = [window is not None for window in config.windows]
        return {
            "use_sliding_window": config.window is not None,
            "sliding_window": config.window,
            "max_window_layers": windowed.index(True) if any(windowed) else config.layers,
            "layer_types": [LAYER_TYPES[window] for window in windowed],
        }

    @classmethod
    def _own_settings(cls, config: dict[str, Any], where: str) -> dict[str, Any]:
        window = config["sliding_window"] if config.get("use_sliding_window") else None
        layers = config["num_hidden_layers"]
        kinds, first = config.get("layer_types"), config["max_window_layers"]
        if kinds is None:
            whole = layers if window is None or first is None else max(0, min(first, layers))
            kinds = [LAYER_TYPES[False]] * whole + [LAYER_TYPES[True]] * (layers - whole)
        if len(kinds) != layers or any(kind not in LAYER_TYPES.values() for kind in kinds):
            wanted = f"{' or '.join(LAYER_TYPES.values())} for each of {layers} layers"
            raise FolderError(f"{where}/config.json: layer_types should name {wanted}")
        chosen = [layer for layer, kind in enumerate(kinds) if kind == LAYER_TYPES[True]]
        if window is None and chosen:
            raise FolderError(f"{where}/config.json: layer_types names {LAYER_TYPES[True]}, but there is no window")
        return {"window": window, "window_layers": None if window is None or len(chosen) == layers else chosen}


class Qwen3(Qwen2):
    """The map between `LlamaModel` and `Qwen3ForCausalLM`."""

    model_type: ClassVar[Family] = "qwen3"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    defaults: ClassVar[Mapping[str, Any]] = {**Qwen2.defaults, "head_dim": 128}

    @classmethod
    def _own_entries(cls, config: LlamaConfig) -> dict[str, Any]:
        return {"attention_bias": config.bias, **super()._own_entries(config)}

    @classmethod
    def _own_settings(cls, config: dict[str, Any], where: str) -> dict[str, Any]:
        return {"bias": config.get("attention_bias", False), **super()._own_settings(config, where)}


LAYER_TYPES = {False: "full_attention", True: "sliding_attention"}  # theirs, for those with a window


def _rope(config: LlamaConfig) -> dict[str, Any]:
    """The entries about rotary positions, as transformers 5 reads them, and as those before it do."""
    scaling = config.scaling
    old: dict[str, Any] | None = None
    if scaling.type == "linear":
        old = {"type": "linear", "rope_type": "linear", "factor": scaling.factor}
    elif scaling.type == "llama3":
        old = {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.length,
        }
    new = {"rope_type": "default", **(old or {}), "rope_theta": config.theta}
    return {"rope_theta": config.theta, "rope_scaling": old, "rope_parameters": new}


def _read_rope(config: dict[str, Any], where: str) -> dict[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    refuse_unless(found, {"partial_rotary_factor": 1.0}, where)
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise FolderError(
            f"{where}/config.json: rotary positions of type '{brief(kind)}', which Legato does not have; "
            "it has default, linear and llama3"
        )
    settings: dict[str, Any] = {"theta": found.get("rope_theta", config.get("rope_theta", 10000.0))}
    if kind == "default":
        return settings
    scaling = {"type": kind, "factor": found.get("factor")}
    if kind == "llama3":
        first = found.get("original_max_position_embeddings", config["max_position_embeddings"])
        scaling |= {"low": found.get("low_freq_factor"), "high": found.get("high_freq_factor"), "length": first}
    return {**settings, "scaling": scaling}


def _names(config: LlamaConfig, vocabulary: int) -> Names:
    names = {
        "embedding.weight": From(("model.embed_tokens.weight",), rows=vocabulary),
        "stack.norm.weight": From(("model.norm.weight",)),
    }
    own, shared = config.heads * config.head_size, (config.kv_heads or config.heads) * config.head_size
    for layer in range(config.layers):
        name, their = f"stack.layers.{layer}", f"model.layers.{layer}"
        names[f"{name}.attention_norm.weight"] = From((f"{their}.input_layernorm.weight",))
        names[f"{name}.feedforward_norm.weight"] = From((f"{their}.post_attention_layernorm.weight",))
        if config.family == "qwen3":
            names[f"{name}.attention.query_norm.weight"] = From((f"{their}.self_attn.q_norm.weight",))
            names[f"{name}.attention.key_norm.weight"] = From((f"{their}.self_attn.k_norm.weight",))
        matrices = {
            "attention.qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), (own, shared, shared)),
            "attention.output": (("self_attn.o_proj",), None),
            "feedforward.inner": (("mlp.gate_proj", "mlp.up_proj"), None),
            "feedforward.outer": (("mlp.down_proj",), None),
        }
        biased = {
            "attention.qkv": config.bias or config.family == "qwen2",
            "attention.output": config.bias,
            "feedforward.inner": config.bias_feedforward,
            "feedforward.outer": config.bias_feedforward,
        }
        for ours, (theirs, sizes) in matrices.items():
            for part in ("weight", "bias") if biased[ours] else ("weight",):
                names[f"{name}.{ours}.{part}"] = From(tuple(f"{their}.{other}.{part}" for other in theirs), sizes)
    if not config.tied:
        names["output.weight"] = From(("lm_head.weight",), rows=vocabulary)
    return names
