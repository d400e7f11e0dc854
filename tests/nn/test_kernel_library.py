"""The library of CPU kernels: made once, told of where it cannot be, and done without."""

from __future__ import annotations

import shutil
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


@needs_compiler
@pytest.mark.slow
def test_it_is_made_once_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEGATO_KERNELS")
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path))
    assert kernels.library() is not None
    (made,) = tmp_path.glob("kernels-*.so")
    before = made.stat().st_mtime_ns
    kernels.library.cache_clear()
    assert kernels.library() is not None
    assert made.stat().st_mtime_ns == before
