"""Adapters trained on top of adapters: saved as one, for the whole model that is below all of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.errors import FolderError
from legato.folders.exports import export
from legato.folders.model_folder import load_model
from legato.folders.weights import load_tensors, save_tensors
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.training.adapt import AdaptConfig, Base, adapt, trainable_line
from tiny_adapted import IDS, adapted, answer, published_folders, saved, shake

CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-4}
LABELS = ["a", "b", "c"]
CLASSES = HeadSpec(kind="classes", outputs=3)
TAGS = HeadSpec(kind="tags", outputs=3)
FAMILIES = ("bert", "roberta", "distilbert", "gpt2", "llama")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return published_folders(tmp_path_factory, FAMILIES)


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    return config


def stack(place: Path, base: Path, *steps: dict[str, Any], head: HeadSpec | None = CLASSES) -> tuple[Path, Any]:
    """A chain of adapters, each trained on the one before; the last one's folder, and the model as it was trained."""
    task = "lm" if head is None else "classification"
    for number, settings in enumerate(steps):
        model, loaded = adapted(base, head=head if number == 0 else None, **settings)
        base = saved(place / str(number), model, loaded, task=task, **({} if head is None else {"labels": LABELS}))
    return base, model


def in_peft(folder: Path, kind: str) -> torch.Tensor:
    """What peft makes of a folder and the base that it names."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    torch.manual_seed(3)
    more = {} if kind in ("AutoModelForCausalLM", "AutoModel") else {"num_labels": 3}
    whole = getattr(transformers, kind).from_pretrained(config_of(folder)["base_model_name_or_path"], **more)
    with torch.no_grad():
        output = peft.PeftModel.from_pretrained(whole, folder).eval()(input_ids=IDS)
    found: torch.Tensor = output.last_hidden_state if kind == "AutoModel" else output.logits
    return found


@pytest.mark.filterwarnings("error:Found missing adapter keys", "error:Already found")
@pytest.mark.parametrize("name", FAMILIES)
def test_peft_loads_adapters_on_adapters_with_the_same_output(
    bases: dict[str, Path], tmp_path: Path, name: str
) -> None:
    first = {"name": "lora", "rank": 3, "alpha": 5, "targets": "all-linear"}
    folder, model = stack(tmp_path, bases[name], first, {"name": "lora", "rank": 2, "dropout": 0.1})
    assert config_of(folder)["base_model_name_or_path"] == str(bases[name])
    torch.testing.assert_close(in_peft(folder, "AutoModelForSequenceClassification"), answer(model), **CLOSE)
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)


def test_three_adapters_are_one_whose_rank_is_the_sum(bases: dict[str, Path], tmp_path: Path) -> None:
    same = {"name": "lora", "targets": ["c_attn"]}
    steps: list[dict[str, Any]] = [{**same, "rank": 2}, {**same, "rank": 3, "rslora": True}, {**same, "rank": 4}]
    folder, model = stack(tmp_path, bases["gpt2"], *steps, head=None)
    config = config_of(folder)
    assert (config["r"], config["lora_alpha"], config["rank_pattern"]) == (9, 9, {})
    assert config["target_modules"] == ["c_attn"]
    torch.testing.assert_close(in_peft(folder, "AutoModelForCausalLM"), answer(model), **CLOSE)
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)


def test_the_adapters_below_need_not_be_kept(bases: dict[str, Path], tmp_path: Path) -> None:
    folder, model = stack(tmp_path, bases["llama"], {"name": "lora"}, {"name": "lora"}, head=None)
    shutil.rmtree(tmp_path / "0")
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)
    assert f"began with, `{bases['llama']}`. `peft` loads" in (folder / "README.md").read_text()


def test_a_sum_moves_with_its_base_as_a_single_adapter_does(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is named as it was given, too: beside the adapter it is found wherever both lie."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shutil.copytree(bases["llama"], "base")
    _, model = stack(Path("chain"), Path("base"), {"name": "lora"}, {"name": "lora"}, head=None)
    shutil.move(tmp_path / "here", tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    torch.testing.assert_close(answer(load_model(Path("chain/1")).module), answer(model), **CLOSE)


def test_a_chain_is_exported_as_one_whole_model(bases: dict[str, Path], tmp_path: Path) -> None:
    folder, model = stack(tmp_path, bases["bert"], {"name": "lora"}, {"name": "lora", "targets": "all-linear"})
    whole = load_model(export(folder, "hf", out=tmp_path / "whole"))
    torch.testing.assert_close(answer(whole.module), answer(model), **CLOSE)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@pytest.mark.parametrize("first", ["bitfit", "head"])
def test_adapters_on_biases_or_a_head_alone_are_for_the_whole_model_too(
    bases: dict[str, Path], tmp_path: Path, name: str, first: str
) -> None:
    folder, model = stack(tmp_path, bases[name], {"name": first}, {"name": "lora"})
    config = config_of(folder)
    assert (config["base_model_name_or_path"], config["bias"]) == (
        str(bases[name]),
        "all" if first == "bitfit" else "none",
    )
    torch.testing.assert_close(in_peft(folder, "AutoModelForSequenceClassification"), answer(model), **CLOSE)
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)


def test_biases_between_two_adapters_are_kept(bases: dict[str, Path], tmp_path: Path) -> None:
    folder, model = stack(tmp_path, bases["bert"], {"name": "lora"}, {"name": "bitfit"}, {"name": "lora"})
    torch.testing.assert_close(in_peft(folder, "AutoModelForSequenceClassification"), answer(model), **CLOSE)
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)


def test_biases_on_an_adapter_name_the_adapter(bases: dict[str, Path], tmp_path: Path) -> None:
    folder, model = stack(tmp_path, bases["bert"], {"name": "lora"}, {"name": "bitfit"})
    assert json.loads((folder / "legato.json").read_text())["base"]["path"] == str(tmp_path / "0")
    assert not (folder / "adapter_config.json").exists()
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)


@pytest.mark.parametrize("first", ["lora", "bitfit"])
def test_another_task_on_an_adapter_keeps_its_body(bases: dict[str, Path], tmp_path: Path, first: str) -> None:
    below, _ = stack(tmp_path, bases["bert"], {"name": first})
    loaded = load_model(below)
    base = Base.of(str(below), loaded)
    model = ModelWithHead(loaded.module.body, TAGS)  # type: ignore[arg-type]
    adapt(model, AdaptConfig(name="lora", rank=2), base)
    shake(model)
    folder = saved(tmp_path / "tags", model.eval(), loaded, task="tagging", labels=LABELS)
    torch.testing.assert_close(in_peft(folder, "AutoModelForTokenClassification"), answer(model), **CLOSE)
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)


@pytest.mark.parametrize("first", ["lora", "bitfit"])
def test_vectors_of_texts_on_an_adapter(bases: dict[str, Path], tmp_path: Path, first: str) -> None:
    below, _ = stack(tmp_path, bases["bert"], {"name": first}, head=None)
    model, loaded = adapted(below, name="lora", rank=2, targets=["key"])
    folder = saved(tmp_path / "e", model, loaded, task="embedding")
    with torch.no_grad():
        wanted, found = model(Batch(Inputs(IDS))).hidden, load_model(folder).module(Batch(Inputs(IDS))).hidden
    torch.testing.assert_close(found, wanted, **CLOSE)
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)
    torch.testing.assert_close(in_peft(folder, "AutoModel"), wanted, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [None, ["dense"]])
def test_adapters_on_one_of_pefts(bases: dict[str, Path], tmp_path: Path, targets: list[str] | None) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    kind = "AutoModelForSequenceClassification"
    whole = getattr(transformers, kind).from_pretrained(bases["bert"], num_labels=3)
    settings = {"use_rslora": True, "bias": "lora_only", "rank_pattern": {"layer.1.attention.self.query": 4}}
    theirs = peft.LoraConfig(r=2, task_type="SEQ_CLS", modules_to_save=["pooler", "LayerNorm"], **settings)
    found = peft.get_peft_model(whole, theirs)
    shake(found)
    found.save_pretrained(tmp_path / "theirs")
    steps = [{"name": "lora", "targets": targets}, {"name": "lora", "rank": 3}]
    folder, model = stack(tmp_path, tmp_path / "theirs", *steps, head=None)
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), **CLOSE)
    (folder / "legato.json").unlink()
    change_task(folder)
    torch.testing.assert_close(in_peft(folder, kind), answer(model), **CLOSE)


def change_task(folder: Path) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**config_of(folder), "task_type": "SEQ_CLS"}))


def test_a_run_says_what_it_goes_on_from(bases: dict[str, Path], tmp_path: Path) -> None:
    below, model = stack(tmp_path, bases["bert"], {"name": "lora"})
    assert trainable_line(model).endswith("%)")
    lora, biases = adapted(below, name="lora")[0], adapted(below, name="bitfit")[0]
    assert trainable_line(lora).endswith(
        f"; this goes on from an adapter, and both are saved as one for {bases['bert']}"
    )
    assert trainable_line(biases).endswith(
        f"; this goes on from the adapter {below}, which is not saved with it: keep that"
    )


def test_a_folder_of_a_chain_that_lacks_a_part_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    folder, _ = stack(tmp_path, bases["bert"], {"name": "bitfit"}, {"name": "lora"})
    told = set(json.loads((folder / "legato.json").read_text())["trained"])
    file = folder / "adapter_model.safetensors"
    held = load_tensors(file)
    assert told == {name.removeprefix("base_model.model.").replace(".base_layer", "") for name in held}
    del held["base_model.model.bert.encoder.layer.0.attention.self.query.base_layer.bias"]
    save_tensors(held, file)
    with pytest.raises(FolderError, match=r"lacks the tensor 'bert.encoder.layer.0.attention.self.query.bias'"):
        load_model(folder)
