"""An encoder of pictures or of sound in the place of an encoder of text: what a decoder then looks at.

    a_1 … a_S = encoder(picture)                    a state for each place of its grid, and before them those for the
                                                    whole, where the encoder has any (`before_grid`)
    m_s = P a_s                                     the memory, as wide as the decoder; no P where a_s is that already

The setting `model.encoder` of `seq2seq` and `transformer` names any model that reads pictures (`image_encoder.py`);
what follows it, `model.encoder.layers=6`, are that model's own settings. Left out, they read text.

Of sound, CTC may be learned from the same states (Watanabe et al. 2017): with `model.encoder.ctc=0.3` a token, or
none, is said at each of them, and λ = 0.3 of the loss is CTC's.

An encoder none of whose parameters needs a gradient is frozen: it stays as it is in evaluation, without dropout and
with the batch norms' own statistics, and nothing is kept for gradients. P is trained all the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Self

import torch
from pydantic import SerializeAsAny
from torch import Tensor, nn

from legato.config import ChosenByName
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import TEXT
from legato.errors import ConfigError
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.models.image_encoder import ImageConfig, ImageEncoder
from legato.models.sound_encoder import HearingConfig, SoundConfig, SoundEncoder
from legato.nn.capture import scope
from legato.nn.dropout import variational_dropout
from legato.nn.linear import Linear, xavier
from legato.registry import MODELS

MEANING: Final = (
    "the model that reads pictures or sound in the place of text, as vit or conformer; left out: text is read"
)


def image_config(name: str) -> type[ModelConfig]:
    """The settings of a model that reads pictures."""
    if not _reads_pictures(name):
        known = [other for other in MODELS.names() if _reads_pictures(other, broken=False)]
        raise ConfigError(f"{name} reads no pictures; use {' or '.join(known)}")
    config: type[ModelConfig] = MODELS.get(name).Config
    return config


def source_config(name: str) -> type[ModelConfig]:
    """The settings of a model that reads pictures or sound."""
    if not _reads_pictures(name) and not _reads_pictures(name, kind=SoundEncoder):
        known = [other for kind in (ImageEncoder, SoundEncoder) for other in MODELS.names() if _known(other, kind)]
        raise ConfigError(f"{name} reads neither pictures nor sound; use {' or '.join(known)}")
    config: type[ModelConfig] = MODELS.get(name).Config
    return config


def _known(name: str, kind: type[SequenceModel]) -> bool:
    return _reads_pictures(name, broken=False, kind=kind)


def _reads_pictures(name: str, broken: bool | None = None, kind: type[SequenceModel] = ImageEncoder) -> bool:
    """Whether a model does, or is of another `kind`; `broken` is the answer for one that does not load."""
    try:
        return issubclass(MODELS.get(name), kind)
    except ConfigError:
        if broken is None:
            raise
        return broken


def picture_settings(config: ModelConfig) -> ImageConfig | None:
    """The settings of what reads pictures: a model's own, or those of its part; None where it reads text alone."""
    parts = (
        [config] if isinstance(config, ImageConfig) else [dict(config).get(part) for part in ("encoder", "vision")]
    )
    return next((part for part in parts if isinstance(part, ImageConfig)), None)


def sound_settings_of(config: ModelConfig) -> HearingConfig | None:
    """The settings of what reads sound: a model's own, or those of its encoder; None where it reads none."""
    found = config if isinstance(config, HearingConfig) else dict(config).get("encoder")
    return found if isinstance(found, HearingConfig) else None


SourceSetting = Annotated[SerializeAsAny[ModelConfig] | None, ChosenByName(source_config)]
EncoderSetting = Annotated[SerializeAsAny[ImageConfig] | None, ChosenByName(image_config)]


def processors_with(encoder: ModelConfig | None) -> tuple[str, ...]:
    """The kinds of processors that a model with this encoder reads and writes with."""
    return (TEXT,) if encoder is None else (TEXT, *MODELS.get(encoder.name).processors_of(encoder))


def is_frozen(model: nn.Module) -> bool:
    """Whether nothing of it is trained."""
    return not any(parameter.requires_grad for parameter in model.parameters())


def encode_pictures(model: SequenceModel, pictures: Inputs, layer: int = -1) -> Tensor:
    """What a layer of an encoder leaves of pictures or sounds, (B, S, D); of one that is frozen, as in evaluation."""
    frozen = is_frozen(model)
    if frozen:
        model.eval()  # it may have been frozen since `train` was called
    with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
        if layer == -1:
            hidden: Tensor = model(Batch(pictures)).hidden
            return hidden
        return model.states(Batch(pictures))[layer]


class SourceEncoder(nn.Module):
    """Pictures (B, 3, H, W), or frames (B, T, F), to a memory (B, S, D) for a decoder of so wide states."""

    def __init__(self, config: ModelConfig, width: int, dropout: float = 0.0, vocabulary: int = 0) -> None:
        """`dropout` is on what the encoder leaves, the same of its features in every place of a picture.

        Of `vocabulary` tokens one, or none, may be said at each state, where the settings want CTC.
        """
        super().__init__()
        self.dropout = dropout
        self.model: Any = MODELS.get(config.name)(config, Sizes(0))
        own = self.model.out_width
        self.projection = None if own == width else Linear(own, width)  # P
        if self.projection is not None:
            xavier(self.projection)
        share = config.ctc if isinstance(config, SoundConfig) else 0.0
        self.ctc = Linear(width, vocabulary + 1) if share else None
        if self.ctc is not None:
            xavier(self.ctc)

    def lengths(self, source: Inputs | None) -> Tensor | None:
        """How many states each row has, (B,); None: all."""
        lengths: Tensor | None = None if source is None else self.model.state_lengths(source)
        return lengths

    def ctc_logits(self, memory: Tensor) -> Tensor | None:
        """What is said at each state of a memory, (B, S, V + 1), the blank last; None without CTC."""
        return None if self.ctc is None else self.ctc(memory)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if is_frozen(self.model):
            self.model.eval()
        return self

    def forward(self, source: Inputs | None) -> Tensor:
        if source is None or source.values is None:
            raise ValueError("this model reads pictures or sound; the batch has none")
        with scope("encoder"):
            states = encode_pictures(self.model, source)  # (B, S, D')
        states = variational_dropout(states.transpose(0, 1), self.dropout, self.training).transpose(0, 1)
        memory: Tensor = states if self.projection is None else self.projection(states)
        return memory
