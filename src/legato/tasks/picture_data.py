"""What tasks with pictures share: the settings of their data, and how pictures become what a model reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import torch
from pydantic import Field

from legato.config import Section, validate
from legato.data.batching.batch import Inputs
from legato.data.batching.picture_batches import Pixels, pixels_of
from legato.data.image.augmentation import Augmentation, AugmentConfig
from legato.data.image.clips import as_clip
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import PICTURE_TYPES, Picture, as_picture, name_of
from legato.data.image.pictures import evenly
from legato.data.image.scene_clips import CLIPS
from legato.data.image.scenes import SCENES, ScenesConfig
from legato.data.positions import Positions, named_patches
from legato.data.sources.files import MAX_LINE
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column
from legato.data.splits import Encoding, MaxLine, SplitData, TableFormat, ValidShare
from legato.errors import ConfigError, FolderError, LegatoError, warn
from legato.folders.loaded import Loaded
from legato.models.base import ModelConfig, SequenceModel
from legato.models.image_encoder import ImageEncoder
from legato.models.source_encoder import image_config, picture_settings
from legato.tasks.base import Plan, Task
from legato.tasks.defaults import Given
from legato.tasks.picture_inputs import read_pictures
from legato.tasks.predictions import Prediction
from legato.tasks.table_inputs import TableInputs

PATCH = 16  # pixels of a side that count as one position, of models that do not say
MEASURED: Final = 16  # pictures whose size is looked at
SIDE_STEP: Final = 32  # the pixels of a side are a multiple of …
LARGEST_SIDE: Final = 128  # … and from nothing at most so many, unless more are set


class PictureData(Section):
    """Where pictures are, and how they are read."""

    images: str | None = Field(
        None, description="folder or .tar of the pictures that a table names; left out: beside the table"
    )
    columns: list[str | int] | None = Field(
        None, description="of a table, the picture's first: names, or numbers from 1; left out: guessed, and said"
    )
    workers: int | None = Field(
        None, ge=0, le=256, description="processes that decode pictures; left out: as many as there are cores"
    )
    augment: AugmentConfig = AugmentConfig()
    scenes: ScenesConfig = ScenesConfig()


class PictureTableData(SplitData, PictureData):
    """Where tables are that say something of pictures, and how they are read."""

    valid: Source | None = Field(None, description="left out: a share of the training pictures")
    format: TableFormat = "auto"
    encoding: Encoding = "utf-8"
    max_line: MaxLine = MAX_LINE
    valid_share: ValidShare = 0.05


R = TypeVar("R")


@dataclass(frozen=True)
class PictureSource(Generic[R]):
    """What reads the rows of a task: those of a table or a folder, or what is drawn."""

    read_table: Callable[..., R]  # of a source's name and how files are read, with `images` and `columns`
    drawn: Mapping[str, Callable[[ScenesConfig, str, int], R]]  # by names of sources, such as toy:scenes

    def read(self, data: Any, source: Source, split: str, seed: int, scenes: ScenesConfig | None = None) -> R:
        """The rows that `source` names, read as the section `data` says."""
        draw = self.drawn.get(source) if isinstance(source, str) else None
        if draw is not None:
            return draw(scenes or data.scenes, split, seed)
        return self.read_table(source, data.files(split), images=data.images, columns=data.columns)

    def test(self, data: Any, loaded: Loaded) -> R:
        """Those of `data.test`; what is drawn, as for the model's training."""
        scenes, seed = data.scenes.as_trained(loaded.about.get("toy", {}))
        return self.read(data, data.test, "test", seed, scenes)


def image_processor(loaded: Loaded) -> ImageProcessor:
    """What a model reads pictures with, and can read what that makes of them."""
    found, encoder = loaded.processors.others.get("image"), picture_encoder(loaded.module)
    if not isinstance(found, ImageProcessor) or encoder is None:
        raise FolderError(f"{loaded.folder} reads no pictures")
    if found.shape is not None:
        try:
            encoder.grid(*found.shape)
        except LegatoError as problem:
            raise FolderError(f"{loaded.folder}: {found.file} does not fit its model: {problem}") from None
        side = encoder.config.image
        if encoder.learned_positions() is not None and found.shape != (side, side):
            height, width = found.shape
            warn(
                f"{loaded.folder}: {found.file} makes pictures of {height} × {width} pixels, and the model learned "
                f"from {side} × {side}; its positions are stretched to them"
            )
    return found


def picture_encoder(model: SequenceModel) -> ImageEncoder | None:
    """The part of a model that reads pictures, which may be all of it."""
    return next((part for part in model.modules() if isinstance(part, ImageEncoder)), None)


def placed_picture(loaded: Loaded, given: Any, frames: int | None = None) -> tuple[Inputs, Positions]:
    """A picture as a model reads it, and the places that its encoder makes of it; with `frames`, a clip of so many,
    and the places of each frame."""
    processor, encoder = image_processor(loaded), picture_encoder(loaded.module)
    assert encoder is not None, "a model with an image processor has what reads pictures"
    picture = as_picture(given) if frames is None else as_clip(given)
    pixels = pixels_of(picture, processor, frames)  # (H, W, 3), or (N, H, W, 3)
    values = processor.scaled(torch.from_numpy(pixels).unsqueeze(0))
    return Inputs(values=values), named_patches(encoder.grid(*pixels.shape[-3:-1]), encoder.before_grid)


def encoder_processor(plan: Plan) -> ImageProcessor:
    """That of the loaded model, or of the model that its encoder begins with; else what suits the settings."""
    if plan.shared is not None and isinstance(shared := plan.shared.others.get("image"), ImageProcessor):
        return shared
    held = plan.parts.get("encoder") or plan.parts.get("vision") or plan.loaded
    if held is not None:
        return image_processor(held)
    reads = picture_settings(plan.model)
    if reads is None:
        raise ConfigError(f"model={plan.model.name} of these settings reads no pictures; set model.encoder=resnet")
    return reads.image_processor()


def positions_of(config: ModelConfig, processor: ImageProcessor) -> int:
    """How many positions a picture is, for budgets: the patches that it has, or about as many."""
    height, width = processor.shape or (224, 224)
    side = dict(picture_settings(config) or config).get("patch", PATCH)
    return max(1, height // side) * max(1, width // side)


class PictureReader:
    """Pictures of each split as pixels, and pixels as what a model reads: in training other views of them."""

    def __init__(
        self, plan: Plan, processor: ImageProcessor, *, mirrored: bool = True, frames: int | None = None
    ) -> None:
        """What lies beyond the edge of a picture that is moved is `mirrored`, or else black. With `frames` they are
        clips, of so many each, and all frames of a clip are changed alike."""
        self.plan, self.processor, self.frames = plan, processor, frames
        self.augmentation = Augmentation(plan.data.augment, processor, plan.seed, mirrored=mirrored)
        self.changes = None if self.augmentation.idle else self.augmentation

    def pixels(self, pictures: list[Picture]) -> Pixels:
        workers = self.plan.data.workers
        return Pixels(pictures, self.processor, self.plan.device, workers=workers, frames=self.frames)

    def read(self, inputs: Inputs) -> tuple[Inputs, Any]:
        """Pixels of a batch as a model reads them; and the share of each picture that is its own, where they mix."""
        if inputs.draws is None:
            return replace(inputs, values=self.processor.scaled(inputs.content)), None
        if self.frames is not None:
            flat = inputs.content.flatten(0, 1)  # (B · N, H, W, 3)
            values, _ = self.augmentation(flat, inputs.draws.repeat_interleave(self.frames, 0))
            return replace(inputs, values=values.unflatten(0, (-1, self.frames)), draws=None), None
        values, own = self.augmentation(inputs.content, inputs.draws)
        return replace(inputs, values=values, draws=None), own


def scene_settings(given: Given, config: type[Section]) -> dict[str, Any]:
    """Defaults of the settings of what reads pictures, for scenes, which are small."""
    if given.trained or given.data.get("train") not in (SCENES, CLIPS):
        return {}
    scenes = given.data.get("scenes")
    size = scenes.get("size", 64) if isinstance(scenes, dict) else 64
    usual: dict[str, Any] = {"image": size, "patch": 8}
    if "widths" in config.model_fields:  # two stages are enough for shapes, and leave a grid of an eighth of the side
        usual |= {"embedding": 32, "widths": (32, 64), "depths": (1, 1)}
    return {key: value for key, value in usual.items() if key in config.model_fields}


class PictureCount(NamedTuple):
    """How many pictures there are to train on, and the shorter side of half of them at most."""

    pictures: int
    side: int


def measure_pictures(given: Given, source: PictureSource[Any], kind: type[Section]) -> PictureCount | None:
    """What pictures on this machine a model is to learn from scratch; None where settings or files do not tell.

    A few of them are opened, for what they say of their size. What is wrong with them, the reading that follows says.
    """
    place = given.data.get("train")
    pinned = "image" in given.model and not {"batch_rows", "batch_tokens"}.isdisjoint(given.train)
    if given.trained or given.toy or pinned or not place or str(place).startswith("hub:"):
        return None
    try:
        pictures = source.read(validate(kind, given.data, "data"), place, "train", 0).pictures
        count = len(pictures)
        sides = [min(pictures[number].extent()) for number in evenly(count, min(count, MEASURED))]
    except LegatoError:
        return None
    return PictureCount(count, int(median(sides)))


def fitting_settings(given: Given, side: int) -> dict[str, Any]:
    """Defaults of the settings of what reads pictures, for those with so many pixels on their shorter side."""
    if not {"image", "patch"}.isdisjoint(given.model):
        return {}
    image = min(-(-side // SIDE_STEP) * SIDE_STEP, LARGEST_SIDE)
    usual = {"image": image, "patch": min(PATCH, image // 8)}
    return {key: value for key, value in usual.items() if key in given.config.model_fields}


def encoder_model(given: Given, usual: str, part: str = "encoder") -> dict[str, Any]:
    """Defaults of `model.encoder`, or of another `part` that reads pictures, where it is left out, or only named."""
    said = given.model.get(part)
    said = said if isinstance(said, Mapping) else {} if said is None else {"name": said}
    name = said.get("name", usual)
    if given.trained or name is None:
        return {}
    return {part: {"name": name, **scene_settings(given, image_config(str(name))), **said}}


def scenes_about(plan: Plan) -> dict[str, Any]:
    """What a folder remembers of the scenes that its model was trained on, so that others are drawn to test it."""
    if plan.data.train not in (SCENES, CLIPS):
        return {}
    return {"toy": {"settings": plan.data.scenes.model_dump(mode="json"), "seed": plan.seed}}


def readable(
    given: list[Any], processor: ImageProcessor, frames: int | None = None
) -> tuple[list[Prediction], dict[int, Picture]]:
    """A prediction for each picture that somebody gives, and those that can be read, decoded, by their numbers.

    With `frames` they are clips, of which so many are read.
    """
    made = [Prediction(name_of(picture)) for picture in given]
    found: dict[int, Picture] = {}
    for number, picture in enumerate(given):
        try:
            named = as_picture(picture) if frames is None else as_clip(picture)
            pixels = pixels_of(named, processor, frames)
            found[number] = Picture(made[number].input, draw=pixels.view)
        except LegatoError as problem:
            made[number].problem = str(problem)
    return made, found


class PictureTask(Task):
    """A task that predicts from a picture."""

    Input: ClassVar[type | tuple[type, ...]] = PICTURE_TYPES
    input_name = "picture"

    @classmethod
    def read_file(
        cls, source: str, about: Mapping[str, Any], columns: Sequence[Column] | None = None, *, alone: bool = False
    ) -> TableInputs:
        return read_pictures(source, (about.get("columns") or [])[:1], columns, clips=bool(about.get("frames")))
