"""What tasks with sounds share: the settings of their data, and how sounds become what a model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from pydantic import Field

from legato.config import Section
from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.audio.sound_files import (
    SOUND_TYPES,
    Sound,
    SoundFinder,
    as_sound,
    members_of,
    sound_file,
    sounds_in,
)
from legato.data.audio.sound_tables import AUDIO
from legato.data.audio.sounds import ENDINGS
from legato.data.audio.spec_augment import SpecAugment, SpecAugmentConfig
from legato.data.audio.toy_sounds import SOUNDS, ToySoundsConfig
from legato.data.batching.batch import Inputs
from legato.data.batching.batches import BatchShape
from legato.data.batching.sound_batches import FRAME
from legato.data.positions import Positions
from legato.data.sources.named_files import printable
from legato.data.sources.table import Column
from legato.errors import ConfigError, FolderError, LegatoError
from legato.folders.loaded import Loaded
from legato.models.sound_encoder import HearingConfig, SoundConfig
from legato.models.source_encoder import sound_settings_of, source_config
from legato.registry import MODELS
from legato.tasks.base import Plan, Task
from legato.tasks.defaults import Given, TrainDefaults
from legato.tasks.defaults import completed as completed_training
from legato.tasks.file_inputs import FileKind
from legato.tasks.predictions import Prediction
from legato.tasks.table_inputs import TableInputs

BATCH: Final = 12_000  # frames of 10 ms: two minutes of sound
HEARING: Final = "conformer or deepspeech"
WINDOWS: Final = 16  # sounds in a batch of a model that reads windows


class SoundData(Section):
    """Where sounds are, and how they are read."""

    audio: str | None = Field(
        None, description="folder or .tar of the sounds that a table names; left out: beside the table"
    )
    columns: list[str | int] | None = Field(
        None, description="of a table, the sound's first: names, or numbers from 1; left out: guessed, and said"
    )
    workers: int | None = Field(
        None, ge=0, le=256, description="threads that decode sounds; left out: as many as there are cores"
    )
    batch_seconds: float | None = Field(
        None, gt=0, le=1e7, description="of sound in a batch, padding too; left out: train.batch_tokens of 10 ms"
    )
    augment: SpecAugmentConfig = SpecAugmentConfig()


def sound_settings(plan: Plan) -> HearingConfig:
    """The settings of the model that is trained, or of its encoder, if that reads sound."""
    found = sound_settings_of(plan.model)
    if found is None:
        raise ConfigError(f"model={plan.model.name} of these settings reads no sound; use {HEARING}")
    return found


def feature_extractor(loaded: Loaded) -> FeatureExtractor:
    """What a model reads sounds with, and can read what that makes of them."""
    found, config = loaded.processors.others.get("audio"), sound_settings_of(loaded.module.config)
    if not isinstance(found, FeatureExtractor) or config is None:
        raise FolderError(f"{loaded.folder} reads no sound")
    if found.bins != config.features:
        raise FolderError(
            f"{loaded.folder}: {found.file} makes frames of {found.bins} features, and the model reads "
            f"{config.features}; use the file that belongs to it"
        )
    if found.seconds is not None and config.max_frames is not None and found.frames(0) > config.max_frames:
        raise FolderError(
            f"{loaded.folder}: {found.file} makes {found.frames(0)} frames of a sound, and the model reads "
            f"{config.max_frames}; use the file that belongs to it"
        )
    return found


class SoundReader:
    """Samples of a batch as frames that a model reads; in training with other loudness, noise and masks."""

    def __init__(self, extractor: FeatureExtractor, augment: SpecAugmentConfig | None = None, seed: int = 0) -> None:
        self.extractor = extractor
        self.augmentation = SpecAugment(augment or SpecAugmentConfig(), seed)

    @property
    def changes(self) -> SpecAugment | None:
        return None if self.augmentation.idle else self.augmentation

    def read(self, inputs: Inputs) -> Inputs:
        """(B, N) samples to (B, T, F) frames; of a model that reads windows each is one, silence and all."""
        samples, lengths, draws = inputs.content, inputs.lengths, inputs.draws
        if draws is not None:
            samples, lengths = self.augmentation.change_speed(samples, lengths, draws)
            samples = self.augmentation.change_sound(samples, lengths, draws)
        frames, counts = self.extractor.extract(samples, lengths)
        if draws is not None:
            frames = self.augmentation.mask_frames(frames, counts, draws)
        if inputs.lengths is not None:
            counts = counts.masked_fill(inputs.lengths == 0, 0)  # rows that fill up a batch
        return Inputs(values=frames, lengths=None if self.extractor.is_windowed() else counts)


def framed_sound(loaded: Loaded, given: Any, most: float | None = None) -> tuple[Inputs, Positions]:
    """A sound as a model reads it, and the states that it makes of it: one window, or the first `most` seconds."""
    extractor, settings = feature_extractor(loaded), sound_settings_of(loaded.module.config)
    assert settings is not None, "a model with a feature extractor has what reads sound"
    samples = torch.from_numpy(as_sound(given).load(extractor.sampling_rate))
    seconds = extractor.seconds or most
    samples = samples[: None if seconds is None else int(seconds * extractor.sampling_rate)].unsqueeze(0)
    source = SoundReader(extractor).read(Inputs(values=samples, lengths=torch.tensor([samples.shape[1]])))
    each = extractor.hop * settings.subsampling / extractor.sampling_rate
    count = settings.states_of(source.content.shape[1])
    return source, Positions("frame", tuple(f"{number * each:.2f} s" for number in range(count)), seconds=each)


SOUND_FILES: Final = FileKind(
    "sound",
    ENDINGS,
    AUDIO,
    sound_file,
    sounds_in,
    lambda path: list(members_of(path).values()),
    lambda table: SoundFinder(None, table).find,
)


def name_of(given: Any) -> str:
    """What somebody gives for a sound, in a word."""
    if isinstance(given, Sound):
        return given.name
    return printable(str(given)) if isinstance(given, str | Path) else "a sound"


def readable_sounds(given: Sequence[Any], rate: int) -> tuple[list[Prediction], dict[int, Sound]]:
    """A prediction for each sound that somebody gives, and those that can be read, decoded, by their numbers."""
    made = [Prediction(name_of(sound)) for sound in given]
    found: dict[int, Sound] = {}
    for number, sound in enumerate(given):
        try:
            samples = as_sound(sound).load(rate)
            found[number] = Sound(made[number].input, make=partial(np.asarray, samples), rate=rate)
        except LegatoError as problem:
            made[number].problem = str(problem)
    return made, found


class SoundTask(Task):
    """A task that predicts from a sound."""

    Input: ClassVar[type | tuple[type, ...]] = SOUND_TYPES
    input_name = "sound"

    @classmethod
    def read_file(
        cls, source: str, about: Mapping[str, Any], columns: Sequence[Column] | None = None, *, alone: bool = False
    ) -> TableInputs:
        return SOUND_FILES.read(source, (about.get("columns") or [])[:1], columns)


def sound_training(
    given: Given, *, epochs: int, samples: int, attention: float = 1e-3, min_steps: int = 0
) -> TrainDefaults:
    """Defaults of `train.*` for tasks with sounds, whose batches have so many frames of 10 ms."""
    tuned = 1e-4 if given.adapt == "full" else 1e-3
    rate = tuned if given.trained else 2e-3 if given.recurrent else attention
    usual = TrainDefaults(lr=rate, beta2=0.98, schedule="cosine", weight_decay=0.01)
    train = TrainDefaults(samples=samples, **completed_training(given, usual, None, epochs, min_steps))
    if "batch_rows" not in given.train and "batch_tokens" not in given.train:
        if issubclass(given.config, SoundConfig) or has_source(given):
            train["batch_tokens"] = BATCH
        else:
            train["batch_rows"] = WINDOWS
    return train


def require_hearing(given: Given, *, writes: bool = False) -> None:
    """Refuse a model that reads no sound, nor has an encoder that may, of a task that `writes`."""
    with_encoder = writes and has_source(given)
    if not writes and issubclass(given.config, HearingConfig) and not issubclass(given.config, SoundConfig):
        raise ConfigError(f"model={given.model['name']} writes what is said, and nothing else; use {HEARING}")
    if not (issubclass(given.config, HearingConfig if writes else SoundConfig) or with_encoder):
        more = " or, with a decoder, whisper, transformer or seq2seq" if writes else ""
        raise ConfigError(f"model={given.model['name']} reads no sound; use {HEARING}{more}")


def has_source(given: Given) -> bool:
    """Whether the model has a decoder, and an encoder in whose place one of sound may stand."""
    model = MODELS.get(str(given.model["name"]))
    return bool(model.is_encoder_decoder) and "encoder" in given.config.model_fields


def sound_encoder(given: Given, small: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of `model.encoder` where it is left out, or only named; `small` ones for sounds that are made."""
    said = given.model.get("encoder")
    said = said if isinstance(said, Mapping) else {} if said is None else {"name": said}
    if given.trained:
        return {}
    name = said.get("name", "conformer")
    fields = source_config(str(name)).model_fields
    usual = {key: value for key, value in small.items() if key in fields} if given.toy else {}
    return {"encoder": {"name": name, **usual, **said}}


def sound_shape(plan: Plan, source: str, *, fixed: bool = False) -> BatchShape:
    """How the training sounds are batched; where `fixed` is so, for a GPU in few shapes."""
    shape, seconds = plan.batch_shape(source, multiple=1), plan.data.batch_seconds
    if seconds is not None:  # which somebody has said
        shape = replace(shape, batch_tokens=max(1, round(seconds / FRAME)), batch_rows=None)
    return replace(shape, fixed_shape=fixed and shape.fixed_shape)


def toy_about(plan: Plan) -> dict[str, Any]:
    """What a folder remembers of the sounds that its model was trained on, so that others are made to test it."""
    if plan.data.train != SOUNDS:
        return {}
    return {"toy": {"settings": plan.data.sounds.model_dump(mode="json"), "seed": plan.seed}}


def as_trained_toy(data: Any, about: Mapping[str, Any]) -> tuple[ToySoundsConfig, int]:
    """The settings and the seed of made sounds as they were in training, but for what `data` says."""
    told = about.get("toy", {})
    given = data.sounds.model_dump(include=data.sounds.model_fields_set)
    known = {key: value for key, value in told.get("settings", {}).items() if key in ToySoundsConfig.model_fields}
    return ToySoundsConfig(**{**known, **given}), int(told.get("seed", 0))
