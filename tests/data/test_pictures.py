"""Pictures from people's files: whatever the format, red, green and blue come out, or one line that says why not."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from legato.data.image.pictures import read_picture
from legato.errors import DataError

RED = (200, 30, 40)


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def claiming(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says how large it is."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("kind", "slack"), [("JPEG", 6), ("PNG", 0), ("WEBP", 6), ("GIF", 0)])
def test_each_format_gives_its_colours(kind: str, slack: int, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(encoded(Image.new("RGB", (9, 5), RED), kind))
    picture = read_picture(file)
    assert (picture.mode, picture.size) == ("RGB", (9, 5))
    assert np.abs(np.asarray(picture).astype(int) - RED).max() <= slack


@pytest.mark.parametrize(
    ("picture", "expected"),
    [
        (Image.new("L", (4, 4), 77), (77, 77, 77)),
        (Image.new("1", (4, 4), 1), (255, 255, 255)),
        (Image.new("RGBA", (4, 4), (*RED, 9)), RED),
        (Image.new("LA", (4, 4), (77, 9)), (77, 77, 77)),
        (Image.new("P", (4, 4), 0), (0, 0, 0)),
        (Image.fromarray(np.full((4, 4), 77 * 256 + 5, np.uint16)), (77, 77, 77)),
        (Image.new("RGB", (1, 1), RED), RED),
    ],
)
def test_other_colours_become_red_green_and_blue(picture: Image.Image, expected: tuple[int, int, int]) -> None:
    found = np.asarray(read_picture(encoded(picture, "PNG")))
    assert (found == expected).all()


def test_inks_become_colours() -> None:
    found = np.asarray(read_picture(encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG")))
    assert np.abs(found.astype(int) - (255, 0, 0)).max() < 8


def test_a_picture_is_turned_as_its_camera_says() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter to the right
    pixels = np.zeros((2, 6, 3), np.uint8)
    pixels[:, :3] = 255
    found = read_picture(encoded(Image.fromarray(pixels), "PNG", exif=turned.tobytes()))
    assert found.size == (2, 6)
    assert np.asarray(found)[0].min() == 255
    assert np.asarray(found)[-1].max() == 0


def test_of_an_animation_the_first_frame_is_read() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, (0, 0, 255))]
    raw = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.warns(UserWarning, match=r"cat\.gif is animated; its first frame is read"):
        assert (np.asarray(read_picture(raw, "cat.gif")) == RED).all()


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    file = tmp_path / "notes.jpg"
    file.write_text("not a picture")
    with pytest.raises(DataError, match=r"notes\.jpg is no picture of JPEG, PNG, WEBP, GIF$"):
        read_picture(file)
    file.write_bytes(b"")
    with pytest.raises(DataError, match="is no picture"):
        read_picture(file)
    with pytest.raises(DataError, match="there is no file"):
        read_picture(tmp_path / "none.png")
    with pytest.raises(DataError, match="is a folder"):
        read_picture(tmp_path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_a_picture_that_ends_too_early_is_damaged(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    raw = encoded(Image.fromarray(noise), kind)
    with pytest.raises(DataError, match=r"^x\.bin is (damaged: |no picture)"):
        read_picture(raw[: len(raw) // 2], "x.bin")


@pytest.mark.parametrize("size", [(30_000, 30_000), (120_000_001, 1), (2**31 - 1, 2**31 - 1)])
def test_a_picture_too_large_is_refused_before_it_is_unpacked(size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=r"^x\.png .*more than 120,000,000") as problem:
        read_picture(claiming(*size), "x.png")
    assert "\n" not in str(problem.value)


def test_other_formats_are_not_guessed() -> None:
    with pytest.raises(DataError, match="is no picture of JPEG"):
        read_picture(encoded(Image.new("RGB", (4, 4)), "BMP"))
