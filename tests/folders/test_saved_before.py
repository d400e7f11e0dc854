"""What earlier versions saved loads for ever: models, adapters and runs from the archives in `tests/saved`."""

from __future__ import annotations

import json
import shutil
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import legato
from legato.folders.model_folder import read_config, read_model
from legato.models.model_with_head import body_of
from legato.registry import MODELS
from save_models import RESUMED

ARCHIVES = sorted((Path(__file__).parents[1] / "saved").glob("*.tar.xz"))


@cache
def expected_of(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as held:
        file = held.extractfile("expected.json")
        assert file is not None
        return json.load(file)  # type: ignore[no-any-return]


CASES = [(archive, name) for archive in ARCHIVES for name in expected_of(archive)]
DATA = {
    "lm": "valid.txt",
    "mlm": "valid.txt",
    "word2vec": "valid.txt",
    "translation": "pairs.tsv",
    "parsing": "trees.mrg",
    "classification": "reviews-valid.tsv",
    "tagging": "tags-valid.txt",
    "qa": "squad.json",
    "embedding": "alike.tsv",
    "chat": "dialogues.jsonl",
}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    folders = {}
    for archive in ARCHIVES:
        folders[archive] = tmp_path_factory.mktemp(archive.stem)
        with tarfile.open(archive) as held:
            held.extractall(folders[archive], filter="data")
    return folders


def named(case: object) -> str:
    return case.name if isinstance(case, Path) else str(case)


@pytest.mark.filterwarnings("ignore:data.test")
@pytest.mark.parametrize(("archive", "name"), CASES, ids=named)
def test_a_model_that_was_saved_before_says_the_same(
    archive: Path, name: str, unpacked: dict[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unpacked[archive])
    model = legato.load(f"runs/{name}/best", device="cpu")
    scores = model.evaluate(test=DATA[model.task])
    for figure, value in expected_of(archive)[name].items():
        assert scores[figure] == pytest.approx(value, rel=1e-3, abs=1e-4), figure


@pytest.mark.parametrize("archive", ARCHIVES, ids=named)
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_that_was_saved_before_goes_on(
    archive: Path, name: str, unpacked: dict[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(unpacked[archive], tmp_path / "again"))
    result = legato.train(resume=f"runs/{name}", **{"train.steps": 33}, quiet=True)
    assert result.steps == 33
    assert legato.load(f"runs/{name}", device="cpu").task == name.split("-")[0]


class NoCopy(TorchFunctionMode):
    """Nothing is copied out of a file here, nor into a model."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.Tensor.copy_
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("archive", "name"), CASES, ids=named)
def test_settings_are_read_without_weights(
    archive: Path, name: str, unpacked: dict[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unpacked[archive])
    whole = body_of(read_model(f"runs/{name}/best").module)

    with NoCopy():
        assert read_config(f"runs/{name}/best") == whole.config


@pytest.mark.parametrize(("archive", "name"), CASES, ids=named)
def test_weights_are_read_straight_into_the_model_that_trains(
    archive: Path, name: str, unpacked: dict[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(unpacked[archive])
    whole = read_model(f"runs/{name}/best").module
    loaded = read_model(f"runs/{name}/best", sketched=True)
    adapted = loaded.module.merged is not None  # its base is read first
    body = body_of(loaded.module)
    assert all(tensor.is_meta != adapted for tensor in body.parameters())

    model = MODELS.get(body.config.name)(body.config, body.sizes)
    drawn = loaded.put_into(model)

    expected = whole.state_dict()
    assert loaded.module.state_dict().keys() == expected.keys()
    for key, tensor in loaded.module.state_dict().items():
        assert torch.equal(tensor, expected[key]), key
    of_body = body_of(whole).state_dict()
    for key, tensor in model.state_dict().items():
        assert key in drawn or torch.equal(tensor, of_body[key]), key
    assert all(key not in of_body for key in drawn)
    if not adapted:
        ours = dict(model.named_parameters())
        assert all(tensor is ours[key] for key, tensor in body.named_parameters())
