"""Deep Speech 2 (Amodei et al. 2016): convolutions subsample frames of sound, recurrent layers read them both ways.

x = subsampling(frames)                          4 frames become one state
h_1 … h_T = RNN(x_1 … x_T)                       cells of nn/recurrent.py, stacked, each direction half the width
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from legato.data.batching.batch import Batch
from legato.models.base import DEEPEST, Sizes
from legato.models.sound_encoder import SoundConfig, SoundEncoder
from legato.nn.dropout import variational_dropout
from legato.nn.recurrent import Recurrent


class DeepSpeechConfig(SoundConfig):
    """Settings of the recurrent encoder of sound."""

    network: ClassVar[Any] = "recurrent"

    name: Literal["deepspeech"] = "deepspeech"
    cell: Literal["elman", "gru", "lstm"] = Field("lstm", description="elman, gru or lstm")
    layers: int = Field(3, ge=1, le=DEEPEST, description="stacked layers")
    width: int = Field(256, ge=2, multiple_of=2, description="hidden size; each direction has half of it")
    forget_bias: float = Field(1.0, description="added to the LSTM's forget gate at the start")
    dropout: float = Field(
        0.2, ge=0, lt=1, description="variational dropout on inputs, between layers, on the output"
    )
    dropout_recurrent: float = Field(0.0, ge=0, lt=1, description="DropConnect on recurrent weights")

    @property
    def reads_both_ways(self) -> bool:
        return True

    @property
    def width_multiple(self) -> int:
        return 2


class DeepSpeechModel(SoundEncoder):
    """Frames (B, T, F) in; a state for each few of them out."""

    Config = DeepSpeechConfig
    summary = "sound: recurrent layers that read both ways, over subsampled frames"
    config: DeepSpeechConfig

    def __init__(self, config: DeepSpeechConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, config.width)
        self.stack = Recurrent(
            config.cell,
            config.width,
            [config.width] * config.layers,
            bidirectional=True,
            hidden_dropout=config.dropout,
            recurrent_dropout=config.dropout_recurrent,
            forget_bias=config.forget_bias,
        )

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        x, lengths = self.subsample(batch.inputs)
        x = variational_dropout(x.transpose(0, 1), self.config.dropout, self.training)  # (T, B, D)
        states: list[Tensor] = [x]
        last, _ = self.stack(x, None, lengths, states)
        last = variational_dropout(last, self.config.dropout, self.training)
        if every is not None:
            every += [state.transpose(0, 1) for state in (*states[:-1], last)]
        return last.transpose(0, 1)
