"""GPT-2 in Hugging Face's folders: their config entries and tensor names, and ours.

Their matrices lie the other way round, (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from legato.models.gpt2 import GPT2Model
from legato.models.published.entries import ACTIVATIONS, Entry, Epsilon, Share, Size
from legato.models.published.family import HeadNames, Published


class GPT2(Published):
    """The map between `GPT2Model` and `GPT2LMHeadModel`."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    Model = GPT2Model
    lora_targets = ("c_attn",)
    heads = HeadNames("last", {"head": "score"}, bias=False)
    entries: ClassVar[Mapping[str, Entry]] = {
        "n_positions": Entry(Size, "length"),
        "n_embd": Entry(Size, "width"),
        "n_layer": Entry(Size, "layers"),
        "n_head": Entry(Size, "heads"),
        "n_inner": Entry(Size | None, "feedforward", None),
        "activation_function": Entry(str, "activation", "gelu_new", ACTIVATIONS),
        "resid_pdrop": Entry(Share, "dropout", 0.1),
        "embd_pdrop": Entry(Share, "dropout_embedding", 0.1),
        "attn_pdrop": Entry(Share, "dropout_attention", 0.1),
        "layer_norm_epsilon": Entry(Epsilon, "eps", 1e-5),
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    }
    body = "transformer."
    parts: ClassVar[Mapping[str, str]] = {
        "embedding": "transformer.wte",
        "positions": "transformer.wpe",
        "stack.norm": "transformer.ln_f",
        "output": "lm_head",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "transformer.h."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "feedforward_norm": "ln_2",
        "feedforward.inner": "mlp.c_fc",
        "feedforward.outer": "mlp.c_proj",
    }
    turned = True
    ignored = r"\.attn\.(masked_)?bias$"  # what looks ahead was kept as a tensor once

    @classmethod
    def written_settings(cls, module: GPT2Model) -> dict[str, Any]:
        dropouts = {
            "dropout_embedding": module.dropout_embedding,
            "dropout_attention": module.stack.shape.dropout_attention,
        }
        return {**super().written_settings(module), **dropouts}
