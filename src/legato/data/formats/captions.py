"""Pictures with captions: one or several for each, in a list or a row each.

{"image": "1.jpg", "captions": ["a dog runs", "a brown dog in the grass"]}
image,caption        and a row for each caption; those of one picture belong together
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.picture_rows import IMAGE, drawn_picture, read_picture_table
from legato.data.formats.rows import NumberedRows
from legato.data.formats.text_pairs import tidy
from legato.data.image.picture_files import Picture
from legato.data.image.scene_captions import captions as scene_captions
from legato.data.image.scenes import SCENES, Scenes, ScenesConfig
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions
from legato.data.sources.named_files import digest_of_files
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column, Table
from legato.errors import DataError, brief

CAPTIONS: Final = Roles(
    (IMAGE, Role("captions", "captions, caption, sentences, sentence, descriptions, description, text, raw")),
    "are picture and caption: data.columns=[IMAGE,CAPTION], by name, or by number from 1",
    (2, 2),
    "two, [IMAGE,CAPTION]",
)


@dataclass(frozen=True, kw_only=True)
class Captions(NumberedRows):
    """Pictures, and the captions of each."""

    pictures: list[Picture]
    names: list[str]  # of the pictures
    captions: list[list[str]]
    columns: list[Column]  # that were read

    by_row: ClassVar[tuple[str, ...]] = ("lines", "pictures", "names", "captions")

    def content_hash(self) -> str:
        texts = ["\n".join(each) for each in self.captions]
        return sha256_of([*sized_columns((self.names, texts), self.where), *digest_of_files(self.pictures)])


def read_captions(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    images: str | None = None,
    columns: Sequence[Column] | None = None,
) -> Captions:
    """The pictures of a table or a dataset on the hub, with their captions."""
    table, pictures, note = read_picture_table(source, files, images, CAPTIONS, columns)
    return captions_of(table, pictures, note)


def captions_of(table: Table, pictures: Sequence[Picture], note: str = "") -> Captions:
    """Those of a table whose second column holds captions; rows of one picture belong together."""
    first: dict[str, int] = {}  # the row of each picture's name that comes first
    captions: dict[int, list[str]] = {}
    for row, (picture, value) in enumerate(zip(pictures, table.columns[1], strict=True)):
        several = [value] if isinstance(value, str) else value
        if not isinstance(several, list) or not all(isinstance(text, str) for text in several):
            raise DataError(f"{table.where(row)}: {brief(repr(value))} is no caption; give a text, or a list of them")
        said = [text for text in map(tidy, several) if text]
        if not said:
            raise DataError(f"{table.where(row)}: the caption is empty; write one, or remove the {table.unit}")
        captions.setdefault(first.setdefault(picture.name, row), []).extend(said)
    rows = list(captions)
    return Captions(
        source=table.source,
        pictures=[pictures[row] for row in rows],
        names=[pictures[row].name for row in rows],
        captions=list(captions.values()),
        lines=[table.lines[row] for row in rows],
        unit=table.unit,
        columns=list(table.names),
        note=note,
    )


def captioned_scenes(config: ScenesConfig, split: str, seed: int) -> Captions:
    """Scenes, each with what may be said of it."""
    scenes = Scenes(config, split, seed)
    every = list(scenes)
    return Captions(
        source=SCENES,
        pictures=[drawn_picture(scene) for scene in every],
        names=[scene.key for scene in every],
        captions=[scene_captions(scene) for scene in every],
        columns=["scene"],
        lines=list(range(1, len(every) + 1)),
        unit="scene",
        sha256=sha256_of([scenes.digest(), "captions"]),
    )
