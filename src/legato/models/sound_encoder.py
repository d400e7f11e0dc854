"""What models that read sound have in common: frames of log-mel energies in, fewer states out.

Frames (B, T, F) are subsampled by strides of 2 in time and frequency (nn/conformer.py) and read by what comes next: a
Conformer's blocks, recurrent layers. A sound is a sequence like any other then; how many states are left of how many
frames is known beforehand (`states_of`), which CTC asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from legato.data.audio.feature_extractor import PARAKEET, FeatureExtractor
from legato.data.batching.batch import Batch, Inputs
from legato.errors import LegatoError
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.nn.conformer import Subsampling, subsampled


class HearingConfig(ModelConfig):
    """Settings of a model that reads frames of sound, whatever it makes of them."""

    features: int = Field(80, ge=1, le=1024, description="mel filters of a frame")
    if TYPE_CHECKING:

        @property
        def subsampling(self) -> int:
            """Frames that become one state."""

        @property
        def ctc(self) -> float:
            """CTC's share of the loss, beside a decoder's."""

    @property
    def max_frames(self) -> int | None:
        """The most that a sound may have; None: any number."""
        return None

    def feature_extractor(self) -> FeatureExtractor:
        """What reads sounds for such a model where it is trained from nothing."""
        raise NotImplementedError

    def states_of(self, frames: int) -> int:
        """How many states are left of so many frames."""
        raise NotImplementedError


class SoundConfig(HearingConfig):
    """Settings that encoders of sound begin with."""

    subsampling: Literal[2, 4, 8] = Field(4, description="frames, of 10 ms, that become one state")
    ctc: float = Field(
        0.0, ge=0, lt=1, description="before a decoder: CTC's share of the loss, and of the scores of what is written"
    )
    channels: int = Field(64, ge=1, description="of the convolutions that subsample")

    def feature_extractor(self) -> FeatureExtractor:
        return FeatureExtractor.of_kind(PARAKEET, bins=self.features)

    def states_of(self, frames: int) -> int:
        return subsampled(frames, self.subsampling)


class SoundEncoder(SequenceModel):
    """The base of every model that reads frames (B, T, F) and nothing else."""

    processors: ClassVar[tuple[str, ...]] = ("audio",)
    usual_task: ClassVar[str | None] = "speech"
    has_readout = False
    config: Any

    def __init__(self, config: SoundConfig, sizes: Sizes, width: int) -> None:
        super().__init__(config, sizes)
        self.subsampling = Subsampling(config.features, width, config.channels, config.subsampling)

    @property
    def out_width(self) -> int:
        """How wide the last states are."""
        width: int = self.config.width
        return width

    def state_lengths(self, inputs: Inputs) -> Tensor | None:
        return None if inputs.lengths is None else subsampled(inputs.lengths, self.config.subsampling)

    def smallest_batch(self) -> Batch:
        return Batch(Inputs(values=torch.zeros(1, 1, self.config.features, device=self.device)))

    def subsample(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Frames (B, T, F) as fewer states (B, T', D), and how many of them each row has."""
        frames = inputs.content
        if frames.dim() != 3 or frames.shape[2] != self.config.features:
            raise LegatoError(
                f"{self.config.name} reads frames of {self.config.features} features, "
                f"and these have the shape {tuple(frames.shape[1:])}"
            )
        states, lengths = self.subsampling(frames, inputs.lengths)
        return states, lengths
