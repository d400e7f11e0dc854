"""Where an export may go, what it takes the place of, and what it leaves alone."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from legato.folders import exports
from legato.folders.exports import RECORD
from tiny_exports import is_one_line, saved
from tiny_runs import snapshot


def test_a_folder_that_is_there_is_left_alone_unless_forced(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    words = (folder, "--to", "hf", "--out", tmp_path / "out")
    is_one_line(export(*words), f"{tmp_path}/out is there already", "--force")
    assert snapshot(tmp_path / "out") == {"mine.txt": b"mine"}
    assert export(*words, "--force")[0] == 0
    assert exported(tmp_path / "out") == {**snapshot(folder), "mine.txt": b"mine"}


def exported(folder: Path) -> dict[str, bytes]:
    """The files of an export, without the list of them."""
    return {name: content for name, content in snapshot(folder).items() if name != RECORD}


@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_a_forced_export_takes_the_place_of_the_one_before_and_of_nothing_else(
    to: str, export: Any, tmp_path: Path
) -> None:
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2")
    out = tmp_path / "out"
    one, other = saved(tmp_path / "one", apart=to != "hf"), saved(tmp_path / "other", width=8)
    (one / "added_tokens.json").write_text("{}")
    assert export(one, "--to", to, "--out", out)[0] == 0
    assert (out / ("added_tokens.json" if to == "hf" else "target/tokenizer.json")).is_file()
    mine = {"notes.txt": b"mine", "target/notes.txt": b"mine", "data/config.json": b"mine"}
    for name, content in mine.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
    assert export(other, "--to", to, "--out", out, "--force")[0] == 0
    assert export(other, "--to", to, "--out", tmp_path / "plain")[0] == 0
    assert exported(out) == {**exported(tmp_path / "plain"), **mine}


@pytest.mark.parametrize(
    "name",
    ["model-00001-of-00002.safetensors", "pytorch_model.bin", "vocab.json", "target/tokenizer.json", "legato.json"],
)
def test_a_part_of_another_model_is_neither_removed_nor_mixed_in(name: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    before = snapshot(out)
    answer = export(folder, "--to", "hf", "--out", out, "--force")
    is_one_line(answer, f"{out}/{name} would be read as a part of the exported model", "give another --out")
    assert snapshot(out) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["model", "out"]


def test_a_file_that_no_export_wrote_is_never_written_over(export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("# my project")
    answer = export(folder, "--to", "hf", "--out", out, "--force")
    is_one_line(answer, f"{out}/README.md is there, and no export wrote it")
    assert snapshot(out) == {"README.md": b"# my project"}


@pytest.mark.parametrize("change", ["edited", "a folder", "a link"])
def test_a_file_that_somebody_changed_since_its_export_is_kept(change: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    words = (folder, "--to", "hf", "--out", out)
    assert export(*words)[0] == 0
    card = out / "README.md"
    if change == "edited":
        card.write_text(card.read_text() + "\n# What I found out\n")
    else:
        card.unlink()
        card.mkdir() if change == "a folder" else card.symlink_to(folder / "README.md")
    before = snapshot(tmp_path)
    is_one_line(export(*words, "--force"), f"{card} was changed since it was exported", "move it away")
    assert snapshot(tmp_path) == before
    card.rename(tmp_path / "mine.md")
    assert export(*words, "--force")[0] == 0


def test_the_record_of_an_older_version_has_no_hashes(export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    words = (folder, "--to", "hf", "--out", out)
    assert export(*words)[0] == 0
    record = json.loads((out / RECORD).read_text())
    (out / RECORD).write_text(json.dumps({"files": list(record["files"])}))
    (out / "README.md").write_text("changed")
    assert export(*words, "--force")[0] == 0
    assert json.loads((out / RECORD).read_text()) == record
    (out / RECORD).write_text('{"files": 3}')
    is_one_line(export(*words, "--force"), str(out / RECORD), "files")


@pytest.mark.parametrize("name", [".new-out", ".old-out"])
def test_a_folder_beside_an_export_is_left_alone(name: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    is_one_line(export(folder, "--to", "hf", "--out", out), f"{tmp_path}/{name} is in the way", "move it away")
    assert snapshot(tmp_path) == before
    assert not out.exists()


def test_a_file_beside_exported_vectors_is_left_alone(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / ".new-v.txt").write_text("mine")
    assert export(folder, "--to", "vectors", "--out", tmp_path / "v.txt")[0] == 0
    assert (tmp_path / ".new-v.txt").read_text() == "mine"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_vectors_are_not_written_over_a_folder(force: list[str], export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    out.mkdir()
    answer = export(folder, "--to", "vectors", "--out", out, *force)
    is_one_line(answer, f"{out} is a folder; give --out the name of a file")


@pytest.mark.parametrize("kind", ["a pipe", "a link to a device", "a link to nothing"])
def test_vectors_only_take_the_place_of_files(kind: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "v.txt"
    if kind == "a pipe":
        os.mkfifo(out)
    else:
        out.symlink_to("/dev/null" if kind == "a link to a device" else "nowhere")
    before = out.lstat().st_mode, out.lstat().st_ino  # not when somebody last looked at it
    is_one_line(export(folder, "--to", "vectors", "--out", out, "--force"), f"{out} is a pipe, a device or")
    assert (out.lstat().st_mode, out.lstat().st_ino) == before


def test_a_folder_of_many_files_is_no_place_for_an_export(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MOST", 3)
    folder, out = saved(tmp_path / "model"), tmp_path / "home"
    out.mkdir()
    for number in range(4):
        (out / str(number)).touch()
    is_one_line(export(folder, "--to", "hf", "--out", out, "--force"), f"{out} holds 3 files and more")


def test_the_folder_one_is_in_is_no_place_for_an_export(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "here" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "inner")
    for out in (".", ".."):
        is_one_line(export(folder, "--to", "hf", "--out", out, "--force"), f"{out} is the folder that you are in")


def test_an_export_that_fails_leaves_the_one_before(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, out = saved(tmp_path / "one"), saved(tmp_path / "other", width=8), tmp_path / "out"
    assert export(one, "--to", "hf", "--out", out)[0] == 0
    before = snapshot(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfile", full)
    is_one_line(export(other, "--to", "hf", "--out", out, "--force"), "the disk is full")
    assert snapshot(tmp_path) == before


def test_vectors_on_a_full_disk_leave_the_file_before(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "vectors.txt"
    assert export(folder, "--to", "vectors", "--out", out)[0] == 0
    before = snapshot(tmp_path)
    write = exports.save_vectors

    def full(path: Path, *rest: Any) -> None:
        write(path, *rest)
        os.truncate(path, 10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(exports, "save_vectors", full)
    is_one_line(export(folder, "--to", "vectors", "--out", out, "--force"), "the disk is full", str(out))
    assert snapshot(tmp_path) == before
    is_one_line(export(folder, "--to", "vectors", "--out", tmp_path / "new.txt"), "the disk is full")
    assert snapshot(tmp_path) == before


def test_vectors_never_take_the_place_of_a_file_of_the_model(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    before = snapshot(folder)
    for name in ("config.json", "vectors.txt"):
        answer = export(folder, "--to", "vectors", "--out", folder / name, "--force")
        is_one_line(answer, f"{folder}/{name} lies in {folder}, the model itself")
    assert snapshot(folder) == before


def test_a_file_is_left_alone_even_when_forced(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    is_one_line(export(folder, "--to", "hf", "--out", tmp_path / "file", "--force"), f"{tmp_path}/file is a file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("out", ["run/best", "run", ".", "link"])
def test_an_export_never_takes_the_place_of_its_model(
    out: str, export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "run" / "best")
    (tmp_path / "link").symlink_to("run")
    before = snapshot(tmp_path)
    monkeypatch.chdir(tmp_path)
    is_one_line(export("run", "--to", "ctranslate2", "--out", out, "--force"), "holds the model itself")
    assert snapshot(tmp_path) == before


def test_an_export_goes_where_a_link_that_somebody_named_leads(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "large disk").mkdir()
    (tmp_path / "link").symlink_to("large disk")
    assert export(folder, "--to", "hf", "--out", tmp_path / "link", "--force")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "large disk" / "config.json").is_file()


@pytest.mark.parametrize("out", ["run/best/hf", "link/hf"])
def test_an_export_never_lies_in_its_model(out: str, export: Any, tmp_path: Path) -> None:
    saved(tmp_path / "run" / "best")
    (tmp_path / "link").symlink_to("run/best")
    before = snapshot(tmp_path)
    is_one_line(export(tmp_path / "run", "--to", "hf", "--out", tmp_path / out), "lies in", "the model itself")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("out", ["x" * 300, "/dev/null/x", "/proc/x"])
@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_a_place_that_cannot_be_written_is_named(out: str, to: str, export: Any, tmp_path: Path) -> None:
    if out.startswith("/proc") and not Path("/proc/version").exists():
        pytest.skip("this system has no /proc")
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2")
    folder = saved(tmp_path / "model")
    said = "the name is too long" if len(out) > 255 else f"{tmp_path / out} cannot be written: "
    is_one_line(export(folder, "--to", to, "--out", tmp_path / out), said)
