"""How much of a model is trained: what is frozen, what a checkpoint holds, and that it resumes to the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.config import validate
from legato.errors import ConfigError, DataError, FolderError
from legato.folders.model_folder import load_model, read_model
from legato.folders.weights import load_tensors, save_tensors
from legato.models.base import count_parameters
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.nn.linear import Linear
from legato.nn.readout import Readout
from legato.registry import MODELS
from legato.runs.config import check, settings_for
from legato.runs.train import train
from legato.training.adapt import AdaptConfig, Base, adapt, store_frozen, trainable_line
from legato.training.checkpoints import load_trainable, trainable_state
from tiny_adapted import adapted, answer, published_folder, published_folders
from tiny_runs import write_text

HEAD = HeadSpec(kind="classes", outputs=2, pool="mean")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return published_folders(tmp_path_factory, ("bert", "gpt2", "llama"))


def trainable(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_lora_trains_thin_matrices_and_the_head(bases: dict[str, Path]) -> None:
    model, _ = adapted(bases["bert"], head=HEAD, name="lora", rank=2)
    inside = {name for name in trainable(model) if name.startswith("body.")}
    assert inside == {
        f"body.stack.layers.{layer}.attention.qkv.low_rank.{part}"
        for layer in (0, 1)
        for part in ("down", "up.0", "up.1")
    }
    assert trainable(model) - inside == {"head.weight", "head.bias"}
    low = model.body.stack.layers[0].attention.qkv.low_rank
    assert [(part.start, part.end) for part in low.parts] == [(0, 16), (32, 48)]  # query and value, not key
    assert low.scaling == 16 / 2


def test_head_trains_the_head_alone_and_the_body_keeps_no_history(bases: dict[str, Path]) -> None:
    model, _ = adapted(bases["bert"], head=HEAD, name="head")
    assert trainable(model) == {"head.weight", "head.bias"}
    from legato.data.batching.batch import Batch, Inputs

    assert not model.body(Batch(Inputs(torch.tensor([[1, 2, 3]])))).hidden.requires_grad


def test_bitfit_trains_every_bias(bases: dict[str, Path]) -> None:
    model, _ = adapted(bases["bert"], head=HEAD, name="bitfit")
    assert trainable(model) == {n for n, _ in model.named_parameters() if n.endswith("bias")} | {"head.weight"}
    assert "body.embedding_norm.bias" in trainable(model)


def test_bitfit_says_so_where_there_are_no_biases(bases: dict[str, Path]) -> None:
    loaded = load_model(bases["llama"])
    base = Base.of(str(bases["llama"]), loaded)
    heard: list[str] = []
    model = ModelWithHead(loaded.module, HEAD)
    adapt(model, AdaptConfig(name="bitfit"), base, heard.append)
    assert trainable(model) == {"head.weight", "head.bias"}
    assert heard == ["adapt=bitfit: this llama has no biases; only the task's head is trained"]
    with pytest.raises(ConfigError, match="has no biases, and the task has no head"):
        adapt(load_model(bases["llama"]).module, AdaptConfig(name="bitfit"), base)


def test_head_needs_a_head(bases: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="adapt=head trains the task's head alone, and this task has none"):
        adapted(bases["gpt2"], name="head")


def test_a_rank_larger_than_the_matrix_is_refused(bases: dict[str, Path]) -> None:
    with pytest.raises(
        ConfigError, match=r"adapt.rank=17 .*query' can have: it is a matrix of 16 × 16, so at most 16"
    ):
        adapted(bases["bert"], name="lora", rank=17)


def test_a_target_that_is_not_there_lists_those_that_are(bases: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"is called 'q_proj'; there is .*attention.self.query"):
        adapted(bases["bert"], name="lora", targets=["q_proj"])


def test_names_that_end_in_a_number_are_listed_too() -> None:
    from legato.models.base import Sizes
    from legato.registry import MODELS

    kind = MODELS.get("elmo")
    settings = {"name": "elmo", "layers": 2, "width": 8, "embedding": 4, "filters": 1}
    model = kind(validate(kind.Config, settings), Sizes(11))
    base = Base("somewhere", "", frozenset(model.state_dict()))
    with pytest.raises(ConfigError, match=r"there is change, gate, projections.0, projections.1, words.projection$"):
        adapt(model, AdaptConfig(name="lora", rank=2), base)
    adapt(model, AdaptConfig(name="lora", rank=2, targets=("projections.1",)), base)
    assert sum(layer.low_rank is not None for layer in model.modules() if isinstance(layer, Linear)) == 2


def test_rslora_divides_by_the_root_of_the_rank(bases: dict[str, Path]) -> None:
    model, _ = adapted(bases["gpt2"], name="lora", rank=4, alpha=6, rslora=True)
    assert {layer.low_rank.scaling for layer in model.modules() if getattr(layer, "low_rank", None)} == {6 / 2}


@pytest.mark.parametrize(("targets", "count"), [("c_proj", 4), (["mlp.c_proj", "c_attn"], 4), ("all-linear", 8)])
def test_targets_are_ends_of_published_names(bases: dict[str, Path], targets: Any, count: int) -> None:
    model, _ = adapted(bases["gpt2"], name="lora", targets=targets)
    assert sum(layer.low_rank is not None for layer in model.modules() if isinstance(layer, Linear)) == count


def test_models_without_a_published_form_go_by_our_names() -> None:
    from legato.models.base import Sizes
    from legato.registry import MODELS

    kind = MODELS.get("transformer")
    settings = {"name": "transformer", "layers": 1, "width": 8, "heads": 2, "positions": "rotary"}
    model = kind(validate(kind.Config, settings), Sizes(11))
    base = Base("somewhere", "", frozenset(model.state_dict()))
    adapt(model, AdaptConfig(name="lora", rank=2), base)
    assert model.encoder.layers[0].attention.qkv.low_rank is not None
    lstm = MODELS.get("lstm")(MODELS.get("lstm").Config(width=8), Sizes(11))
    with pytest.raises(
        ConfigError, match=r"a Transformer's matrices.*model=lstm has none; use adapt=bitfit or full$"
    ):
        adapt(lstm, AdaptConfig(name="lora"), Base("somewhere", "", frozenset(lstm.state_dict())))
    base = Base("somewhere", "", frozenset(lstm.state_dict()))
    with pytest.raises(ConfigError, match=r"use adapt=head, bitfit or full$"):
        adapt(ModelWithHead(lstm, HEAD), AdaptConfig(name="lora"), base)


def test_the_line_of_figures(bases: dict[str, Path]) -> None:
    model, _ = adapted(bases["bert"], head=HEAD, name="lora", rank=2)
    whole = count_parameters(ModelWithHead(load_model(bases["bert"]).module, HEAD))
    low = 2 * (2 * 2 * 16 + 2 * 16 * 2)
    head = 2 * 16 + 2
    assert trainable_line(model) == (
        f"trainable: {low + head:,} of {whole + low:,} parameters ({100 * (low + head) / (whole + low):.3g}%)"
    )


def test_a_checkpoint_holds_what_is_trained(bases: dict[str, Path]) -> None:
    model, _ = adapted(bases["bert"], head=HEAD, name="lora")
    held = trainable_state(model)
    assert set(held) == trainable(model)
    before, kept = answer(model), {name: tensor.clone() for name, tensor in held.items()}
    with torch.no_grad():
        for tensor in held.values():
            tensor.zero_()
    assert not torch.equal(answer(model), before)
    load_trainable(model, kept, "here")
    assert torch.equal(answer(model), before)


def test_frozen_matrices_in_bf16_give_what_autocast_gives(bases: dict[str, Path]) -> None:
    model, _ = adapted(bases["bert"], head=HEAD, name="lora")
    cpu = torch.device("cpu")
    with torch.autocast("cpu", torch.bfloat16):
        before = answer(model)
    store_frozen(model, cpu, "float32")
    assert model.body.stack.layers[0].attention.qkv.weight.dtype == torch.float32
    store_frozen(model, cpu, "bf16")
    kinds = {
        layer.weight.dtype
        for layer in model.modules()
        if isinstance(layer, Linear) and not isinstance(layer, Readout) and not layer.weight.requires_grad
    }
    assert kinds == {torch.bfloat16}
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(answer(model), before)


# --- runs ---------------------------------------------------------------------------------------------


def settings_of(folder: Path, base: Path, **more: Any) -> dict[str, Any]:
    text = folder / "train.txt"
    if not text.exists():
        write_text(text, lines=80, seed=1)
        write_text(folder / "valid.txt", lines=10, seed=2)
    given = {
        "data.train": str(text),
        "data.valid": str(folder / "valid.txt"),
        "data.window": 16,
        "from": str(base),
        "adapt": "lora",
        "adapt.rank": 2,
        "device": "cpu",
        "train.batch_tokens": 128,
        "train.steps": 8,
        "train.validate_every": 2,
        "train.lr": 0.01,
        "train.schedule": "constant",
        "train.warmup": 0,
        "train.samples": 0,
        "train.tensorboard": False,
    }
    given |= more
    return given if given["adapt"] == "lora" else {k: v for k, v in given.items() if not k.startswith("adapt.")}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lora", "bitfit"])
def test_a_run_resumes_to_the_same_bits(bases: dict[str, Path], tmp_path: Path, name: str) -> None:
    more = {"adapt": name, "adapt.dropout": 0.2, "train.ema": 0.5}
    given = settings_of(tmp_path, bases["gpt2"], **more)
    whole = train("lm", given, out=tmp_path / "whole", quiet=True)
    train("lm", {**given, "train.steps": 4}, out=tmp_path / "part", quiet=True)
    train(None, {"train.steps": 8}, resume=tmp_path / "part", quiet=True)
    files = {"lora": "adapter_model.safetensors", "bitfit": "changed.safetensors"}
    for place in ("best", "last"):
        one, other = (tmp_path / run / place / files[name] for run in ("whole", "part"))
        assert one.read_bytes() == other.read_bytes()
    assert 0 < whole.trainable < whole.parameters / 4
    assert whole.saved_bytes == (tmp_path / "whole" / "best" / files[name]).stat().st_size
    held = load_tensors(tmp_path / "whole" / "checkpoints" / "step-8" / "weights.safetensors")
    assert all(("low_rank" in key) if name == "lora" else key.endswith("bias") for key in held)


@pytest.mark.slow
def test_a_run_on_top_of_an_adapter_resumes_to_the_same_bits(bases: dict[str, Path], tmp_path: Path) -> None:
    given = settings_of(tmp_path, bases["gpt2"])
    train("lm", {**given, "train.steps": 2}, out=tmp_path / "below", quiet=True)
    given |= {"from": str(tmp_path / "below"), "adapt.rank": 3, "adapt.dropout": 0.2}
    train("lm", given, out=tmp_path / "whole", quiet=True)
    train("lm", {**given, "train.steps": 4}, out=tmp_path / "part", quiet=True)
    train(None, {"train.steps": 8}, resume=tmp_path / "part", quiet=True)
    for place in ("best", "last"):
        one, other = (tmp_path / run / place / "adapter_model.safetensors" for run in ("whole", "part"))
        assert one.read_bytes() == other.read_bytes()
    told = json.loads((tmp_path / "whole" / "last" / "adapter_config.json").read_text())
    assert (told["base_model_name_or_path"], told["r"], told["lora_alpha"]) == (str(bases["gpt2"]), 5, 5)
    held = load_tensors(tmp_path / "whole" / "checkpoints" / "step-8" / "weights.safetensors")
    assert {tensor.shape[0] for name, tensor in held.items() if name.endswith("down")} == {3}  # not the sum


def test_a_run_whose_base_changed_is_not_gone_on_with(bases: dict[str, Path], tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(bases["gpt2"], base)
    train("lm", settings_of(tmp_path, base, **{"train.steps": 2}), out=tmp_path / "run", quiet=True)
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["base"]
    tensors = load_tensors(base / "model.safetensors")
    tensors["transformer.wpe.weight"][1, 1] += 1
    save_tensors(tensors, base / "model.safetensors")
    with pytest.raises(DataError, match=r"base has not the weights that .*run began with"):
        train(None, {"train.steps": 4}, resume=tmp_path / "run", quiet=True)


def test_the_frozen_weights_of_a_run_never_change(bases: dict[str, Path], tmp_path: Path) -> None:
    before = load_tensors(bases["gpt2"] / "model.safetensors")
    train("lm", settings_of(tmp_path, bases["gpt2"], adapt="bitfit"), out=tmp_path / "run", quiet=True)
    after = load_model(tmp_path / "run" / "last").module.state_dict()
    name = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(after["stack.layers.0.feedforward.inner.weight"], before[name].t())
    assert not torch.equal(after["stack.layers.0.feedforward.inner.bias"], before["transformer.h.0.mlp.c_fc.bias"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adapt": "lora"}, "adapt=lora trains a little of a model that is there already; name it: from=MODEL"),
        ({"adapt.rank": 4}, "adapt.rank belongs to adapt=lora; say that, too"),
        ({"adapt": "lra"}, "adapt.name=lra should be 'full', 'head', 'lora' or 'bitfit'"),
        ({"adapt": "lora", "adapt.rank": 0}, "adapt.rank=0"),
        ({"adapt": "lora", "adapt.ranks": 2}, "unknown key 'adapt.ranks'; did you mean 'rank'?"),
    ],
)
def test_settings_that_make_no_sense_are_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as problem:
        check(settings_for("lm", {"data.train": "x.txt", **given}))
    assert said in str(problem.value)


@pytest.mark.parametrize("sketched", [True, False])
def test_what_only_the_new_model_has_is_known_to_be_drawn(tmp_path: Path, sketched: bool) -> None:
    folder = published_folder(tmp_path / "bert", "bert", masked_words=False, next_sentence=False)
    loaded = read_model(folder, sketched=sketched)
    origin = loaded.module
    assert not loaded.put_into(MODELS.get("bert")(origin.config, origin.sizes))
    wanted = origin.config.model_copy(update={"masked_words": True})
    model = MODELS.get("bert")(wanted, origin.sizes)
    drawn = read_model(folder, sketched=sketched).put_into(model) & {name for name, _ in model.named_parameters()}
    assert drawn == {"head.weight", "head.bias", "head_norm.weight", "head_norm.bias", "output.bias"}


def test_weights_that_were_written_over_before_they_are_read_are_refused(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "bert", "bert")
    loaded = read_model(folder, sketched=True)
    raw = (folder / "model.safetensors").read_bytes()
    with (folder / "model.safetensors").open("r+b") as file:  # the same file, as `cp` does it
        file.write(raw[:-4] + b"\0\0\0\1")
    with pytest.raises(FolderError, match=r"model\.safetensors was written over while the data was read"):
        loaded.put_into(MODELS.get("bert")(loaded.module.config, loaded.module.sizes))


def test_a_folder_that_was_replaced_before_it_is_read_leaves_what_it_held(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "bert", "bert")
    expected = read_model(folder).module.state_dict()
    loaded = read_model(folder, sketched=True)
    folder.rename(tmp_path / "old")
    shutil.copytree(tmp_path / "old", folder)
    shutil.rmtree(tmp_path / "old")
    loaded.put_into(MODELS.get("bert")(loaded.module.config, loaded.module.sizes))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.module.state_dict().items())


def test_what_only_the_folder_has_is_read_too_and_its_base_is_the_same(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "bert", "bert")
    loaded = read_model(folder, sketched=True)
    bare = dict.fromkeys(("masked_words", "next_sentence", "pooler"), False)
    model = MODELS.get("bert")(loaded.module.config.model_copy(update=bare), loaded.module.sizes)
    assert set(loaded.module.state_dict()) - set(model.state_dict())
    loaded.put_into(model)
    assert Base.of(str(folder), loaded).digest == Base.of(str(folder), read_model(folder)).digest
