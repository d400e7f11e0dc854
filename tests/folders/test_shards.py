"""Weights in one file or in several: as Hugging Face's libraries write them, and every damage in one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from legato.errors import FolderError
from legato.folders.file_names import WEIGHTS
from legato.folders.model_folder import load_model
from legato.folders.shards import INDEX, load_weights, save_weights
from legato.models.base import Sizes
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.published.gpt2 import GPT2
from tiny_published import change, gpt2_folder, write

TENSORS = {f"layer.{number}": torch.arange(50.0) + number for number in range(5)}  # 200 bytes each


def complaint(folder: Path) -> str:
    with pytest.raises(FolderError) as caught:
        load_weights(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_weights(TENSORS, tmp_path, largest=450)
    return tmp_path


def test_small_weights_are_one_file(tmp_path: Path) -> None:
    save_weights(TENSORS, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [WEIGHTS]
    assert same(load_weights(tmp_path), TENSORS)


def test_large_weights_are_several_files_and_an_index(sharded: Path) -> None:
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(file.name for file in sharded.iterdir()) == sorted([*names, INDEX])
    index = json.loads((sharded / INDEX).read_text())
    assert index["metadata"]["total_size"] == 1000
    assert index["weight_map"] == {f"layer.{number}": names[number // 2] for number in range(5)}
    assert same(load_weights(sharded), TENSORS)


def test_a_tensor_larger_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    save_weights(TENSORS, tmp_path, largest=10)
    assert len(list(tmp_path.glob("model-*-of-00005.safetensors"))) == 5
    assert same(load_weights(tmp_path), TENSORS)


def test_a_model_in_several_files_is_the_same_model(tmp_path: Path) -> None:
    whole = load_model(gpt2_folder(tmp_path / "whole")).module.state_dict()
    parts = load_model(gpt2_folder(tmp_path / "parts", largest=5000)).module.state_dict()
    assert (tmp_path / "parts" / INDEX).is_file()
    assert same(whole, parts)


def test_transformers_reads_our_several_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = gpt2_folder(tmp_path / "parts", largest=5000)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).state_dict()
    assert torch.equal(theirs["transformer.wte.weight"], load_weights(folder)["transformer.wte.weight"])


def test_several_files_of_transformers_are_read_here(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=300, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    theirs = transformers.GPT2LMHeadModel(config)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / INDEX).is_file()
    ours = load_weights(tmp_path)
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.state_dict().items() if name in ours)
    assert len(ours) == len(theirs.state_dict()) - 1  # the readout is the embedding


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_any_precision_fill_a_float32_model(kind: torch.dtype, tmp_path: Path) -> None:
    entries, tensors = GPT2.save(GPT2Model(GPT2Config(layers=1, width=8, heads=2, length=6), Sizes(11)))
    save_file({name: tensor.to(kind) for name, tensor in tensors.items()}, tmp_path / WEIGHTS)
    module = GPT2.load(entries, load_weights(tmp_path), "here")
    assert {tensor.dtype for tensor in module.state_dict().values()} == {torch.float32}
    assert torch.equal(module.positions.weight, tensors["transformer.wpe.weight"].to(kind).float())


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "model.ckpt"])
def test_a_pickle_is_refused_with_the_reason_and_what_to_do(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02}.")
    assert f"its {name} is a pickle, which may run any code when it is read and so is refused" in complaint(tmp_path)
    assert "save it again as safetensors" in complaint(tmp_path)


def test_another_librarys_weights_are_named(tmp_path: Path) -> None:
    (tmp_path / "tf_model.h5").write_bytes(b"x")
    assert complaint(tmp_path).endswith("its tf_model.h5 is TensorFlow's: save the model again as safetensors")


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "model-00002-of-00003.safetensors").unlink()
    assert complaint(sharded).startswith(f"{sharded} lacks model-00002-of-00003.safetensors, which {INDEX} names")


def test_several_missing_shards_are_counted(sharded: Path) -> None:
    for number in (1, 3):
        (sharded / f"model-0000{number}-of-00003.safetensors").unlink()
    assert "lacks model-00001-of-00003.safetensors and 1 more, which" in complaint(sharded)


def test_a_tensor_that_no_shard_holds_is_named(sharded: Path) -> None:
    places = json.loads((sharded / INDEX).read_text())["weight_map"]
    write(sharded / INDEX, {"weight_map": {**places, "spare": "model-00001-of-00003.safetensors"}})
    expected = "says that 'spare' is in model-00001-of-00003.safetensors, but it is not"
    assert complaint(sharded) == f"{sharded / INDEX} {expected}"


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{", "[" * 10**5, '{"weight_map": {"a": 3}}'],
)
def test_an_index_that_is_none_is_named(content: str, sharded: Path) -> None:
    (sharded / INDEX).write_text(content)
    assert complaint(sharded).startswith(f"{sharded / INDEX} is no index of weights")


@pytest.mark.parametrize("place", ["../model.safetensors", "/etc/passwd", "model.bin", "a/b.safetensors"])
def test_an_index_leads_nowhere_else(place: Any, sharded: Path) -> None:
    write(sharded / INDEX, {"weight_map": {"layer.0": place}})
    assert f"should be in a safetensors file beside the index, not in '{place}'" in complaint(sharded)


def header(entries: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRY = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}
LIES = {
    "cut short": (header({"a": ENTRY}, bytes(9)), "tells of 82 bytes, but the file has 79"),
    "something behind": (header({"a": ENTRY}, bytes(20)), "tells of 82 bytes, but the file has 90"),
    "beyond the end": (header({"a": {**ENTRY, "data_offsets": [0, 9999]}}, bytes(12)), "bytes, but the file has"),
    "a huge header": (struct.pack("<Q", 1 << 60) + bytes(20), "says it is 1,152,921,504,606,846,976 bytes long"),
    "a header beyond the end": (struct.pack("<Q", 500) + b"{}", "says it is 500 bytes long, but the file has 10"),
    "another shape": (header({"a": {**ENTRY, "shape": [300]}}, bytes(12)), "invalid shape"),
    "an unknown type": (header({"a": {**ENTRY, "dtype": "F99"}}, bytes(12)), "F99"),
    "a negative offset": (header({"a": {**ENTRY, "data_offsets": [-4, 12]}}, bytes(12)), "-4"),
    "no JSON": (struct.pack("<Q", 5) + b"hello", "not that of a safetensors file"),
    "a list": (struct.pack("<Q", 2) + b"[]", "not that of a safetensors file"),
    "very many values": (header({"a": [[]] * 1_500_000}, b""), "holds more than 2,000,000 values"),
    "a pickle": (b"\x80\x02}q\x00." * 10, "its header says"),
    "nothing": (b"", "it has 0 bytes, so it is no safetensors file"),
    "Git's pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_shard_whose_header_lies_is_named(lie: str, sharded: Path) -> None:
    content, reason = LIES[lie]
    file = sharded / "model-00002-of-00003.safetensors"
    file.write_bytes(content)
    assert complaint(sharded).startswith(f"{file} is damaged: ")
    assert reason in complaint(sharded)


def test_a_header_longer_than_any_is_not_read(sharded: Path) -> None:
    file = sharded / "model-00002-of-00003.safetensors"
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", 100_000_001))
        opened.truncate(100_000_100)  # a hole, which takes no room on the disk
    assert "its header says it is 100,000,001 bytes long; 100,000,000 is the most allowed" in complaint(sharded)


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m")
    tensors = load_file(folder / WEIGHTS)
    save_file({**tensors, "transformer.ln_f.bias": torch.zeros(3)}, folder / WEIGHTS)
    with pytest.raises(FolderError, match=r"'transformer.ln_f.bias' should have shape \(16,\), but has \(3,\)"):
        load_model(folder)


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m")
    (folder / "modeling_mine.py").write_text("raise SystemExit('this was run')\n")
    code = {"AutoModelForCausalLM": "modeling_mine.Mine"}
    change(folder / "config.json", model_type="mine", auto_map=code)
    with pytest.raises(FolderError) as caught:
        load_model(folder)
    said = str(caught.value)
    assert "holds a 'mine', which Legato does not have and comes with code of its own (auto_map)" in said
    assert "it has marian, gpt2" in said


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m", quantization_config={"bits": 4})
    with pytest.raises(FolderError, match="holds quantised weights"):
        load_model(folder)
