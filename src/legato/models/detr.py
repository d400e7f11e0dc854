"""DETR (Carion et al. 2020, "End-to-End Object Detection with Transformers"): a picture to a set of boxes.

    m_s = encoder(picture)_s + P(s)                      a grid (`source_encoder.py`), and where each state stands
    x = Transformer encoder(m)                           every place looks at every other
    y_s = C' x_s,  b_s = sigmoid(logit a_s + B' x_s)     each place's classes and its own box, about an anchor there
    Q = the N places whose likeliest class is likeliest, with q_n = x_n for n in Q, and y_n, b_n
    q ← block(q + E(b), x + P)                           queries look at each other, and at the grid
    y ← y + C norm(q),  b ← sigmoid(logit b + B norm(q))     after every block: what its query sees, and where

Each query says what it sees, and where: y are the logits of classes, of which all are low where it sees nothing, b is
a box (cx, cy, w, h) in shares of the picture's sides, C is a matrix and B an MLP. No box is suppressed afterwards:
that no two queries say the same is learned, by giving each true box to one query (nn/losses/set_prediction.py).

The queries of Carion et al. are learned vectors, the same for all pictures, and take hundreds of epochs to learn
where to look. Here they are places of the picture's own grid, with the boxes that these propose as anchors
("two-stage", Zhu et al. 2021, "Deformable DETR", section 4.2). Each block refines the box that was said before it
(ibid.), whose place and size it is told (Liu et al. 2022, "DAB-DETR"), and likewise the classes, so that none begins
anew. No gradient flows from a block to what was said before it, nor to the states that its queries began as.

P are sines and cosines of both shares, E an MLP of those of all four. Small things need a fine grid: an encoder whose
places stand for 8 or 16 pixels.

What is seen of it (nn/capture.py): `encoder.…` of what reads the picture, `grid.0.attention.weights`,
`decoder.0.cross.weights` (B, H, N, S), over the grid row by row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from legato.data.batching.batch import Batch
from legato.data.image.image_processor import Side
from legato.data.positions import INPUT, QUERY, SOURCE, Positions, numbered
from legato.errors import ConfigError
from legato.models.base import DEEPEST, BlocksConfig, ModelConfig, SequenceModel, Sizes
from legato.models.image_encoder import ImageEncoder
from legato.models.source_encoder import EncoderSetting, SourceEncoder
from legato.nn.boxes import to_corners
from legato.nn.capture import capture, scope
from legato.nn.feedforward import BlockShape
from legato.nn.linear import Linear, as_wide_as, xavier
from legato.nn.multihead import AttentionView
from legato.nn.positions import share_sinusoids
from legato.nn.state import Memory, Output
from legato.nn.transformer import Stack
from legato.registry import MODELS

PRIOR: Final = 0.01  # how likely each class is at the start: most places see nothing
EDGE: Final = 1e-4  # how near a share comes to 0 and 1, whose logits are not finite


class QueriesConfig(BlocksConfig):
    """Settings of models whose queries look at the places of a picture, and say boxes."""

    size: tuple[Side, Side] | None = Field(
        None, description="height and width that pictures are brought to; left out: the encoder's own"
    )
    queries: int = Field(100, ge=1, description="boxes of a picture, at most")
    encoder_layers: int = Field(2, ge=0, le=DEEPEST, description="blocks in which places look at each other")
    layers: int = Field(3, ge=1, le=DEEPEST, description="blocks in which queries look at places")
    heads: int = Field(8, ge=1, description="attention heads; they divide the width")
    dropout: float = Field(0.0, ge=0, lt=1, description="on what each sublayer adds")
    deep: bool = Field(True, description="teach boxes to every block of queries, and not to the last alone")
    encoder: EncoderSetting = Field(None, description="the model that reads pictures, such as resnet or vit")


class DETRConfig(QueriesConfig):
    """Settings of the model that detects boxes."""

    name: Literal["detr"] = "detr"


class MLP(nn.Module):
    """Layers with ReLU between them; with `zero_last`, the last one begins at zero."""

    def __init__(self, *widths: int, zero_last: bool = False) -> None:
        super().__init__()
        self.linears = nn.ModuleList(Linear(before, after) for before, after in pairwise(widths))
        for layer in self.linears:
            xavier(layer)  # type: ignore[arg-type]
        if zero_last:
            nn.init.zeros_(self.linears[-1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.linears[:-1]:
            x = F.relu(layer(x))
        made: Tensor = self.linears[-1](x)
        return made


class BoxPredictor(nn.Module):
    """What states say of the boxes that they are given: which classes, and how each box is to be moved."""

    def __init__(self, width: int, classes: int, start: float | None = None) -> None:
        """At the start all classes have about the logit `start`, or what was said before, and no box is moved."""
        super().__init__()
        self.classes = Linear(width, classes)  # C
        self.boxes = MLP(width, width, 4, zero_last=True)  # B
        nn.init.normal_(self.classes.weight, std=0.0 if start is None else 0.02)
        nn.init.constant_(self.classes.bias, start or 0.0)

    def forward(self, states: Tensor, logits: Tensor | float, boxes: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, N, D), what was said before of classes (B, N, C) and boxes (B, N, 4), and what is said now."""
        with torch.autocast(states.device.type, enabled=False):  # a box's edges need more than eight bits
            plain = states.to(self.classes.weight.dtype)
            moved = torch.logit(boxes.to(plain.dtype), eps=EDGE) + self.boxes(plain)
            return logits + self.classes(plain), torch.sigmoid(moved)


def cells_of(encoder: ImageEncoder, height: int, width: int, device: torch.device) -> Tensor:
    """The box about each place of the grid of a picture, twice as large as the place: (S, 4)."""
    stride = encoder.stride
    rows, columns = encoder.grid(height, width)
    y = (torch.arange(rows, device=device) + 0.5) * (stride / height)
    x = (torch.arange(columns, device=device) + 0.5) * (stride / width)
    down, across = torch.meshgrid(y.clamp(max=1), x.clamp(max=1), indexing="ij")
    large = torch.ones_like(across)
    sides = (large * min(1.0, 2 * stride / width), large * min(1.0, 2 * stride / height))
    return torch.stack((across, down, *sides), dim=-1).flatten(0, 1)


def place_waves(cells: Tensor, width: int) -> Tensor:
    """P of the cells (S, 4), (S, D): waves of where each lies across the picture, then of where it lies down it."""
    return share_sinusoids(cells[:, :2], width)


def detect(
    grid: Tensor,
    cells: Tensor,
    queries: Stack,
    positions: Tensor,
    *,
    count: int,
    proposals: BoxPredictor,
    answers: BoxPredictor,
    anchors: MLP,
) -> list[Output]:
    """What the states of a grid (B, S, D) say about their cells (S, 4), then each block of `count` queries.

    The queries look at the same states, to which `positions` (S, D) are added once more.
    """
    logits, boxes = proposals(grid, 0.0, cells)
    stages = [Output(grid, logits=logits, boxes=to_corners(boxes))]
    chosen = likeliest(logits, count).unsqueeze(-1)  # (B, N, 1)
    query, logits, boxes = (
        each.gather(1, chosen.expand(-1, -1, each.shape[-1])) for each in (grid.detach(), logits, boxes)
    )
    sources = queries.sources(Memory(grid + positions.to(grid.dtype)))
    for number, (block, source) in enumerate(zip(queries.layers, sources, strict=True)):
        logits, boxes = logits.detach(), boxes.detach()
        waves = as_wide_as(answers.classes.weight, share_sinusoids(boxes, 2 * grid.shape[-1]))
        told = anchors(waves)  # E(b), (B, N, D)
        with scope(f"decoder.{number}"):
            query = block(query + told, AttentionView(), None, source)
            capture("hidden", query, "row position unit")
        states = query if queries.norm is None else queries.norm(query)
        logits, boxes = answers(states, logits, boxes)
        stages.append(Output(states, logits=logits, boxes=to_corners(boxes)))
    return stages


def likeliest(logits: Tensor, count: int) -> Tensor:
    """The places (B, N) at which some class is likeliest, of (B, S, C)."""
    return logits.detach().amax(-1).topk(min(count, logits.shape[1]), dim=1).indices


class DETRModel(SequenceModel):
    """Pictures (B, 3, H, W) in; N states out, each with the logits of classes and a box."""

    Config: ClassVar[type[ModelConfig]] = DETRConfig
    summary: ClassVar[str] = "boxes in a picture as a set: an image encoder, a Transformer, queries matched to boxes"
    processors = ("image",)
    part_names = ("encoder",)
    has_readout = False
    detects = True
    usual_task = "detection"
    config: DETRConfig

    def __init__(self, config: DETRConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        if config.encoder is None:
            raise ConfigError("model=detr needs an encoder of pictures; set model.encoder=resnet")
        width = config.width
        shape = BlockShape(width, config.heads, config.inner, norm_first=True, dropout=config.dropout)
        self.encoder = SourceEncoder(config.encoder, width)
        self.places = Stack("grid", config.encoder_layers, shape, causal=False)
        self.queries = Stack("decoder", config.layers, shape, causal=False, cross=True)
        self.anchors = MLP(2 * width, width, width)  # E, of four sines
        self.proposals = BoxPredictor(width, sizes.vocabulary, -math.log((1 - PRIOR) / PRIOR))  # C', B'
        self.answers = BoxPredictor(width, sizes.vocabulary)  # C, B

    @classmethod
    def processors_of(cls, config: DETRConfig) -> tuple[str, ...]:
        return (
            cls.processors
            if config.encoder is None
            else MODELS.get(config.encoder.name).processors_of(config.encoder)
        )

    @property
    def streams(self) -> Mapping[str, str]:
        return {"encoder": INPUT, "grid": SOURCE, "": QUERY}

    def stream_positions(self, read: Mapping[str, Positions]) -> dict[str, Positions]:
        grid = read[INPUT].only_patches()
        return {**read, SOURCE: grid, QUERY: numbered("query", min(self.config.queries, grid.count))}

    @property
    def source_encoder(self) -> SequenceModel | None:
        return self.encoder.model

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "mean"}

    def smallest_batch(self) -> Batch:
        return self.encoder.model.smallest_batch()

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        """The last states of the queries, (B, N, D); `every` gets those of the blocks before, too."""
        output = self(batch)
        if every is not None:
            every += [stage.hidden for stage in output.stages[1:]] + [output.hidden]
        hidden: Tensor = output.hidden
        return hidden

    def forward(self, batch: Batch, state: Any = None) -> Output:
        """What the last block says; in training, what the grid and the blocks before it do, as `stages`."""
        model = self.encoder.model
        pixels = batch.inputs.content
        cells = self.cells(pixels.shape[-2], pixels.shape[-1], pixels.device)  # (S, 4)
        positions = place_waves(cells, self.config.width)  # P, (S, D)
        positions = as_wide_as(self.answers.classes.weight, positions)
        memory = self.encoder(batch.inputs)[:, model.before_grid :] + positions
        if self.config.encoder_layers:
            memory = self.places(memory)
        stages = detect(
            memory,
            cells,
            self.queries,
            positions,
            count=self.config.queries,
            proposals=self.proposals,
            answers=self.answers,
            anchors=self.anchors,
        )
        last = stages.pop()
        if self.training:
            last.stages = stages if self.config.deep else stages[:1]
        return last

    def cells(self, height: int, width: int, device: torch.device) -> Tensor:
        """The box about each place of the grid: (S, 4)."""
        return cells_of(self.encoder.model, height, width, device)
