"""A model of which little was trained: what it was before, and writing its folder. `loading.py` says what is in it.

Its files call a model's tensors and matrices as Hugging Face does where it has the model, else as we do. A path may
lack what a body's names begin with where its class has no head: `encoder.layer.0…` for `bert.encoder.layer.0…`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from legato.folders.adapters import peft_files
from legato.folders.weights import save_tensors, weights_of
from legato.models.base import SequenceModel
from legato.models.model_with_head import BODY, ModelWithHead, body_of
from legato.models.published.family import form_of
from legato.models.published.matrices import LOW_RANK, Matrix, matrices_of, names_of, published_head
from legato.models.published.tensor_names import From, Names, to_hf
from legato.nn.quantized.deferred import numbers_of
from legato.schema import write_json

OURS: Final = "legato.json"
CHANGED: Final = "changed.safetensors"
HEAD: Final = "head."  # before the names of a head's tensors, where no published form has it
SAMPLED: Final = 2**16  # of a large tensor's numbers, those whose order counts too
NOTE: Final = "\n## What this folder holds\n"
LowRankPairs = dict[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class MergedAdapters:
    """What adapters have made of a whole model already. A module that was read from one carries it as `merged`."""

    root: str  # the folder or the hub's name of the whole model
    digest: str  # of its weights
    pairs: dict[tuple[str, int, int], tuple[Tensor, Tensor]]  # A and s B, by layer of the body, first and last row
    tensors: dict[str, Tensor]  # those of the body that were trained as they are, by our names


@dataclass(frozen=True)
class AdapterInfo:
    """How little of a model was trained. A module that carries one as `adapter` is saved as an adapter."""

    name: str  # lora, bitfit or head
    base: str  # the folder or the hub's name of what the files are for
    digest: str  # of the base's weights
    rank: int = 0
    alpha: float = 0.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    rslora: bool = False
    quantize: str | None = None  # how narrow the base was made for it
    below: MergedAdapters | None = field(default=None, repr=False)  # lora: adapters that these are saved as one with


def digest_of(module: SequenceModel) -> str:
    """What tells weights from others. Every bit counts, and gigabytes take a second rather than a minute:

    of a tensor's bytes, taken eight at a time, the sum (exact, and so the same on every machine) and a sample.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights_of(module).items()):
        raw = numbers_of(tensor).cpu().contiguous().flatten().view(torch.uint8)
        whole = raw[: len(raw) // 8 * 8].view(torch.int64)
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {int(whole.sum())}\n".encode())
        digest.update(
            whole[:: max(1, len(whole) // SAMPLED)].numpy().tobytes() + raw[len(whole) * 8 :].numpy().tobytes()
        )
    return digest.hexdigest()


def save_adapter(folder: Path, module: SequenceModel, adaptation: AdapterInfo, about: dict[str, Any]) -> None:
    """Write what was trained of `module`, and what it takes to put it back; `about` is our own key's content.

    Where lora went on from an adapter, both are written as one, for the whole model below.
    """
    local = Path(adaptation.base)
    place = str(local.resolve()) if local.exists() else adaptation.base
    told: dict[str, Any] = {
        "legato": about,
        "model": body_of(module).config.model_dump(mode="json"),
        "adapt": {name: value for name, value in vars(adaptation).items() if name not in ("base", "digest", "below")},
        "base": {"path": place, "given": adaptation.base, "digest": adaptation.digest},
    }
    as_they_are = {name for name, p in module.named_parameters() if p.requires_grad and LOW_RANK not in name}
    trained = to_hf(module, {name: source for name, source in file_names(module).items() if name in as_they_are})
    names = {*trained}
    if adaptation.name == "lora":
        names.update(_save_low_rank(folder, module, adaptation, place, str(about.get("task")), trained))
    else:
        save_tensors(trained, folder / CHANGED)
    write_json(folder / OURS, {**told, "trained": sorted(names)})


def adapter_note(adaptation: AdapterInfo) -> str:
    """The end of the model card: what is here, and what is not."""
    kept = {
        "lora": "low-rank adapters, and the task's head if any",
        "bitfit": "biases, and the task's head if any",
        "head": "the task's head",
    }[adaptation.name]
    whole = (Path(adaptation.base) / "config.json").is_file() or not Path(adaptation.base).exists()
    peft = "`peft` loads the adapters; " if adaptation.name == "lora" and whole else ""  # not on others' adapters
    return (
        f"{NOTE}\nOnly what was trained: {kept} (adapt={adaptation.name}). "
        f"The rest is in the model that it began with, `{adaptation.base}`. {peft}"
        "`legato export FOLDER --to hf` writes the whole model.\n"
    )


def _save_low_rank(
    folder: Path, module: SequenceModel, adaptation: AdapterInfo, place: str, task: str, trained: dict[str, Tensor]
) -> list[str]:
    """Write peft's two files, and what peft could put nowhere into a third; what adapters below changed, too.

    The names of what was written, as we know them.
    """
    # Whether peft can take the adapter alone: there is no class of theirs with such a head.
    plain = task == "embedding" or (isinstance(module, ModelWithHead) and not published_head(module))
    below = adaptation.below
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
    base, _, revision = (place, "", "") if Path(place).exists() else place.partition("@")  # on the hub
    biases = any(_owner(name) not in saved for name in before if name not in beside)  # of other modules
    config = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION" if plain else peft_files.TASK_TYPES.get(task),
        "base_model_name_or_path": base,
        "revision": revision or None,
        **scaling,
        "lora_dropout": adaptation.dropout,
        "target_modules": written_targets(module, pairs, adaptation.targets, plain),
        "modules_to_save": sorted({written(name) for name in saved}) or None,
        "fan_in_fan_out": turned,
        "bias": "all" if biases else "none",
        "init_lora_weights": True,
        "inference_mode": True,
    }
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


def file_names(module: SequenceModel) -> Names:
    """Of all tensors; a head's that nobody else has begin with `head.`, as in whole model folders."""
    names = dict(names_of(module))
    if isinstance(module, ModelWithHead):
        for name, source in names.items():
            if not name.startswith("body.") and source.names == (name,):
                names[name] = From((HEAD + name,))
    return names


def tensors_below(module: SequenceModel, below: MergedAdapters) -> dict[str, Tensor]:
    """What adapters before this one trained as it is, and this one left so, under the names in files."""
    held: dict[str, Tensor] = {}
    parameters = dict(module.named_parameters())
    for name, source in file_names(module).items():
        if isinstance(module, ModelWithHead) and not name.startswith(BODY):
            continue
        ours = name.removeprefix(BODY)
        if ours in below.tensors and not (name in parameters and parameters[name].requires_grad):
            held |= {their: part.clone() for their, part in source.pieces(below.tensors[ours]).items()}
    return held


def low_rank_pairs(module: SequenceModel, below: MergedAdapters | None = None) -> tuple[LowRankPairs, bool]:
    """A and B of every matrix by its path, and whether their matrices lie the other way round.

    With those of adapters `below` they make one: s₁ B₁ A₁ + s₂ B₂ A₂ = [s₁ B₁, s₂ B₂] [A₁; A₂], whose scaling is 1.
    """
    pairs: LowRankPairs = {}
    turned = False
    for path, matrix in matrices_of(module).items():
        found: list[tuple[Tensor, Tensor]] = []
        key = place_of(matrix)
        if below is not None and key in below.pairs and not matrix.layer.weight.requires_grad:
            found.append(below.pairs[key])
        low = matrix.layer.low_rank
        own = {} if low is None else dict(zip((part.name for part in low.parts), low.pairs(), strict=True))
        if low is not None and path in own:
            a, b = (thin.detach().cpu().clone() for thin in own[path])
            found.append((a, b if below is None else scaled(b, low.scaling)))
        if found:
            turned = turned or matrix.turned
            pairs[path] = found[0] if len(found) == 1 else stacked(found)
    return pairs, turned


def place_of(matrix: Matrix) -> tuple[str, int, int]:
    """A matrix of the body, whatever head it has and whatever others call it."""
    return matrix.path.removeprefix(BODY), matrix.start, matrix.end


def scaled(b: Tensor, scaling: float) -> Tensor:
    """s B, rounded once."""
    return (b.double() * scaling).float()


def stacked(pairs: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One A and B whose product is the sum of all: A's one below the other, B's side by side."""
    downs, ups = zip(*pairs, strict=True)
    return torch.cat([a.float() for a in downs]), torch.cat([b.float() for b in ups], dim=1)


def written_targets(module: SequenceModel, chosen: Iterable[str], targets: tuple[str, ...], plain: bool) -> list[str]:
    """The targets as they were given, where peft would find the `chosen` matrices by them; else every path."""
    paths = matrices_of(module)
    others = {name for source in names_of(module, narrow=True).values() for name in source.names}
    others = {name.removesuffix(".weight") for name in others if name.endswith(".weight")}
    met = {path for path in others | set(paths) if any(path == t or path.endswith(f".{t}") for t in targets)}
    if met == set(chosen):
        return list(targets)
    return [bare(path, module) if plain else path for path in chosen]


def bare(path: str, module: SequenceModel) -> str:
    """The path in a model without a head: `encoder.layer.0…` for `bert.encoder.layer.0…`."""
    form = form_of(body_of(module))
    if form is None:  # in our own form, names of a body begin no other way inside a head
        return path
    spans = "" if form.heads is None else form.heads.body_of_spans
    return path.removeprefix(form.body if path.startswith(form.body) else spans)


def module_of(name: str, module: SequenceModel) -> str:
    """The module of theirs that a trained tensor belongs to: `classifier`, or `bert.pooler`."""
    inside = bare(name, module)
    return name.removesuffix(inside) + inside.partition(".")[0]
