"""Named tensors in safetensors files: tied ones once, and every mismatch named."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from legato.errors import FolderError

PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth")  # how others keep weights


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(ready, str(path), metadata=metadata or {"format": "pt"})
    except SafetensorError as problem:
        # The library hides the operating system's error in its message.
        if "No space left" in str(problem) or "os error 28" in str(problem):
            raise OSError(errno.ENOSPC, "No space left on device", str(path)) from problem
        raise
    with suppress(OSError):  # some file systems have no modes
        path.chmod(mode)  # the library's own is for the owner alone; a model is read by others too


def load_tensors(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    try:
        with safe_open(str(path), framework="pt", device=device) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        pickles = sorted(file.name for pattern in PICKLES for file in path.parent.glob(pattern))
        if pickles:
            raise FolderError(
                f"{path.parent} lacks {path.name}; its {pickles[0]} is a pickle, which may run any code when it is "
                "read and so is refused: save it again as safetensors"
            ) from None
        raise FolderError(f"{path.parent} lacks {path.name}") from None
    except (SafetensorError, OSError, ValueError) as problem:
        raise FolderError(f"{path} is damaged: {problem}") from None


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """A module's parameters and buffers; tensors that are one and the same appear once."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            unique[name] = tensor.detach()
    return unique


@torch.no_grad()
def put_weights(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Copy `tensors` into `module`; anything missing, left over or of another shape is named."""
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
    for name, target in wanted.items():
        target.copy_(tensors[name])


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
