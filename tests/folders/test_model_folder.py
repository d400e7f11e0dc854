"""The model folder: what is saved comes back, and every kind of damage is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import TEXT, Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.data.text.word_bytes import vocabulary_bytes
from legato.errors import FolderError
from legato.folders.finding import find_model
from legato.folders.model_folder import load_model, save_model
from legato.folders.weights import weights_of
from legato.models.base import SequenceModel, Sizes
from legato.nn.characters import tell_spelling
from legato.nn.recurrent import CELLS
from legato.registry import MODELS

# Models that read pictures have tests of their own.
TEXT_ONLY = [name for name in MODELS.names() if MODELS.get(name).processors == (TEXT,)]
NAMES = [name for name in TEXT_ONLY if not MODELS.get(name).is_encoder_decoder]
OWN = [name for name in NAMES if MODELS.get(name).published is None]
TOKENIZER = Tokenizer.train(TokenizerConfig(name="char"), ["the cat sat on the mat"])


def build(name: str, **settings: Any) -> SequenceModel:
    model: type[SequenceModel] = MODELS.get(name)
    small = {"name": name, "width": 8, "embedding": 6, "heads": 2, "key_value_heads": 1, **settings}
    known = {key: value for key, value in small.items() if key in model.Config.model_fields}
    made = model(validate(model.Config, known), Sizes(TOKENIZER.size))
    tell_spelling(
        made, torch.from_numpy(vocabulary_bytes(TOKENIZER))
    )  # what reads characters knows those of its vocabulary
    return made


def saved(folder: Path, module: SequenceModel, tokenizer: Tokenizer = TOKENIZER) -> Path:
    folder.mkdir(parents=True)
    save_model(
        folder,
        module,
        Processors(tokenizer),
        task="lm",
        about={"version": "0", "data": {"train": "ab12"}},
        card="# card\n",
    )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "model", build("lstm", layers=1))


def complaint(folder: Path) -> str:
    with pytest.raises(FolderError) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(file.read_text())
    edit(value)
    file.write_text(json.dumps(value))


def change_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


# --- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_model_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    module = build(name)
    back = load_model(saved(tmp_path / "model", module)).module
    assert type(back) is type(module)
    assert list(back.state_dict()) == list(module.state_dict())
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in back.state_dict().items())


@pytest.mark.parametrize("name", OWN)
def test_a_models_settings_come_back(name: str, tmp_path: Path) -> None:
    module = build(name, dropout=0.3)
    back = load_model(saved(tmp_path / "model", module)).module
    assert back.config == module.config
    assert back.vocabulary == module.vocabulary


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_model_is_saved_as_it_was(name: str, tmp_path: Path) -> None:
    first = saved(tmp_path / "a", build(name, dropout=0.3))
    second = saved(tmp_path / "b", load_model(first).module)
    assert (first / "config.json").read_text() == (second / "config.json").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_loaded_model_says_what_the_saved_one_said(name: str, tmp_path: Path) -> None:
    module, batch = build(name).eval(), Batch(Inputs(torch.tensor([[1, 5, 2, 7]])))
    back = load_model(saved(tmp_path / "model", module)).module
    assert torch.equal(back.readout(back(batch).hidden), module.readout(module(batch).hidden))


@pytest.mark.parametrize("name", CELLS)
def test_a_bidirectional_model_comes_back(name: str, tmp_path: Path) -> None:
    module = build(name, bidirectional=True)
    back = load_model(saved(tmp_path / "model", module)).module
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in back.state_dict().items())


def test_a_loaded_model_is_ready_to_be_used(folder: Path) -> None:
    assert not load_model(folder).module.training


@pytest.mark.parametrize("name", NAMES)
def test_saving_twice_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    module = build(name)
    first, second = saved(tmp_path / "a", module), saved(tmp_path / "b", module)
    assert sorted(path.name for path in first.iterdir()) == sorted(path.name for path in second.iterdir())
    assert all(path.read_bytes() == (second / path.name).read_bytes() for path in first.iterdir())


def test_what_is_ours_comes_back(folder: Path) -> None:
    loaded = load_model(folder)
    assert (loaded.task, loaded.about["data"]) == ("lm", {"train": "ab12"})
    assert loaded.tokenizer.fingerprint() == TOKENIZER.fingerprint()


def test_the_folder_holds_what_a_hugging_face_folder_holds(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_weights_may_be_read_by_whoever_may_read_the_config(folder: Path) -> None:
    assert (folder / "model.safetensors").stat().st_mode == (folder / "config.json").stat().st_mode


@pytest.mark.parametrize("name", OWN)
def test_the_model_type_names_the_architecture(name: str, tmp_path: Path) -> None:
    config = json.loads((saved(tmp_path / "model", build(name)) / "config.json").read_text())
    assert config["model_type"] == f"legato-{name}"
    assert config["legato"]["task"] == "lm"


@pytest.mark.parametrize("name", CELLS)
def test_a_tied_tensor_is_stored_once(name: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", build(name, tied=True))
    assert [
        key for key in load_file(folder / "model.safetensors") if key.endswith(("embedding.weight", "output.weight"))
    ] == ["embedding.weight"]


@pytest.mark.parametrize("name", CELLS)
def test_tied_tensors_are_still_one_when_loaded(name: str, tmp_path: Path) -> None:
    back: Any = load_model(saved(tmp_path / "model", build(name, tied=True))).module
    assert back.output.weight is back.embedding.weight


def test_a_file_that_holds_a_tied_tensor_twice_is_accepted(tmp_path: Path) -> None:
    module = build("lstm", tied=True)
    folder = saved(tmp_path / "model", module)
    change_tensors(folder, lambda tensors: tensors.update({"output.weight": tensors["embedding.weight"].clone()}))
    assert torch.equal(load_model(folder).module.embedding.weight, module.embedding.weight)  # type: ignore[union-attr, arg-type]


def test_only_a_tokenizer_that_ends_texts_names_an_end_of_text(tmp_path: Path) -> None:
    words = Tokenizer.train(TokenizerConfig(name="word"), ["the cat"])
    model = MODELS.get("gru")
    module = model(model.Config(name="gru", width=4), Sizes(words.size))
    lines = json.loads((saved(tmp_path / "a", module, words) / "generation_config.json").read_text())
    texts = json.loads((saved(tmp_path / "b", build("gru")) / "generation_config.json").read_text())
    assert lines == {"bos_token_id": words.eos_id}
    assert texts == {"bos_token_id": TOKENIZER.eos_id, "eos_token_id": TOKENIZER.eos_id}


PUBLISHED_NAMES = [name for name in NAMES if name not in OWN]


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_a_config_of_theirs_names_our_tokens_rather_than_nobodys(name: str, tmp_path: Path) -> None:
    module = build(name)
    folder = saved(tmp_path / "model", module)
    config = json.loads((folder / "config.json").read_text())
    assert (folder / "generation_config.json").exists() == module.can_generate
    if module.can_generate:
        assert (config["bos_token_id"], config["eos_token_id"]) == (TOKENIZER.eos_id, TOKENIZER.eos_id)


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_weights_too_large_for_one_file_are_written_in_several(name: str, tmp_path: Path) -> None:
    module = build(name)
    save_model(tmp_path, module, Processors(TOKENIZER), task="lm", about={}, card="", largest=1000)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    back = load_model(tmp_path).module
    assert all(torch.equal(value, module.state_dict()[key]) for key, value in back.state_dict().items())


# --- damage ----------------------------------------------------------------------------------------


def test_a_missing_config_is_named(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert complaint(folder) == f"{folder} is no model folder: it has no config.json"


@pytest.mark.parametrize("content", ["{", "", "\x00\x01", '{"a": 1,}'])
def test_a_config_that_is_no_json_is_named(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    assert complaint(folder).startswith(f"{folder / 'config.json'} is not valid JSON: ")


def test_a_config_that_is_no_text_is_named(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe{}")
    assert complaint(folder).startswith(f"{folder / 'config.json'} is not valid JSON: ")


def test_a_config_that_is_a_list_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("[]")
    assert complaint(folder) == f"{folder / 'config.json'} should hold a JSON object, not []"


def test_a_config_without_a_model_type_is_named(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.pop("model_type"))
    assert complaint(folder) == f"{folder / 'config.json'} names no model_type"


@pytest.mark.parametrize("kind", ["perceiver", "legato-perceptron", "lstm"])
def test_an_unknown_model_type_is_named(folder: Path, kind: str) -> None:
    change(folder / "config.json", lambda config: config.update(model_type=kind))
    assert f"{folder} holds a '{kind}', which Legato does not have; it has marian, " in complaint(folder)


def test_a_setting_that_the_model_lacks_is_named(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(widht=5))
    assert complaint(folder) == f"{folder / 'config.json'}: unknown key 'widht'; did you mean 'width'?"


def test_a_setting_out_of_range_is_named(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(width=0))
    assert complaint(folder) == f"{folder / 'config.json'}: width=0 should be greater than or equal to 1"


def test_a_setting_beyond_all_models_is_named(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(width=10**25))
    assert complaint(folder).startswith(f"{folder / 'config.json'}: 'width' should have no number beyond 16,777,216")


def test_settings_that_do_not_go_together_are_named(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(bidirectional=True, embedding=5))
    assert complaint(folder).startswith(f"{folder / 'config.json'}: a bidirectional model needs an even width")


@pytest.mark.parametrize("size", [None, 0, "many"])
def test_a_vocabulary_size_that_is_none_is_named(folder: Path, size: Any) -> None:
    change(folder / "config.json", lambda config: config.update(vocab_size=size))
    assert complaint(folder).startswith(f"{folder / 'config.json'}: 'vocab_size' should be ")


def test_our_own_key_must_be_an_object(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(legato="lm"))
    assert complaint(folder) == f"{folder / 'config.json'}: 'legato' should hold a JSON object, not 'lm'"


def test_a_missing_weights_file_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert complaint(folder) == f"{folder} lacks model.safetensors"


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.pop("output.bias"))
    assert complaint(folder) == f"{folder / 'model.safetensors'} lacks the tensor 'output.bias'"


def test_several_missing_tensors_are_counted(folder: Path) -> None:
    change_tensors(folder, lambda tensors: [tensors.pop(key) for key in list(tensors)[:3]])
    assert "lacks the tensor 'embedding.weight' and 2 more" in complaint(folder)


def test_an_extra_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update(spare=torch.zeros(1)))
    assert complaint(folder) == f"{folder / 'model.safetensors'} holds a tensor that this model lacks: 'spare'"


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    change_tensors(folder, lambda tensors: tensors.update({"output.bias": torch.zeros(3)}))
    expected = f"'output.bias' has shape (3,), but the model's is ({TOKENIZER.size},)"
    assert complaint(folder) == f"{folder / 'model.safetensors'}: {expected}"


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_a_truncated_weights_file_is_named(folder: Path, left: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    assert complaint(folder).startswith(f"{file} is damaged: ")


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    assert f"there is no tokenizer {folder / 'tokenizer.json'}" in complaint(folder)


def test_a_damaged_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert complaint(folder).startswith(f"{folder / 'tokenizer.json'} is not a tokenizer that can be read")


def test_a_tokenizer_larger_than_the_vocabulary_is_named_with_both_sizes(folder: Path) -> None:
    larger = Tokenizer.train(TokenizerConfig(name="byte"), [""])
    larger.save(folder)
    assert complaint(folder) == f"{folder}: the tokenizer has 257 tokens, the model only {TOKENIZER.size}"


def test_a_tokenizer_of_the_same_size_with_other_tokens_belongs_to_another_model(folder: Path) -> None:
    held = [TOKENIZER.token_name(index) for index in range(TOKENIZER.size)]
    letters = [name for name in held if len(name) == 1]
    file = folder / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    spec = json.loads(text)
    vocabulary = spec["model"]["vocab"]
    first, second = letters[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(spec), encoding="utf-8")
    assert complaint(folder) == f"{folder}: its tokenizer is not the one that the model was trained with"


def test_a_tokenizer_that_is_too_small_belongs_to_another_model(folder: Path) -> None:
    Tokenizer.train(TokenizerConfig(name="char"), ["ab"]).save(folder)
    assert complaint(folder) == f"{folder}: the tokenizer has 4 tokens, the model {TOKENIZER.size}; it is another's"


def test_a_damaged_folder_changes_no_weights() -> None:
    from legato.folders.weights import put_weights

    module = build("gru")
    before = {key: value.clone() for key, value in module.state_dict().items()}
    tensors = {key: torch.zeros_like(value) for key, value in weights_of(module).items()}
    tensors["output.bias"] = torch.zeros(3)
    with pytest.raises(FolderError, match=r"output\.bias"):
        put_weights(module, tensors, "x")
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


# --- finding ---------------------------------------------------------------------------------------


def test_a_model_folder_is_found_as_itself(folder: Path) -> None:
    assert find_model(str(folder)) == folder


def test_of_a_run_the_best_is_preferred_to_the_last(tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved(run / "last", build("gru"))
    assert find_model(run) == run / "last"
    saved(run / "best", build("gru"))
    assert find_model(run) == run / "best"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"there is no folder .*nowhere"):
        find_model(tmp_path / "nowhere")


def test_a_run_without_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: lm\n")
    with pytest.raises(FolderError, match="is a run that has not saved a model yet"):
        find_model(tmp_path)


def test_a_file_is_no_model_folder(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    with pytest.raises(FolderError, match=r"a\.txt is no model folder"):
        find_model(file)


@pytest.mark.parametrize(("name", "settings", "most"), [("gpt2", {"length": 32}, 32), ("lstm", {}, 10**30)])
def test_other_libraries_are_told_how_much_a_model_reads(
    name: str, settings: dict[str, Any], most: int, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "model", build(name, layers=1, **settings))
    assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == most
