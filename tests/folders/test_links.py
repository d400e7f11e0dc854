"""No path out of a model folder, in reading and in copying; the hub's cache is as it is. No export onto a base."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.errors import FolderError
from legato.folders.exports import export
from legato.folders.finding import find_model
from legato.folders.links import copy_folder, refuse_links_out
from legato.folders.model_folder import load_model
from tiny_adapted import adapted, answer, published_folder, saved
from tiny_runs import small, snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published_folder(tmp_path_factory.mktemp("models") / "gpt2", "gpt2")


@pytest.fixture
def downloaded(model: Path, tmp_path: Path) -> Path:
    """A copy of the model, as somebody might have given it."""
    return Path(shutil.copytree(model, tmp_path / "downloaded"))


@pytest.fixture
def private(model: Path, tmp_path: Path) -> Path:
    """What nobody else should see."""
    folder = Path(shutil.copytree(model, tmp_path / "private"))
    (folder / "secret.txt").write_text("secret")
    return folder


# ── links that lead out ───────────────────────────────────────────────────────────────────────────

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def relink(path: Path, target: Path, *, relative: bool = False) -> None:
    if path.exists():
        path.unlink()
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent) if relative else target)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_a_link_out_of_the_folder_is_not_read(
    name: str, relative: bool, downloaded: Path, private: Path
) -> None:
    relink(downloaded / name, private / name, relative=relative)
    with pytest.raises(FolderError, match=f"{downloaded}/{name} is a link to .*, outside of the folder"):
        load_model(downloaded)


@pytest.mark.parametrize("name", ["more", "target", "1_Pooling", ".hidden"])
def test_a_folder_that_is_a_link_out_of_the_folder_is_neither_read_nor_copied(
    name: str, downloaded: Path, private: Path, tmp_path: Path
) -> None:
    (downloaded / name).symlink_to(private)
    for act in (load_model, lambda place: export(place, "hf", out=tmp_path / "out")):
        with pytest.raises(FolderError, match=f"{downloaded}/{name} is a link to {private}"):
            act(downloaded)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["target/tokenizer.json", "0_Transformer/deep/er/model.safetensors"])
def test_a_link_in_a_subfolder_counts(name: str, downloaded: Path, private: Path) -> None:
    (downloaded / name).parent.mkdir(parents=True)
    (downloaded / name).symlink_to(private / Path(name).name)
    with pytest.raises(FolderError, match=f"{downloaded}/{name} is a link to"):
        load_model(downloaded)


def test_a_link_by_way_of_another_link_counts(downloaded: Path, private: Path) -> None:
    (downloaded / "inner").symlink_to("config.json")
    load_model(downloaded)
    (downloaded / "config.json").unlink()
    (downloaded / "config.json").symlink_to("inner2")
    (downloaded / "inner2").symlink_to(private / "config.json")
    (downloaded / "inner").unlink()
    with pytest.raises(FolderError, match="outside of the folder"):
        load_model(downloaded)


def test_a_link_out_of_the_base_of_an_adapter_counts(downloaded: Path, private: Path, tmp_path: Path) -> None:
    first = saved(tmp_path / "first", *adapted(downloaded, name="lora"))
    second = saved(tmp_path / "second", *adapted(first, name="bitfit"))
    load_model(second)
    (first / "more").symlink_to(private)
    with pytest.raises(FolderError, match=f"{first}/more is a link"):
        load_model(second)


def test_a_run_whose_best_model_is_a_link_out_of_it_is_refused(private: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("task: lm")
    (tmp_path / "run" / "best").symlink_to(private)
    with pytest.raises(FolderError, match=f"{tmp_path}/run/best is a link out of the run's folder"):
        find_model(tmp_path / "run")


# ── links that are plain ──────────────────────────────────────────────────────────────────────────


def test_a_model_whose_folder_is_reached_by_a_link_is_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    assert load_model(tmp_path / "link").task == "lm"
    (tmp_path / "models").symlink_to(model.parent)
    assert load_model(tmp_path / "models" / model.name).task == "lm"


def test_a_link_within_the_folder_is_read_and_copied_as_a_file(downloaded: Path, tmp_path: Path) -> None:
    (downloaded / "weights.safetensors").write_bytes((downloaded / "model.safetensors").read_bytes())
    relink(downloaded / "model.safetensors", downloaded / "weights.safetensors", relative=True)
    out = export(downloaded, "hf", out=tmp_path / "out")
    assert not any(path.is_symlink() for path in out.rglob("*"))
    assert (out / "model.safetensors").read_bytes() == (downloaded / "weights.safetensors").read_bytes()


@pytest.fixture
def cached(model: Path, tmp_path: Path) -> Path:
    """The model as the hub's cache keeps it."""
    home = tmp_path / "hub" / "models--org--name"
    snapshot_of = home / "snapshots" / COMMIT
    for folder in (home / "blobs", snapshot_of / "1_Pooling"):
        folder.mkdir(parents=True)
    for number, path in enumerate([*model.iterdir(), model / "config.json"]):
        shutil.copyfile(path, home / "blobs" / str(number))
        (snapshot_of / path.name).unlink(missing_ok=True)
        (snapshot_of / path.name).symlink_to(f"../../blobs/{number}")
    (snapshot_of / "1_Pooling" / "config.json").symlink_to("../../../blobs/0")
    return snapshot_of


def test_the_hubs_cache_is_read_and_copied(cached: Path, model: Path, tmp_path: Path) -> None:
    torch.testing.assert_close(answer(load_model(cached).module), answer(load_model(model).module))
    out = export(cached, "hf", out=tmp_path / "out")
    assert not any(path.is_symlink() for path in out.rglob("*"))
    assert (out / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    refuse_links_out(cached / "1_Pooling")


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("config.json", "../../refs/main"),
        ("config.json", "../other/config.json"),
        ("config.json", "../../blobs/deep/er"),
        ("config.json", "../../../models--org--other/blobs/0"),
        ("config.json", "../../blobs"),
    ],
)
def test_in_the_hubs_cache_links_lead_to_its_own_files_alone(name: str, target: str, cached: Path) -> None:
    (cached / name).unlink()
    (cached / name).symlink_to(target)
    with pytest.raises(FolderError, match="outside of the folder"):
        refuse_links_out(cached)


def test_what_only_looks_like_the_hubs_cache_leads_nowhere_else(cached: Path, private: Path) -> None:
    blobs = cached.parent.parent / "blobs"
    (blobs / "0").unlink()
    (blobs / "0").symlink_to(private / "secret.txt")
    with pytest.raises(FolderError, match="outside of the folder"):
        refuse_links_out(cached)
    shutil.rmtree(blobs)
    blobs.symlink_to(private)
    with pytest.raises(FolderError, match="outside of the folder"):
        refuse_links_out(cached)


# ── copying ───────────────────────────────────────────────────────────────────────────────────────


def loop(folder: Path) -> None:
    (folder / "again").symlink_to(".")


def dangle(folder: Path) -> None:
    (folder / "nothing").symlink_to("nowhere")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


@pytest.mark.parametrize(
    ("make", "why"),
    [(loop, "again is a link to a folder"), (dangle, "nothing is a link to nothing"), (pipe, "pipe is a pipe")],
)
def test_what_cannot_be_copied_is_named(
    make: Callable[[Path], None], why: str, downloaded: Path, tmp_path: Path
) -> None:
    make(downloaded)
    with pytest.raises(FolderError, match=why):
        export(downloaded, "hf", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_hidden_stays_behind(downloaded: Path, tmp_path: Path) -> None:
    for name in (".git/config", ".gitattributes", "more/notes.txt"):
        (downloaded / name).parent.mkdir(exist_ok=True)
        (downloaded / name).write_text("x")
    (tmp_path / "copy").mkdir()
    copy_folder(downloaded, tmp_path / "copy")
    kept = {name: content for name, content in snapshot(downloaded).items() if not name.startswith(".git")}
    assert snapshot(tmp_path / "copy") == kept


# ── what an export is made of ─────────────────────────────────────────────────────────────────────


@pytest.mark.thinned(3)
@pytest.mark.parametrize("out", [".", "inner", ".."])
@pytest.mark.parametrize("which", ["adapter", "its base", "the base of that"])
def test_an_export_never_touches_what_it_is_made_of(which: str, out: str, model: Path, tmp_path: Path) -> None:
    base = Path(shutil.copytree(model, tmp_path / "bases" / "base"))
    first = saved(tmp_path / "firsts" / "first", *adapted(base, name="lora"))
    second = saved(tmp_path / "seconds" / "second", *adapted(first, name="bitfit"))
    place = {"adapter": second, "its base": first, "the base of that": base}[which]
    before = snapshot(tmp_path)
    told = "the model itself" if which == "adapter" else "a base of the adapter"
    with pytest.raises(FolderError, match=told):
        export(second, "hf", out=place / out, force=True)
    assert snapshot(tmp_path) == before


def test_a_model_that_is_replaced_while_it_is_exported_is_exported_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.folders import exports
    from legato.folders.atomic import replacing

    settings: dict[str, Any] = {"model": "gpt2", "model__heads": 2, "train__steps": 2}
    runs = [
        legato.train("lm", small(tmp_path, **settings, seed=seed), out=tmp_path / str(seed), quiet=True).run
        for seed in (1, 2)
    ]
    real, done = exports.copy_folder, []

    def copy(source: Path, target: Path) -> None:
        real(source, target)
        if not done:
            done.append(True)
            (target / "stray.txt").write_text("of the first")
            with replacing(runs[0] / "best") as fresh:
                shutil.copytree(runs[1] / "best", fresh, dirs_exist_ok=True)

    monkeypatch.setattr(exports, "copy_folder", copy)
    out = export(runs[0], "hf", out=tmp_path / "out")
    found = {name: content for name, content in snapshot(out).items() if name != exports.RECORD}
    assert found == snapshot(runs[1] / "best")
