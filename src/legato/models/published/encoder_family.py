"""What BERT and its kin have in common in Hugging Face's folders.

Their folders hold the encoder alone, with heads of pre-training or with a task's head: what there is, is read. Heads
of tasks are left where they are: those that we know are taken off before (heads.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from torch import Tensor

from legato.models.published.entries import ACTIVATIONS, Entry, Epsilon, Share, Size
from legato.models.published.family import READOUT, Published

# Entries of config.json that say a head's dropout.
DROPOUT: Final = dict.fromkeys(("classes", "tags", "spans"), ("classifier_dropout", "hidden_dropout_prob"))
# Entries that BERT and RoBERTa spell alike, …
ENTRIES: Final = {
    "hidden_size": Entry(Size, "width"),
    "num_hidden_layers": Entry(Size, "layers"),
    "num_attention_heads": Entry(Size, "heads"),
    "intermediate_size": Entry(Size, "feedforward"),
    "max_position_embeddings": Entry(Size, "length"),
    "type_vocab_size": Entry(Size, "segments", 2),
    "hidden_act": Entry(str, "activation", "gelu", ACTIVATIONS),
    "hidden_dropout_prob": Entry(Share, "dropout", 0.1),
    "attention_probs_dropout_prob": Entry(Share, "dropout_attention", 0.1),
    "layer_norm_eps": Entry(Epsilon, "eps", 1e-12),
}
# … and those that ask for what we do not have.
FIXED: Final = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}
# A block's modules, and theirs, in the order in which they are stacked.
BLOCK: Final[Mapping[str, str | tuple[str, ...]]] = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feedforward.inner": "intermediate.dense",
    "feedforward.outer": "output.dense",
    "feedforward_norm": "output.LayerNorm",
}


def body_parts(body: str) -> dict[str, str]:
    """The parts of BERT's and RoBERTa's encoders outside of blocks."""
    return {
        "embedding": f"{body}embeddings.word_embeddings",
        "positions": f"{body}embeddings.position_embeddings",
        "segments": f"{body}embeddings.token_type_embeddings",
        "embedding_norm": f"{body}embeddings.LayerNorm",
        "pooler": f"{body}pooler.dense",
    }


class PublishedEncoder(Published):
    """A map of an encoder, whose settings say which heads there are."""

    present: ClassVar[Mapping[str, str]] = {}  # settings that are true where there are tensors whose names begin so
    # Heads of tasks, and numbers 0, 1, 2, …, which older versions kept as a tensor.
    ignored: ClassVar[str] = r"^(classifier|pre_classifier|qa_outputs)\.|\.(position_ids|token_type_ids)$"

    @classmethod
    def renamed(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """… and the norms' old names made new: `gamma` is `weight` and `beta` is `bias`.

        Where the readout's bias has two names, their second is what counts.
        """
        tensors = super().renamed(config, tensors)
        names = ((name, re.sub(r"(LayerNorm\.)gamma$", r"\1weight", name)) for name in tensors)
        found = {re.sub(r"(LayerNorm\.)beta$", r"\1bias", new): tensors[name] for name, new in names}
        bias, second = cls._biases()
        if second in found:
            found[bias] = found.pop(second)
        return found

    @classmethod
    def save(cls, module: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """… with both names of the readout's bias where the readout is not the embedding."""
        entries, tensors = super().save(module)
        bias, second = cls._biases()
        if second != bias and set(cls.their_names(READOUT)) & set(tensors):
            tensors[second] = tensors[bias].clone()
        return entries, tensors

    @classmethod
    def _biases(cls) -> tuple[str, str]:
        """What the readout's bias is called, and its name beside the readout's weight."""
        (bias,), (weight,) = cls.their_names("output.bias"), cls.their_names(READOUT)
        return bias, weight.removesuffix("weight") + "bias"

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        heads = {ours: any(name.startswith(start) for name in tensors) for ours, start in cls.present.items()}
        return {**super().settings(config, tensors, where), **heads}

    @classmethod
    def written_settings(cls, module: Any) -> dict[str, Any]:
        return {**super().written_settings(module), "feedforward": module.stack.shape.inner}
