"""CLIP (Radford et al. 2021): pictures and texts as vectors in one space, a picture near what describes it.

    i = norm(W_i pool(vision(picture)))            the state of the whole, after a norm of its own
    t = norm(W_t pool(text(w_1 … w_T)))            the state of the EOS token, which has read all before it
    logits = exp(s) i · t                          s is learned: 1 / exp(s) is the temperature
    loss = ½ (−log softmax_t at i's own text  −log softmax_i at t's own picture)     over the pairs of a batch

The vision tower is a ViT whose patches have no bias and which has a norm before its blocks, or any other model that
reads pictures (`model.vision=resnet`), with the vector that a head for classes would read; the text tower is a causal
Transformer. Classes that it was never trained for are told apart by their names, read in a template such as
"a photo of a {}". Its names in Hugging Face's folders are in `published/clip.py`.

What is seen of it (nn/capture.py): `vision.encoder.0.attention.weights`, `text.encoder.0.attention.weights`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from legato.config import ChosenByName
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.positions import IMAGE, INPUT
from legato.data.processors import TEXT
from legato.errors import LegatoError, brief
from legato.models.base import BlocksConfig, ModelConfig, SequenceModel, Sizes
from legato.models.image_encoder import ImageConfig, ImageEncoder
from legato.models.source_encoder import encode_pictures, image_config
from legato.models.vit import PatchEmbedding, PatchesConfig
from legato.nn.capture import scope
from legato.nn.feedforward import BlockShape
from legato.nn.linear import Linear
from legato.nn.losses.contrast import contrast
from legato.nn.positions import Learned
from legato.nn.readout import TokenEmbedding
from legato.nn.state import Output
from legato.nn.transformer import Stack, start_normal
from legato.registry import MODELS

Activation = Literal["quick-gelu", "gelu", "gelu-tanh", "relu", "silu"]
TEMPERATURE: Final = 0.07  # that training begins with
MAX_SCALE: Final = 100.0  # of logits, in training: beyond it, it becomes unstable (section 2.5)
MEAN: Final = (0.48145466, 0.4578275, 0.40821073)  # of each colour, in the pictures that it learned from
STD: Final = (0.26862954, 0.26130258, 0.27577711)


class CLIPVisionConfig(PatchesConfig):
    """Settings of the vision tower."""

    name: Literal["clip-vision"] = "clip-vision"
    activation: Activation = Field("quick-gelu", description="of the feed-forward layers")
    eps: float = Field(1e-5, gt=0, description="in the norms' denominators")

    def image_processor(self) -> ImageProcessor:
        return ImageProcessor(self.image, (self.image, self.image), 3, mean=MEAN, std=STD, kind="CLIPImageProcessor")


class CLIPTextConfig(BlocksConfig):
    """Settings of the text tower."""

    name: Literal["clip-text"] = "clip-text"
    length: int = Field(77, ge=1, description="tokens of the longest text")
    activation: Activation = Field("quick-gelu", description="of the feed-forward layers")
    dropout_attention: float = Field(0.0, ge=0, lt=1, description="on attention weights")
    eps: float = Field(1e-5, gt=0, description="in the norms' denominators")
    eos: int | Literal["last", "highest"] = Field(
        "last",
        description="the token whose state is the text's: the first one of this number, the one of the highest "
        "number, or the last; a text without it has its last. A model that is trained from nothing looks for the "
        "tokenizer's",
    )


class CLIPConfig(ModelConfig):
    """Settings of CLIP: of its two towers, and of the space in which they meet."""

    name: Literal["clip"] = "clip"
    vision: Annotated[SerializeAsAny[ImageConfig], ChosenByName(image_config, CLIPVisionConfig().name)] = Field(
        default_factory=CLIPVisionConfig, description="the model that reads pictures, such as clip-vision or resnet"
    )
    text: CLIPTextConfig = Field(default_factory=CLIPTextConfig)
    projection: int = Field(256, ge=1, description="components of the vectors of pictures and texts")

    @property
    def max_length(self) -> int | None:
        return self.text.length

    def image_processor(self) -> ImageProcessor:
        """What reads pictures for such a model where it is trained from nothing."""
        return self.vision.image_processor()


def _shape(config: CLIPVisionConfig | CLIPTextConfig) -> BlockShape:
    return BlockShape(
        config.width,
        config.heads,
        config.inner,
        config.activation,
        eps=config.eps,
        norm_first=True,
        dropout_attention=config.dropout_attention,
    )


class CLIPVision(ImageEncoder):
    """The vision tower: pictures (B, 3, H, W) in; a state for the whole and one for each patch out."""

    Config: ClassVar[type[ModelConfig]] = CLIPVisionConfig
    summary: ClassVar[str] = "CLIP's vision tower: a Vision Transformer with a norm before its blocks"
    published: ClassVar[str | None] = "clip_vision_model"
    before_grid = 1
    config: CLIPVisionConfig

    def __init__(self, config: CLIPVisionConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        width = config.width
        self.patches = PatchEmbedding(width, config.image, config.patch, bias=False)
        self.norm_before = nn.LayerNorm(width, eps=config.eps)
        self.stack = Stack("encoder", config.layers, _shape(config), causal=False, final_norm=False)
        self.norm = nn.LayerNorm(width, eps=config.eps)
        start_normal(self, 0.02)
        nn.init.normal_(self.patches.projection.weight, std=0.02)
        for table in (self.patches.whole, self.patches.positions):
            nn.init.normal_(table, std=width**-0.5)

    @property
    def stride(self) -> int:
        return self.config.patch

    def grid(self, height: int, width: int) -> tuple[int, int]:
        return self.patches.grid(height, width)

    def learned_positions(self) -> Tensor:
        return self.patches.learned()

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """(B, 1 + N, D); what each block leaves, without a norm after the last."""
        x = self.norm_before(self.patches(self.pixels_of(batch.inputs)))
        if every is not None:
            every.append(x)
        return self.stack(x, every=every)

    @property
    def has_pooler(self) -> bool:
        return True

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "pooler"}

    def pooled(self, hidden: Tensor) -> Tensor:
        """The picture's vector, of the state of the whole: (B, T, D) to (B, D)."""
        vector: Tensor = self.norm(hidden[:, 0])
        return vector

    def vectors(self, hidden: Tensor) -> Tensor:
        return self.pooled(hidden)


class CLIPText(SequenceModel):
    """The text tower: tokens (B, T) in, a state for each that has read those before it."""

    Config: ClassVar[type[ModelConfig]] = CLIPTextConfig
    summary: ClassVar[str] = "CLIP's text tower: a causal Transformer"
    has_readout = False
    config: CLIPTextConfig

    def __init__(self, config: CLIPTextConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.embedding = TokenEmbedding(sizes.vocabulary, config.width)
        self.positions = Learned(config.length, config.width)
        self.stack = Stack("encoder", config.layers, _shape(config), causal=True)
        start_normal(self, max(0.02, config.width**-0.5))  # else a text's EOS token hardly differs from another's
        nn.init.normal_(self.positions.weight, std=0.01)

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        ids = batch.inputs.token_ids
        if ids.shape[1] > self.config.length:
            raise LegatoError(
                f"a text of {ids.shape[1]} tokens is too long: this model goes up to {self.config.length}"
            )
        x = self.embedding(ids) + self.positions(slice(0, ids.shape[1]))  # (B, T, D)
        if every is not None:
            every.append(x)
        hidden: Tensor = self.stack(x, every=every)
        return hidden

    def pooled(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """The state of each text's EOS token, (B, T, D) to (B, D)."""
        return hidden[torch.arange(len(hidden), device=hidden.device), self.ends(inputs)]

    def ends(self, inputs: Inputs) -> Tensor:
        """Where each text has its EOS token, (B,)."""
        ids, eos = inputs.token_ids, self.config.eos
        places = torch.arange(ids.shape[1], device=ids.device)
        last = torch.full_like(ids[:, 0], ids.shape[1] - 1) if inputs.lengths is None else inputs.lengths - 1
        if eos == "last":
            return last
        if eos == "highest":
            return ids.masked_fill(places > last[:, None], -1).argmax(1)
        return ((ids == eos) & (places < last[:, None]) | (places == last[:, None])).int().argmax(1)


class CLIPModel(SequenceModel):
    """Pictures and texts in, their vectors out. A batch of pairs has pictures as its source, texts as its inputs."""

    Config: ClassVar[type[ModelConfig]] = CLIPConfig
    summary: ClassVar[str] = "CLIP: pictures and texts as vectors in one space"
    processors: ClassVar[tuple[str, ...]] = (TEXT, "image")
    published: ClassVar[str | None] = "clip"
    usual_task: ClassVar[str | None] = "image-text"
    part_names = ("vision", "text")
    has_readout = False
    makes_vectors = True
    config: CLIPConfig

    def __init__(self, config: CLIPConfig, sizes: Sizes) -> None:
        if sizes.eos is not None and config.text.eos == "last":  # where it stands, others look for it by its number
            config = config.model_copy(update={"text": config.text.model_copy(update={"eos": sizes.eos})})
        super().__init__(config, sizes)
        self.vision: ImageEncoder = MODELS.get(config.vision.name)(config.vision, Sizes(0))
        self.text = CLIPText(config.text, sizes)
        self.vision_projection = Linear(self.vision.out_width, config.projection, bias=False)
        self.text_projection = Linear(config.text.width, config.projection, bias=False)
        self.logit_scale = nn.Parameter(torch.full((), -math.log(TEMPERATURE)))
        for projection in (self.vision_projection, self.text_projection):
            nn.init.normal_(projection.weight, std=projection.in_features**-0.5)

    @property
    def parts(self) -> dict[str, SequenceModel]:
        return {"vision": self.vision, "text": self.text}

    @property
    def streams(self) -> Mapping[str, str]:
        return {"vision": IMAGE, "text": INPUT}

    @property
    def token_table(self) -> nn.Module | None:
        return self.text.embedding

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """The states of pictures, where the inputs are such, or else of texts."""
        part = "text" if batch.inputs.values is None else "vision"
        with scope(part):
            return self.parts[part].read(batch, every)

    def forward(self, batch: Batch, state: Any = None) -> Output:
        """Of pairs, their vectors (B, 2, E), the picture's first, and the logits (B, B); of one side, its states."""
        if batch.source is None:
            return Output(self.read(batch))
        images, texts = self.image_vectors(batch.source), self.text_vectors(batch.inputs)
        return Output(torch.stack([images, texts], 1), logits=self.logits(images, texts))

    def image_vectors(self, inputs: Inputs) -> Tensor:
        """Pictures as vectors of length one, (B, E)."""
        with scope("vision"):
            hidden = encode_pictures(self.vision, inputs)
        return F.normalize(self.vision_projection(self.vision.vectors(hidden)), dim=-1)

    def text_vectors(self, inputs: Inputs) -> Tensor:
        """Texts as vectors of length one, (B, E)."""
        with scope("text"):
            hidden = self.text.read(Batch(inputs))
        return F.normalize(self.text_projection(self.text.pooled(hidden, inputs)), dim=-1)

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """How well each picture (N, E) goes with each text (M, E): (N, M)."""
        return self.logit_scale.exp() * images @ texts.t()

    def contrastive_losses(self, images: Tensor, texts: Tensor, keys: Tensor | None = None) -> Tensor:
        """The loss of each pair of a picture and its text, (B,), of vectors (B, E).

        `keys` (B, 2) are numbers that are the same where pictures, or texts, are the same (nn/losses/contrast.py):
        such are no negatives of each other. Left out: all differ.
        """
        if keys is None:
            keys = torch.arange(len(images), device=images.device)[:, None].expand(-1, 2)
        scale = self.logit_scale.clamp(max=math.log(MAX_SCALE)).exp()
        return contrast(torch.stack([images, texts], 1), keys, scale, symmetric=True)

    def class_vectors(self, prompts: Inputs, classes: int) -> Tensor:
        """A vector of length one for each class, (C, E), of `class_prompts`: the mean of what its prompts have."""
        vectors = self.text_vectors(prompts)
        return F.normalize(vectors.view(classes, -1, vectors.shape[-1]).mean(1), dim=-1)

    def class_probabilities(self, images: Tensor, classes: Tensor) -> Tensor:
        """How likely each picture (N, E) is of each class (C, E): (N, C)."""
        return self.logits(images, classes).softmax(-1)


def class_prompts(labels: Sequence[str], templates: Sequence[str] = ("a photo of a {}",)) -> list[str]:
    """Every label in every template, label by label.

    >>> class_prompts(["cat", "dog"], ["a photo of a {}", "a {}"])
    ['a photo of a cat', 'a cat', 'a photo of a dog', 'a dog']
    """
    if not labels or not templates:
        raise LegatoError("classes are told apart by their names: give at least one label and one template")
    for template in templates:
        if template.count("{}") != 1:
            raise LegatoError(
                f"a template has {{}} once, in the place of the label; this one does not: {brief(template)}"
            )
    return [template.replace("{}", label) for label in labels for template in templates]
