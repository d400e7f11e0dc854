"""Texts that cannot be trained on are named in one line, and leave no run behind."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path
from typing import Any

import pytest

from refusals import is_one_line


@pytest.mark.parametrize("key", ["data.train", "data.valid", "data.test"])
def test_a_missing_file_is_named(key: str, train: Any, tmp_path: Path) -> None:
    is_one_line(train(f"{key}={tmp_path}/no.txt"), f"there is no file {tmp_path}/no.txt")


@pytest.mark.parametrize("content", [b"", b" \n\n"])
@pytest.mark.parametrize("key", ["data.train", "data.valid", "data.test"])
def test_an_empty_file_is_named(key: str, content: bytes, train: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(content)
    is_one_line(train(f"{key}={tmp_path}/bad.txt"), f"{tmp_path}/bad.txt is empty")


def test_a_binary_file_is_named(train: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"some text" + bytes(range(256)))
    is_one_line(train(f"data.train={tmp_path}/bad.txt"), f"{tmp_path}/bad.txt is binary", "offset 9")


def test_a_packed_file_is_said_to_be_one(train: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "some text")
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"some text"))
    is_one_line(train(f"data.train={tmp_path}/a.zip"), f"{tmp_path}/a.zip is a zip; unpack it, and name a file")
    is_one_line(train(f"data.train={tmp_path}/a.txt"), f"{tmp_path}/a.txt is a gzip; unpack it, or give it a name")


def test_a_mis_encoded_file_is_named_with_its_line(train: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes("ein Satz\nnoch ein schöner\n".encode("latin-1"))
    is_one_line(train(f"data.valid={tmp_path}/bad.txt"), f"{tmp_path}/bad.txt, line 2", "data.encoding=latin-1")


def test_a_line_of_100_megabytes_is_named(train: Any, tmp_path: Path) -> None:
    with (tmp_path / "bad.txt").open("wb") as file:
        file.write(b"short\n")
        for _ in range(100):
            file.write(b"x" * 1_000_000)
    answer = train(f"data.train={tmp_path}/bad.txt")
    (tmp_path / "bad.txt").unlink()
    is_one_line(answer, f"{tmp_path}/bad.txt, line 2: 100000000 characters in one line", "data.max_line=0")


def test_a_folder_in_place_of_a_file_is_named(train: Any, tmp_path: Path) -> None:
    is_one_line(train(f"data.train={tmp_path}"), f"{tmp_path} is a folder")


def test_a_validation_text_shorter_than_one_batch_is_named(train: Any, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short\n")
    is_one_line(
        train(f"data.valid={tmp_path}/short.txt"), f"data.valid={tmp_path}/short.txt holds", "train.batch_tokens"
    )


def test_a_training_text_shorter_than_one_batch_is_named(train: Any, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short\n")
    is_one_line(train(f"data.train={tmp_path}/short.txt"), f"data.train={tmp_path}/short.txt holds")


def test_no_training_text_at_all_is_said(train: Any) -> None:
    is_one_line(train("data.train=none"), "data.train=FILE")
