"""Writing: the old or the new, never half of either."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from legato.errors import FolderError
from legato.folders import atomic, weights
from legato.folders.atomic import OLD, OWN, clear_errors, recover, replacing, write_text
from legato.folders.weights import save_tensors
from legato.output_files import NEW


class Killed(BaseException):
    """Stands for a kill: nothing in the code expects it."""


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder `best` that holds the old content."""
    folder = tmp_path / "run" / "best"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.txt").write_text("old")
    (folder / "inner" / "b.txt").write_text("old too")
    return folder


def write_half(place: Path, problem: BaseException) -> None:
    """Begin to replace `place`, and fail."""
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("half of")
        raise problem


# --- replacing -------------------------------------------------------------------------------------


def test_a_new_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    place = tmp_path / "not" / "yet" / "there"
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
        assert not place.exists()
    assert snapshot(tmp_path) == {"not/yet/there/a.txt": b"new"}


@pytest.fixture(params=["one exchange", "two renames"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that can exchange two folders at once, and those that cannot."""
    if request.param == "two renames":
        monkeypatch.setattr(atomic, "exchange", lambda *_: False)


@pytest.mark.parametrize("target", ["best", "nowhere"])
def test_nothing_is_written_through_a_link(target: str, place: Path) -> None:
    link, before = place.parent / "link", snapshot(place)
    link.symlink_to(target)
    with pytest.raises(FolderError, match=f"{link} is a link to {target}"), replacing(link) as fresh:
        (fresh / "a.txt").write_text("new")
    assert link.is_symlink()
    assert snapshot(place) == before
    assert sorted(path.name for path in place.parent.iterdir()) == ["best", "link"]


@pytest.mark.usefixtures("either_way")
def test_a_folder_is_replaced_whole(place: Path) -> None:
    with replacing(place, drop={"inner/b.txt"}) as fresh:
        (fresh / "a.txt").write_text("new")
    assert snapshot(place.parent) == {"best/a.txt": b"new"}
    assert [path.name for path in place.parent.iterdir()] == ["best"]
    assert [path.name for path in place.iterdir()] == ["a.txt"]


@pytest.mark.usefixtures("either_way")
def test_what_somebody_put_into_a_folder_is_in_its_successor(place: Path) -> None:
    (place / "notes").mkdir()
    (place / "notes" / "mine.txt").write_text("mine")
    (place / "notes" / "link").symlink_to("/nowhere")
    (place / "empty").mkdir()
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
        (place / "late.txt").write_text("mine, too")
    assert snapshot(place) == {
        "a.txt": b"new",
        "inner/b.txt": b"old too",
        "notes/mine.txt": b"mine",
        "late.txt": b"mine, too",
    }
    assert os.readlink(place / "notes" / "link") == "/nowhere"
    assert (place / "empty").is_dir()
    assert [path.name for path in place.parent.iterdir()] == ["best"]


def test_what_comes_while_the_new_folder_takes_its_place_is_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(one: Path, other: Path) -> bool:
        (place / "late.txt").write_text("mine")
        return exchange(one, other)

    exchange = atomic.exchange
    monkeypatch.setattr(atomic, "exchange", slowly)
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
    assert (place / "late.txt").read_text() == "mine"


def test_a_reader_never_meets_a_moment_without_the_folder(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = [place.parent / name for name in ("one", "other")]
    for folder in probe:
        folder.mkdir()
    if not atomic.exchange(*probe):
        pytest.skip("this system cannot exchange two folders at once")
    renamed: list[Path] = []
    monkeypatch.setattr(Path, "rename", lambda self, target: renamed.append(self))
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
    assert (place / "a.txt").read_text() == "new"
    assert renamed == []


def test_two_processes_never_write_one_folder_at_once(place: Path) -> None:
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
        with pytest.raises(FolderError, match=f"{place} is being written by another process"), replacing(place):
            pass
        assert (fresh / "a.txt").read_text() == "new"
    assert (place / "a.txt").read_text() == "new"


@pytest.mark.usefixtures("either_way")
def test_another_process_waits_until_what_was_replaced_is_gone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carry, refused = atomic._carry, []

    def meanwhile(old: Path, new: Path, *rest: Any, **options: Any) -> None:
        if options.get("move"):  # the new folder has its place, the old one is still there
            for write in (lambda: recover(place), lambda: write_half(place, ValueError())):
                with pytest.raises(FolderError, match="is being written by another process") as caught:
                    write()
                refused.append(caught.value)
            assert old.is_dir()
        carry(old, new, *rest, **options)

    monkeypatch.setattr(atomic, "_carry", meanwhile)
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
    assert len(refused) == 2
    assert snapshot(place.parent) == {"best/a.txt": b"new", "best/inner/b.txt": b"old too"}


def test_what_a_kill_left_is_removed_by_one_process_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_between_renames(place)
    rmtree, refused = shutil.rmtree, []

    def meanwhile(path: Path, *rest: Any, **options: Any) -> None:
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        with pytest.raises(FolderError, match="is being written by another process") as caught, replacing(place):
            pass
        refused.append(caught.value)
        rmtree(path, *rest, **options)

    monkeypatch.setattr(shutil, "rmtree", meanwhile)
    recover(place)
    assert len(refused) == 1
    assert [path.name for path in place.parent.iterdir()] == ["best"]


# --- what is somebody else's -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"{NEW}best", f"{OLD}best", f"{OWN}best"])
@pytest.mark.parametrize("kind", ["a folder", "an empty folder", "a file", "a link"])
@pytest.mark.parametrize("there", [True, False])
def test_what_has_the_name_of_a_leftover_and_is_not_ours_is_left_alone(
    name: str, kind: str, there: bool, place: Path, tmp_path: Path
) -> None:
    mine = place.parent / name
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.txt").write_text("mine")
    if kind in ("a folder", "an empty folder"):
        mine.mkdir()
        if kind == "a folder":
            (mine / "notes.txt").write_text("mine")
    elif kind == "a file":
        mine.write_text("mine")
    else:
        mine.symlink_to(tmp_path / "elsewhere")
    if not there:
        shutil.rmtree(place)
    before = snapshot(tmp_path), sorted(tmp_path.rglob("*"))
    with pytest.raises(FolderError, match=f"{name} is in the way"), replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
    assert (snapshot(tmp_path), sorted(tmp_path.rglob("*"))) == before


def test_names_are_synced_as_files_are(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(handle: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not tell what a handle is of")
    monkeypatch.setattr(atomic.os, "fsync", note)
    with replacing(place) as fresh:
        (fresh / "inner").mkdir()
        (fresh / "inner" / "b.txt").write_text("new")
    assert sorted(synced) == [".new-best", "b.txt", "inner", "run"]
    synced.clear()
    write_text(place / "a.txt", "new")
    assert [name[:10] for name in synced] == [".new-a.txt", "best"]


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, Killed])
def test_the_old_folder_stays_when_the_block_fails(place: Path, problem: type[BaseException]) -> None:
    before = snapshot(place.parent)
    with pytest.raises(problem):
        write_half(place, problem())
    assert snapshot(place.parent) == before
    assert [path.name for path in place.parent.iterdir()] == ["best"]


def test_nothing_is_left_when_the_first_writing_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_half(tmp_path / "best", ValueError())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", [1, 2])
def test_the_old_folder_stays_when_a_rename_fails(place: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    before = snapshot(place.parent)
    monkeypatch.setattr(atomic, "exchange", lambda *_: False)
    real, calls = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == failing:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(OSError, match="Input/output error"), replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
    assert snapshot(place.parent) == before


def test_leftovers_of_a_kill_do_not_stop_the_next_writing(place: Path) -> None:
    half = place.parent / f"{NEW}best"
    half.mkdir()
    (place.parent / f"{OWN}best").touch()
    (half / "junk.txt").write_text("half of")
    with replacing(place) as fresh:
        assert list(fresh.iterdir()) == []
        (fresh / "a.txt").write_text("new")
    assert snapshot(place.parent) == {"best/a.txt": b"new", "best/inner/b.txt": b"old too"}


# --- after a kill ----------------------------------------------------------------------------------


def kill_between_renames(place: Path) -> None:
    """Leave what a kill leaves after the old folder stepped aside and before the new one took its place."""
    shutil.copytree(place, place.parent / f"{NEW}best")
    (place.parent / f"{NEW}best" / "a.txt").write_text("new")
    place.rename(place.parent / f"{OLD}best")
    (place.parent / f"{OWN}best").touch()


def test_a_kill_between_the_renames_is_put_right(place: Path) -> None:
    before = snapshot(place)
    kill_between_renames(place)
    assert not place.exists()
    recover(place)
    assert snapshot(place) == before
    assert [path.name for path in place.parent.iterdir()] == ["best"]


def test_a_kill_before_the_renames_is_put_right(place: Path) -> None:
    before = snapshot(place)
    (place.parent / f"{NEW}best").mkdir()
    recover(place)
    assert snapshot(place.parent) == {f"best/{name}": content for name, content in before.items()}
    assert [path.name for path in place.parent.iterdir()] == ["best"]


def test_a_kill_after_the_renames_keeps_the_new_folder(place: Path) -> None:
    new = snapshot(place)
    shutil.copytree(place, place.parent / f"{OLD}best")
    (place.parent / f"{OLD}best" / "a.txt").write_text("older")
    recover(place)
    assert snapshot(place) == new
    assert [path.name for path in place.parent.iterdir()] == ["best"]


def test_a_kill_between_the_renames_does_not_stop_the_next_writing(place: Path) -> None:
    kill_between_renames(place)
    with replacing(place) as fresh:
        (fresh / "a.txt").write_text("newest")
    assert snapshot(place.parent) == {"best/a.txt": b"newest", "best/inner/b.txt": b"old too"}


def test_there_is_nothing_to_put_right_in_a_whole_folder(place: Path) -> None:
    before = snapshot(place.parent)
    recover(place)
    recover(place.parent / "last")
    assert snapshot(place.parent) == before


# --- one file --------------------------------------------------------------------------------------


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for text in ("old", "Zürich\n"):
        write_text(file, text)
    assert snapshot(tmp_path) == {"a.json": "Zürich\n".encode()}


def test_a_file_with_a_name_like_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".new-a.json").write_text("mine")
    write_text(tmp_path / "a.json", "new")
    assert snapshot(tmp_path) == {"a.json": b"new", ".new-a.json": b"mine"}


def test_a_file_may_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", "new")
    (tmp_path / "b.json").write_text("new")
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "b.json").stat().st_mode


def test_the_old_file_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a.json", "old")
    monkeypatch.setattr(os, "replace", failing_with(errno.EIO))
    with pytest.raises(OSError):
        write_text(tmp_path / "a.json", "new")
    assert snapshot(tmp_path) == {"a.json": b"old"}


# --- a full disk and its like ----------------------------------------------------------------------


def failing_with(number: int) -> Any:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_line_and_leaves_the_old_folder(place: Path, number: int) -> None:
    before = snapshot(place.parent)
    with pytest.raises(FolderError, match=f"the disk is full: {place} could not be written") as caught:
        write_half(place, OSError(number, os.strerror(number)))
    assert "\n" not in str(caught.value)
    assert snapshot(place.parent) == before
    assert [path.name for path in place.parent.iterdir()] == ["best"]


def test_a_disk_that_fills_up_while_syncing_leaves_the_old_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(place.parent)
    monkeypatch.setattr(atomic.os, "fsync", failing_with(errno.ENOSPC))
    with pytest.raises(FolderError, match="the disk is full"), replacing(place) as fresh:
        (fresh / "a.txt").write_text("new")
    assert snapshot(place.parent) == before


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "a.json", "old")
    monkeypatch.setattr(Path, "write_text", failing_with(errno.ENOSPC))
    with pytest.raises(FolderError, match="the disk is full"):
        write_text(tmp_path / "a.json", "new")
    assert snapshot(tmp_path) == {"a.json": b"old"}


def test_tensors_on_a_full_disk_are_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(weights, "save_file", full)
    with pytest.raises(FolderError, match="the disk is full"), clear_errors(tmp_path):
        save_tensors({"a": torch.zeros(10)}, tmp_path / "a.safetensors")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_forbidden_place_is_one_line_with_the_reason(tmp_path: Path, number: int) -> None:
    reason = f"{tmp_path} cannot be written: {os.strerror(number)}"
    with pytest.raises(FolderError, match=reason), clear_errors(tmp_path):
        failing_with(number)()


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FolderError, match="cannot be written"), replacing(tmp_path / "file" / "best"):
        pass


def test_other_problems_pass_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output error"), clear_errors(tmp_path):
        failing_with(errno.EIO)()
