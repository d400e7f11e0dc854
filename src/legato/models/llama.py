"""LLaMA (Touvron et al. 2023), and its relatives Mistral, Qwen 2 and Qwen 3: the decoder as most now build it.

    x_t = E w_t                                             no positions here: attention turns queries and keys
    h = blocks(x_1 … x_t), a norm after the last            pre-norm, RMSNorm, SwiGLU, no biases
    P(w_{t+1} | w_1 … w_t) = softmax(W h_t)                 W is a matrix of its own, or with `tied` E again

What the families add, and `family` therefore decides:

    llama     biases of attention and of the feed-forward layers where asked for
    mistral   a window: tokens see only those less than so far away
    qwen2     biases of queries, keys and values; a window in some layers
    qwen3     norms of queries and keys; biases of attention where asked for; a window in some layers

The map to Hugging Face's names is below. Their query, key and value matrices are one here, as are their gate and up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Required

from pydantic import Field, model_validator
from torch import Tensor

from legato.config import Section
from legato.errors import FolderError, brief
from legato.models.base import DEEPEST, ModelConfig, Sizes
from legato.models.decoder import DecoderModel
from legato.models.entries import Entries, Epsilon, Flag, Share, Size
from legato.models.names import (
    From,
    Names,
    activation_of,
    checked,
    class_prefix,
    entries_of,
    filled,
    give_tensors,
    is_tied,
    refuse_unless,
    with_prefix,
)
from legato.nn.positions import Rotary, Slowed
from legato.nn.readout import Readout, TokenEmbedding
from legato.nn.transformer import BlockShape, Stack, start_normal
from legato.schema import OPEN, TypedDict, with_config

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


class Scaling(Section):
    """Rotary positions slowed, so that a model reads longer texts than those it first learned from."""

    most: ClassVar[int] = 1 << 24

    type: Literal["none", "linear", "llama3"] = Field("none", description="none, linear or llama3")
    factor: float = Field(1.0, ge=1, description="how many times slower")
    low: float = Field(1.0, gt=0, description="llama3: what turns less often than this is slowed")
    high: float = Field(4.0, gt=0, description="llama3: what turns more often than this is not")
    length: int = Field(8192, ge=1, description="llama3: tokens of the longest text of the first training")

    @model_validator(mode="after")
    def _low_is_low(self) -> Scaling:
        if self.low >= self.high:
            raise ValueError(f"low={self.low:g} should be less than high={self.high:g}")
        return self


class LlamaConfig(ModelConfig):
    """Settings of LLaMA and its relatives."""

    name: Literal["llama"] = "llama"
    family: Family = Field("llama", description="llama, mistral, qwen2 or qwen3: what it is saved as")
    layers: int = Field(4, ge=1, le=DEEPEST, description="blocks")
    width: int = Field(256, ge=1, description="hidden size")
    heads: int = Field(4, ge=1, description="attention heads")
    kv_heads: int | None = Field(None, ge=1, description="heads of keys and values; left out: as many")
    head_width: int | None = Field(None, ge=2, description="left out: width / heads")
    feedforward: int | None = Field(None, ge=1, description="units of the feed-forward layers; left out: 8/3 × width")
    length: int = Field(2048, ge=1, description="tokens of the longest text")
    theta: float = Field(10000.0, gt=0, description="base of the rotary positions")
    scaling: Scaling = Field(default_factory=Scaling, description="of the rotary positions")
    window: int | None = Field(None, ge=1, description="tokens see only those less than so far away; left out: all")
    window_layers: tuple[int, ...] | None = Field(None, description="those with the window, from 0; left out: all")
    bias: bool = Field(False, description="biases in attention (llama and qwen3)")
    bias_feedforward: bool = Field(False, description="biases in the feed-forward layers (llama)")
    dropout: float = Field(0.0, ge=0, lt=1, description="on embeddings and on what each sublayer adds")
    dropout_attention: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    eps: float = Field(1e-6, gt=0, description="in the norms' denominators")
    tied: bool = Field(False, description="read out with the embedding's weights")

    @model_validator(mode="after")
    def _fits_together(self) -> LlamaConfig:
        if self.width % self.heads and (self.head_width is None or self.family == "llama"):
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if self.head_size % 2:
            raise ValueError(f"rotary positions need heads of an even width, not {self.head_size}")
        return self

    @model_validator(mode="after")
    def _fits_family(self) -> LlamaConfig:
        family = self.family
        if self.window is not None and family == "llama":
            raise ValueError("family=llama has no window; family=mistral has")
        if self.window_layers is not None:
            if self.window is None or family == "mistral":
                raise ValueError("window_layers needs a window, and family=qwen2 or qwen3")
            if not set(self.window_layers) <= set(range(self.layers)):
                raise ValueError(
                    f"window_layers={list(self.window_layers)}, but there are layers 0 to {self.layers - 1}"
                )
        if self.bias and family not in ("llama", "qwen3"):
            raise ValueError(f"family={family} has no choice of bias; llama and qwen3 have")
        if self.bias_feedforward and family != "llama":
            raise ValueError(f"family={family} has no bias_feedforward; llama has")
        return self

    @property
    def head_size(self) -> int:
        return self.head_width or self.width // self.heads

    @property
    def inner(self) -> int:
        """Units of the feed-forward layers. SwiGLU has three matrices for two, so it gets two thirds of the units."""
        return self.feedforward or -(-8 * self.width // 24) * 8

    @property
    def windows(self) -> list[int | None]:
        """Each layer's."""
        chosen = range(self.layers) if self.window_layers is None else self.window_layers
        return [self.window if layer in chosen else None for layer in range(self.layers)]


class LlamaModel(DecoderModel):
    """A pre-norm decoder with rotary positions, RMSNorm and SwiGLU."""

    Config: ClassVar[type[ModelConfig]] = LlamaConfig
    summary: ClassVar[str] = "LLaMA, Mistral, Qwen 2 and 3: a decoder with rotary positions, RMSNorm and SwiGLU"
    config: LlamaConfig

    def __init__(self, config: LlamaConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width, scaling = config.width, config.scaling
        shape = BlockShape(
            width,
            config.heads,
            config.inner,
            "swiglu",
            kv_heads=config.kv_heads,
            head_width=config.head_width,
            norm="rms",
            eps=config.eps,
            norm_first=True,
            norm_heads=config.family == "qwen3",
            bias=config.bias_feedforward,
            bias_qkv=config.bias or config.family == "qwen2",
            bias_attention=config.bias,
            dropout=config.dropout,
            dropout_attention=config.dropout_attention,
        )
        slowed = None
        if scaling.type != "none":
            slowed = Slowed(scaling.type, scaling.factor, scaling.low, scaling.high, scaling.length)
        self.dropout_embedding = config.dropout
        self.embedding = TokenEmbedding(sizes.vocabulary, width)
        self.positions = None
        rotary = Rotary(config.length, config.head_size, config.theta, slowed)
        self.stack = Stack("decoder", config.layers, shape, causal=True, window=config.windows, rotary=rotary)
        self.output = Readout(width, sizes.vocabulary)
        start_normal(self, 0.02)
        if config.tied:
            self.output.weight = self.embedding.weight

    @property
    def published(self) -> str:  # type: ignore[override]  # one class here, several there
        return self.config.family


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


class Llama:
    """The map between `LlamaModel` and `LlamaForCausalLM`; its relatives' differ in a few entries."""

    model_type: ClassVar[Family] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    Entries: ClassVar[type[Entries]] = LlamaEntries
    # What an entry is where config.json leaves it out.
    defaults: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def refusal(cls, module: LlamaModel) -> str | None:
        return None

    @classmethod
    def names(cls, module: LlamaModel) -> Names:
        return _names(module.config, module.vocabulary)

    @classmethod
    def save(cls, module: LlamaModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = module.config
        entries = {
            "architectures": [
                cls.architecture if hasattr(module, "output") else class_prefix(cls.architecture) + "Model"
            ],
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
        return entries, give_tensors(module, _names(config, module.vocabulary))

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
