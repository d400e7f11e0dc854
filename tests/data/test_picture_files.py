"""Where pictures lie: class folders, tables of every kind, members of a .tar, bytes, the hub; and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from legato.data.formats.captions import read_captions
from legato.data.formats.picture_rows import read_labelled_pictures
from legato.data.image.picture_files import as_picture, members_of, name_of, pictures_in
from legato.data.sources import tables
from legato.data.splits import hold_out_named
from legato.errors import DataError
from legato.tasks.picture_inputs import read_pictures
from tiny_pictures import class_folders, encoded, pixels, write_jsonl, write_picture, write_tar


def looks_like(pictures: Any, *expected: tuple[str, int]) -> None:
    """The pictures are those colours with that noise."""
    found = [np.asarray(picture.load()) for picture in pictures]
    assert len(found) == len(expected)
    for made, (colour, seed) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(made, pixels(colour, seed))


# --- folders -----------------------------------------------------------------------------------------


def test_a_folder_of_classes_gives_their_names_as_labels(tmp_path: Path) -> None:
    class_folders(tmp_path, 2)
    (tmp_path / "notes.txt").write_text("no picture")
    write_picture(tmp_path / ".hidden" / "0.png")
    write_picture(tmp_path / "red" / ".thumbs" / "0.png")
    data = read_labelled_pictures(str(tmp_path))
    assert data.labels == ["blue", "blue", "red", "red"]
    assert data.texts == ["blue/0.png", "blue/1.png", "red/0.png", "red/1.png"]
    assert data.note == "2 classes, a folder each"
    looks_like(data.pictures, ("blue", 0), ("blue", 1), ("red", 0), ("red", 1))


def test_pictures_of_a_class_may_lie_deeper(tmp_path: Path) -> None:
    write_picture(tmp_path / "red" / "a" / "b.PNG")
    write_picture(tmp_path / "blue" / "0.png", "blue")
    assert read_labelled_pictures(str(tmp_path)).texts == ["blue/0.png", "red/a/b.PNG"]


def test_a_class_without_pictures_is_named(tmp_path: Path) -> None:
    class_folders(tmp_path, 1)
    (tmp_path / "green").mkdir()
    with pytest.raises(DataError, match=r"/green holds no picture, so that class cannot be learned; put some in"):
        read_labelled_pictures(str(tmp_path))


def test_a_folder_without_class_folders_says_how_they_lie(tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png")
    with pytest.raises(DataError, match=r"has no folders in it; put the pictures of each class in .*/CLASS/\*\.jpg"):
        read_labelled_pictures(str(tmp_path))


def test_the_content_has_a_hash_of_its_own(tmp_path: Path) -> None:
    before = read_labelled_pictures(str(class_folders(tmp_path, 2))).sha256
    assert read_labelled_pictures(str(tmp_path)).sha256 == before
    write_picture(tmp_path / "red" / "1.png", "red", seed=9)
    assert read_labelled_pictures(str(tmp_path)).sha256 != before


# --- tables ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "between"), [("t.csv", ","), ("t.tsv", "\t")])
def test_a_table_names_pictures_beside_it(tmp_path: Path, name: str, between: str) -> None:
    write_picture(tmp_path / "0.png")
    write_picture(tmp_path / "images" / "1.png", "blue", 1)
    rows = [("file_name", "label"), ("0.png", "red"), ("1.png", "blue")]
    (tmp_path / name).write_text("".join(between.join(row) + "\n" for row in rows))
    data = read_labelled_pictures(str(tmp_path / name))
    assert data.labels == ["red", "blue"]
    assert data.note == "reading 'file_name' as picture and 'label' as label"
    assert data.columns == ["file_name", "label"]
    looks_like(data.pictures, ("red", 0), ("blue", 1))


def test_columns_are_what_somebody_names(tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png")
    table = write_jsonl(tmp_path / "t.jsonl", [{"image": "none.png", "what": "0.png", "hue": "red"}])
    data = read_labelled_pictures(table, columns=["what", "hue"])
    assert (data.labels, data.note) == (["red"], "")
    with pytest.raises(DataError, match="names 1 of them"):
        read_labelled_pictures(table, columns=["what"])


def test_pictures_may_lie_in_another_folder(tmp_path: Path) -> None:
    write_picture(tmp_path / "far" / "0.png")
    table = write_jsonl(tmp_path / "t.jsonl", [{"image": "0.png", "label": "red"}])
    looks_like(read_labelled_pictures(table, images=str(tmp_path / "far")).pictures, ("red", 0))
    with pytest.raises(DataError, match=r"set data\.images to the folder or \.tar that it is in"):
        read_labelled_pictures(table)
    with pytest.raises(DataError, match="nowhere"):
        read_labelled_pictures(table, images=str(tmp_path / "nowhere"))


def test_pictures_may_be_members_of_a_tar(tmp_path: Path) -> None:
    write_tar(tmp_path / "t.tar", {"./a/0.png": encoded("red"), "1.png": encoded("blue", 1), "notes.txt": b"x"})
    table = write_jsonl(tmp_path / "t.jsonl", [{"image": "a/0.png", "label": 1}, {"image": "1.png", "label": 0}])
    looks_like(read_labelled_pictures(table).pictures, ("red", 0), ("blue", 1))  # t.tar, for t.jsonl
    (tmp_path / "t.tar").rename(tmp_path / "other.tar")
    looks_like(read_labelled_pictures(table, images=str(tmp_path / "other.tar")).pictures, ("red", 0), ("blue", 1))
    worse = write_jsonl(tmp_path / "w.jsonl", [{"image": "a/9.png", "label": 1}])
    with pytest.raises(DataError, match=r"w\.jsonl, line 1: there is no picture 'a/9\.png' in .*did you mean 'a/0"):
        read_labelled_pictures(worse, images=str(tmp_path / "other.tar"))


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "t.tar", {"0.png": encoded(), "1.png": b"nothing"})
    with pytest.raises(DataError, match=r"t\.tar: 1\.png is no picture"):
        members_of(archive)["1.png"].load()


@pytest.mark.parametrize("content", [b"no tar at all", b""])
def test_what_is_no_tar_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.tar").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.tar (cannot be read as a \.tar|holds no picture)"):
        members_of(tmp_path / "t.tar")


def test_a_parquet_file_holds_the_pictures_themselves(tmp_path: Path) -> None:
    raw = [encoded("red"), encoded("blue", 1)]
    for column in (raw, [{"bytes": each, "path": None} for each in raw]):
        table = pyarrow.table({"image": column, "label": ["red", "blue"]})
        pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
        data = read_labelled_pictures(str(tmp_path / "t.parquet"))
        assert data.labels == ["red", "blue"]
        assert data.texts[1].endswith("t.parquet, row 2")
        looks_like(data.pictures, ("red", 0), ("blue", 1))


def test_a_parquet_file_may_only_say_where_they_are(tmp_path: Path) -> None:
    write_picture(tmp_path / "0.png")
    table = pyarrow.table({"image": [{"bytes": None, "path": "0.png"}], "label": ["red"]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    looks_like(read_labelled_pictures(str(tmp_path / "t.parquet")).pictures, ("red", 0))


def test_a_dataset_of_the_hub_keeps_its_pictures_and_class_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": encoded("red")}, {"bytes": encoded("blue", 1)}], "label": [1, 0]},
        features=datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["zinc", "amber"])),
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    data = read_labelled_pictures("hub:some/pictures")
    assert (data.labels, data.classes) == ([1, 0], ["zinc", "amber"])
    looks_like(data.pictures, ("red", 0), ("blue", 1))
    monkeypatch.setattr(tables, "_load_dataset", lambda *_: rows.cast_column("image", datasets.Image(decode=False)))
    looks_like(read_labelled_pictures("hub:some/pictures").pictures, ("red", 0), ("blue", 1))
    rows.to_parquet(tmp_path / "t.parquet")
    again = read_labelled_pictures(str(tmp_path / "t.parquet"))
    assert again.classes == ["zinc", "amber"]
    looks_like(again.pictures, ("red", 0), ("blue", 1))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("none.png", r"t\.jsonl, line 2: there is no picture .*none\.png; set data\.images"),
        ("", r"t\.jsonl, line 2: there is no picture; give a file's name, or remove the row"),
        (None, r"t\.jsonl, line 2: there is no picture; give"),
        (7, r"t\.jsonl, line 2: 7 names no picture"),
        (["0.png", "1.png"], r"t\.jsonl, line 2: there are 2 pictures, and a row has one; make a row for each"),
        (["0.png"], r"t\.jsonl, line 2: \['0\.png'\] names no picture"),
    ],
)
def test_a_row_without_its_picture_is_named_by_file_and_line(tmp_path: Path, value: Any, said: str) -> None:
    write_picture(tmp_path / "0.png")
    rows = [{"image": "0.png", "label": "a"}, {"image": value, "label": "b"}]
    with pytest.raises(DataError, match=said) as problem:
        read_labelled_pictures(write_jsonl(tmp_path / "t.jsonl", rows))
    assert "\n" not in str(problem.value)


def test_a_table_without_a_column_of_pictures_asks_for_it(tmp_path: Path) -> None:
    table = write_jsonl(tmp_path / "t.jsonl", [{"eins": "0.png", "label": "a"}])
    with pytest.raises(DataError, match=r"no column looks like the picture, among eins, label; say which"):
        read_labelled_pictures(table)


# --- captions ----------------------------------------------------------------------------------------


def test_captions_stand_in_a_list_or_a_row_each(tmp_path: Path) -> None:
    for number in (0, 1):
        write_picture(tmp_path / f"{number}.png", seed=number)
    listed = write_jsonl(
        tmp_path / "a.jsonl", [{"image": "0.png", "captions": ["a b", "c  d"]}, {"image": "1.png", "captions": "e"}]
    )
    (tmp_path / "b.csv").write_text("image,caption\n0.png,a b\n1.png,e\n0.png,c  d\n")
    for source in (listed, str(tmp_path / "b.csv")):
        data = read_captions(source)
        assert data.names == ["0.png", "1.png"]
        assert [each[0] for each in data.captions] == ["a b", "e"]
        assert len(data.captions[0]) == 2
        looks_like(data.pictures, ("red", 0), ("red", 1))


def test_pictures_held_out_take_all_their_captions(tmp_path: Path) -> None:
    rows = []
    for number in range(20):
        write_picture(tmp_path / f"{number}.png", seed=number)
        rows += [{"image": f"{number}.png", "caption": text} for text in ("a", "b")]
    parts = hold_out_named(read_captions(write_jsonl(tmp_path / "t.jsonl", rows)), 0.2, "picture")
    assert sorted(parts["train"].names + parts["valid"].names) == sorted(f"{n}.png" for n in range(20))
    assert parts["valid"].names
    assert {len(each) for part in parts.values() for each in part.captions} == {2}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "the caption is empty; write one, or remove the line"),
        ([], "the caption is empty"),
        (["  ", ""], "the caption is empty"),
        (3, "3 is no caption; give a text, or a list of them"),
        (["a", 3], "is no caption"),
    ],
)
def test_a_caption_that_is_none_is_named_by_file_and_line(tmp_path: Path, value: Any, said: str) -> None:
    write_picture(tmp_path / "0.png")
    rows = [{"image": "0.png", "captions": "a"}, {"image": "0.png", "captions": value}]
    with pytest.raises(DataError, match=rf"t\.jsonl, line 2: .*{said}"):
        read_captions(write_jsonl(tmp_path / "t.jsonl", rows))


# --- what somebody gives to a model ------------------------------------------------------------------


def test_a_picture_may_be_given_in_many_ways(tmp_path: Path) -> None:
    file, red = write_picture(tmp_path / "0.png"), pixels("red")
    for given in (str(file), file, encoded("red"), red, Image.fromarray(red), Image.open(file), as_picture(file)):
        np.testing.assert_array_equal(np.asarray(as_picture(given).load()), red)
    assert [name_of(given) for given in (file, red, Image.fromarray(red))] == [str(file), "a picture", "a picture"]


def test_grey_pixels_and_those_with_opacity_become_colours() -> None:
    grey = np.full((4, 5), 77, np.uint8)
    assert (np.asarray(as_picture(grey).load()) == np.full((4, 5, 3), 77)).all()
    clear = np.full((4, 5, 4), 77, np.uint8)
    assert np.asarray(as_picture(clear).load()).shape == (4, 5, 3)


@pytest.mark.parametrize(
    "given", [np.zeros((4, 4, 3)), np.zeros((1, 4, 4, 3), np.uint8), np.zeros((4, 4, 2), np.uint8)]
)
def test_other_arrays_are_no_pixels(given: Any) -> None:
    with pytest.raises(DataError, match=r"pixels are \(height, width, 3\) bytes"):
        as_picture(given)
    with pytest.raises(DataError, match="are no picture"):
        as_picture(np.zeros((0, 4, 3), np.uint8))


def test_an_open_picture_is_upright_and_checked_as_a_file_is(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter to the right
    Image.new("RGB", (6, 2)).save(tmp_path / "t.png", exif=turned.tobytes())
    assert as_picture(Image.open(tmp_path / "t.png")).load().size == (2, 6)
    deep = Image.fromarray(np.full((4, 4), 77 * 256 + 5, np.uint16))
    assert (np.asarray(as_picture(deep).load()) == 77).all()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:4000])
    with pytest.raises(DataError, match="a picture is damaged"):
        as_picture(Image.open(tmp_path / "half.png")).load()


def test_a_folder_and_a_text_are_no_picture(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder; give a picture in it, or --file"):
        as_picture(tmp_path)
    with pytest.raises(DataError, match="'a dog runs' is no file, and this model reads pictures, not text"):
        as_picture("a dog runs")
    write_picture(tmp_path / "photo.png")
    with pytest.raises(DataError, match=r"there is no picture .*foto\.png; did you mean '.*photo\.png'"):
        as_picture(tmp_path / "foto.png")


def test_pictures_are_found_by_their_endings_in_order(tmp_path: Path) -> None:
    for name in ("b.png", "a/z.JPG", "c.txt", ".d.png", "a.webp", "e.gif", "f.jpeg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = [str(path.relative_to(tmp_path)) for path in pictures_in(tmp_path)]
    assert found == ["a/z.JPG", "a.webp", "b.png", "e.gif", "f.jpeg"]


def test_a_file_for_predictions_is_a_folder_a_tar_a_list_or_a_table(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    write_picture(photos / "0.png")
    write_picture(photos / "1.png", "blue", 1)
    expected = [("red", 0), ("blue", 1)]
    found = read_pictures(str(photos))
    assert (found.names, found.unit) == (["0.png", "1.png"], "picture")
    looks_like(found.texts, *expected)
    archive = write_tar(tmp_path / "p.tar", {"0.png": encoded("red"), "1.png": encoded("blue", 1)})
    assert read_pictures(str(archive)).names == ["0.png", "1.png"]
    looks_like(read_pictures(str(archive)).texts, *expected)
    (photos / "list.txt").write_text(f"0.png\n{photos}/1.png\n")
    assert (read_pictures(str(photos / "list.txt")).names, read_pictures(str(photos / "list.txt")).unit) == (
        None,
        "line",
    )
    looks_like(map(as_picture, read_pictures(str(photos / "list.txt")).texts), *expected)
    table = write_jsonl(photos / "t.jsonl", [{"id": 1, "photo": "0.png"}, {"id": 2, "photo": "1.png"}])
    looks_like(read_pictures(table).texts, *expected)
    assert read_pictures(table).note.endswith("t.jsonl: reading 'photo' as picture")
    assert read_pictures(table, trained=["photo"]).note == ""
    looks_like(read_pictures(str(photos / "0.png")).texts, ("red", 0))


def test_a_file_for_predictions_that_has_none_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"/empty holds no picture; those end in \.jpg"):
        read_pictures(str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"there is no file or folder .*/emptyy; did you mean '.*/empty'"):
        read_pictures(str(tmp_path / "emptyy"))
    (tmp_path / "l.txt").write_text("")
    with pytest.raises(DataError, match=r"l\.txt is empty"):
        read_pictures(str(tmp_path / "l.txt"))
    table = write_jsonl(tmp_path / "t.jsonl", [{"eins": "0.png", "zwei": "x"}])
    with pytest.raises(DataError, match="has the columns eins, zwei; say which is the picture: --columns eins"):
        read_pictures(table)
    with pytest.raises(DataError, match=r"t\.jsonl, line 1: there is no picture"):
        read_pictures(table, columns=["eins"])
    with pytest.raises(DataError, match="name the one of the pictures"):
        read_pictures(table, columns=["eins", "zwei"])
