"""A disk that is full or fills up: one line, and a run that can go on, or none."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from legato.training.checkpoint_files import list_checkpoints
from refusals import ends_in_one_line
from tiny_runs import small, weights_digest, words


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the disk be full after so many files of tensors."""

    def arm(files: int) -> None:
        from legato.folders import weights

        save = weights.save_file
        left = files

        def write(*args: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
            save(*args, **options)

        monkeypatch.setattr(weights, "save_file", write)

    return arm


@pytest.mark.parametrize("files", [0, 3])
def test_a_disk_that_is_full_at_once_leaves_no_run_behind(files: int, train: Any, full_after: Any) -> None:
    full_after(files)
    ends_in_one_line(train(), "the disk is full")


@pytest.mark.parametrize("files", [5, 7, 12, 15])
def test_a_disk_that_fills_up_leaves_the_last_checkpoint(
    files: int,
    command: Any,
    home: Path,
    tmp_path: Path,
    full_after: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    full_after(files)
    ends_in_one_line(command("train", "lm", *words(small(home)), f"out={tmp_path}/run"), "the disk is full", "run")
    monkeypatch.undo()
    monkeypatch.setenv("LEGATO_CACHE", str(home / "cache"))
    assert not list((tmp_path / "run").rglob(".new-*"))
    assert command("train", f"resume={tmp_path}/run").code == 0
    assert weights_digest(tmp_path / "run") == weights_digest(home / "finished")


@pytest.mark.parametrize("name", [".starting", "config.yaml", "provenance.json"])
def test_a_disk_too_full_for_the_first_small_file_leaves_no_run_behind(
    name: str, train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def full(self: Path, *args: Any, **options: Any) -> int:
        if self.name.startswith(f".new-{name}-"):
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return write(self, *args, **options)

    monkeypatch.setattr(Path, "write_text", full)
    ends_in_one_line(train(), "the disk is full")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("events", ["true", "false"])
def test_a_disk_that_is_really_full_leaves_a_run_that_goes_on(
    events: str, command: Any, home: Path, tiny_disk: Path
) -> None:
    settings = small(home, train__checkpoint_every=1, train__keep=9, train__tensorboard=events)
    answer = command("train", "lm", *words(settings), f"out={tiny_disk}/run")
    ends_in_one_line(answer, "the disk is full", str(tiny_disk))
    assert list_checkpoints(tiny_disk / "run" / "checkpoints")
    subprocess.run(["mount", "-o", "remount,size=8m", str(tiny_disk)], check=True)
    assert command("train", f"resume={tiny_disk}/run").code == 0
    assert weights_digest(tiny_disk / "run") == weights_digest(home / "finished")


def test_a_disk_that_is_full_from_the_start_leaves_no_run_behind(command: Any, home: Path, tiny_disk: Path) -> None:
    with contextlib.suppress(OSError), (tiny_disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    ends_in_one_line(command("train", "lm", *words(small(home)), f"out={tiny_disk}/run"), "the disk is full")
    assert not (tiny_disk / "run").exists()
