"""Sounds with a label each: a table with columns of sounds and labels, or a folder of sounds for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from legato.data.audio.sound_files import Sound, sound_file, sounds_in
from legato.data.audio.sound_tables import AUDIO, read_sound_table
from legato.data.audio.toy_sounds import SOUNDS
from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.labelled import Labelled
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions
from legato.data.sources.named_files import class_folders, digest_of_files, source_folder
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column
from legato.errors import ConfigError

SOUND_LABELS: Final = Roles(
    (AUDIO, Role("label", "label, labels, class, category, speaker, word, target, y")),
    "are sound and label: data.columns=[AUDIO,LABEL], by name, or by number from 1",
    (2, 2),
    "two, [AUDIO,LABEL]",
)


@dataclass(frozen=True, kw_only=True)
class LabelledSounds(Labelled):
    """Sounds, and what stands in the column of labels; `texts` are their names."""

    sounds: list[Sound]

    by_row: ClassVar[tuple[str, ...]] = ("lines", "texts", "labels", "sounds")

    def content_hash(self) -> str:
        labels = [repr(label) for label in self.labels]
        return sha256_of([*sized_columns((self.texts, labels), self.where), *digest_of_files(self.sounds)])


def read_labelled_sounds(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    audio: str | None = None,
    columns: Sequence[Column] | None = None,
) -> LabelledSounds:
    """The sounds of a folder of classes, a table or a dataset on the hub, with their labels."""
    if source == SOUNDS:
        raise ConfigError(f"{SOUNDS} have transcripts and no labels; they are for legato train speech")
    folder = source_folder(source, files.root)
    if folder is not None:
        return _class_folders(folder)
    table, sounds, note = read_sound_table(source, files, audio, SOUND_LABELS, columns)
    return LabelledSounds(
        source=table.source,
        texts=[sound.name for sound in sounds],
        sounds=sounds,
        labels=[value.strip() if isinstance(value, str) else value for value in table.columns[1]],
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
        columns=list(table.names),
        note=note,
        classes=table.classes[1] if table.classes else None,
    )


def _class_folders(folder: Path) -> LabelledSounds:
    """A folder for each class, with its sounds."""

    def inside(place: Path) -> list[Sound]:
        return [sound_file(path, str(path.relative_to(folder))) for path in sounds_in(place)]

    found = class_folders(folder, inside, "sound", "*.wav")
    return LabelledSounds(
        source=str(folder),
        texts=[sound.name for sound, _ in found],
        sounds=[sound for sound, _ in found],
        labels=[label for _, label in found],
        lines=list(range(1, len(found) + 1)),
        unit="sound",
        columns=["folder"],
        note=f"{len({label for _, label in found})} classes, a folder each",
    )
