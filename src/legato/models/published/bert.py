"""BERT, DistilBERT, RoBERTa and its like, XLM-RoBERTa and CamemBERT, in Hugging Face's folders.

Their folders hold the encoder alone (`BertModel`), with its masked-word head (`BertForMaskedLM`), with both heads of
pre-training (`BertForPreTraining`) or with a task's head: what there is, is read. Heads of tasks are left where they
are: those that we know are taken off before (heads.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from torch import Tensor

from legato.errors import FolderError
from legato.models.bert import BertModel
from legato.models.distilbert import DistilBertModel
from legato.models.published.entries import ACTIVATIONS, Entry, Epsilon, Flag, Share, Size, Token
from legato.models.published.family import READOUT, HeadNames, Published
from legato.models.roberta import RobertaModel

# Entries of config.json that say a head's dropout.
DROPOUT: Final = dict.fromkeys(("classes", "tags", "spans"), ("classifier_dropout", "hidden_dropout_prob"))


def body_parts(body: str) -> dict[str, str]:
    """The parts of the encoders outside of blocks; DistilBERT has the first, second and fourth."""
    return {
        "embedding": f"{body}embeddings.word_embeddings",
        "positions": f"{body}embeddings.position_embeddings",
        "segments": f"{body}embeddings.token_type_embeddings",
        "embedding_norm": f"{body}embeddings.LayerNorm",
        "pooler": f"{body}pooler.dense",
    }


class PublishedEncoder(Published):
    """A map of an encoder, whose settings say which heads there are. The tables are those of BERT and RoBERTa."""

    lora_targets = ("query", "value")
    entries: ClassVar[Mapping[str, Entry]] = {
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
    fixed: ClassVar[Mapping[str, Any]] = {
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    }
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output": "attention.output.dense",
        "attention_norm": "attention.output.LayerNorm",
        "feedforward.inner": "intermediate.dense",
        "feedforward.outer": "output.dense",
        "feedforward_norm": "output.LayerNorm",
    }
    present: ClassVar[Mapping[str, str]] = {}  # settings that are true where there are tensors whose names begin so
    # Heads of tasks, and numbers 0, 1, 2, …, which older versions kept as a tensor.
    ignored = r"^(classifier|pre_classifier|qa_outputs)\.|\.(position_ids|token_type_ids)$"

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
        return {**super().written_settings(module), "feedforward": module.config.inner}


class Bert(PublishedEncoder):
    """The map between `BertModel` and Hugging Face's, with whatever heads."""

    model_type = "bert"
    architecture = "BertForPreTraining"
    Model = BertModel
    heads = HeadNames("pooler", {"head": "classifier"}, dropouts=DROPOUT)
    body = "bert."
    parts: ClassVar[Mapping[str, str]] = {
        **body_parts("bert."),
        "head": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
        "output.weight": "cls.predictions.decoder.weight",
        "output.bias": "cls.predictions.bias",
        "relation": "cls.seq_relationship",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "bert.encoder.layer."}
    present: ClassVar[Mapping[str, str]] = {
        "masked_words": "cls.predictions.",
        "next_sentence": "cls.seq_relationship.",
        "pooler": "bert.pooler.",
    }

    @classmethod
    def architecture_of(cls, module: BertModel) -> str:
        heads = {
            (True, True): "BertForPreTraining",
            (True, False): "BertForMaskedLM",
            (False, True): "BertForNextSentencePrediction",
            (False, False): "BertModel",
        }
        return heads[module.config.masked_words, module.config.next_sentence]

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        settings = super().settings(config, tensors, where)
        pooler = settings.pop("pooler")  # left out: as next_sentence
        return {**settings, "pooler": True} if pooler and not settings["next_sentence"] else settings


class Roberta(PublishedEncoder):
    """The map between `RobertaModel` and `RobertaForMaskedLM`, or `RobertaModel` where the head is missing."""

    model_type = "roberta"
    architecture = "RobertaForMaskedLM"
    Model = RobertaModel
    heads = HeadNames(
        "first", {"inner": "classifier.dense", "head": "classifier.out_proj"}, inner="tanh", dropouts=DROPOUT
    )
    entries: ClassVar[Mapping[str, Entry]] = {
        **PublishedEncoder.entries,
        "pad_token_id": Entry(Token, "padding", 1),
    }
    body = "roberta."
    parts: ClassVar[Mapping[str, str]] = {
        **body_parts("roberta."),
        "head": "lm_head.dense",
        "head_norm": "lm_head.layer_norm",
        "output.weight": "lm_head.decoder.weight",
        "output.bias": "lm_head.bias",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "roberta.encoder.layer."}
    present: ClassVar[Mapping[str, str]] = {"masked_words": "lm_head.", "pooler": "roberta.pooler."}

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        """Their positions are counted from the padding token's number + 1."""
        settings = super().settings(config, tensors, where)
        padding, rows = settings["padding"], settings["length"]
        if not 0 <= padding < rows - 1:
            raise FolderError(f"{where}/config.json: pad_token_id={padding} leaves no room in {rows} positions")
        return {**settings, "family": cls.model_type, "length": rows - padding - 1}

    @classmethod
    def written_settings(cls, module: RobertaModel) -> dict[str, Any]:
        return {**super().written_settings(module), "length": module.before + module.config.length}


class XLMRoberta(Roberta):
    model_type = "xlm-roberta"
    architecture = "XLMRobertaForMaskedLM"


class Camembert(Roberta):
    model_type = "camembert"
    architecture = "CamembertForMaskedLM"


class DistilBert(PublishedEncoder):
    """The map between `DistilBertModel` and `DistilBertForMaskedLM`, or theirs of that name without the head."""

    model_type = "distilbert"
    architecture = "DistilBertForMaskedLM"
    Model = DistilBertModel
    lora_targets = ("q_lin", "v_lin")
    heads = HeadNames(
        "first",
        {"inner": "pre_classifier", "head": "classifier"},
        inner="relu",
        dropouts={"classes": ("seq_classif_dropout",), "tags": ("dropout",), "spans": ("qa_dropout",)},
    )
    entries: ClassVar[Mapping[str, Entry]] = {
        "dim": Entry(Size, "width"),
        "n_layers": Entry(Size, "layers"),
        "n_heads": Entry(Size, "heads"),
        "hidden_dim": Entry(Size, "feedforward"),
        "max_position_embeddings": Entry(Size, "length"),
        "activation": Entry(str, "activation", "gelu", ACTIVATIONS),
        "dropout": Entry(Share, "dropout", 0.1),
        "attention_dropout": Entry(Share, "dropout_attention", 0.1),
        "sinusoidal_pos_embds": Entry(Flag, "sinusoidal", False),
    }
    fixed: ClassVar[Mapping[str, Any]] = {}
    body = "distilbert."
    parts: ClassVar[Mapping[str, str]] = {
        **body_parts("distilbert."),
        "head": "vocab_transform",
        "head_norm": "vocab_layer_norm",
        "output": "vocab_projector",
    }
    stacks: ClassVar[Mapping[str, str]] = {"stack.layers.": "distilbert.transformer.layer."}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "feedforward.inner": "ffn.lin1",
        "feedforward.outer": "ffn.lin2",
        "feedforward_norm": "output_layer_norm",
    }
    present: ClassVar[Mapping[str, str]] = {"masked_words": "vocab_"}
