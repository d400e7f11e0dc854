"""What adapters' files call a model's tensors and matrices: Hugging Face's names where it has the model, else ours.

A path may lack what a body's names begin with where its class has no head: `encoder.layer.0…` for
`bert.encoder.layer.0…`.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

from legato.models.base import SequenceModel
from legato.models.headed import Headed
from legato.models.matrices import LOW_RANK, Matrix, matrices_of, names_of, published_head
from legato.models.names import From, Names, give_tensors

HEAD: Final = "head."  # before the names of a head's tensors, where no published form has it
PREFIXES: Final = ("bert", "roberta", "distilbert", "transformer", "model")  # of a body inside theirs with a head


def peft_has(module: SequenceModel, task: str) -> bool:
    """Whether peft can take the adapter and the head together: there is a class of theirs with such a head."""
    if task == "embedding":
        return False
    return published_head(module) if isinstance(module, Headed) else True


def trained_tensors(module: SequenceModel) -> dict[str, Tensor]:
    """The tensors that were trained as they are, under their names in files."""
    wanted = {name for name, p in module.named_parameters() if p.requires_grad and LOW_RANK not in name}
    return give_tensors(module, {name: source for name, source in file_names(module).items() if name in wanted})


def file_names(module: SequenceModel) -> Names:
    """Of all tensors; a head's that nobody else has begin with `head.`, as in whole model folders."""
    names = dict(names_of(module))
    if isinstance(module, Headed):
        for name, source in names.items():
            if not name.startswith("body.") and source.names == (name,):
                names[name] = From((HEAD + name,))
    return names


def low_rank_tensors(module: SequenceModel) -> tuple[dict[str, Tensor], bool]:
    """A and B of every matrix, as peft names them, and whether their matrices lie the other way round."""
    tensors: dict[str, Tensor] = {}
    turned = False
    for matrix in matrices_of(module).values():
        low = matrix.layer.low_rank
        if low is None:
            continue
        turned = turned or matrix.turned
        for part, (a, b) in zip(low.parts, low.pairs(), strict=True):
            tensors[f"{part.name}.lora_A.weight"] = a.detach().clone()
            tensors[f"{part.name}.lora_B.weight"] = b.detach().clone()
    return tensors, turned


def written_targets(module: SequenceModel, targets: tuple[str, ...], plain: bool) -> list[str]:
    """The targets as they were given, where peft would find the same matrices by them; else every path."""
    paths = matrices_of(module)
    chosen = [path for path, matrix in paths.items() if _has_part(matrix, path)]
    others = {name for source in names_of(module).values() for name in source.names}
    others = {name.removesuffix(".weight") for name in others if name.endswith(".weight")}
    met = {path for path in others | set(paths) if any(path == t or path.endswith(f".{t}") for t in targets)}
    if met == set(chosen):
        return list(targets)
    return [bare(path) if plain else path for path in chosen]


def _has_part(matrix: Matrix, path: str) -> bool:
    low = matrix.layer.low_rank
    return low is not None and any(part.name == path for part in low.parts)


def bare(path: str) -> str:
    """The path in a model without a head: `encoder.layer.0…` for `bert.encoder.layer.0…`."""
    first, _, rest = path.partition(".")
    return rest if first in PREFIXES and rest else path


def module_of(name: str) -> str:
    """The module of theirs that a trained tensor belongs to: `classifier`, or `bert.pooler`."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] in PREFIXES else parts[0]
