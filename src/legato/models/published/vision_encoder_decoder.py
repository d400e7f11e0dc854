"""VisionEncoderDecoder in Hugging Face's folders: a Vision Transformer whose picture GPT-2 describes.

    encoder.…               ViT's tensors, without the `vit.` that they begin with elsewhere
    enc_to_dec_proj         where the two are not of one width
    decoder.…               GPT-2's, with cross-attention: `crossattention`, `ln_cross_attn`

Theirs takes any two models; ours is the Transformer whose encoder is a ViT and whose decoder has GPT-2's shape. The
names of both parts are in `vit.py` and `gpt2.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from torch import Tensor

from legato.models.base import Sizes
from legato.models.published.entries import Entry, Size, Switch, value_at
from legato.models.published.family import Published
from legato.models.published.gpt2 import GPT2
from legato.models.published.tensor_names import Names
from legato.models.published.vit import ViT
from legato.models.source_encoder import SourceEncoder, processors_with
from legato.models.transformer import TransformerModel
from legato.models.vit import ViTConfig

PICTURES: Final = "encoder.model."  # how our names of the encoder's tensors begin
KINDS: Final = {"encoder.model_type": "vit", "decoder.model_type": "gpt2"}
SHAPE: Final = {"norm": "pre", "positions": "learned", "window": None, "scale": False, "bias_readout": False}
OTHER_DROPOUTS: Final = ("dropout_embedding",)  # of GPT-2, and not of ours: the decoder has one for both


def _of_encoder(entry: Entry) -> Entry:
    return replace(entry, setting=f"encoder.{entry.setting}")


def _of_decoder(entry: Entry) -> Entry:
    return replace(entry, setting=None) if entry.setting in OTHER_DROPOUTS else entry


class VisionEncoderDecoder(Published):
    """The map between `TransformerModel` and `VisionEncoderDecoderModel`."""

    model_type = "vision-encoder-decoder"
    architecture = "VisionEncoderDecoderModel"
    Model = TransformerModel
    lora_targets = ("c_attn",)
    words = False  # the decoder's section says how many there are
    entries: ClassVar[Mapping[str, Entry]] = {
        **{name: Entry(Literal[kind]) for name, kind in KINDS.items()},
        **{
            f"encoder.{name}": replace(entry, setting=f"encoder.{entry.setting}")
            for name, entry in ViT.entries.items()
        },
        **{f"decoder.{name}": _of_decoder(entry) for name, entry in GPT2.entries.items()},
        "decoder.vocab_size": Entry(Size),
        "decoder.tie_word_embeddings": Entry(Switch),
    }
    fixed: ClassVar[Mapping[str, Any]] = {
        **{f"encoder.{name}": value for name, value in ViT.fixed.items()},
        **{f"decoder.{name}": value for name, value in GPT2.fixed.items()},
        "decoder.add_cross_attention": True,
        "decoder.cross_attention_hidden_size": None,
    }
    parts: ClassVar[Mapping[str, str]] = {
        **{our.replace("stack.", "decoder."): f"decoder.{their}" for our, their in GPT2.parts.items()},
        "encoder.projection": "enc_to_dec_proj",
    }
    stacks: ClassVar[Mapping[str, str]] = {"decoder.layers.": f"decoder.{GPT2.stacks['stack.layers.']}"}
    block: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **GPT2.block,
        "cross_norm": "ln_cross_attn",
        "cross.query": "crossattention.q_attn",
        "cross.key_value": "crossattention.c_attn",
        "cross.output": "crossattention.c_proj",
    }
    turned = True
    ignored = rf"^encoder\.pooler\.|\.crossattention\.(masked_)?bias$|{GPT2.ignored}"  # nobody reads a pooled picture

    @classmethod
    def refusal(cls, module: TransformerModel) -> str | None:
        """Why this model cannot be written so; None when it can."""
        config, encoder = module.config, module.config.encoder
        if encoder is None or encoder.name != "vit":
            read = "text" if encoder is None else f"by {encoder.name}"
            return f"Hugging Face's VisionEncoderDecoder is known here with a vit, this model reads {read}"
        settings = config.model_dump(include=set(SHAPE))
        for name, value in SHAPE.items():
            if settings[name] != value:
                return f"GPT-2, the decoder of VisionEncoderDecoder, has {name}={value}, this model {settings[name]}"
        if config.is_gated:
            return f"GPT-2, the decoder of VisionEncoderDecoder, has no activation={config.activation}"
        return None

    @classmethod
    def processors(cls) -> tuple[str, ...]:
        return processors_with(ViTConfig())

    # --- names of tensors ------------------------------------------------------------------------------

    @classmethod
    def names(cls, module: TransformerModel) -> Names:
        names = dict(super().names(module))
        for name in names:
            if name.startswith(PICTURES):
                leading = ViT.leading.get(name.removeprefix(PICTURES), 0)
                names[name] = replace(names[name], turned=False, leading=leading)
        return names

    @classmethod
    def their_names(cls, name: str) -> tuple[str, ...]:
        if not name.startswith(PICTURES):
            return super().their_names(name)
        theirs = ViT.their_names(name.removeprefix(PICTURES))
        return tuple(f"encoder.{their.removeprefix(ViT.body)}" for their in theirs)

    @classmethod
    def renamed(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    # --- settings --------------------------------------------------------------------------------------

    @classmethod
    def written_settings(cls, module: TransformerModel) -> dict[str, Any]:
        assert isinstance(module.encoder, SourceEncoder)
        sizes = {"layers": len(module.decoder.layers), "encoder": ViT.written_settings(module.encoder.model)}
        return {**super().written_settings(module), **sizes}

    @classmethod
    def other_entries(cls, module: TransformerModel) -> dict[str, Any]:
        config = module.config
        return {
            **KINDS,
            "is_encoder_decoder": True,
            "decoder.tie_word_embeddings": config.tied,
            "decoder.vocab_size": module.vocabulary,
            "decoder.embd_pdrop": config.dropout,
            "decoder.add_cross_attention": True,
            "decoder.is_decoder": True,
        }

    @classmethod
    def settings(cls, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
        settings = super().settings(config, tensors, where)
        tied = cls._is_tied(config.get("decoder") or {}, tensors)
        return {**settings, **SHAPE, "tied": tied, "encoder": {**settings["encoder"], "name": "vit"}}

    @classmethod
    def sizes(cls, config: Mapping[str, Any]) -> Sizes:
        return Sizes(value_at(config, "decoder.vocab_size"))
