"""Writing the folder of a model of which little was trained: what there is in it says `loading.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from legato.folders.adapters import peft_files
from legato.folders.adapters.file_names import (
    bare,
    low_rank_pairs,
    module_of,
    peft_has,
    tensors_below,
    trained_tensors,
    written_targets,
)
from legato.folders.adapters.info import AdapterInfo
from legato.folders.json_files import write_json
from legato.folders.weights import save_tensors
from legato.models.base import SequenceModel
from legato.models.model_with_head import body_of

OURS: Final = "legato.json"
CHANGED: Final = "changed.safetensors"


def save_adapter(folder: Path, module: SequenceModel, adaptation: AdapterInfo, about: dict[str, Any]) -> None:
    """Write what was trained of `module`, and what it takes to put it back; `about` is our own key's content.

    Where lora went on from an adapter, both are written as one, for the whole model below.
    """
    local = Path(adaptation.base)
    place = str(local.resolve()) if local.exists() else adaptation.base
    told: dict[str, Any] = {
        "legato": about,
        "model": body_of(module).config.model_dump(mode="json"),
        "adapt": adaptation.told(),
        "base": {"path": place, "given": adaptation.base, "digest": adaptation.digest},
    }
    trained = trained_tensors(module)
    if adaptation.name != "lora":
        write_json(folder / OURS, {**told, "trained": sorted(trained)})
        save_tensors(trained, folder / CHANGED)
        return
    low = _save_low_rank(folder, module, adaptation, place, str(about.get("task")), trained)
    write_json(folder / OURS, {**told, "trained": sorted({*trained, *low})})


def _save_low_rank(
    folder: Path, module: SequenceModel, adaptation: AdapterInfo, place: str, task: str, trained: dict[str, Tensor]
) -> list[str]:
    """Write peft's two files, and what peft could put nowhere into a third; what adapters below changed, too.

    The names of what was written, as we know them.
    """
    below, plain = adaptation.below, not peft_has(module, task)
    pairs, turned = low_rank_pairs(module, below)
    before = {} if below is None else tensors_below(module, below)
    beside = {name for name in before if bare(name, module) == name} | set(trained) if plain else set()
    saved = {module_of(name, module) for name in trained if name not in beside}
    saved |= {_owner(name) for name in before if not name.endswith(".bias") and name not in beside}
    saved -= set(pairs)
    known = {f"{path}.lora_{part}.weight": pair["AB".index(part)] for path, pair in pairs.items() for part in "AB"}
    known |= {name: tensor for name, tensor in {**before, **trained}.items() if name not in beside}

    def written(path: str) -> str:
        return bare(path, module) if plain else path

    scaling = peft_files.alike(adaptation.rank, adaptation.alpha, adaptation.rslora)
    if below is not None:
        scaling = peft_files.unscaled({written(path): len(a) for path, (a, _) in pairs.items()})
    config = peft_files.write_config(
        base=place,
        task=task,
        scaling=scaling,
        dropout=adaptation.dropout,
        targets=written_targets(module, pairs, adaptation.targets, plain),
        saved={written(name) for name in saved},
        biases=any(_owner(name) not in saved for name in before if name not in beside),
        turned=turned,
        plain=plain,
    )
    write_json(folder / peft_files.CONFIG, config)
    files = {peft_files.ROOT + written(_inside(name, pairs)): tensor for name, tensor in known.items()}
    save_tensors(files, folder / peft_files.WEIGHTS)
    if beside:
        save_tensors({n: t for n, t in {**before, **trained}.items() if n in beside}, folder / CHANGED)
    return [*known, *beside]


def _owner(name: str) -> str:
    """The module that a tensor belongs to."""
    return name.rpartition(".")[0]


def _inside(name: str, pairs: Mapping[str, Any]) -> str:
    """Where peft has a tensor: a module beside which it put adapters lies one step further in."""
    owner = _owner(name)
    return f"{owner}.base_layer{name.removeprefix(owner)}" if owner in pairs else name
