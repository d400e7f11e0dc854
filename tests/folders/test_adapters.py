"""Folders that hold what was trained of a model, and name the base that the rest is in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.errors import FolderError
from legato.folders.adapters.saving import digest_of
from legato.folders.exports import export
from legato.folders.finding import find_model
from legato.folders.model_folder import load_model
from legato.folders.weights import load_tensors, save_tensors
from legato.models.model_with_head import HeadSpec
from tiny_adapted import adapted, answer, published_folder, published_folders, saved
from tiny_published import change, write

CLASSES = HeadSpec(kind="classes", outputs=3, pool="mean")
TAGS = HeadSpec(kind="tags", outputs=5, layers="mix", lstm=1, width=8, crf=True)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One small published model of each kind."""
    return published_folders(tmp_path_factory, ("bert", "gpt2", "llama"))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("targets", [None, "all-linear"])
def test_an_adapter_comes_back_merged(bases: dict[str, Path], tmp_path: Path, name: str, targets: str | None) -> None:
    model, loaded = adapted(bases[name], name="lora", rank=3, targets=targets)
    again = load_model(saved(tmp_path / "a", model, loaded))
    assert not any("low_rank" in key for key in again.module.state_dict())
    torch.testing.assert_close(answer(again.module), answer(model), atol=1e-5, rtol=1e-5)
    assert (answer(again.module) - answer(load_model(bases[name]).module)).abs().max() > 1e-2


def test_the_card_of_an_adapter_is_read_as_others_files_are(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    (folder / "README.md").write_bytes(b"# caf\xe9\n")  # Latin-1
    assert (export(folder, "hf", out=tmp_path / "out") / "README.md").read_text(encoding="utf-8") == "# caf\ufffd\n"
    with (folder / "README.md").open("wb") as file:
        file.truncate(5 << 20)
    with pytest.raises(FolderError, match=r"README\.md has 5,242,880 bytes, more than"):
        export(folder, "hf", out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_readout_of_its_own_never_becomes_the_embedding(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    base = published_folder(tmp_path / "base", name, tied=False)
    model, loaded = adapted(base, head=CLASSES, name="lora")
    again = load_model(saved(tmp_path / "a", model, loaded, task="classification", labels=["a", "b", "c"]))
    torch.testing.assert_close(answer(again.module), answer(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", [CLASSES, TAGS], ids=["classes", "tags"])
@pytest.mark.parametrize("name", ["lora", "bitfit", "head"])
def test_a_head_comes_back_with_what_was_trained(
    bases: dict[str, Path], tmp_path: Path, name: str, head: HeadSpec
) -> None:
    model, loaded = adapted(bases["bert"], head=head, name=name)
    labels = list("abcde"[: head.outputs])
    folder = saved(tmp_path / "a", model, loaded, task="classification", labels=labels)
    again = load_model(folder)
    torch.testing.assert_close(answer(again.module), answer(model), atol=1e-5, rtol=1e-5)
    assert again.task == "classification"
    assert again.about["labels"] == labels
    names = {file.name for file in folder.iterdir()}
    assert ("adapter_model.safetensors" in names) == (name == "lora")
    assert {"legato.json", "tokenizer.json", "README.md"} < names
    assert "config.json" not in names


def test_only_what_was_trained_is_in_the_file(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["bert"], head=CLASSES, name="bitfit")
    held = load_tensors(saved(tmp_path / "a", model, loaded, task="classification") / "changed.safetensors")
    assert "bert.encoder.layer.1.attention.self.query.bias" in held
    assert all(name.endswith(".bias") or name.startswith("head.") for name in held)


@pytest.mark.parametrize("settings", [{"name": "head"}, {"name": "lora", "targets": ("dense",)}])
def test_heads_that_the_base_lacks_are_trained_and_kept(tmp_path: Path, settings: dict[str, Any]) -> None:
    from legato.registry import MODELS
    from legato.training.adapt import AdaptConfig, Base, adapt
    from tiny_adapted import shake

    base = published_folder(tmp_path / "base", "bert", masked_words=False, next_sentence=False)
    loaded = load_model(base)
    config = loaded.module.config.model_copy(update={"masked_words": True})
    model = MODELS.get("bert")(config, loaded.module.sizes)
    model.load_state_dict(loaded.module.state_dict(), strict=False)
    adapt(model, AdaptConfig(**settings), Base.of(str(base), loaded))
    trained = {name for name, p in model.named_parameters() if p.requires_grad and "low_rank" not in name}
    assert trained == {"head.weight", "head.bias", "head_norm.weight", "head_norm.bias", "output.bias"}
    shake(model)
    again = load_model(saved(tmp_path / "a", model.eval(), loaded, task="mlm"))
    torch.testing.assert_close(answer(again.module), answer(model), atol=1e-5, rtol=1e-5)


def test_exporting_an_adapter_writes_the_whole_model(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    out = export(saved(tmp_path / "a", model, loaded), "hf", out=tmp_path / "whole")
    whole = load_model(out)
    torch.testing.assert_close(answer(whole.module), answer(model), atol=1e-5, rtol=1e-5)
    assert (out / "config.json").is_file()
    assert not (out / "adapter_config.json").exists()
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    from tiny_adapted import IDS

    torch.testing.assert_close(theirs(input_ids=IDS).logits, answer(model), atol=1e-4, rtol=1e-4)


def test_a_run_folder_of_an_adapter_is_found(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    folder = saved(tmp_path / "run" / "best", model, loaded)
    assert find_model(tmp_path / "run") == folder


def test_an_adapter_on_an_adapter(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    first = saved(tmp_path / "first", model, loaded)
    assert "`peft` loads" in (first / "README.md").read_text()
    second, again = adapted(first, name="bitfit")
    after = load_model(saved(tmp_path / "second", second, again))
    torch.testing.assert_close(answer(after.module), answer(second), atol=1e-5, rtol=1e-5)


def test_an_adapter_on_an_adapter_stays_true_to_the_first_one_not_to_a_machine(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.folders.adapters import loading as adapters
    from legato.nn.adapters.lora import merge

    model, loaded = adapted(bases["gpt2"], name="lora")
    first = saved(tmp_path / "first", model, loaded)
    second, again = adapted(first, name="bitfit")
    folder = saved(tmp_path / "second", second, again)

    def with_other_last_bits(weight: torch.Tensor, *rest: Any) -> None:
        merge(weight, *rest)
        weight.copy_(torch.nextafter(weight, weight + 1))

    monkeypatch.setattr(adapters, "merge", torch.no_grad()(with_other_last_bits))
    torch.testing.assert_close(answer(load_model(folder).module), answer(second), atol=1e-4, rtol=1e-4)
    change(first / "adapter_config.json", lora_alpha=1)
    with pytest.raises(FolderError, match="is an adapter for another base"):
        load_model(folder)


def test_a_base_whose_weights_changed_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(bases["gpt2"], base)
    model, loaded = adapted(base, name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    tensors = load_tensors(base / "model.safetensors")
    tensors["transformer.wpe.weight"][0, 0] += 1e-3
    save_tensors(tensors, base / "model.safetensors")
    with pytest.raises(
        FolderError, match=r"adapter for another base: it was trained for .*base as .*/base are others"
    ):
        load_model(folder)


def test_a_base_of_another_shape_is_named(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    (folder / "legato.json").unlink()  # as peft's own have none
    wide = published_folder(tmp_path / "wide", "gpt2", width=24)
    change(folder / "adapter_config.json", base_model_name_or_path=str(wide))
    with pytest.raises(
        FolderError, match=r"another base: its 'transformer.h.0.attn.c_attn' is 48 × 16, but in .*wide"
    ):
        load_model(folder)
    change(folder / "adapter_config.json", base_model_name_or_path=str(bases["llama"]))
    with pytest.raises(
        FolderError, match=r"needs a matrix 'transformer.h.0.attn.c_attn' of 48 × 16, and .*llama, the base that it"
    ):
        load_model(folder)


def test_a_classifier_of_pefts_for_another_base_names_both(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["bert"], head=HeadSpec(kind="classes", outputs=3), name="lora")
    folder = saved(tmp_path / "a", model, loaded, task="classification")
    (folder / "legato.json").unlink()
    change(folder / "adapter_config.json", base_model_name_or_path=str(bases["gpt2"]))
    with pytest.raises(
        FolderError,
        match=r"/a is an adapter for another base: it needs .*self.query' of 16 × 16, and .*gpt2, the base",
    ):
        load_model(folder)


def test_a_base_that_is_gone_is_named_and_can_be_named_anew(bases: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(bases["gpt2"], base)
    model, loaded = adapted(base, name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    base.rename(tmp_path / "moved")
    with pytest.raises(FolderError, match=r"adapter for .*base, which is not there.*base_model_name_or_path"):
        load_model(folder)
    change(folder / "adapter_config.json", base_model_name_or_path=str(tmp_path / "moved"))
    torch.testing.assert_close(answer(load_model(folder).module), answer(model), atol=1e-5, rtol=1e-5)


def test_a_relative_path_is_found_from_anywhere(
    bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bases["gpt2"], tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    model, loaded = adapted(Path("base"), name="bitfit")
    saved(tmp_path / "a", model, loaded)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    torch.testing.assert_close(answer(load_model(tmp_path / "a").module), answer(model))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"peft_type": "IA3"}, "of type 'IA3'; Legato reads LORA"),
        ({"use_dora": True}, "use_dora: DoRA"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa, which changes the base"),
        ({"r": 0}, "'r' should be greater than or equal to 1, not 0"),
        ({"target_parameters": ["experts"]}, "target_parameters"),
        ({"base_model_name_or_path": None}, "does not say which model it is for"),
    ],
)
def test_adapters_that_compute_something_else_are_refused(
    bases: dict[str, Path], tmp_path: Path, entries: dict[str, Any], said: str
) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    (folder / "legato.json").unlink()
    change(folder / "adapter_config.json", **entries)
    with pytest.raises(FolderError) as problem:
        load_model(folder)
    assert said in str(problem.value)
    assert "\n" not in str(problem.value)


def test_half_an_adapter_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    tensors = load_tensors(folder / "adapter_model.safetensors")
    lost = next(name for name in tensors if "lora_B" in name)
    save_tensors({k: v for k, v in tensors.items() if k != lost}, folder / "adapter_model.safetensors")
    with pytest.raises(FolderError, match="has lora_A only; A and B belong together"):
        load_model(folder)


def test_a_tensor_that_the_model_lacks_is_named(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="bitfit")
    folder = saved(tmp_path / "a", model, loaded)
    tensors = load_tensors(folder / "changed.safetensors")
    save_tensors({**tensors, "odd.bias": torch.zeros(2)}, folder / "changed.safetensors")
    with pytest.raises(FolderError, match=r"holds 'odd.bias', which the model in .*gpt2 lacks"):
        load_model(folder)


def test_another_tokenizer_in_the_folder_is_noticed(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["gpt2"], name="lora")
    folder = saved(tmp_path / "a", model, loaded)
    told = json.loads((folder / "legato.json").read_text())
    told["legato"]["tokens"] = ["x", "x"]
    write(folder / "legato.json", told)
    with pytest.raises(FolderError, match="its tokenizer is not the one"):
        load_model(folder)


def test_a_head_that_is_missing_is_noticed(bases: dict[str, Path], tmp_path: Path) -> None:
    model, loaded = adapted(bases["bert"], head=CLASSES, name="head")
    folder = saved(tmp_path / "a", model, loaded, task="classification")
    tensors = load_tensors(folder / "changed.safetensors")
    save_tensors({k: v for k, v in tensors.items() if "bias" not in k}, folder / "changed.safetensors")
    with pytest.raises(FolderError, match=r"lacks the tensor 'head.head.bias'"):
        load_model(folder)


@pytest.mark.parametrize("index", [0, 1, 6])
def test_every_number_counts_in_a_digest(index: int) -> None:
    module: Any = torch.nn.Linear(7, 1, bias=False)
    before = digest_of(module)
    with torch.no_grad():
        module.weight[0, index] += 1e-6
    assert digest_of(module) != before
    with torch.no_grad():
        module.weight.copy_(module.weight.flip(1))
    assert digest_of(module) != before
