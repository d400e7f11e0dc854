"""Sizes that a folder asks for: compared with what its weights hold before memory or time is spent on them."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

from legato import memory
from legato.config import validate
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import ConfigError, FolderError
from legato.folders.model_folder import load_model, save_model
from legato.models import building
from legato.models.base import SequenceModel, Sizes
from legato.models.building import MAKING
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from legato.runs.train import train
from thinned import some
from tiny_adapted import adapted, published_folder, saved
from tiny_parakeet import parakeet_folder
from tiny_published import change, write
from tiny_runs import small

PUBLISHED = ["bert", "roberta", "distilbert", "gpt2", "llama"]
TOKENIZER = Tokenizer.train(TokenizerConfig(name="char"), ["the cat sat on the mat"])
HEAD = HeadSpec(kind="tags", outputs=3, lstm=1, width=8, crf=True)
LARGE = 1 << 22  # numbers, far more than any of these models has


class NothingLarge(TorchFunctionMode):
    """While this is on, no tensor of many numbers is made where it takes memory, and not many at all."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in MAKING:
            self.made += 1
            assert self.made < 5000, "a model of very many layers is being made"
            device = kwargs.get("device")
            if device is None or torch.device(device).type != "meta":
                sizes = [size for part in args for size in (part if isinstance(part, tuple | list) else [part])]
                count = 1
                for size in sizes:
                    count *= size if isinstance(size, int) else 1
                assert count < LARGE, f"a tensor of {sizes} is being made"
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def nothing_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(building, "SPARE_NUMBERS", 1 << 20)
    with NothingLarge():
        yield


def own_folder(folder: Path, name: str, *, head: HeadSpec | None = None) -> Path:
    model: type[SequenceModel] = MODELS.get(name)
    known = {"name": name, "width": 8, "embedding": 6, "heads": 2, "norm": "pre", "characters": 4}
    settings = {key: value for key, value in known.items() if key in model.Config.model_fields}
    module = model(validate(model.Config, settings), Sizes(TOKENIZER.size))
    whole = module if head is None else ModelWithHead(module, head)
    folder.mkdir(parents=True)
    about = {"labels": ["a", "b", "c"]} if head else {}
    save_model(folder, whole, Processors(TOKENIZER), task="tagging" if head else "lm", about=about, card="# card\n")
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(FolderError) as problem:
        load_model(folder)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def every_size_is_refused(folder: Path, file: str, inside: tuple[str, ...] = ()) -> None:
    """Each entry that is a number, made huge, is refused, or was no size: then the folder loads as before."""
    whole = json.loads((folder / file).read_text())
    section = whole
    for name in inside:
        section = section[name]
    sizes = [key for key, value in section.items() if isinstance(value, int) and not isinstance(value, bool)]
    assert sizes
    for key in sizes:
        before, refusals = section[key], 0
        for value in (1000, 10**6, 10**9, 10**15):
            section[key] = value
            write(folder / file, whole)
            try:
                load_model(folder)
            except FolderError:
                refusals += 1
        assert refusals in (0, 3, 4) or key in ("max_position_embeddings", "length") or key.endswith("_token_id"), key
        section[key] = before
    write(folder / file, whole)
    load_model(folder)


@pytest.mark.parametrize("name", some(PUBLISHED, ["bert", "gpt2"]))
def test_no_size_of_a_published_folder_is_made_before_it_is_compared(name: str, tmp_path: Path) -> None:
    every_size_is_refused(published_folder(tmp_path / "model", name), "config.json")


@pytest.mark.slow
@pytest.mark.parametrize("inside", [(), ("encoder_config",)])
def test_no_size_of_a_published_model_of_sound_is_made_before_it_is_compared(
    inside: tuple[str, ...], tmp_path: Path
) -> None:
    parakeet_folder(tmp_path)
    every_size_is_refused(tmp_path, "config.json", inside)


OWN = ["lstm", "gru", "elman", "elmo", "window", "word2vec", "seq2seq", "transformer"]


@pytest.mark.parametrize("name", some(OWN, OWN[::2]))
def test_no_size_of_our_own_folder_is_made_before_it_is_compared(name: str, tmp_path: Path) -> None:
    every_size_is_refused(own_folder(tmp_path / "model", name), "config.json")


@pytest.mark.parametrize("name", ["lstm", "bert"])
def test_no_size_of_a_head_is_made_before_it_is_compared(name: str, tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "model", name, head=HEAD)
    every_size_is_refused(folder, "config.json", ("legato", "head"))


@pytest.mark.slow
@pytest.mark.parametrize("inside", [("model",), ("legato", "head")])
def test_no_size_of_an_adapter_is_made_before_it_is_compared(inside: tuple[str, ...], tmp_path: Path) -> None:
    model, loaded = adapted(published_folder(tmp_path / "base", "bert"), head=HEAD, name="bitfit")
    folder = saved(tmp_path / "adapter", model, loaded, task="tagging", labels=["a", "b", "c"])
    every_size_is_refused(folder, "legato.json", inside)


@pytest.mark.slow
def test_a_million_layers_are_refused_by_what_the_weights_could_fill(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "model", "qwen2" if "qwen2" in MODELS else "llama", family="qwen2")
    change(folder / "config.json", num_hidden_layers=10**9)
    assert "'num_hidden_layers' should be less than or equal to 16777216" in refused(folder)
    change(folder / "config.json", num_hidden_layers=10**6, layer_types=None)
    assert "layers=1000000 should be less than or equal to" in refused(folder)
    change(folder / "config.json", num_hidden_layers=900, layer_types=None)
    assert "describes a model of far more layers than the 27 tensors of its weights could fill" in refused(folder)


def test_positions_that_no_file_holds_must_fit_into_memory(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "model", "llama")
    change(folder / "config.json", max_position_embeddings=2**24)
    assert "describes a model whose positions alone take" in refused(folder)


def test_a_file_that_claims_more_than_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = published_folder(tmp_path / "model", "gpt2")
    rows = 2**38
    header = {"transformer.wte.weight": {"dtype": "F32", "shape": [rows], "data_offsets": [0, 4 * rows]}}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 4 * rows)  # a sparse file: it takes nothing on disk
    monkeypatch.setattr(memory, "available", lambda: 10**9)
    assert "takes 1.1 TB of memory, and 1 GB is available" in refused(folder)


def test_a_model_that_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = published_folder(tmp_path / "model", "gpt2")
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, folder / "model.safetensors")
    size = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(memory, "available", lambda: size)
    assert "use a machine with more" in refused(folder)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "lstm", "model.width": 131072}, "make it smaller: model.layers, model.width"),
        ({"model": "gpt2", "model.width": 131072, "model.heads": 2}, "parameters, takes"),
        ({"model": "gpt2", "model.layers": 10**6}, "should be less than or equal to"),
        ({"model": "lstm", "model.width": 10**15}, "should be less than or equal to"),
    ],
)
def test_settings_that_memory_cannot_hold_are_refused_with_the_figure(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        train("lm", {**small(tmp_path), **settings}, out=str(tmp_path / "run"), quiet=True)


def test_a_head_that_memory_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "good film\tyes\nbad film\tno\n" * 8)
    settings = {"data.train": str(tmp_path / "a.tsv"), "data.valid": str(tmp_path / "a.tsv"), "model": "lstm"}
    settings |= {"model.width": "8", "head.lstm": "1", "head.width": str(131072), "tokenizer": "word"}
    monkeypatch.setattr(memory, "available", lambda: 10**8)
    with pytest.raises(ConfigError, match=r"head\.width=131072 and head\.lstm=1 takes more memory"):
        train("classification", settings, out=str(tmp_path / "run"), quiet=True)


def test_an_index_of_shards_is_held_to_memory_too(tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "model", "gpt2")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    change(other / "config.json", vocab_size=2**24)
    assert "should have shape (16777216, 16)" in refused(other)
