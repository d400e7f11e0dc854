"""Where a model looks in a picture: for each word that it writes, for a question, with each head of its encoder.

    words       α_t over the grid, when word t is written (*Show, Attend and Tell*, Xu et al. 2015, figure 3)
    questions   p_k over the grid, at each look that stacked attention takes (Yang et al. 2016, figure 1); of a model
                of many tasks, what its query looks at in each block
    heads       what the vector for the whole picture looks at, in each head of each layer
    distance    Σ_j α_ij |i − j|, the mean over patches i: how far a head looks, in pixels (Dosovitskiy et al. 2021,
                figure 7; weights on what is no patch are left out)
    positions   cos(p_i, p_j) of the learned positions: what is near in the picture should be near there, too (ibid.)

>>> maps = attention_maps(legato.load("runs/c"), "photo.jpg")  # doctest: +SKIP
>>> maps.words, maps.weights.shape, attention_sheet(maps).save("looked.png")  # doctest: +SKIP
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import as_picture
from legato.errors import DataError, LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.picture_folder import PictureFolder
from legato.inspect.trace import Shaped
from legato.models.image_encoder import ImageEncoder
from legato.nn.capture import record
from legato.registry import TASKS, require_extra
from legato.tasks.base import word_numbers
from legato.tasks.captioning.captioner import Captioner
from legato.tasks.picture_data import image_processor, picture_encoder
from legato.tasks.predictions import Prediction
from legato.tasks.vqa.answerer import PictureAnswerer

TILE: Final = 160  # pixels of a picture's longer side on a sheet
LABEL: Final = 20  # pixels of the line below it
ROW: Final = 6  # pictures beside each other, of those with a word each
GREY: Final = 0.45  # how light a picture stays where nobody looks
HEAT: Final = (255, 196, 0)  # the colour of where somebody does
LAYER: Final = re.compile(r"(?:^|\.)(\d+)\.attention\.weights$")
CROSS: Final = re.compile(r"^decoder\.(\d+)\.cross\.weights$")
HOP: Final = re.compile(r"(?:^|\.)hop\.(\d+)\.attention\.weights$")

Array = np.ndarray[Any, np.dtype[np.uint8]]


class Holds(Protocol):
    """What `legato.load` gives: it holds what a model folder has."""

    loaded: Loaded


@dataclass(frozen=True, repr=False)
class WordMaps(Shaped):
    """Where a captioner looked for each word, or a question at each look."""

    picture: Array  # as the model read it, (H, W, 3)
    words: list[str]
    weights: Tensor  # (words, rows, columns)


@dataclass(frozen=True, repr=False)
class HeadMaps(Shaped):
    """Where the heads of a Vision Transformer look."""

    picture: Array  # as the model read it, (H, W, 3)
    weights: Tensor  # (layers, heads, rows, columns), of the vector for the whole; without one, of the mean patch
    distances: Tensor  # (layers, heads), how far patches look, in pixels


def attention_maps(model: Holds, picture: Any, caption: str | None = None) -> WordMaps | HeadMaps:
    """Where a model looks in a picture: one that writes captions for each word, another with each head.

    `caption` is what it looks for; left out: what it would write. One that answers questions gets a question beside
    its picture, `(picture, question)`.
    """
    if model.loaded.task == "vqa":
        return question_maps(model, picture)
    if model.loaded.module.is_encoder_decoder:
        return word_maps(model, picture, caption)
    return head_maps(model, picture)


@torch.no_grad()
def word_maps(model: Holds, picture: Any, caption: str | None = None) -> WordMaps:
    """Where a captioner looks for each word of a caption."""
    loaded = model.loaded
    processor, encoder = _reads(loaded)
    captioner, pixels = Captioner.of(loaded), processor.pixels(as_picture(picture).load())
    if caption is None:
        task = TASKS.get(loaded.task)
        caption = task.predict(loaded, [pixels], task.Options())[0].answers[0].text
    tokens = captioner.tokenizer.encode(caption)[: captioner.longest].tolist()
    weights = captioner.looks(torch.from_numpy(pixels), tokens[:-1])  # (T, S): the last is written, not read
    rows, columns = encoder.grid(*pixels.shape[:2])
    numbers = word_numbers(captioner.tokenizer, tokens)
    words, every = [], []
    for word in range(max(numbers, default=-1) + 1):
        inside = [place for place, number in enumerate(numbers) if number == word]
        words.append(captioner.tokenizer.decode([tokens[place] for place in inside]).strip())
        every.append(weights[inside].mean(0)[encoder.before_grid :])
    each = torch.stack(every) if every else weights.new_zeros(0, rows * columns)
    return WordMaps(pixels, words, each.view(-1, rows, columns))


def question_maps(model: Holds, asked: Any) -> WordMaps:
    """Where a question looks, look by look; `asked` is a picture and a question, as `predict` takes them."""
    processor, encoder = _reads(model.loaded)
    with record() as trace:
        prediction = PictureAnswerer.of(model.loaded).predict([asked])[0]
    if prediction.problem is not None:
        raise LegatoError(prediction.problem)
    looks = sorted((int(found[1]), name) for name in trace if (found := HOP.search(name) or CROSS.search(name)))
    if not looks:
        raise LegatoError(f"{model.loaded.folder}: this model has no attention, so there is none to show")
    first = asked.split("\t", 1)[0] if isinstance(asked, str) else asked[0]
    pixels = processor.pixels(as_picture(first).load())
    grid = encoder.grid(*pixels.shape[:2])
    weights = torch.stack([_over_grid(trace[name][0][0], *grid) for _, name in looks])  # (K, rows, columns)
    return WordMaps(pixels, [f"look {number}" for number, _ in enumerate(looks, start=1)], weights)


def _over_grid(weights: Tensor, rows: int, columns: int) -> Tensor:
    """Weights over the places of a grid, (S,); of heads that look at words, too, (H, 1, S + T), their mean."""
    mean = weights.float().cpu().reshape(-1, weights.shape[-1]).mean(0)
    return mean[: rows * columns].view(rows, columns)


@torch.no_grad()
def head_maps(model: Holds, picture: Any) -> HeadMaps:
    """Where each head of each layer looks, in a model whose pictures a Vision Transformer reads."""
    processor, encoder = _reads(model.loaded)
    pixels = processor.pixels(as_picture(picture).load())
    values = processor.scaled(torch.from_numpy(pixels).unsqueeze(0).to(encoder.device))
    with record() as trace:
        encoder(Batch(Inputs(values=values)))
    layers = sorted((int(found[1]), name) for name in trace if (found := LAYER.search(name)))
    if not layers:
        raise LegatoError(f"{model.loaded.folder}: {encoder.config.name} has no attention, so there is none to show")
    weights = torch.stack([trace[name][0][0] for _, name in layers]).float().cpu()  # (L, H, T, T)
    grid, before = encoder.grid(*pixels.shape[:2]), encoder.before_grid
    whole = weights[:, :, 0] if before else weights.mean(2)
    shares = whole[..., before:].unflatten(-1, grid)
    patches = weights[:, :, before:, before:]  # (L, H, N, N)
    patches = patches / patches.sum(-1, keepdim=True).clamp(min=1e-12)
    return HeadMaps(pixels, shares, (patches * _distances(*grid, encoder.stride)).sum(-1).mean(-1))


def mean_attention_distance(model: Holds, pictures: Any) -> Tensor:
    """How far each head of each layer looks, in pixels, the mean over some pictures: (layers, heads)."""
    several = list(pictures) if isinstance(pictures, list | tuple) else [pictures]
    if not several:
        raise DataError("there is no picture to look at; give one, or a list of them")
    return torch.stack([head_maps(model, picture).distances for picture in several]).mean(0)


@torch.no_grad()
def position_similarity(model: Holds) -> Tensor:
    """The cosine of each learned position with every other, as grids: (rows, columns, rows, columns)."""
    _, encoder = _reads(model.loaded)
    table = encoder.learned_positions()
    if table is None:
        raise LegatoError(f"{model.loaded.folder}: {encoder.config.name} learns no positions")
    unit = F.normalize(table.float().cpu().flatten(0, 1), dim=-1)  # (N, D)
    rows, columns = table.shape[:2]
    return (unit @ unit.t()).view(rows, columns, rows, columns)


def _reads(loaded: Loaded) -> tuple[ImageProcessor, ImageEncoder]:
    processor, encoder = image_processor(loaded), picture_encoder(loaded.module)
    assert encoder is not None, "a model with an image processor has what reads pictures"
    return processor, encoder


def _distances(rows: int, columns: int, stride: int) -> Tensor:
    """Between the patches of a grid, in pixels: (N, N)."""
    places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float() * stride
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


# --- sheets -------------------------------------------------------------------------------------------


def attention_sheet(maps: WordMaps | HeadMaps) -> Any:
    """One picture (Pillow's) of all maps: words in rows, or a row for each layer and a column for each head."""
    if isinstance(maps, WordMaps):
        tiles = [(maps.picture, "")]
        tiles += [(laid_over(maps.picture, each), word) for each, word in zip(maps.weights, maps.words, strict=True)]
        return _sheet([tiles[start : start + ROW] for start in range(0, len(tiles), ROW)])
    rows = []
    for number, (layer, far) in enumerate(zip(maps.weights, maps.distances, strict=True), start=1):
        first = [(maps.picture, f"layer {number}")]
        named = [
            (each, f"head {head}: {px:.0f} px") for head, (each, px) in enumerate(zip(layer, far, strict=True), 1)
        ]
        rows.append(first + [(laid_over(maps.picture, each), name) for each, name in named])
    return _sheet(rows)


def laid_over(picture: Array, weights: Tensor) -> Array:
    """A picture (H, W, 3), grey and dark but where the weights (rows, columns) lie, which are smoothed."""
    smooth = F.interpolate(weights[None, None].float(), size=picture.shape[:2], mode="bicubic", align_corners=False)
    heat = smooth[0, 0].clamp(min=0)
    share = (heat / heat.max().clamp(min=1e-12)).numpy()[..., None]
    grey = picture.mean(-1, keepdims=True) * GREY
    lit = 0.6 * picture + 0.4 * np.array(HEAT)
    return np.asarray((1 - share) * grey + share * lit).round().clip(0, 255).astype(np.uint8)


def _sheet(rows: Sequence[Sequence[tuple[Array, str]]]) -> Any:
    """Pictures in rows, each with what is written beneath it."""
    image, draws = require_extra("vision", "PIL.Image"), require_extra("vision", "PIL.ImageDraw")
    height, width = rows[0][0][0].shape[:2]
    scale = TILE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    across, down = size[0] + 4, size[1] + LABEL
    sheet = image.new("RGB", (across * max(map(len, rows)), down * len(rows)), "white")
    draw, font = draws.Draw(sheet), require_extra("vision", "PIL.ImageFont").load_default(13)
    for y, row in enumerate(rows):
        for x, (pixels, label) in enumerate(row):
            sheet.paste(
                image.fromarray(pixels).resize(size, image.Resampling.BICUBIC), (x * across + 2, y * down + 2)
            )
            draw.text((x * across + 4, y * down + size[1] + 3), _drawable(label), fill="black", font=font)
    return sheet


def _drawable(label: str) -> str:
    """A word in the letters that Pillow's own font has: those of Western Europe."""
    return label.encode("latin-1", "replace").decode("latin-1")


class AttentionFolder:
    """A folder that gets a sheet for each picture, by its name."""

    def __init__(self, model: Holds, folder: Path) -> None:
        self.model = model
        self.distances: list[Tensor] = []
        if model.loaded.about.get("frames"):
            raise LegatoError("where a model of clips looks is not shown; leave out --attention")
        processor, _ = _reads(model.loaded)
        blank: Any = np.zeros((*(processor.shape or (64, 64)), 3), np.uint8)
        if model.loaded.task == "vqa":
            blank = (blank, "?")
        attention_maps(model, blank, "")  # a model that has none says so now
        self.folder = PictureFolder(folder)

    def add(self, pictures: Sequence[Any], predictions: Sequence[Prediction]) -> None:
        """Save the sheets of those pictures that could be read."""
        for picture, prediction in zip(pictures, predictions, strict=True):
            if not prediction.answers:
                continue
            maps = attention_maps(self.model, picture, prediction.answers[0].text)
            if isinstance(maps, HeadMaps):
                self.distances.append(maps.distances.mean(1))
            self.folder.save(attention_sheet(maps), prediction.input.partition("\t")[0])  # without the question

    def summary(self) -> str:
        """What there is, in a line."""
        count = len(self.folder)
        said = f"where the model looked is in {self.folder.path}: {count:,} sheet{'' if count == 1 else 's'}"
        if not self.distances:
            return said
        far = torch.stack(self.distances).mean(0)
        return f"{said}; mean attention distance by layer, in pixels: {', '.join(f'{each:.1f}' for each in far)}"
