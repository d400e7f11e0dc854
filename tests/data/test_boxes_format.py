"""Pictures with boxes: what is read, in either form, and what is refused, by file and line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from legato.data.formats.boxes import boxed_scenes, read_boxes
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import Picture, as_picture
from legato.data.image.scenes import ScenesConfig
from legato.errors import DataError
from tiny_pictures import write_jsonl, write_picture, write_tar


def encoded(width: int, height: int, **settings: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (200, 10, 10)).save(file, "JPEG", **settings)
    return file.getvalue()


def table(folder: Path, objects: Any) -> str:
    (folder / "a.jpg").write_bytes(encoded(40, 20))
    return write_jsonl(
        folder / "t.jsonl", [{"image": "a.jpg", "objects": []}, {"image": "a.jpg", "objects": objects}]
    )


def test_a_table_of_objects_and_pictures_in_a_tar(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", {"x/1.jpg": encoded(40, 20), "x/2.jpg": encoded(10, 30)})
    objects = [{"label": "red cell", "box": [1, 2, 11.5, 20]}, {"label": "cell", "box": [0, 0, 40, 20]}]
    rows = [{"image": "x/1.jpg", "statement": "", "objects": objects}, {"image": "x/2.jpg", "objects": []}]
    data = read_boxes(write_jsonl(tmp_path / "train.jsonl", rows))
    assert data.sizes == [(40, 20), (10, 30)]
    assert data.labels == [["red cell", "cell"], []]
    assert data.boxes[0] == [(1.0, 2.0, 11.5, 20.0), (0.0, 0.0, 40.0, 20.0)]
    assert data.count == 2
    assert data.columns == ["image", "objects"]
    assert data.select([1]).sizes == [(10, 30)]


def test_width_and_height_as_coco_has_them_and_lists_as_the_hub_does(tmp_path: Path) -> None:
    source = table(tmp_path, {"category": ["cat", 3], "bbox": [[2, 3, 10, 5], [0, 0, 1, 1]]})
    data = read_boxes(source, form="xywh")
    assert data.boxes[1] == [(2.0, 3.0, 12.0, 8.0), (0.0, 0.0, 1.0, 1.0)]
    assert data.labels[1] == ["cat", "3"]


def test_what_is_rounded_beyond_the_edge_is_cut_off(tmp_path: Path) -> None:
    data = read_boxes(table(tmp_path, [{"label": "cat", "box": [-0.5, 3, 40.5, 21]}]))
    assert data.boxes[1] == [(0.0, 3.0, 40.0, 20.0)]


def test_boxes_without_extent_are_left_out_and_said(tmp_path: Path) -> None:
    objects = [{"label": "cat", "box": [4, 4, 4, 4]}, {"label": "dog", "box": [0, 0, 2, 2]}]
    data = read_boxes(table(tmp_path, [*objects, {"label": "cat", "box": [4, 4, 9, 4]}]))
    assert data.labels[1] == ["dog"]
    assert data.boxes[1] == [(0.0, 0.0, 2.0, 2.0)]
    assert data.note.endswith(f"left out 2 boxes without extent, the first in {tmp_path}/t.jsonl, line 2, object 1")


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        (
            [{"label": "cat", "box": [10, 2, 4, 8]}],
            r"t\.jsonl, line 2, object 1: the box \[10, 2, 4, 8\] is inside out",
        ),
        ([{"label": "cat", "box": [10, 8, 12, 2]}], r"is inside out; .* set data\.box=xywh"),
        ([{"label": "cat", "box": [0, 0, 42, 8]}], "is outside its picture, which has 40 × 20 pixels"),
        ([{"label": "cat", "box": [0, -9, 4, 8]}], "line 2, object 1: the box .* is outside its picture"),
        ([{"label": "cat", "box": [40.2, 0, 40.9, 8]}], "is outside its picture"),
        ([{"label": "cat", "box": [0, 0, 4]}], r"is no box; give \[x0, y0, x1, y1\]"),
        ([{"label": "cat", "box": [0, 0, "4", 8]}], "is no box"),
        ([{"label": "cat", "box": [0, 0, float("nan"), 8]}], "is no box"),
        ([{"label": "cat", "box": [0, 0, True, 8]}], "is no box"),
        ([{"label": "cat"}], "is no object with a label and a box"),
        ([{"label": " ", "box": [0, 0, 4, 8]}], "is no label of a box"),
        (["cat"], "is no object"),
        ("cat", "is no list of objects"),
        (None, "is no list of objects"),
        ({"label": ["a"], "box": []}, "there are 1 labels and 0 boxes"),
    ],
)
def test_what_is_no_box_is_refused_with_its_line(tmp_path: Path, objects: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read_boxes(table(tmp_path, objects))
    assert "line 2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_are_those_of_the_picture_upright(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lying = Image.Exif()
    lying[0x0112] = 6
    assert Picture("p", data=encoded(40, 20, exif=lying.tobytes())).extent() == (20, 40)
    assert as_picture(encoded(40, 20)).extent() == (40, 20)
    assert as_picture(write_picture(tmp_path / "a.png")).extent() == (8, 8)
    with pytest.raises(DataError, match="is no picture"):
        Picture("p", data=b"GIF").extent()
    file = io.BytesIO()
    Image.new("RGB", (40, 20)).save(file, "PNG")
    torn = file.getvalue()[:-20] + bytes(20)
    assert Picture("p", data=torn).extent() == (40, 20)  # nothing but its head is read
    with pytest.raises(DataError, match="p is damaged: broken"):  # where how it lies may stand behind its pixels
        Picture("p", data=torn + b"eXIf").extent()
    monkeypatch.setattr("legato.data.image.pictures.MAX_PIXELS", 100)
    with pytest.raises(DataError, match=r"p .*pixels"):
        Picture("p", data=encoded(40, 20)).extent()


def test_scenes_have_the_boxes_of_their_shapes() -> None:
    data = boxed_scenes(ScenesConfig(size=32, count=4), "train", 0)
    assert len(data) == 4
    for held, boxes, size in zip(data.pictures, data.boxes, data.sizes, strict=True):
        pixels = held.load()
        assert size == (32, 32) == held.extent()
        ground = pixels[0, 16].astype(int)
        for x0, y0, x1, y1 in boxes:
            part = pixels[int(y0) : int(y1), int(x0) : int(x1)].astype(int)
            assert abs(part - ground).max() > 30


def test_the_part_of_a_picture_that_is_read() -> None:
    assert ImageProcessor((10, 30)).frame(60, 40) == (0.0, 0.0, 60.0, 40.0)
    assert ImageProcessor(20, (20, 20)).frame(60, 40) == (10.0, 0.0, 50.0, 40.0)  # 30 × 20, of which the middle
    assert ImageProcessor((20, 30), (10, 10)).frame(60, 80) == (20.0, 20.0, 40.0, 60.0)  # stretched before it is cut
    assert ImageProcessor(None, (50, 20)).frame(60, 40) == (20.0, -5.0, 40.0, 45.0)  # with black above and below
