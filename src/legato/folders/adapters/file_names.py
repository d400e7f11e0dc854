"""What adapters' files call a model's tensors and matrices: Hugging Face's names where it has the model, else ours.

A path may lack what a body's names begin with where its class has no head: `encoder.layer.0…` for
`bert.encoder.layer.0…`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor

from legato.folders.adapters.info import MergedAdapters
from legato.models.base import SequenceModel
from legato.models.model_with_head import BODY, ModelWithHead, body_of
from legato.models.published.family import form_of
from legato.models.published.matrices import LOW_RANK, Matrix, matrices_of, names_of, published_head
from legato.models.published.tensor_names import From, Names, to_hf

HEAD: Final = "head."  # before the names of a head's tensors, where no published form has it


def peft_has(module: SequenceModel, task: str) -> bool:
    """Whether peft can take the adapter and the head together: there is a class of theirs with such a head."""
    if task == "embedding":
        return False
    return published_head(module) if isinstance(module, ModelWithHead) else True


def trained_tensors(module: SequenceModel) -> dict[str, Tensor]:
    """The tensors that were trained as they are, under their names in files."""
    wanted = {name for name, p in module.named_parameters() if p.requires_grad and LOW_RANK not in name}
    return to_hf(module, {name: source for name, source in file_names(module).items() if name in wanted})


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


Pairs = dict[str, tuple[Tensor, Tensor]]


def low_rank_pairs(module: SequenceModel, below: MergedAdapters | None = None) -> tuple[Pairs, bool]:
    """A and B of every matrix by its path, and whether their matrices lie the other way round.

    With those of adapters `below` they make one: s₁ B₁ A₁ + s₂ B₂ A₂ = [s₁ B₁, s₂ B₂] [A₁; A₂], whose scaling is 1.
    """
    pairs: Pairs = {}
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
    others = {name for source in names_of(module).values() for name in source.names}
    others = {name.removesuffix(".weight") for name in others if name.endswith(".weight")}
    met = {path for path in others | set(paths) if any(path == t or path.endswith(f".{t}") for t in targets)}
    if met == set(chosen):
        return list(targets)
    return [bare(path, module) if plain else path for path in chosen]


def bare(path: str, module: SequenceModel) -> str:
    """The path in a model without a head: `encoder.layer.0…` for `bert.encoder.layer.0…`."""
    before = next((before for before in _bodies(module) if path.startswith(before)), "")
    return path.removeprefix(before)


def module_of(name: str, module: SequenceModel) -> str:
    """The module of theirs that a trained tensor belongs to: `classifier`, or `bert.pooler`."""
    inside = bare(name, module)
    return name.removesuffix(inside) + inside.partition(".")[0]


def _bodies(module: SequenceModel) -> tuple[str, ...]:
    """How names of a body begin inside theirs with a head; of our own form they do not."""
    form = form_of(body_of(module))
    if form is None:
        return ()
    return form.body, *(() if form.heads is None or not form.heads.body_of_spans else (form.heads.body_of_spans,))
