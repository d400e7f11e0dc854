"""LLaVA (Liu et al. 2023): a language model that reads pictures among its words.

    z_1 … z_S = vision(picture)                     what a layer before the last leaves of each patch
    v_s = W_2 gelu(W_1 z_s + b_1) + b_2             the projector: patches as wide as the words' vectors; the first
                                                    version had one matrix, v_s = W z_s + b
    x_t = E w_t, or v_s where w_t is the s-th image token
    P(w_{t+1} | w_1 … w_t) = text(x_1 … x_t)

A picture has an image token for each of its patches, so a row is as long with pictures as without. All of a row's
image tokens, in order, are the patches of all of its pictures, in order. The vision tower may be any model that reads
pictures, the language model any decoder; the two-layer projector and the last layer but one are those of version 1.5
(Liu et al. 2024, "Improved Baselines with Visual Instruction Tuning"). Its names in Hugging Face's folders are in
`published/llava.py`.

What is seen of it (nn/capture.py): `vision.encoder.0.attention.weights`, and of the language model as by itself,
`decoder.0.attention.weights`, over words and patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor, nn

from legato.config import ChosenByName
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.positions import IMAGE, INPUT
from legato.data.processors import TEXT
from legato.errors import ConfigError, LegatoError
from legato.models.base import ModelConfig, SequenceModel, Sizes
from legato.models.building import MOST_TENSORS, sketch
from legato.models.clip import CLIPVisionConfig
from legato.models.decoder import DecoderModel
from legato.models.image_encoder import ConvolutionalConfig, ImageConfig, ImageEncoder
from legato.models.llama import LlamaConfig
from legato.models.source_encoder import encode_pictures, image_config, is_frozen
from legato.nn.capture import scope
from legato.nn.feedforward import ACTIVATIONS
from legato.nn.linear import Linear, xavier
from legato.nn.pooling import inside
from legato.nn.slots.slots import Slots
from legato.registry import MODELS


def decoder_config(name: str) -> type[ModelConfig]:
    """The settings of a model that is a decoder and nothing else."""
    if not _is_decoder(name):
        known = [other for other in MODELS.names() if _is_decoder(other, broken=False)]
        raise ConfigError(f"{name} is no decoder; use {' or '.join(known)}")
    config: type[ModelConfig] = MODELS.get(name).Config
    return config


def _is_decoder(name: str, broken: bool | None = None) -> bool:
    """Whether a model is one; `broken` is the answer for one of another package that does not load."""
    try:
        return issubclass(MODELS.get(name), DecoderModel)
    except ConfigError:
        if broken is None:
            raise
        return broken


class LlavaConfig(ModelConfig):
    """Settings of LLaVA: of its two models, and of what joins them."""

    name: Literal["llava"] = "llava"
    vision: Annotated[SerializeAsAny[ImageConfig], ChosenByName(image_config, CLIPVisionConfig().name)] = Field(
        default_factory=CLIPVisionConfig, description="the model that reads pictures, such as clip-vision or vit"
    )
    text: Annotated[SerializeAsAny[ModelConfig], ChosenByName(decoder_config, LlamaConfig().name)] = Field(
        default_factory=LlamaConfig, description="the model that reads and writes words: llama or gpt2"
    )
    image_token: int | None = Field(
        None, ge=0, le=1 << 24, description="its number; left out: the last of the vocabulary"
    )
    layer: int | None = Field(
        None,
        description="of the vision tower, whose states are read: -1 is the last, 0 the embedded patches; left out: "
        "the last but one, of a convolutional network the last",
    )
    whole: bool = Field(False, description="read the state of the whole picture, too, where the tower has one")
    projector: Literal["mlp", "linear"] = Field("mlp", description="two layers, or one")
    activation: Literal["gelu", "gelu-tanh", "quick-gelu", "relu", "silu"] = Field(
        "gelu", description="between the projector's two layers"
    )
    bias: bool = Field(True, description="whether the projector's layers have biases")

    @property
    def max_length(self) -> int | None:
        return self.text.max_length

    @property
    def chosen_layer(self) -> int:
        """The layer of the vision tower that is read."""
        if self.layer is not None:
            return self.layer
        return -1 if isinstance(self.vision, ConvolutionalConfig) else -2

    @model_validator(mode="after")
    def _layer_is_there(self) -> Self:
        if isinstance(self.vision, ConvolutionalConfig) and self.chosen_layer != -1:
            raise ValueError(f"layer={self.layer}: of a convolutional network the last layer is read; leave it out")
        layers = dict(self.vision).get("layers")
        if layers is not None and not -layers - 1 <= self.chosen_layer <= layers:
            raise ValueError(f"layer={self.chosen_layer}, but vision has 0 to {layers}, or -{layers + 1} to -1")
        return self

    def image_processor(self) -> ImageProcessor:
        """What reads pictures for such a model where it is trained from nothing."""
        return self.vision.image_processor()


@dataclass
class PatchVectors:
    """Pictures as what stands among the words' vectors."""

    vectors: Tensor  # (N, S, D)
    rows: Tensor  # (N,), the row that each picture belongs to; they rise


class Projector(nn.Module):
    """The states of patches as vectors of words: (…, D') to (…, D)."""

    def __init__(self, inputs: int, outputs: int, config: LlavaConfig) -> None:
        super().__init__()
        two = config.projector == "mlp"
        self.inner = Linear(inputs, outputs, config.bias) if two else None  # W_1, b_1
        self.activation = ACTIVATIONS[config.activation]
        self.outer = Linear(outputs if two else inputs, outputs, config.bias)  # W_2, b_2
        for layer in (self.inner, self.outer):
            if layer is not None:
                xavier(layer)

    def forward(self, states: Tensor) -> Tensor:
        if self.inner is not None:
            states = self.activation(self.inner(states))
        vectors: Tensor = self.outer(states)
        return vectors


class LlavaModel(SequenceModel):
    """Words and pictures in, the next word out. Pictures are `batch.images`; image tokens say where they stand.

    To write, `encode` makes the memory that `start` takes, of a batch with a row for each prompt; the prompts
    have the image tokens.
    """

    Config: ClassVar[type[ModelConfig]] = LlavaConfig
    summary: ClassVar[str] = "LLaVA: a vision tower, a projector and a language model that sees"
    processors: ClassVar[tuple[str, ...]] = (TEXT, "image")
    part_names = ("vision", "text")
    joint: ClassVar[str | None] = "projector"
    lora_part: ClassVar[str] = "text."
    published: ClassVar[str | None] = "llava"
    usual_task: ClassVar[str | None] = "visual-chat"
    config: LlavaConfig

    def __init__(self, config: LlavaConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.vision: ImageEncoder = MODELS.get(config.vision.name)(config.vision, Sizes(0))
        self.text: DecoderModel = MODELS.get(config.text.name)(config.text, sizes)
        self.projector = Projector(self.vision.out_width, self.text.config.width, config)
        self.image_token = sizes.vocabulary - 1 if config.image_token is None else config.image_token
        if self.image_token >= sizes.vocabulary:
            raise ConfigError(
                f"model.image_token={self.image_token}, but the vocabulary has 0 to {sizes.vocabulary - 1}"
            )

    @property
    def parts(self) -> dict[str, SequenceModel]:
        return {"vision": self.vision, "text": self.text}

    @property
    def streams(self) -> Mapping[str, str]:
        return {"vision": IMAGE, "": INPUT}

    @property
    def token_table(self) -> nn.Module | None:
        return self.text.token_table

    @property
    def output(self) -> nn.Linear:  # type: ignore[override]  # the language model's own
        return self.text.output

    def drop_readout(self) -> None:
        self.text.drop_readout()
        self.has_readout = False

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if is_frozen(self.vision):
            self.vision.eval()
        return self

    def smallest_batch(self) -> Batch:
        return Batch(Inputs(torch.full((1, 1), int(self.image_token == 0), device=self.device)))

    def patches_of(self, height: int, width: int) -> int:
        """How many image tokens a picture of so many pixels has."""
        return _patches(self.vision, self.config, height, width)

    # --- reading ---------------------------------------------------------------------------------------

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        self.refuse_longer(batch.inputs.token_ids.shape[1])
        vectors = self.vectors_of(batch.inputs, self.encode(batch))
        return self.text.read_vectors(vectors, batch.inputs.document_ids, every)

    def encode(self, batch: Batch) -> PatchVectors | None:
        """The vectors of the pictures of a batch; None where it has none."""
        if batch.images is None or not batch.images.rows:
            return None
        if batch.image_rows is None:
            raise ValueError("images need the rows that they belong to")
        with scope("vision"):
            states = encode_pictures(self.vision, batch.images, self.config.chosen_layer)
        if not self.config.whole:
            states = states[:, self.vision.before_grid :]
        return PatchVectors(self.projector(states), batch.image_rows)

    def vectors_of(self, inputs: Inputs, pictures: PatchVectors | None) -> Tensor:
        """The words' vectors, (B, T, D), and those of patches where image tokens are."""
        ids = inputs.token_ids
        words: Tensor = self.text.embedding(ids)  # (B, T, D)
        here = ids == self.image_token  # (B, T)
        if inputs.lengths is not None:
            here &= inside(ids.unsqueeze(-1), inputs.lengths).squeeze(-1)
        # A step of training on a GPU may be being recorded, and nobody may ask there; its rows are the task's own.
        if not (self.training and ids.is_cuda):
            self._refuse_unless_as_many(here, pictures)
        if pictures is None:
            return words
        patches = pictures.vectors.shape[1]
        counts = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
        counts = counts.index_add(0, pictures.rows, torch.ones_like(pictures.rows)) * patches
        before = counts.cumsum(0) - counts  # (B,), patches of the rows above
        numbers = before[:, None] + here.cumsum(1) - 1  # (B, T)
        vectors = pictures.vectors.flatten(0, 1).to(words.dtype)  # (N · S, D)
        placed = vectors[numbers.clamp(0, len(vectors) - 1)]
        return torch.where(here.unsqueeze(-1), placed, words)

    def _refuse_unless_as_many(self, here: Tensor, pictures: PatchVectors | None) -> None:
        """Refuse rows whose image tokens are not as many as their pictures have patches."""
        tokens = here.sum(1).tolist()
        rows = [] if pictures is None else pictures.rows.tolist()
        patches = 0 if pictures is None else pictures.vectors.shape[1]
        if rows != sorted(rows) or any(not 0 <= row < len(tokens) for row in rows):
            raise LegatoError(f"pictures come in the order of their rows, 0 to {len(tokens) - 1}, not {rows}")
        for row, count in enumerate(tokens):
            there = rows.count(row)
            if count and not there:
                raise LegatoError(
                    f"row {row + 1} has {count} image tokens and no picture; give it one (--image), or leave the "
                    "token out of its text"
                )
            if count != there * patches:
                raise LegatoError(
                    f"row {row + 1} has {count} image tokens for {there} pictures of {patches} patches each; each "
                    "patch needs one"
                )

    # --- generation ------------------------------------------------------------------------------------

    def start(self, rows: int, capacity: int, memory: PatchVectors | None = None) -> Any:
        state = self.text.start(rows, capacity)
        state.waiting = memory
        return state

    def prefill(self, inputs: Inputs, state: Any) -> Tensor:
        with torch.no_grad():
            vectors = self.vectors_of(inputs, state.waiting)
        state.waiting = None
        return self.text.prefill_vectors(vectors, inputs.lengths, state)

    def slots(self, groups: int, width: int, capacity: int, like: Any, source_length: int) -> Slots | None:
        return self.text.slots(groups, width, capacity, like, source_length)

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        return self.text.step(tokens, state)


def patches_of(config: LlavaConfig, height: int, width: int) -> int:
    """How many image tokens a picture of so many pixels has, for a model that is not made yet."""
    vision: ImageEncoder = sketch(lambda: MODELS.get(config.vision.name)(config.vision, Sizes(0)), MOST_TENSORS)
    return _patches(vision, config, height, width)


def _patches(vision: ImageEncoder, config: LlavaConfig, height: int, width: int) -> int:
    rows, columns = vision.grid(height, width)
    return rows * columns + (vision.before_grid if config.whole else 0)
