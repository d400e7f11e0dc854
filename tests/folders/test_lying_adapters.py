"""Adapter folders that say what is not so: each is refused in one line, and none is loaded in part."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from legato import sandbox
from legato.errors import FolderError
from legato.folders.model_folder import load_model
from legato.folders.weights import load_tensors, save_tensors
from legato.models.model_with_head import HeadSpec
from tiny_adapted import adapted, answer, published_folder, saved
from tiny_published import change, write

CLASSES = HeadSpec(kind="classes", outputs=3)
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A good adapter of each kind; `peft` is one without our own file."""
    root = tmp_path_factory.mktemp("adapters")
    base = published_folder(root / "bert", "bert")
    found = {}
    for name in ("lora", "bitfit"):
        model, loaded = adapted(base, head=CLASSES, name=name)
        found[name] = saved(root / name, model, loaded, task="classification", labels=["a", "b", "c"])
    found["peft"] = root / "peft"
    shutil.copytree(found["lora"], found["peft"])
    (found["peft"] / "legato.json").unlink()
    return found


def refused(folder: Path) -> str:
    with pytest.raises(FolderError) as problem:
        load_model(folder)
    assert "\n" not in str(problem.value)
    return str(problem.value)


@pytest.mark.parametrize("kind", ["lora", "bitfit"])
@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"base": "x"}, "'base' should hold a JSON object"),
        ({"model": None}, "'model' should hold a JSON object"),
        ({"legato": [1]}, "'legato' should hold a JSON object"),
        ({"model": {"name": "gru"}}, "is an adapter for a model of another shape than"),
        ({"labels": 5}, "'legato.labels' should be a valid list, not 5"),
        ({"labels": ["a", "b"]}, "there are 2 labels, but the head has 3 outputs"),
        (
            {"head": {"kind": "classes", "outputs": 10**12}, "labels": None},
            "'legato.head.outputs' should have no number",
        ),
        ({"model": {"name": "bert", "width": 10**25}}, "'model.width' should have no number beyond 16,777,216"),
        ({"base": {"path": "x" * 300}}, "'base.path' should name a file or folder"),
        ({"trained": "all"}, "'trained' should be a valid list"),
        ({"ends": {}}, "'legato.ends' should be a valid list"),
        ({"kind": "ranking"}, "'legato.kind' should be 'classes', 'multilabel' or 'regression', not 'ranking'"),
        (
            {"head": {"kind": "tags", "outputs": 3, "crf": True, "allowed": [[True]]}, "labels": None},
            "allowed should say of each of 5 tags",
        ),
    ],
)
def test_our_own_file_that_lies(
    folders: dict[str, Path], tmp_path: Path, kind: str, entries: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(folders[kind], folder)
    told = json.loads((folder / "legato.json").read_text())
    for name, value in entries.items():
        (told if name in told else told["legato"])[name] = value
    write(folder / "legato.json", told)
    assert said in refused(folder)


@pytest.mark.parametrize("kind", ["lora", "peft"])
@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"alpha_pattern": [1]}, "'alpha_pattern' should hold a JSON object, not [1]"),
        ({"alpha_pattern": {"(": 1}}, "'(' in alpha_pattern is no regular expression"),
        (
            {"alpha_pattern": {"query": "x"}},
            "'alpha_pattern.query' should be a valid integer or a valid number, not 'x'",
        ),
        ({"lora_alpha": float("nan")}, "'lora_alpha' should be greater than 0, not nan"),
        ({"lora_alpha": float("inf")}, "'lora_alpha' should be less than or equal to 1000000000, not inf"),
        ({"r": 10**400}, "… is too large a number"),
        ({"base_model_name_or_path": ["x"]}, "'base_model_name_or_path' should be a valid string, not ['x']"),
        ({"base_model_name_or_path": "x" * 300}, "'base_model_name_or_path' should name a file or folder"),
        ({"r": 4}, "attention.self.query' has rank 4, but in the weights it has 8"),
        ({"rank_pattern": {"value": 2}}, "attention.self.value' has rank 2, but in the weights it has 8"),
    ],
)
def test_a_config_that_lies(
    folders: dict[str, Path], tmp_path: Path, kind: str, entries: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(folders[kind], folder)
    change(folder / "adapter_config.json", **entries)
    assert said in refused(folder)


@pytest.mark.parametrize("entry", ["rank_pattern", "alpha_pattern"])
def test_a_pattern_that_would_match_for_ever_is_ended(
    entry: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(folders["peft"], folder)
    change(folder / "adapter_config.json", **{entry: {r"([a-z.0-9_]+)+\b!": 8}})
    monkeypatch.setattr(sandbox, "SECONDS", 0.2)
    assert f"in {entry} takes more than 0.2 s of computing; simplify it" in refused(folder)


def test_a_pattern_with_a_choice_in_it_matches_as_peft_has_it(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "a"
    shutil.copytree(folders["peft"], folder)
    before = answer(load_model(folder).module)
    change(folder / "adapter_config.json", alpha_pattern={"layer.*(query|value)": 16})
    assert torch.equal(answer(load_model(folder).module), before)
    change(folder / "adapter_config.json", alpha_pattern={"(query|value)": 160})
    assert not torch.equal(answer(load_model(folder).module), before)


def first(tensors: Tensors, part: str) -> str:
    return next(name for name in tensors if part in name)


def without_rank(tensors: Tensors) -> Tensors:
    return {k: t[:0] if "lora_A" in k else t[:, :0].contiguous() if "lora_B" in k else t for k, t in tensors.items()}


def one_number(tensors: Tensors) -> Tensors:
    return {**tensors, first(tensors, "lora_A"): torch.tensor(1.0)}


def whole_numbers(tensors: Tensors) -> Tensors:
    return {name: tensor.int() for name, tensor in tensors.items()}


def twice(tensors: Tensors) -> Tensors:
    name = first(tensors, "lora_A")
    return {**tensors, name.replace("lora_A.weight", "lora_A.default.weight"): tensors[name] * 0}


def without_adapters(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if "lora" not in name}


@pytest.mark.parametrize("kind", ["lora", "peft"])
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (without_rank, "have shapes (0, 16) and (16, 0), which do not belong together"),
        (one_number, "have shapes () and (16, 8), which do not belong together"),
        (whole_numbers, "holds int32, not weights"),
        (twice, "under two names"),
        (without_adapters, "l"),  # in other words for each
    ],
)
def test_weights_that_are_none(
    folders: dict[str, Path], tmp_path: Path, kind: str, edit: Callable[[Tensors], Tensors], said: str
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(folders[kind], folder)
    file = folder / "adapter_model.safetensors"
    save_tensors(edit(load_tensors(file)), file)
    assert said in refused(folder)


@pytest.mark.parametrize(("kind", "file"), [("lora", "adapter_model.safetensors"), ("bitfit", "changed.safetensors")])
def test_a_folder_that_lacks_a_part_of_what_was_trained(
    folders: dict[str, Path], tmp_path: Path, kind: str, file: str
) -> None:
    folder = tmp_path / "a"
    shutil.copytree(folders[kind], folder)
    tensors = load_tensors(folder / file)
    save_tensors({name: tensor for name, tensor in tensors.items() if "layer.1" not in name}, folder / file)
    assert "lacks the tensor 'bert.encoder.layer.1." in refused(folder)


def test_what_a_module_was_before_is_not_taken_for_what_was_trained(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "a"
    shutil.copytree(folders["peft"], folder)
    file = folder / "adapter_model.safetensors"
    tensors = load_tensors(file)
    name = first(tensors, "classifier.weight")
    before = name.replace("classifier.", "classifier.original_module.")
    save_tensors({**tensors, before: tensors[name] * 0}, file)
    assert torch.equal(answer(load_model(folder).module), answer(load_model(folders["peft"]).module))


def test_adapters_that_name_each_other(folders: dict[str, Path], tmp_path: Path) -> None:
    places = tmp_path / "a", tmp_path / "b"
    for place, other in (places, places[::-1]):
        shutil.copytree(folders["peft"], place)
        change(place / "adapter_config.json", base_model_name_or_path=str(other))
    assert "as the model that it adapts, which is itself or made of it" in refused(places[0])
    change(places[0] / "adapter_config.json", base_model_name_or_path=str(places[0]))
    assert "which is itself or made of it" in refused(places[0])
