"""Named tensors in safetensors files: tied ones once, and every mismatch named."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from legato.errors import FolderError
from legato.memory import refuse_beyond
from legato.models.building import MOST_TENSORS
from legato.nn.quantized.deferred import Deferred, is_deferring, number_bytes, put
from legato.schema import TypedDict, fit, parse_json

LFS = b"version https://git-lfs"  # how a file begins that Git has left elsewhere
VALUES = 20  # that the header has for a tensor, at most
LONGEST_HEADER = 100_000_000  # bytes; the format allows no more


class TensorEntry(TypedDict):
    """What a header says of a tensor."""

    dtype: str
    shape: list[Annotated[int, Field(ge=0)]]
    data_offsets: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(ready, str(path), metadata={"format": "pt"})
    except SafetensorError as problem:
        # The library hides the operating system's error in its message.
        if "No space left" in str(problem) or "os error 28" in str(problem):
            raise OSError(errno.ENOSPC, "No space left on device", str(path)) from problem
        raise
    with suppress(OSError):  # some file systems have no modes
        path.chmod(mode)  # the library's own is for the owner alone; a model is read by others too


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of one file, as it is."""
    if not path.is_file():
        raise FolderError(f"{path.parent} lacks {path.name}")
    try:
        _check_size(path)
        with safe_open(str(path), framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as problem:
        raise FolderError(f"{path} is damaged: {problem}") from None


def _check_size(path: Path) -> None:
    """Compare a file's size with what its header says: the library's own complaint names no figures.

    A safetensors file is 8 bytes with the header's length, the header (JSON), and the tensors' bytes.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(len(LFS))
        if start == LFS:
            raise ValueError("it is Git LFS's pointer to the weights, not the weights; fetch them with: git lfs pull")
        if size < 8:
            raise ValueError(f"it has {size} bytes, so it is no safetensors file")
        header = int.from_bytes(start[:8], "little")
        if header > size - 8:
            raise ValueError(f"its header says it is {header:,} bytes long, but the file has {size:,}")
        if header > LONGEST_HEADER:
            raise ValueError(f"its header says it is {header:,} bytes long; {LONGEST_HEADER:,} is the most allowed")
        file.seek(8)
        try:
            entries = parse_json(file.read(header), dict[str, dict[str, Any]], "header", most=VALUES * MOST_TENSORS)
            entries.pop("__metadata__", None)
            tensors = fit(entries, dict[str, TensorEntry], "header")
        except FolderError as problem:
            raise ValueError(f"its header is not that of a safetensors file ({problem})") from None
        told = 8 + header + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    if told != size:
        raise ValueError(f"its header tells of {told:,} bytes, but the file has {size:,}; fetch or copy it again")
    if len(tensors) > MOST_TENSORS:
        raise ValueError(f"it says that it holds {len(tensors):,} tensors; Legato reads up to {MOST_TENSORS:,}")
    # A file may claim terabytes and have none: what lies in it is only looked at when it is used.
    taken = size
    if is_deferring():
        taken = int(number_bytes() * sum(prod(entry["shape"]) for entry in tensors.values()))
    refuse_beyond(taken, f"reading {path}", "use a machine with more", error=FolderError)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """A module's parameters and buffers; tensors that are one and the same appear once."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            unique[name] = tensor if isinstance(tensor, Deferred) else tensor.detach()
    return unique


@torch.no_grad()
def put_weights(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy `tensors` into `module`; anything missing, left over or of another shape is named."""
    check_weights(module, tensors, where)
    for name, target in weights_of(module).items():
        given = tensors[name]
        if target is not given and (isinstance(target, Deferred) or target.data_ptr() != given.data_ptr()):
            put(target, given)


def check_weights(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse tensors that are not the module's, which may be a sketch."""
    wanted = weights_of(module)
    tied = set(module.state_dict()) - set(wanted)
    missing = sorted(set(wanted) - set(tensors))
    if missing:
        raise FolderError(f"{where} lacks the tensor '{missing[0]}'" + _more(missing))
    extra = sorted(set(tensors) - set(wanted) - tied)
    if extra:
        raise FolderError(f"{where} holds a tensor that this model lacks: '{extra[0]}'" + _more(extra))
    for name, target in wanted.items():
        if target.shape != tensors[name].shape:
            raise FolderError(
                f"{where}: '{name}' has shape {tuple(tensors[name].shape)}, but the model's is {tuple(target.shape)}"
            )


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
