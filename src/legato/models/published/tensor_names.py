"""Between our tensors and the published ones: what every map of names needs.

A map says for each of our tensors which of theirs it is made of. In memory several of theirs may be one of ours,
stacked; a matrix may lie the other way round; and the rows beyond the vocabulary are in no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from legato.errors import FolderError
from legato.nn.quantized.deferred import Deferred, put


@dataclass(frozen=True)
class From:
    """Where one of our tensors comes from."""

    names: tuple[str, ...]  # theirs, in the order in which they are stacked
    sizes: tuple[int, ...] | None = None  # rows of each; left out: as many each
    turned: bool = False  # theirs is (inputs, outputs)
    rows: int | None = None  # that files hold, where ours has more
    leading: int = 0  # dimensions of one that theirs has before those of ours …
    trailing: int = 0  # … and behind them: a convolution that sees one state is a matrix

    def heights(self, rows: int) -> list[int]:
        """The rows of each of theirs, where ours has so many."""
        return list(self.sizes or [rows // len(self.names)] * len(self.names))

    def pieces(self, tensor: Tensor) -> dict[str, Tensor]:
        """Views of one of our tensors: the published ones that it is made of."""
        if not tensor.dim():  # a norm's count of batches
            return dict.fromkeys(self.names, tensor)
        whole = tensor[: self.rows]
        parts = zip(self.names, whole.split(self.heights(len(whole))), strict=True)
        ones = ((None,) * self.leading, (None,) * self.trailing)
        return {name: part.t() if self.turned else part[(*ones[0], ..., *ones[1])] for name, part in parts}

    def put(self, tensor: Tensor, theirs: Mapping[str, Tensor]) -> None:
        """Fill one of our tensors with the published ones that it is made of."""
        if isinstance(tensor, Deferred):
            parts = [theirs[name] for name in self.names]
            rows = self.leading  # their dimension of them
            tensor.stacked = [part.t() if self.turned else part.reshape(part.shape[rows], -1) for part in parts]
            return
        for name, part in self.pieces(tensor).items():
            put(part, theirs[name])


Names = Mapping[str, From]


def to_hf(module: nn.Module, names: Names) -> dict[str, Tensor]:
    """The tensors of a module under their published names."""
    ours = module.state_dict()
    views = {their: part for name, source in names.items() for their, part in source.pieces(ours[name]).items()}
    # Copies: views of one tensor cannot be saved apart.
    return {name: view.detach().cpu().clone(memory_format=torch.contiguous_format) for name, view in views.items()}


@torch.no_grad()
def from_hf(module: nn.Module, names: Names, tensors: Mapping[str, Tensor], where: str) -> None:
    """Fill a module from published tensors; nothing is touched unless all of them fit."""
    check_tensors(module, names, tensors, where)
    ours = module.state_dict(keep_vars=True)
    for name, source in names.items():
        source.put(ours[name], tensors)


def check_tensors(module: nn.Module, names: Names, tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse published tensors that are not the module's, which may be a sketch; no number is read."""
    ours, left = module.state_dict(), dict(tensors)
    for name, source in names.items():
        for their, place in source.pieces(ours[name]).items():
            _take(left, their, place, where)
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise FolderError(f"{where} holds a tensor that this architecture lacks: '{min(left)}'{more}")


def _take(left: dict[str, Tensor], name: str, place: Tensor, where: str) -> None:
    if name not in left:
        raise FolderError(f"{where} lacks the tensor '{name}'")
    tensor = left.pop(name)
    if tensor.is_floating_point() != place.is_floating_point():
        expected = "weights" if place.is_floating_point() else str(place.dtype).removeprefix("torch.")
        raise FolderError(
            f"{where}: '{name}' holds {str(tensor.dtype).removeprefix('torch.')} numbers, not {expected}"
        )
    if tensor.shape != place.shape:
        raise FolderError(f"{where}: '{name}' should have shape {tuple(place.shape)}, but has {tuple(tensor.shape)}")
