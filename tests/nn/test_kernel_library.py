"""The library of CPU kernels: made once, told of where it cannot be, and done without."""

from __future__ import annotations

import os
import platform
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from legato.nn.kernels import compiler
from legato.nn.kernels import library as kernels

needs_compiler = pytest.mark.skipif(compiler.find_compiler() is None, reason="needs a C++ compiler")


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
    monkeypatch.setattr(compiler, "FLAGS", ("-fPIC",))
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


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A wheel's folder of libraries for two levels, of which processors run `plain`."""
    levels = (compiler.Level("fast", (), {"fast"}), compiler.Level("plain", (), frozenset()))
    monkeypatch.setitem(compiler.LEVELS, platform.machine(), levels)
    monkeypatch.setattr(kernels, "PREBUILT", tmp_path)
    monkeypatch.setattr(compiler, "PREBUILT", tmp_path)
    monkeypatch.setattr(kernels, "Library", lambda file: file.read_text())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("LEGATO_KERNELS")
    for level in levels:
        (tmp_path / compiler.prebuilt_file("kernels", level)).write_text(level.name)
    return tmp_path


def test_the_best_library_of_a_wheel_that_the_processor_runs_is_loaded(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels.library() == "plain"
    monkeypatch.setattr(compiler, "processor", lambda: ("flags\t: fpu fast",))
    kernels.library.cache_clear()
    assert kernels.library() == "fast"


def test_a_processor_that_no_library_of_a_wheel_fits_is_told_of(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiler.LEVELS, platform.machine(), ())
    with pytest.warns(
        UserWarning, match="the wheel's kernels do not fit this processor, and there is no C\\+\\+ compiler"
    ):
        assert kernels.library() is None


def test_a_folder_for_kernels_has_them_compiled_although_there_is_a_wheel(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_KERNELS", str(wheel / "compiled"))
    with pytest.warns(UserWarning, match="there is no C\\+\\+ compiler"):
        assert kernels.library() is None


@pytest.mark.parametrize(
    ("machine", "features", "level"),
    [
        ("x86_64", "sse4_2 avx", None),  # Sandy Bridge
        ("x86_64", "avx avx2 bmi1 bmi2 f16c fma abm movbe", "avx2"),
        ("x86_64", "avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512cd", "avx2"),  # Knights Landing
        ("aarch64", "fp asimd evtstrm crc32 cpuid", "neon"),  # Raspberry Pi 4
        (
            "aarch64",
            "fp asimd crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
            "dotprod",
        ),  # Neoverse N1
        ("riscv64", "", None),
    ],
)
def test_a_processor_has_the_best_level_whose_instructions_it_all_has(
    machine: str, features: str, level: str | None
) -> None:
    best = compiler.best_level(machine, set(features.split()))
    assert (best and best.name) == level


@needs_compiler
def test_openmp_is_pytorchs_and_no_library_brings_another(tmp_path: Path) -> None:
    source, file = tmp_path / "threads.cpp", tmp_path / "threads.so"
    source.write_text('#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }')
    compiler.compile_library(str(compiler.find_compiler()), source, file)
    assert b"libgomp" not in file.read_bytes()
    assert kernels._open(file).threads() == torch.get_num_threads()
