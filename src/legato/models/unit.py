"""UniT (Hu & Singh 2021, "UniT: Multimodal Multitask Learning with a Unified Transformer"): many tasks, one model.

    v = Transformer encoder(grid of picture + P) + e_v          what is seen, where there is a picture
    t = W BERT(w_1 … w_T) + e_t                                 what is read, where there is a text
    m = [v; t]                                                  the memory
    q ← blocks(q, m)                                            one decoder for all tasks, whose queries look at m
    y = C_k norm(q)                                             task k's head

Encoders and decoder are the same for all tasks. A task has its queries and its head: one learned query for a class,
which stands for the row; for boxes the places of the picture's grid and the boxes that these propose, by the
equations of `detr.py`. P are sines and cosines of the places, e_v and e_t learned vectors that tell the two apart.

A batch is of one task (`Batch.task`). Pictures of different tasks have little in common, and batch norm divides by
what batches have: so a convolutional encoder keeps the running averages of each task apart (as Chang et al. 2019,
"Domain-Specific Batch Normalization", whose scales and shifts are apart, too). All weights are shared.

Which tasks there are, `tasks`, is said by the data (`tasks/unit/`), and stands in the folder's config.json.

What is seen of it (nn/capture.py): `encoder.…` of what reads the picture, `grid.0.attention.weights`,
`text.encoder.0.attention.weights`, `decoder.0.cross.weights` (B, H, N, S), over the grid row by row, then over the
text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor, nn

from legato.config import ChosenByName, Section
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import Side
from legato.data.positions import GRID, IMAGE, INPUT, QUERY, SOURCE, Positions, numbered
from legato.data.processors import TEXT
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.data.text.text_reader import TextReader
from legato.errors import ConfigError, LegatoError
from legato.models.base import DEEPEST, ModelConfig, SequenceModel, Sizes
from legato.models.detr import MLP, PRIOR, BoxPredictor, QueriesConfig, cells_of, detect, place_waves
from legato.models.encoder import EncoderConfig, EncoderModel
from legato.models.image_encoder import ImageEncoder
from legato.models.model_with_head import MOST_OUTPUTS, HeadSpec
from legato.models.source_encoder import SourceEncoder
from legato.nn.capture import scope
from legato.nn.convolution import OwnStatistics
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape
from legato.nn.linear import Linear, as_wide_as, xavier
from legato.nn.state import Memory, Output
from legato.nn.transformer import Stack
from legato.registry import MODELS

SPREAD: Final = 0.02  # of what is learned from nothing: queries, kinds, heads


def text_config(name: str) -> type[ModelConfig]:
    """The settings of a model that reads text both ways."""
    known = [other for other in MODELS.builtin if issubclass(MODELS.get(other), EncoderModel)]
    if name not in known:
        raise ConfigError(f"{name} is no encoder of text; use {' or '.join(known)}")
    config: type[ModelConfig] = MODELS.get(name).Config
    return config


class TaskConfig(Section):
    """What a model has for one of its tasks."""

    kind: Literal["classes", "boxes"] = Field(description="what is said: classes, or boxes with them")
    outputs: int = Field(ge=1, le=MOST_OUTPUTS, description="classes")
    queries: int = Field(1, ge=1, le=1 << 17, description="boxes of a picture, at most")
    size: tuple[Side, Side] | None = Field(
        None, description="height and width that its pictures are brought to; left out: what the processor says"
    )


class UnitConfig(QueriesConfig):
    """Settings of the model of many tasks."""

    uses_cls: ClassVar[bool] = True

    name: Literal["unit"] = "unit"
    queries: int = Field(100, ge=1, description="boxes of a picture, at most, in tasks of boxes")
    layers: int = Field(3, ge=1, le=DEEPEST, description="blocks in which queries look at places and words")
    dropout: float = Field(0.1, ge=0, lt=1, description="on what each sublayer adds, and before classes")
    text: Annotated[SerializeAsAny[EncoderConfig] | None, ChosenByName(text_config)] = Field(
        None, description="the model that reads text: bert, roberta or distilbert"
    )
    tasks: dict[str, TaskConfig] = Field(
        default_factory=dict, description="what there is for each task; made from data.tasks"
    )

    @property
    def max_length(self) -> int | None:
        return None if self.text is None else self.text.max_length

    @property
    def uses_segments(self) -> bool:
        return self.text is not None and self.text.uses_segments

    @property
    def reads_both_ways(self) -> bool:
        return True

    def text_reader(self, tokenizer: AnyTokenizer, max_length: int | None = None) -> TextReader:
        if self.text is None:
            raise ConfigError("model.text=none reads no text; set model.text=bert")
        return self.text.text_reader(tokenizer, max_length)


class ClassHead(nn.Module):
    """One query, and the classes that its state is of."""

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Parameter(SPREAD * torch.randn(1, width))
        self.classes = Linear(width, outputs)  # C
        self.dropout = dropout
        nn.init.normal_(self.classes.weight, std=SPREAD)
        nn.init.zeros_(self.classes.bias)

    def forward(self, states: Tensor) -> Tensor:
        """(B, 1, D) to logits (B, C)."""
        logits: Tensor = self.classes(dropout(states[:, 0], self.dropout, self.training))
        return logits


class BoxHead(nn.Module):
    """What places propose, and what queries make of it: classes and boxes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.proposals = BoxPredictor(width, classes, -math.log((1 - PRIOR) / PRIOR))
        self.answers = BoxPredictor(width, classes)


class UnitModel(SequenceModel):
    """Pictures, texts or both in, with the task that they are of; what the task's head says out."""

    Config: ClassVar[type[ModelConfig]] = UnitConfig
    summary: ClassVar[str] = "UniT: many tasks of pictures and texts by two encoders and one decoder, a head for each"
    processors = (TEXT, "image")
    part_names = ("encoder", "text")
    has_readout = False
    detects = True
    usual_task = "unit"
    config: UnitConfig

    def __init__(self, config: UnitConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        if config.encoder is None and config.text is None:
            raise ConfigError("model=unit needs something to read with; set model.encoder=resnet or model.text=bert")
        if not config.tasks:
            raise ConfigError("model=unit has the tasks of data.tasks; use it with: legato train unit")
        width = config.width
        shape = BlockShape(width, config.heads, config.inner, norm_first=True, dropout=config.dropout)
        self.decoder = Stack("decoder", config.layers, shape, causal=False, cross=True)
        self.encoder = self.places = self.anchors = self.text = self.of_text = None
        self.kinds = nn.Parameter(SPREAD * torch.randn(2, width))  # e_v, e_t
        if config.encoder is not None:
            self.encoder = SourceEncoder(config.encoder, width)
            self.places = Stack("grid", config.encoder_layers, shape, causal=False)
            self.anchors = MLP(2 * width, width, width)
        if config.text is not None:
            heads = dict.fromkeys(config.text.pretraining_heads, False)
            self.text = MODELS.get(config.text.name)(config.text.model_copy(update=heads), sizes)
            self.of_text = Linear(config.text.width, width)  # W
            xavier(self.of_text)
        self.names = list(config.tasks)
        self.heads = nn.ModuleList(
            BoxHead(width, task.outputs) if task.kind == "boxes" else ClassHead(width, task.outputs, config.dropout)
            for task in config.tasks.values()
        )
        self.statistics = nn.ModuleList(
            OwnStatistics(nn.Identity() if self.encoder is None else self.encoder) for _ in self.names
        )

    @classmethod
    def processors_of(cls, config: UnitConfig) -> tuple[str, ...]:
        pictures = () if config.encoder is None else MODELS.get(config.encoder.name).processors_of(config.encoder)
        return ((TEXT,) if config.text is not None else ()) + pictures

    @property
    def source_encoder(self) -> ImageEncoder | None:
        return None if self.encoder is None else self.encoder.model

    @property
    def parts(self) -> dict[str, SequenceModel]:
        found = {"encoder": self.source_encoder, "text": self.text}
        return {name: part for name, part in found.items() if part is not None}

    @property
    def token_table(self) -> nn.Module | None:
        return None if self.text is None else self.text.token_table

    @property
    def streams(self) -> Mapping[str, str]:
        return {"encoder": IMAGE, "grid": GRID, "text": INPUT, "": QUERY}

    def smallest_batch(self) -> Batch:
        return next(iter(self.parts.values())).smallest_batch()

    def begin_statistics(self) -> None:
        """Let each task's running averages be those of the encoder, which may be a trained one."""
        for own in self.statistics if self.encoder is not None else ():
            own.begin(self.encoder)  # type: ignore[operator]

    def task(self, name: str) -> TaskModel:
        """One of the tasks as a model of its own."""
        return TaskModel(self, name)

    def forward(self, batch: Batch, state: Any = None) -> Output:
        """What the head of `batch.task` says; in training, of boxes, also what was said before the last block."""
        number = self._number(batch.task)
        head, task = self.heads[number], self.config.tasks[self.names[number]]
        if isinstance(head, BoxHead):
            return self._boxes(head, task, batch, number)
        memory = self.memory(batch, number)
        query = head.query.expand(len(memory.states), -1, -1).to(memory.states.dtype)  # type: ignore[operator]
        hidden = self.decoder(query, memory=memory)
        return Output(hidden, logits=head(hidden))

    def memory(self, batch: Batch, number: int) -> Memory:
        """What queries look at: [v; t], or what there is of it."""
        pictures = batch.inputs if batch.images is None else batch.images
        seen = None if pictures.values is None else self.seen(pictures, number)[0] + self.kinds[0]
        if batch.inputs.ids is None:
            if seen is None:
                raise LegatoError("there is neither a picture nor a text to look at")
            return Memory(seen)
        if self.text is None or self.of_text is None:
            raise LegatoError("this model has no part that reads text")
        texts: Inputs = batch.inputs
        with scope("text"):
            read = self.of_text(self.text.read(Batch(texts))) + self.kinds[1]  # (B, T, D)
        if seen is None:
            return Memory(read, texts.lengths)
        lengths = None if texts.lengths is None else texts.lengths + seen.shape[1]
        return Memory(torch.cat([seen.to(read.dtype), read], 1), lengths)

    def seen(self, pictures: Inputs, number: int) -> tuple[Tensor, Tensor]:
        """The states of a picture's places, (B, S, D), as task `number` sees them, and where they are, P (S, D)."""
        if self.encoder is None or self.places is None:
            raise LegatoError("this model has no part that reads pictures")
        pixels, model = pictures.content, self.encoder.model
        positions = place_waves(self._cells(pixels), self.config.width)
        states = self.statistics[number].applied(self.encoder, pictures)  # type: ignore[operator]
        positions = as_wide_as(next(self.places.parameters()), positions)
        states = states[:, model.before_grid :] + positions
        return self.places(states) if self.config.encoder_layers else states, positions

    def _boxes(self, head: BoxHead, task: TaskConfig, batch: Batch, number: int) -> Output:
        grid, positions = self.seen(batch.inputs, number)
        assert self.anchors is not None
        stages = detect(
            grid,
            self._cells(batch.inputs.content),
            self.decoder,
            positions + self.kinds[0],
            count=task.queries,
            proposals=head.proposals,
            answers=head.answers,
            anchors=self.anchors,
        )
        last = stages.pop()
        if self.training:
            last.stages = stages if self.config.deep else stages[:1]
        return last

    def _cells(self, pixels: Tensor) -> Tensor:
        assert self.encoder is not None
        return cells_of(self.encoder.model, pixels.shape[-2], pixels.shape[-1], pixels.device)

    def _number(self, name: str | None) -> int:
        if name is None:
            raise LegatoError(f"this model has several tasks, and none is named: {', '.join(self.names)}")
        if name not in self.names:
            raise LegatoError(f"this model has no task '{name}'; it has {', '.join(self.names) or 'none'}")
        return self.names.index(name)


class TaskModel(SequenceModel):
    """One task of a model of many: what the task's own job and predictors take for a model."""

    has_readout = False

    def __init__(self, model: UnitModel, name: str) -> None:
        task = model.config.tasks[name]
        super().__init__(model.config, Sizes(task.outputs))
        self.model, self.name = model, name
        self.training, self.folder = model.training, model.folder
        self.detects = task.kind == "boxes"
        if not self.detects:
            self.shape = HeadSpec(kind="classes", outputs=task.outputs)

    @classmethod
    def processors_of(cls, config: Any) -> tuple[str, ...]:
        return UnitModel.processors_of(config)

    @property
    def streams(self) -> Mapping[str, str]:
        return self.model.streams

    def stream_positions(self, read: Mapping[str, Positions]) -> dict[str, Positions]:
        """Queries look at the grid of a picture, which may be the only input, and then at the text."""
        task = self.model.config.tasks[self.name]
        image = read.get(IMAGE, read[INPUT] if read[INPUT].grid is not None else None)
        if image is None:
            return {**read, SOURCE: read[INPUT], QUERY: numbered("query", 1)}
        grid = image.only_patches()
        found = {IMAGE: image, GRID: grid, SOURCE: grid}
        if IMAGE in read:
            found |= {INPUT: read[INPUT], SOURCE: grid.followed_by(read[INPUT])}
        return {**found, QUERY: numbered("query", min(task.queries, grid.count) if self.detects else 1)}

    def forward(self, batch: Batch, state: Any = None) -> Output:
        output: Output = self.model(replace(batch, task=self.name))
        return output
