"""GPT-2 in Hugging Face's folders: their config entries and tensor names, and ours.

Their matrices lie the other way round, (inputs, outputs).
"""

from __future__ import annotations

from typing import Any, ClassVar, Required

from torch import Tensor

from legato.models.base import Published
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.published.entries import Entries, Epsilon, Share, Size
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
    written_activation,
)
from legato.schema import OPEN, with_config

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


class GPT2(Published):
    """The map between `GPT2Model` and `GPT2LMHeadModel`."""

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    Entries: ClassVar[type[Entries]] = GPT2Entries
    lora_targets: ClassVar[tuple[str, ...]] = ("c_attn",)
    heads: ClassVar[HeadNames | None] = HeadNames("last", {"head": "score"}, bias=False, body="transformer.")

    @classmethod
    def names(cls, module: GPT2Model) -> Names:
        return _names(module.config, module.vocabulary)

    @classmethod
    def save(cls, module: GPT2Model) -> tuple[dict[str, Any], dict[str, Tensor]]:
        config = module.config
        entries = {
            "architectures": [cls.architecture if module.has_readout else class_prefix(cls.architecture) + "Model"],
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
        return entries, to_hf(module, _names(config, module.vocabulary))

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
