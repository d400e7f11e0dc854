"""GPT-2 (Radford et al. 2019): a Transformer that looks back only, and writes.

    x_t = E w_t + P t                                       the word, and a learned vector for its place
    h = blocks(x_1 … x_t), a norm after the last            pre-norm, GELU
    P(w_{t+1} | w_1 … w_t) = softmax(E h_t)                 the readout is the embedding again

The map to Hugging Face's names is below. Their matrices lie the other way round, (inputs, outputs).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Required

from pydantic import Field, model_validator
from torch import Tensor

from legato.models.base import DEEPEST, ModelConfig, Sizes
from legato.models.decoder import DecoderModel
from legato.models.entries import Entries, Epsilon, Share, Size
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
    written_activation,
)
from legato.nn.positions import Learned
from legato.nn.readout import Readout, TokenEmbedding
from legato.nn.transformer import BlockShape, Stack, start_normal
from legato.schema import OPEN, with_config


class GPT2Config(ModelConfig):
    """Settings of GPT-2."""

    name: Literal["gpt2"] = "gpt2"
    layers: int = Field(4, ge=1, le=DEEPEST, description="blocks")
    width: int = Field(256, ge=1, description="hidden size")
    heads: int = Field(4, ge=1, description="attention heads; they divide the width")
    feedforward: int | None = Field(None, ge=1, description="units of the feed-forward layers; left out: 4 × width")
    activation: Literal["gelu-tanh", "gelu", "relu", "silu"] = Field(
        "gelu-tanh", description="of the feed-forward layers"
    )
    length: int = Field(1024, ge=1, description="tokens of the longest text")
    dropout: float = Field(0.1, ge=0, lt=1, description="on what each sublayer adds")
    dropout_embedding: float | None = Field(None, ge=0, lt=1, description="on the embedded input; left out: dropout")
    dropout_attention: float | None = Field(None, ge=0, lt=1, description="on attention weights; left out: dropout")
    eps: float = Field(1e-5, gt=0, description="in the norms' denominators")
    tied: bool = Field(True, description="read out with the embedding's weights")

    @model_validator(mode="after")
    def _heads_divide(self) -> GPT2Config:
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        return self


class GPT2Model(DecoderModel):
    """A pre-norm decoder with learned positions."""

    Config: ClassVar[type[ModelConfig]] = GPT2Config
    summary: ClassVar[str] = "GPT-2: a Transformer decoder with learned positions, that writes"
    published: ClassVar[str | None] = "gpt2"
    config: GPT2Config
    positions: Learned

    def __init__(self, config: GPT2Config, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width = config.width
        shape = BlockShape(
            width,
            config.heads,
            config.feedforward or 4 * width,
            config.activation,
            norm_first=True,
            eps=config.eps,
            dropout=config.dropout,
            dropout_attention=config.dropout if config.dropout_attention is None else config.dropout_attention,
        )
        self.dropout_embedding = config.dropout if config.dropout_embedding is None else config.dropout_embedding
        self.embedding = TokenEmbedding(sizes.vocabulary, width)
        self.positions = Learned(config.length, width)
        self.stack = Stack("decoder", config.layers, shape, causal=True)
        self.output = Readout(width, sizes.vocabulary)
        start_normal(self, 0.02)
        if config.tied:
            self.output.weight = self.embedding.weight


# A block's modules, and theirs.
BLOCK = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feedforward_norm": "ln_2",
    "feedforward.inner": "mlp.c_fc",
    "feedforward.outer": "mlp.c_proj",
}


@with_config(OPEN)
class GPT2Entries(Entries, total=False):
    """What is read of config.json."""

    vocab_size: Required[Size]
    n_positions: Required[Size]
    n_embd: Required[Size]
    n_layer: Required[Size]
    n_head: Required[Size]
    n_inner: Size | None
    activation_function: str
    resid_pdrop: Share
    embd_pdrop: Share
    attn_pdrop: Share
    layer_norm_epsilon: Epsilon


class GPT2:
    """The map between `GPT2Model` and `GPT2LMHeadModel`."""

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    Entries: ClassVar[type[Entries]] = GPT2Entries

    @classmethod
    def refusal(cls, module: GPT2Model) -> str | None:
        return None

    @classmethod
    def names(cls, module: GPT2Model) -> Names:
        return _names(module.config, module.vocabulary)

    @classmethod
    def save(cls, module: GPT2Model) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = module.config
        entries = {
            "architectures": [
                cls.architecture if hasattr(module, "output") else class_prefix(cls.architecture) + "Model"
            ],
            "vocab_size": module.vocabulary,
            "n_positions": config.length,
            "n_embd": config.width,
            "n_layer": config.layers,
            "n_head": config.heads,
            "n_inner": config.feedforward,
            "activation_function": written_activation(config.activation),
            "resid_pdrop": config.dropout,
            "embd_pdrop": module.dropout_embedding,
            "attn_pdrop": module.stack.shape.dropout_attention,
            "layer_norm_epsilon": config.eps,
            "tie_word_embeddings": config.tied,
        }
        return entries, give_tensors(module, _names(config, module.vocabulary))

    @classmethod
    def load(cls, config: dict[str, Any], tensors: dict[str, Tensor], where: str) -> GPT2Model:
        entries_of(cls.Entries, config, where)
        expected = {
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        }
        refuse_unless(config, expected, where)
        theirs = with_prefix(tensors, "transformer.", r"lm_head\.")
        settings = {
            "layers": config["n_layer"],
            "width": config["n_embd"],
            "heads": config["n_head"],
            "feedforward": config.get("n_inner"),
            "activation": activation_of(config, "activation_function", "gelu_new", where),
            "length": config["n_positions"],
            "dropout": config.get("resid_pdrop", 0.1),
            "dropout_embedding": config.get("embd_pdrop", 0.1),
            "dropout_attention": config.get("attn_pdrop", 0.1),
            "eps": config.get("layer_norm_epsilon", 1e-5),
            "tied": is_tied(config, theirs, "transformer.wte.weight", "lm_head.weight"),
        }
        ours = checked(GPT2Config, settings, where)
        # What looks ahead was kept as a tensor once; a tied readout is the embedding.
        left = r"\.attn\.(masked_)?bias$" + (r"|^lm_head\." if ours.tied else "")
        return filled(GPT2Model, ours, config["vocab_size"], _names, theirs, where, ignored=left)


def _names(config: GPT2Config, vocabulary: int) -> Names:
    names = {
        "embedding.weight": From(("transformer.wte.weight",), rows=vocabulary),
        "positions.weight": From(("transformer.wpe.weight",)),
        "stack.norm.weight": From(("transformer.ln_f.weight",)),
        "stack.norm.bias": From(("transformer.ln_f.bias",)),
    }
    for layer in range(config.layers):
        for ours, theirs in BLOCK.items():
            name, their = f"stack.layers.{layer}.{ours}", f"transformer.h.{layer}.{theirs}"
            names[f"{name}.weight"] = From((f"{their}.weight",), turned="norm" not in ours)
            names[f"{name}.bias"] = From((f"{their}.bias",))
    if not config.tied:
        names["output.weight"] = From(("lm_head.weight",), rows=vocabulary)
    return names
