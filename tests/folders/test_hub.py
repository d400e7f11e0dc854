"""Models by their names on the hub: fetched once, found in the cache, and refused in one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

import legato
from legato.errors import FolderError
from legato.folders.exports import export
from legato.folders.finding import LEFT, WANTED, fetch, find_model, hub_name
from tiny_published import gpt2_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(cache: Path, name: str = "org/tiny", revision: str = "main") -> Path:
    """A model in Hugging Face's cache, as a download leaves it: a snapshot, and the branch that it was."""
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "refs" / revision).write_text(COMMIT)
    return gpt2_folder(home / "snapshots" / COMMIT)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of models; the current folder is empty, too."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def complaint(place: str) -> str:
    with pytest.raises(FolderError) as caught:
        legato.load(place, "cpu")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("org/name", ("org/name", None)),
        ("gpt2", ("gpt2", None)),
        ("org/name-1.5_b@v1.0", ("org/name-1.5_b", "v1.0")),
        ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
        ("/org/name", None),
        ("./org/name", None),
        ("../name", None),
        ("~/name", None),
        ("runs/x/best", None),
        ("org/na me", None),
        ("org/näme", None),
        ("org/", None),
        ("", None),
        ("a/" + "b" * 100, None),
    ],
)
def test_what_looks_like_a_hub_name(place: str, expected: Any) -> None:
    assert hub_name(place) == expected


def test_a_cached_model_is_found_without_the_hub(cache: Path) -> None:
    snapshot = cached(cache)
    assert find_model("org/tiny") == snapshot
    assert legato.load("org/tiny", "cpu").generate("the cat", max_tokens=3)


def test_a_revision_is_found_in_the_cache(cache: Path) -> None:
    snapshot = cached(cache, revision="v1.0")
    assert find_model("org/tiny@v1.0") == find_model(f"org/tiny@{COMMIT}") == snapshot
    assert "org/tiny is not in the cache of models from the hub: HF_HUB_OFFLINE is set" in complaint("org/tiny")


def test_a_folder_is_preferred_to_the_hub(cache: Path) -> None:
    cached(cache)
    here = gpt2_folder(Path("org") / "tiny")
    assert find_model("org/tiny") == here


def test_a_slip_in_the_name_of_a_run_does_not_ask_the_hub(cache: Path) -> None:
    cached(cache, "runs/lm-1")
    assert find_model("runs/lm-1")
    Path("runs").mkdir()
    said = "there is no folder runs/lm-1; since runs is a folder here, the hub was not asked"
    assert complaint("runs/lm-1") == said


def test_a_slip_in_the_name_of_a_folder_that_is_here_asks_nobody(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def download(name: str, **settings: Any) -> str:
        asked.append(settings["local_files_only"])
        raise errors.LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    gpt2_folder(Path("sentiment-model"))
    said = complaint("sentimant-model")
    assert said.startswith("there is no folder sentimant-model; did you mean 'sentiment-model'? (")
    assert said.endswith("sentimant-model@main)")
    assert asked == [True]
    complaint("sentimant-model@main")
    assert asked == [True, False]


def test_a_model_that_was_fetched_once_is_found_beside_a_folder_of_nearly_its_name(cache: Path) -> None:
    snapshot = cached(cache, "tiny-gpt")
    gpt2_folder(Path("tiny-gpt2"))
    assert find_model("tiny-gpt") == snapshot


@pytest.mark.parametrize("place", ["rnus/first/best", "./runs/frist/best", "runs/first/bets"])
def test_a_slip_in_a_path_is_said(place: str, cache: Path) -> None:
    gpt2_folder(Path("runs") / "first" / "best")
    assert complaint(place) == f"there is no folder {place}; did you mean 'runs/first/best'?"


def test_what_is_fetched_is_all_that_is_needed_and_no_pickle(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **settings: Any) -> str:
        asked.update(settings, name=name)
        return str(gpt2_folder(cache / "fetched"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_model("org/tiny@v2") == cache / "fetched"
    assert (asked["name"], asked["revision"]) == ("org/tiny", "v2")
    files = [
        *("config.json", "tokenizer.json", "model.safetensors", "model-00001-of-00002.safetensors", "vocab.txt"),
        *("model.safetensors.index.json", "merges.txt", "chat_template.jinja", "source.spm", "1_Pooling/config.json"),
        *("0_Transformer/model.safetensors", "tokenizer.model"),
    ]
    others = [
        *("pytorch_model.bin", "model.py", "onnx/model.onnx", "original/model.safetensors", "tf_model.h5", "a.pt"),
        *("consolidated.safetensors", "README.md", "model.gguf"),
    ]
    kept = huggingface_hub.utils.filter_repo_objects([*files, *others], allow_patterns=WANTED, ignore_patterns=LEFT)
    assert list(kept) == files


def failing(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise problem

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def refused(problem: type[Exception]) -> Exception:
    """One of the library's errors, which want an answer from the hub to be made."""
    return problem.__new__(problem)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (refused(errors.RepositoryNotFoundError), "the hub has no model 'org/tiny'"),
        (refused(errors.RevisionNotFoundError), "org/tiny on the hub has no revision 'v1'"),
        (refused(errors.GatedRepoError), "given only to those who asked for it: see https://huggingface.co/org/tiny"),
        (errors.LocalEntryNotFoundError("no"), "org/tiny is not in the cache of models from the hub"),
        (ConnectionError("no route\nto host"), "org/tiny could not be fetched from the hub: no route"),
        (OSError(28, "No space left on device"), "org/tiny could not be downloaded: No space left on device"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    problem: Exception, expected: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(problem, monkeypatch)
    assert complaint("org/tiny@v1").startswith("there is no folder org/tiny@v1, and ")
    assert expected in complaint("org/tiny@v1")


def test_a_hub_that_cannot_be_reached_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    failing(errors.LocalEntryNotFoundError("no"), monkeypatch)
    assert complaint("org/tiny").endswith("is not in the cache of models from the hub: the hub cannot be reached")


def test_a_model_of_pickles_on_the_hub_is_refused_with_the_reason(cache: Path) -> None:
    (cached(cache) / "model.safetensors").unlink()
    assert "on the hub has no safetensors; its weights may be pickles, which are refused" in complaint("org/tiny")


def test_a_path_that_is_not_there_asks_nobody(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"^there is no folder .*nowhere$"):
        fetch(tmp_path / "nowhere")


def test_an_export_of_a_hub_model_goes_into_the_current_folder(cache: Path) -> None:
    cached(cache)
    assert export("org/tiny", "hf") == Path("tiny-hf")
    assert not (Path("tiny-hf") / "config.json").is_symlink()
    shutil.rmtree(cache)
    assert legato.load("tiny-hf", "cpu").generate("the", max_tokens=2)
