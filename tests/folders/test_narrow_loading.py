"""Models read straight into 8 or 4 bits: to the bit what quantising the wide model gives, and that is never made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from legato import memory
from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import FolderError
from legato.folders.adapters.saving import digest_of
from legato.folders.exports import export
from legato.folders.gguf.families import FileRows, read_config
from legato.folders.gguf.header import read_header
from legato.folders.model_folder import load_model, read_model, save_model
from legato.models.base import SequenceModel
from legato.models.model_with_head import HeadSpec, ModelWithHead, body_of
from legato.nn.linear import Linear
from legato.nn.quantized import Deferred, deferring, is_quantized, quantize, quantize_layers, read_deferred, weights
from legato.nn.quantized.deferred import change, put
from legato.nn.readout import Readout, TokenEmbedding
from legato.registry import MODELS
from legato.training.adapt import AdaptConfig, Base, adapt
from random_models import SMALL, made
from tiny_adapted import adapted, published_folder, saved, shake
from tiny_gguf import gguf_file

TOKENIZER = Tokenizer.train(
    TokenizerConfig(name="word"), ["the quick brown fox jumps over a lazy dog and saw one red cat by it\n"]
)
WIDTHS = ["int8", "int4"]
WIDE = {"width": 64, "embedding": 64, "feedforward": 96}
CONVOLUTIONS = {"resnet", "efficientnet-lite"}  # which have no such matrices
NAMES = [name for name in MODELS.names() if name not in CONVOLUTIONS | {"unit"}]  # which has tasks, not a task


def folder_of(folder: Path, module: SequenceModel, **about: Any) -> Path:
    """A model folder of a random model, in the published form where there is one."""
    side = SMALL["image"]
    kinds = {"image": ImageProcessor((side, side)), "audio": FeatureExtractor(bins=SMALL["features"])}
    body = body_of(module)
    others = {kind: kinds[kind] for kind in body.processors_of(body.config) if kind in kinds}
    folder.mkdir(parents=True)
    shake(module, 0.05)
    save_model(folder, module, Processors(TOKENIZER, others=others), task="lm", about=about, card="")
    return folder


def same(found: SequenceModel, expected: SequenceModel) -> None:
    """Both have the same modules and the same bits."""
    kinds = [{name: type(part) for name, part in model.named_modules()} for model in (found, expected)]
    assert kinds[0] == kinds[1]
    held = [dict([*model.named_parameters(), *model.named_buffers()]) for model in (found, expected)]
    assert held[0].keys() == held[1].keys()
    for name, tensor in held[1].items():
        assert held[0][name].dtype == tensor.dtype, name
        assert torch.equal(held[0][name], tensor), name
        assert held[0][name].requires_grad == tensor.requires_grad, name
    assert not any(isinstance(tensor, Deferred) for tensor in held[0].values())
    for first, second in zip(found.modules(), expected.modules(), strict=True):
        assert first.training == second.training


def read_both(place: Path, width: str, **more: Any) -> tuple[SequenceModel, SequenceModel]:
    """The model as it is read into a width, and made narrow after it was read wide."""
    straight, wide = read_model(place, quantize=width, **more).module, read_model(place, **more).module
    if is_quantized(wide):  # of a GGUF file, which is wide only where it is asked for so
        wide = load_model(place).module
    assert quantize_layers(body_of(wide), width)
    return straight, wide


# --- the same bits --------------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", WIDTHS[::-1])
def test_every_model_is_read_as_it_would_be_quantised(name: str, width: str, tmp_path: Path) -> None:
    module = made(name, TOKENIZER.size, **WIDE)
    same(*read_both(folder_of(tmp_path / "m", module), width))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "distilbert", "roberta"])
@pytest.mark.parametrize("width", WIDTHS)
def test_published_models_are_read_so(name: str, width: str, tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "m", name, width=64, feedforward=96)
    same(*read_both(folder, width))
    same(*read_both(folder, width, dtype=torch.bfloat16))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("copied", [True, False])
def test_tied_tables_stay_tied(tied: bool, copied: bool, tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "m", "llama", width=64, tied=tied)
    if tied and copied:  # the readout is in the file once more
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        save_file(tensors, folder / "model.safetensors")
    found, expected = read_both(folder, "int8")
    same(found, expected)
    assert (found.embedding.blocks is found.output.blocks) == tied


@pytest.mark.parametrize("width", WIDTHS)
def test_shards_are_read_so(width: str, tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    module = made("gpt2", TOKENIZER.size, **WIDE)
    settings: dict[str, Any] = {"task": "lm", "about": {}, "card": ""}
    save_model(tmp_path / "m", module, Processors(TOKENIZER), largest=60_000, **settings)
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    same(*read_both(tmp_path / "m", width))


HEADS = {
    "bert": HeadSpec(kind="classes", outputs=3),
    "roberta": HeadSpec(kind="classes", outputs=3),
    "distilbert": HeadSpec(kind="tags", outputs=40),
    "gpt2": HeadSpec(kind="spans", outputs=2),
    "llama": HeadSpec(kind="classes", outputs=3, layers="mix", pool="attention"),
    "lstm": HeadSpec(kind="tags", outputs=3, lstm=1, width=64, crf=True),
    "elmo": HeadSpec(kind="classes", outputs=40, layers="mix", lstm=1, width=64),
    "vit": HeadSpec(kind="classes", outputs=3),
    "conformer": HeadSpec(kind="ctc", outputs=5),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [*HEADS])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_head_stays_wide(name: str, width: str, tmp_path: Path) -> None:
    shape = HEADS[name]
    module = ModelWithHead(made(name, TOKENIZER.size, **WIDE), shape).eval()
    labels = [f"L{number}" for number in range(shape.outputs)]
    folder = folder_of(tmp_path / "m", module, labels=labels)
    found, expected = read_both(folder, width)
    same(found, expected)
    assert isinstance(found, ModelWithHead)
    assert not is_quantized(found.head)


GGUF = ["llama", "llama-tied", "qwen3", "gpt2"], ["F32", "F16", "BF16", "Q8_0", "Q4_1"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", GGUF[0])
@pytest.mark.parametrize("kind", GGUF[1])
def test_gguf_files_are_read_so(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = gguf_file(tmp_path / "m.gguf", name, kind=kind)
    same(*read_both(file, "int4"))
    monkeypatch.setattr(weights, "SOME", 1 << 11)  # 32 rows at once: heads are read in parts
    same(*read_both(file, "int8"))


def test_rows_of_heads_are_read_from_any_place(tmp_path: Path) -> None:
    header = read_header(gguf_file(tmp_path / "m.gguf", "llama"))
    architecture, config = read_config(header)
    rows = FileRows(header, "blk.0.attn_q.weight", architecture, SimpleNamespace(config=config))
    whole = rows[0 : len(rows)]
    for start, stop in ((1, 2), (3, len(rows)), (5, 9)):
        assert torch.equal(rows[start:stop], whole[start:stop])


ADAPTERS: list[dict[str, Any]] = [{"name": "lora", "rank": 2}, {"name": "bitfit"}, {"name": "head"}]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("settings", ADAPTERS, ids=lambda settings: settings["name"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_adapters_are_merged_before(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    base = published_folder(tmp_path / "base", name, width=64, feedforward=96)
    head = HeadSpec(kind="classes", outputs=3)
    model, loaded = adapted(base, head=head, **settings)
    folder = saved(tmp_path / "a", model, loaded, "classification", labels=["a", "b", "c"])
    found, expected = read_both(folder, "int8")
    same(found, expected)
    assert found.merged is not None
    assert found.merged.tensors.keys() == expected.merged.tensors.keys()
    assert all(torch.equal(tensor, expected.merged.tensors[name]) for name, tensor in found.merged.tensors.items())
    written = export(folder, "legato", out=tmp_path / "q", quantize="int8")
    same(read_model(written).module, expected)


@pytest.mark.parametrize("settings", [{"name": "head"}, {"name": "lora", "targets": ("dense",)}])
def test_heads_that_the_base_lacks_are_read_so(settings: dict[str, Any], tmp_path: Path) -> None:
    base = published_folder(tmp_path / "base", "bert", width=64, masked_words=False, next_sentence=False)
    loaded = load_model(base)
    module = MODELS.get("bert")(loaded.module.config.model_copy(update={"masked_words": True}), loaded.module.sizes)
    module.load_state_dict(loaded.module.state_dict(), strict=False)
    adapt(module, AdaptConfig(**settings), Base.of(str(base), loaded))
    shake(module)
    same(*read_both(saved(tmp_path / "a", module.eval(), loaded, task="mlm"), "int8"))


def test_adapters_of_adapters_are_merged_before(tmp_path: Path) -> None:
    base = published_folder(tmp_path / "base", "gpt2", width=64)
    first = saved(tmp_path / "a", *adapted(base, name="lora", rank=2))
    second = saved(tmp_path / "b", *adapted(first, name="bitfit"))
    same(*read_both(second, "int8"))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["gpt2", "lstm", "elmo"])
def test_what_it_was_made_of_is_known(name: str, width: str, tmp_path: Path) -> None:
    module = ModelWithHead(made(name, TOKENIZER.size, **WIDE), HeadSpec(kind="tags", outputs=3)).eval()
    folder = folder_of(tmp_path / "m", module, labels=["a", "b", "c"])
    found = read_model(folder, quantize=width, frozen=True).module
    assert body_of(found).original == digest_of(load_model(folder).module)


# --- what memory it takes -------------------------------------------------------------------------------


class LargestWritten(TorchDispatchMode):
    """How many numbers the largest float tensor in memory has that is written while this is on."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        views = [each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns]
        if not any(views) and not func.name().startswith("aten::empty"):
            for tensor in found if isinstance(found, tuple | list) else [found]:
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.is_cpu:
                    self.largest = max(self.largest, tensor.numel())
        return found


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "lstm"])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_wide_matrix_is_ever_made(name: str, width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"width": 128, "embedding": 128, "feedforward": 256, "length": 16}
    folder = folder_of(tmp_path / "m", made(name, TOKENIZER.size, **sizes))
    monkeypatch.setattr(weights, "SOME", 1 << 12)
    with LargestWritten() as wide:
        read_model(folder)
    with LargestWritten() as straight:
        read_model(folder, quantize=width)
    assert wide.largest >= 128 * 128
    assert straight.largest <= 1 << 12


MEASURED = """
import json, sys
from legato.folders.model_folder import read_model

def memory():
    lines = (line.split(":") for line in open("/proc/self/status") if line.startswith("Vm"))
    return {name: int(value.split()[0]) * 1024 for name, value in lines}

small, large, width = sys.argv[1:]
read_model(small, quantize=width)  # what is imported meanwhile does not count
open("/proc/self/clear_refs", "w").write("5")  # the highest so far is what there is now
before = memory()["VmRSS"]
module = read_model(large, quantize=width).module
held = {id(part): part.nbytes for part in (*module.parameters(), *module.buffers())}
print(json.dumps([memory()["VmHWM"] - before, sum(held.values())]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="Linux tells the most memory there was")
def test_the_most_memory_is_little_more_than_the_model(tmp_path: Path) -> None:
    """In a process of its own. The constant is what some rows take, and what an allocator keeps."""
    small = made("llama", TOKENIZER.size, **WIDE)
    large = made("llama", TOKENIZER.size, layers=4, width=1024, heads=8, feedforward=2816)
    folders = [folder_of(tmp_path / name, each.half()) for name, each in (("small", small), ("large", large))]
    numbers = sum(parameter.numel() for parameter in large.parameters())
    assert numbers > 50e6
    words = [sys.executable, "-c", MEASURED, *map(str, folders), "int8"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    most, size = json.loads(done.stdout)
    assert size < 1.1 * numbers
    assert most < 1.2 * size + 48 * 2**20, f"{most:,} bytes for a model of {size:,}"


def test_pages_of_a_file_are_let_go_and_others_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {"a": torch.randn(512, 512), "b": torch.randn(300, 7)}
    save_file(tensors, tmp_path / "x.safetensors")
    mapped = load_file(tmp_path / "x.safetensors")
    own = tensors["a"].clone()
    for tensor in (mapped["a"], mapped["a"].t(), mapped["a"][5:200], mapped["b"], own, torch.empty(0)):
        memory.let_go(tensor)
    assert torch.equal(own, tensors["a"])
    assert all(torch.equal(mapped[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("width", WIDTHS)
def test_a_model_is_refused_by_what_it_takes_when_narrow(
    width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = made("llama", TOKENIZER.size, **WIDE)
    folder = folder_of(tmp_path / "m", module)
    size = (folder / "model.safetensors").stat().st_size
    free = int(size / 4 * (1.2 if width == "int8" else 0.7))
    monkeypatch.setattr(memory, "available", lambda: free)
    with pytest.raises(FolderError, match="of memory, and"):
        read_model(folder)
    assert is_quantized(read_model(folder, quantize=width).module)
    monkeypatch.setattr(memory, "available", lambda: free // 2)
    with pytest.raises(FolderError, match="of memory, and"):
        read_model(folder, quantize=width)


# --- matrices that wait ---------------------------------------------------------------------------------


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.small = Linear(64, 32), nn.Linear(8, 8)
        self.table, self.output = TokenEmbedding(20, 64), Readout(64, 20)
        self.output.weight = self.table.weight


def test_layers_wait_only_where_they_are_told_to() -> None:
    with deferring(1.0):
        module = Layers()
        other: list[Layers] = []
        thread = threading.Thread(target=lambda: other.append(Layers()))  # somebody else's model
        thread.start()
        thread.join()
    assert isinstance(module.inner.weight, Deferred)
    assert module.table.weight is module.output.weight
    assert not module.inner.bias.is_meta
    assert not module.small.weight.is_meta
    assert not any(parameter.is_meta for each in (other[0], Layers()) for parameter in each.parameters())


@pytest.mark.parametrize("changed", [False, True])
def test_what_waits_is_read_when_it_is_wanted(changed: bool) -> None:
    torch.manual_seed(0)
    parts, table = [torch.randn(20, 64), torch.randn(64, 12).t()], torch.randn(20, 64)
    with deferring(1.0):
        module = Layers()
    weight = module.inner.weight
    assert isinstance(weight, Deferred)
    weight.stacked = list(parts)
    put(module.table.weight, table)
    if changed:
        change(weight, lambda whole: whole[3:5].zero_())
        parts[0][3:5] = 0 if changed else parts[0][3:5]
    expected = torch.cat(parts)
    assert torch.equal(weight.read(), expected)
    assert torch.equal(quantize(weight, 8).blocks, quantize(expected, 8).blocks)
    read_deferred(module)
    assert torch.equal(module.inner.weight, expected)
    assert module.output.weight is module.table.weight
    assert torch.equal(module.output.weight[:20], table)
    assert not module.output.weight[20:].any()  # rows that no token has
    assert module.inner.weight.requires_grad
