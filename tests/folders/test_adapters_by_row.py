"""Adapters that share a base: rows of one batch are written as each adapter's own model writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import legato
from legato.data.text.tokenizers import StreamDecoder
from legato.decoding import SearchOptions
from legato.decoding.engine import Engine
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.errors import FolderError
from legato.folders.adapters.by_row import SharedBase, find_adapter
from legato.folders.adapters.peft_files import CONFIG, WEIGHTS
from legato.model import Model
from legato.models.model_with_head import HeadSpec
from legato.nn.adapters.lora import LowRank
from legato.nn.adapters.lora_by_row import AdapterRows, adapter_rows
from tiny_adapted import adapted, published_folder, saved
from tiny_published import change

ADAPTERS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "all": {"rank": 4, "alpha": 9.0, "targets": ["all-linear"]},
        "queries": {"rank": 2, "rslora": True},
        "up": {"rank": 7, "targets": ["up_proj", "o_proj"]},
    },
    "gpt2": {
        "all": {"rank": 4, "alpha": 9.0, "targets": ["all-linear"]},
        "attention": {"rank": 2, "rslora": True},
        "feedforward": {"rank": 7, "targets": ["mlp.c_fc"]},
    },
}
HOWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"search": "sample", "seed": 5, "top_p": 0.9},
    "beam": {"search": "beam", "beams": 3},
}
PROMPTS = ["the cat", "a dog runs and runs, as dogs do", "b"]


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def kind(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def places(kind: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base, and adapters of it by their names."""
    home = tmp_path_factory.mktemp(kind)
    config = {"width": 32, **({"kv_heads": 1} if kind == "llama" else {})}
    base = published_folder(home / "base", kind, **config)
    found = {"base": base}
    for number, (name, settings) in enumerate(ADAPTERS[kind].items()):
        torch.manual_seed(number)
        found[name] = saved(home / name, *adapted(base, name="lora", **settings))
    return found


def shared_by(places: dict[str, Path], **how: Any) -> tuple[Model, dict[str, Model]]:
    """The base, and by its name whatever writes with it: itself, and its adapters."""
    base = legato.load(places["base"], "cpu", **how)
    shared = SharedBase(base.loaded)
    found = {name: Model(shared.put(place), base.device) for name, place in places.items() if name != "base"}
    return base, {"base": base, **found}


def written_in_one_batch(
    base: Model, models: dict[str, Model], how: dict[str, Any], *, rows: int | None = None, **engine: Any
) -> dict[tuple[str, str], str]:
    """Every prompt by every model: the first before the others join, and some leave before others."""
    made = Engine(base.module, ends=base.loaded.ends, rows=rows, **engine)
    numbers, decode = {}, base.tokenizer.decode
    for place, prompt in enumerate(PROMPTS):
        for name, model in models.items():
            options = SearchOptions(max_tokens=6 + 3 * place, **how)
            ids = model.begin(prompt, options)
            (number,) = made.add([ids], options, text_of=decode, adapter=model.loaded.adapter, ends=model.loaded.ends)
            numbers[number] = name, prompt, ids
        made.step()
    while made.step():
        pass
    found = {}
    for number, (name, prompt, ids) in numbers.items():
        decoder = StreamDecoder(base.tokenizer, after=ids)
        tokens = made.take(number)[0].tokens
        found[name, prompt] = "".join(decoder.push(token) for token in tokens) + decoder.finish()
    return found


def written_alone(places: dict[str, Path], how: dict[str, Any], **width: Any) -> dict[tuple[str, str], str]:
    """The same by the whole model that each adapter and the base make."""
    found = {}
    for name, place in places.items():
        model = legato.load(place, "cpu", **width)
        for number, prompt in enumerate(PROMPTS):
            found[name, prompt] = str(model.generate(prompt, max_tokens=6 + 3 * number, **how))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
def test_rows_of_one_batch_are_written_as_by_their_own_models(places: dict[str, Path], how: str) -> None:
    alone = written_alone(places, HOWS[how])
    assert len({text for (_, prompt), text in alone.items() if prompt == PROMPTS[1]}) == 4  # adapters count
    base, models = shared_by(places)
    assert written_in_one_batch(base, models, HOWS[how]) == alone
    assert written_in_one_batch(base, models, HOWS[how], rows=5, chunk=3) == alone


def test_what_was_read_of_a_prompt_is_kept_for_its_adapter_alone(places: dict[str, Path]) -> None:
    alone = written_alone(places, {})
    base, models = shared_by(places)
    prefixes = PrefixCache(1 << 20)
    for _ in range(2):
        assert written_in_one_batch(base, models, {}, prefixes=prefixes) == alone


def test_adapters_stand_beside_narrow_matrices(tmp_path: Path) -> None:
    places = {"base": published_folder(tmp_path / "base", "llama", width=64, feedforward=64, kv_heads=1)}
    for number, (name, settings) in enumerate(ADAPTERS["llama"].items()):
        torch.manual_seed(number)
        places[name] = saved(tmp_path / name, *adapted(places["base"], name="lora", **settings))
    base, models = shared_by(places, quantize="int8")
    mixed = written_in_one_batch(base, models, {})
    for name, model in models.items():
        assert {key: text for key, text in mixed.items() if key[0] == name} == written_in_one_batch(
            base, {name: model}, {}
        )
    assert {key: text for key, text in mixed.items() if key[0] == "base"} == written_alone(
        {"base": places["base"]}, {}, quantize="int8"
    )
    assert len(set(mixed.values())) > 6


def test_logits_of_adapters_beside_narrow_matrices_are_those_of_the_sum(tmp_path: Path) -> None:
    """W x + s B A x, with W as the narrow matrix has it: what the adapter alone, beside it, gives."""
    base_place = published_folder(tmp_path / "base", "llama", width=64, feedforward=64)
    model, loaded = adapted(base_place, name="lora", rank=3, targets=["all-linear"])
    model.adapter = replace(model.adapter, quantize="int8")  # as if it had been trained beside narrow matrices
    place = saved(tmp_path / "adapter", model, loaded)
    alone = legato.load(place, "cpu", quantize="int8")
    assert isinstance(alone.module.stack.layers[0].attention.qkv.low_rank, LowRank)
    base = legato.load(base_place, "cpu", quantize="int8")
    number = SharedBase(base.loaded).put(place).adapter
    ids = [5, 17, 60, 8]
    with torch.no_grad(), adapter_rows(AdapterRows.all_of(number)):
        ours = base.module.readout(base.module(_batch(ids)).hidden)
    with torch.no_grad():
        theirs = alone.module.readout(alone.module(_batch(ids)).hidden)
        plain = base.module.readout(base.module(_batch(ids)).hidden)
    assert torch.allclose(ours, theirs, atol=1e-4)
    assert not torch.allclose(ours, plain, atol=1e-2)


def _batch(ids: list[int]) -> Any:
    from legato.data.batching.batch import Batch, Inputs

    return Batch(Inputs(torch.tensor([ids])))


# ── what does not fit ─────────────────────────────────────────────────────────────────────────────


def refusal(places: dict[str, Path], folder: Path) -> str:
    base = legato.load(places["base"], "cpu")
    with pytest.raises(FolderError) as caught:
        SharedBase(base.loaded).put(folder)
    assert "\n" not in str(caught.value)
    layers = [layer for layer in base.module.modules() if getattr(layer, "low_rank_rows", None) is not None]
    assert not layers  # nothing is left of it
    return str(caught.value)


def test_an_adapter_of_other_weights_is_refused(places: dict[str, Path], kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = published_folder(tmp_path / "other", kind, width=32, feedforward=48)
    folder = saved(tmp_path / "adapter", *adapted(other, name="lora", targets=["all-linear"]))
    assert "is an adapter for another base: it was trained for" in refusal(places, folder)
    (folder / "legato.json").unlink()  # as peft's own folders
    assert "is an adapter for another base: its '" in refusal(places, folder)


def test_an_adapter_of_modules_that_the_base_lacks_is_refused(places: dict[str, Path], tmp_path: Path) -> None:
    folder = peft_folder(places, tmp_path)
    tensors = load_file(folder / WEIGHTS)
    save_file(
        {name.replace("layers.0", "layers.7").replace("h.0", "h.7"): t for name, t in tensors.items()},
        folder / WEIGHTS,
    )
    assert "it needs a matrix '" in refusal(places, folder)


def test_what_was_trained_as_it_is_cannot_be_shared(places: dict[str, Path], tmp_path: Path) -> None:
    with_head = saved(
        tmp_path / "head",
        *adapted(places["base"], name="lora", head=HeadSpec(kind="classes", outputs=2)),
        task="classification",
        labels=["a", "b"],
    )
    assert "trained as it is, so that it cannot share its base" in refusal(places, with_head)
    biases = saved(tmp_path / "biases", *adapted(places["base"], name="bitfit")) if "gpt2" in str(places) else None
    if biases is not None:
        assert "holds no low-rank adapter" in refusal(places, biases)


def peft_folder(places: dict[str, Path], tmp_path: Path) -> Path:
    """An adapter without what only our own folders say."""
    import shutil

    shutil.copytree(places["all"], tmp_path / "peft")
    (tmp_path / "peft" / "legato.json").unlink()
    return tmp_path / "peft"


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"peft_type": "IA3"}, "an adapter of type 'IA3'"),
        ({"r": 3}, "has rank 3"),
    ],
)
def test_other_kinds_of_adapters_are_refused(
    places: dict[str, Path], tmp_path: Path, entries: dict[str, Any], reason: str
) -> None:
    folder = peft_folder(places, tmp_path)
    change(folder / CONFIG, **entries)
    assert reason in refusal(places, folder)


def test_damaged_files_are_refused(places: dict[str, Path], tmp_path: Path) -> None:
    folder = peft_folder(places, tmp_path)
    tensors = load_file(folder / WEIGHTS)
    name = sorted(tensors)[0]
    save_file({**tensors, name: torch.full_like(tensors[name], torch.nan)}, folder / WEIGHTS)
    assert "holds numbers that are not finite" in refusal(places, folder)
    raw = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(raw[:-8])
    assert "is damaged" in refusal(places, folder)


def test_an_adapter_says_which_model_it_is_for(places: dict[str, Path], kind: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = published_folder(tmp_path / "other", kind, width=32, layers=1)
    first, second = (SharedBase(legato.load(place, "cpu").loaded, "org/name") for place in (places["base"], other))
    assert first.is_base_of(places["all"])
    assert not second.is_base_of(places["all"])
    narrow = SharedBase(legato.load(places["base"], "cpu", dtype="bfloat16").loaded)
    assert narrow.is_base_of(places["all"])  # however wide it is
    folder = peft_folder(places, tmp_path)
    assert first.is_base_of(folder)
    assert not second.is_base_of(folder)
    change(folder / CONFIG, base_model_name_or_path="org/name")
    assert second.is_base_of(folder)
    change(folder / CONFIG, base_model_name_or_path="org/other")
    assert not second.is_base_of(folder)


def test_a_whole_model_is_no_adapter(places: dict[str, Path]) -> None:
    with pytest.raises(FolderError, match="holds a whole model, not an adapter"):
        find_adapter(str(places["base"]))
    assert find_adapter(str(places["all"])) == places["all"]
