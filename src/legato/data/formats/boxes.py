"""Pictures with boxes: what is in them, and where.

{"image": "1.jpg", "objects": [{"label": "cat", "box": [12, 30, 80, 64]}, {"label": "dog", "box": [90, 8, 160, 70]}]}
{"image": "2.jpg", "objects": []}                                               a picture in which there is nothing
{"image": "3.jpg", "objects": {"category": ["cat"], "bbox": [[12, 30, 68, 34]]}}      as tables on the hub have them

A box is x0, y0, x1, y1 in pixels of the picture as it stands upright, x to the right and y downwards; or x, y, width
and height, as COCO has it (`xywh`). It lies in its picture: what is less than a pixel beyond the edge is cut off. One
without extent, a slip of whoever drew it, is left out, and said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from legato.data.digests import sha256_of, sized_columns
from legato.data.formats.picture_rows import IMAGE, drawn_picture, read_picture_table
from legato.data.formats.rows import NumberedRows
from legato.data.formats.text_pairs import tidy
from legato.data.image.picture_files import Picture
from legato.data.image.scenes import SCENES, Scenes, ScenesConfig
from legato.data.sources.columns import Role, Roles
from legato.data.sources.files import FileOptions
from legato.data.sources.named_files import digest_of_files
from legato.data.sources.patterns import Source
from legato.data.sources.table import Column
from legato.errors import DataError, brief

BOXES: Final = Roles(
    (IMAGE, Role("objects", "objects, boxes, annotations, object")),
    "are picture and objects: data.columns=[IMAGE,OBJECTS], by name, or by number from 1",
    (2, 2),
    "two, [IMAGE,OBJECTS]",
)
LABELS: Final = ("label", "category", "class", "name", "category_id")
PLACES: Final = ("box", "bbox")
SLACK: Final = 1.0  # pixels that a box may reach beyond its picture, for what was rounded
EXAMPLE: Final = '{"label": "cat", "box": [x0, y0, x1, y1]}'

BoxForm = Literal["corners", "xywh"]
Corners = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Boxes(NumberedRows):
    """Pictures, their sizes, and what is in each."""

    pictures: list[Picture]
    names: list[str]  # of the pictures
    sizes: list[tuple[int, int]]  # width and height
    labels: list[list[str]]
    boxes: list[list[Corners]]
    columns: list[Column]  # that were read

    by_row: ClassVar[tuple[str, ...]] = ("lines", "pictures", "names", "sizes", "labels", "boxes")

    @property
    def count(self) -> int:
        """Of all boxes."""
        return sum(map(len, self.boxes))

    def content_hash(self) -> str:
        objects = [json.dumps([labels, boxes]) for labels, boxes in zip(self.labels, self.boxes, strict=True)]
        return sha256_of([*sized_columns((self.names, objects), self.where), *digest_of_files(self.pictures)])


def read_boxes(
    source: Source,
    files: FileOptions = FileOptions(),
    *,
    images: str | None = None,
    columns: Sequence[Column] | None = None,
    form: BoxForm = "corners",
) -> Boxes:
    """The pictures of a table or a dataset on the hub, with their boxes."""
    table, pictures, note = read_picture_table(source, files, images, BOXES, columns)
    known = table.classes[1] if table.classes else None
    sizes: list[tuple[int, int]] = []
    labels: list[list[str]] = []
    boxes: list[list[Corners]] = []
    empty: list[str] = []  # where the boxes without extent stand
    for row, (picture, value) in enumerate(zip(pictures, table.columns[1], strict=True)):
        where, size = table.where(row), picture.extent()
        sizes.append(size)
        labels.append([])
        boxes.append([])
        for number, (label, place) in enumerate(_objects(value, where), start=1):
            box = _corners(place, size, form, f"{where}, object {number}")
            if box is None:
                empty.append(f"{where}, object {number}")
                continue
            labels[-1].append(_label(label, where, known))
            boxes[-1].append(box)
    if empty:
        left = f"left out {len(empty):,} box{'' if len(empty) == 1 else 'es'} without extent, the first in {empty[0]}"
        note = f"{note}; {left}" if note else left
    return Boxes(
        source=table.source,
        pictures=pictures,
        names=[picture.name for picture in pictures],
        sizes=sizes,
        labels=labels,
        boxes=boxes,
        lines=table.lines,
        row_files=table.row_files,
        unit=table.unit,
        columns=list(table.names),
        note=note,
    )


def boxed_scenes(config: ScenesConfig, split: str, seed: int) -> Boxes:
    """Scenes, with the kind and the box of every shape."""
    scenes = Scenes(config, split, seed)
    every = list(scenes)
    return Boxes(
        source=SCENES,
        pictures=[drawn_picture(scene) for scene in every],
        names=[scene.key for scene in every],
        sizes=[(scene.size, scene.size) for scene in every],
        labels=[[shape.kind for shape in scene.shapes] for scene in every],
        boxes=[[_floats(shape.box) for shape in scene.shapes] for scene in every],
        columns=["scene"],
        lines=list(range(1, len(every) + 1)),
        unit="scene",
        sha256=sha256_of([scenes.digest(), "boxes"]),
    )


def _objects(value: Any, where: str) -> list[tuple[Any, Any]]:
    """Labels and boxes, of a list of objects or of an object of lists."""
    if isinstance(value, Mapping):
        labels, places = _part(value, LABELS), _part(value, PLACES)
        if isinstance(labels, list) and isinstance(places, list):
            if len(labels) != len(places):
                raise DataError(f"{where}: there are {len(labels)} labels and {len(places)} boxes; give both of each")
            return list(zip(labels, places, strict=True))
    if not isinstance(value, list):
        raise DataError(f"{where}: {brief(repr(value))} is no list of objects; give [{EXAMPLE}, …], or [] for none")
    found = []
    for each in value:
        if not isinstance(each, Mapping) or _part(each, LABELS) is None or _part(each, PLACES) is None:
            raise DataError(f"{where}: {brief(repr(each))} is no object with a label and a box; give {EXAMPLE}")
        found.append((_part(each, LABELS), _part(each, PLACES)))
    return found


def _part(value: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), None)


def _label(value: Any, where: str, known: Sequence[str] | None) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return known[value] if known is not None and 0 <= value < len(known) else str(value)
    label = tidy(value) if isinstance(value, str) else ""
    if not label:
        raise DataError(f"{where}: {brief(repr(value))} is no label of a box; give a text, or a number")
    return label


def _corners(value: Any, size: tuple[int, int], form: BoxForm, where: str) -> Corners | None:
    """The box by its corners, in a picture of this width and height; None where it has no extent."""
    plain = isinstance(value, list | tuple) and len(value) == 4
    if not plain or not all(_is_finite(each) for each in value):
        shape = "[x0, y0, x1, y1]" if form == "corners" else "[x, y, width, height]"
        raise DataError(f"{where}: {brief(repr(value))} is no box; give {shape}, in pixels")
    x0, y0, x1, y1 = box = _floats(value)
    if form == "xywh":
        x0, y0, x1, y1 = box = x0, y0, x0 + x1, y0 + y1
    shown = f"the box {brief(repr(value))}"
    if x1 < x0 or y1 < y0:
        hint = (
            "where its numbers are x, y, width and height, set data.box=xywh" if form == "corners" else "correct it"
        )
        raise DataError(f"{where}: {shown} is inside out; {hint}")
    width, height = size
    if min(x0, y0) < -SLACK or x1 > width + SLACK or y1 > height + SLACK:
        raise DataError(f"{where}: {shown} is outside its picture, which has {width} × {height} pixels; correct it")
    if x0 == x1 or y0 == y1:
        return None
    x0, y0, x1, y1 = box = max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height))
    if x1 <= x0 or y1 <= y0:
        raise DataError(f"{where}: {shown} is outside its picture, which has {width} × {height} pixels; correct it")
    return box


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _floats(value: Sequence[Any]) -> Corners:
    x0, y0, x1, y1 = map(float, value)
    return x0, y0, x1, y1
