"""Pictures, or clips, with something beside them: a class, captions, a question.

A source is a folder with a folder of pictures for each class, a table with a column of pictures, a dataset on the
hub, or `toy:scenes` (data/image/scenes.py); of clips `toy:clips`. A picture is called by its name, as a text by its
words: what is held out follows from that, and messages have it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.labelled import Labelled
from legato.data.image.clips import PictureClip, clips_in, find_clip
from legato.data.image.picture_files import Picture, PictureFinder, picture_file, pictures_in
from legato.data.image.pictures import ENDINGS
from legato.data.image.scene_clips import CLIPS, Clips
from legato.data.image.scenes import SCENES, Scene, Scenes, ScenesConfig
from legato.data.image.scenes import picture as draw_picture
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions, resolve_path
from legato.data.sources.named_files import (
    class_folders,
    digest_of_files,
    find_files,
    read_naming_table,
    source_folder,
)
from legato.data.sources.patterns import Source, source_name
from legato.data.sources.table import Column, Table
from legato.errors import DataError

IMAGE: Final = Role("picture", "image, img, picture, photo, image_path, image_file, file_name, filename, file, path")
PICTURE_LABELS: Final = Roles(
    (IMAGE, Role("label", "label, labels, class, category, fine_label, target, y")),
    "are picture and label: data.columns=[IMAGE,LABEL], by name, or by number from 1",
    (2, 2),
    "two, [IMAGE,LABEL]",
)


@dataclass(frozen=True, kw_only=True)
class LabelledPictures(Labelled):
    """Pictures, and what stands in the column of labels; `texts` are their names."""

    pictures: list[Picture]

    by_row: ClassVar[tuple[str, ...]] = ("lines", "texts", "labels", "pictures")

    def content_hash(self) -> str:
        labels = [repr(label) for label in self.labels]
        return sha256_of([*sized_columns((self.texts, labels), self.where), *digest_of_files(self.pictures)])


def read_picture_table(
    source: Source,
    files: FileOptions,
    images: str | None,
    roles: Roles,
    columns: Sequence[Column] | None,
    *,
    find: Callable[[PictureFinder, Any, str], Picture] = PictureFinder.find,
) -> tuple[Table, list[Picture], str]:
    """A table, the pictures that `find` has for its first column, and a note of what was guessed."""
    table, path, note = read_naming_table(source, files, roles, columns)
    finder = PictureFinder(None if images is None else resolve_path(images, files.root), path)
    return table, find_files(table, partial(find, finder)), note


def read_labelled_pictures(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    images: str | None = None,
    columns: Sequence[Column] | None = None,
    clips: bool = False,
) -> LabelledPictures:
    """The pictures, or `clips`, of a folder of classes, a table or a dataset on the hub, with their labels.

    >>> read_labelled_pictures("photos/").labels[:2]  # doctest: +SKIP
    ['cat', 'cat']
    """
    folder = source_folder(source, files.root)
    if folder is not None:
        return _class_folders(folder, clips)
    _refuse_pictures(source)
    find = find_clip if clips else PictureFinder.find
    table, pictures, note = read_picture_table(source, files, images, PICTURE_LABELS, columns, find=find)
    return LabelledPictures(
        source=table.source,
        texts=[picture.name for picture in pictures],
        pictures=pictures,
        labels=[value.strip() if isinstance(value, str) else value for value in table.columns[1]],
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
        columns=list(table.names),
        note=note,
        classes=table.classes[1] if table.classes else None,
    )


def _refuse_pictures(source: Source) -> None:
    """Refuse pictures, or a pattern of them, where their folder should be named."""
    first = source if isinstance(source, str) else next(iter(source), "")
    if not first.lower().endswith(ENDINGS) or first.startswith("hub:"):
        return
    folder = Path(first).parent.parent
    place = folder if folder.name and folder.is_dir() else "FOLDER"
    raise DataError(
        f"{source_name(source)}: a picture has no label; name the folder that has a folder of pictures for each "
        f"class: data.train={place}"
    )


def _class_folders(folder: Path, clips: bool) -> LabelledPictures:
    """A folder for each class, with its pictures; of clips, with a file or a folder for each."""

    def inside(place: Path) -> list[Picture]:
        if clips:
            return [replace(clip, name=f"{place.name}/{clip.name}") for clip in clips_in(place)]
        return [picture_file(path, str(path.relative_to(folder))) for path in pictures_in(place)]

    unit = "clip" if clips else "picture"
    found = class_folders(folder, inside, unit, "*.jpg")
    return LabelledPictures(
        source=str(folder),
        texts=[picture.name for picture, _ in found],
        pictures=[picture for picture, _ in found],
        labels=[label for _, label in found],
        lines=list(range(1, len(found) + 1)),
        unit=unit,
        columns=["folder"],
        note=f"{len({label for _, label in found})} classes, a folder each",
    )


def scene_classes(config: ScenesConfig, split: str, seed: int) -> LabelledPictures:
    """Scenes, each with the kind of its largest shape."""
    scenes = Scenes(config, split, seed)
    every = list(scenes)
    return LabelledPictures(
        source=SCENES,
        texts=[scene.key for scene in every],
        pictures=[drawn_picture(scene) for scene in every],
        labels=[scene.largest.kind for scene in every],
        lines=list(range(1, len(every) + 1)),
        unit="scene",
        columns=["scene"],
        sha256=sha256_of([scenes.digest(), "classes"]),
    )


def clip_directions(config: ScenesConfig, split: str, seed: int) -> LabelledPictures:
    """Clips of a shape that moves, each with the way that it goes."""
    clips = Clips(config, split, seed)
    names = [f"clips/{split}/{seed}/{number}" for number in range(len(clips))]
    return LabelledPictures(
        source=CLIPS,
        texts=names,
        pictures=[PictureClip(name, draw=partial(_drawn_frames, clips, number)) for number, name in enumerate(names)],
        labels=[clip.direction for clip in clips],
        lines=list(range(1, len(names) + 1)),
        unit="clip",
        columns=["clip"],
        sha256=sha256_of([clips.digest(), "directions"]),
    )


def _drawn_frames(clips: Clips, number: int) -> Any:
    return clips[number].frames


def picture_key(picture: Picture) -> str:
    """What says which picture it is: one that a table holds is called by its row, and may stand in several."""
    return picture.name if picture.data is None else hashlib.sha256(picture.data).hexdigest()


def album_of(pictures: Sequence[Picture], names: Sequence[str]) -> tuple[list[Picture], list[int]]:
    """Every picture once, by its name, and for each row the number of its picture there."""
    picture_of = dict(zip(names, pictures, strict=True))
    numbers = {name: number for number, name in enumerate(picture_of)}
    return list(picture_of.values()), [numbers[name] for name in names]


def drawn_picture(scene: Scene) -> Picture:
    return Picture(scene.key, draw=partial(draw_picture, scene))


def value_rows(table: Table, place: int) -> list[Any]:
    """The values of a column; text without the spaces around it."""
    return [value.strip() if isinstance(value, str) else value for value in table.columns[place]]
