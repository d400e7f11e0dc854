"""The library of CPU kernels: made once, told of where it cannot be, and done without."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from legato.nn.kernels import library as kernels

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, kernels.COMPILERS)), reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def found_anew() -> Iterator[None]:
    kernels.library.cache_clear()
    yield
    kernels.library.cache_clear()


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_KERNELS", "off")
    assert kernels.library() is None


def test_without_a_compiler_there_is_none_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.warns(UserWarning, match="there is no C\\+\\+ compiler"):
        assert kernels.library() is None


def test_a_compiler_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text(
        "#!/bin/sh\ncase $1 in --version) echo 1;; *) echo 'x.cpp:1: error: no such' >&2; exit 1;; esac\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    monkeypatch.setenv("LEGATO_KERNELS", str(tmp_path / "made"))
    with pytest.warns(UserWarning, match="could not be made.*error: no such"):
        assert kernels.library() is None
    assert list((tmp_path / "made").iterdir()) == []


@pytest.fixture
def small_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Has kernels be a library of one function, and the folder that it lies in."""
    (tmp_path / "kernels.cpp").write_text('extern "C" int legato_answer() { return 42; }')
    monkeypatch.setattr(kernels, "SOURCES", tmp_path)
    monkeypatch.setattr(kernels, "FLAGS", ("-shared", "-fPIC"))
    monkeypatch.setattr(kernels, "Library", lambda file: file.read_bytes())
    monkeypatch.setenv("LEGATO_KERNELS", str(tmp_path / "made"))
    return tmp_path / "made"


DAMAGES = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "with a bit flipped": lambda data: data[:900] + bytes([data[900] ^ 1]) + data[901:],
}


@needs_compiler
def test_a_damaged_library_is_made_anew_before_it_is_loaded(small_library: Path) -> None:
    intact = kernels.library()
    (file,) = small_library.glob("kernels-*.so")
    assert intact == file.read_bytes()
    assert {path.suffix for path in small_library.iterdir()} == {".so", ".sha256"}
    for path in (file, file.with_suffix(".sha256")):
        for damage in DAMAGES.values():
            path.write_bytes(damage(intact))
            kernels.library.cache_clear()
            assert kernels.library() == intact
    file.with_suffix(".sha256").unlink()
    kernels.library.cache_clear()
    assert kernels.library() == intact


@needs_compiler
def test_a_damaged_library_that_cannot_be_made_anew_is_not_loaded(
    small_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels.library()
    (file,) = small_library.glob("kernels-*.so")
    file.write_bytes(b"")
    kernels.library.cache_clear()
    monkeypatch.setattr(kernels, "replacing_file", lambda path: path.with_name("nowhere").joinpath("x").open("w"))
    with pytest.warns(UserWarning, match="kernels could not be made, so PyTorch's operators are used"):
        assert kernels.library() is None


@needs_compiler
@pytest.mark.skipif(os.name == "nt", reason="files have no such permissions")
def test_a_folder_that_a_group_may_write_to_is_closed_and_such_a_library_made_anew(small_library: Path) -> None:
    kernels.library()
    (file,) = small_library.glob("kernels-*.so")
    small_library.chmod(0o2777)
    file.chmod(0o770)
    before = file.stat().st_ino
    kernels.library.cache_clear()
    with warnings.catch_warnings(action="error"):
        assert kernels.library() == file.read_bytes()
    assert small_library.stat().st_mode & 0o777 == 0o755
    assert file.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_ino != before


@needs_compiler
@pytest.mark.skipif(os.name == "nt", reason="files have no such permissions")
@pytest.mark.parametrize("other", ["shared", "owner"])
def test_a_library_that_another_user_may_have_written_is_not_loaded(
    small_library: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    umask = os.umask(0o002)  # as many systems set it, where each user has a group of their own
    assert kernels.library() is not None
    os.umask(umask)
    assert small_library.stat().st_mode & 0o777 == 0o700
    kernels.library.cache_clear()
    if other == "owner":
        monkeypatch.setattr(os, "getuid", lambda: small_library.stat().st_uid + 1)
        if small_library.stat().st_uid == 0:
            os.chown(small_library, 12345, -1)
    else:
        small_library.chmod(0o1777)  # as of /tmp
    with pytest.warns(UserWarning, match="other users may write to .*; set LEGATO_KERNELS to a folder of your own"):
        assert kernels.library() is None


@needs_compiler
@pytest.mark.slow
def test_it_is_made_once_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEGATO_KERNELS")
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path))
    assert kernels.library() is not None
    (made,) = tmp_path.glob("kernels/kernels-*.so")
    before = made.stat().st_mtime_ns
    kernels.library.cache_clear()
    assert kernels.library() is not None
    assert made.stat().st_mtime_ns == before
