"""What a model that little was trained of says of itself: how little, and what it was before."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from legato.folders.weights import weights_of
from legato.models.base import SequenceModel


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
    below: MergedAdapters | None = field(default=None, repr=False)  # lora: adapters that these are saved as one with

    def told(self) -> dict[str, Any]:
        """What legato.json says of it, beside the base."""
        sizes = {"rank": self.rank, "alpha": self.alpha, "dropout": self.dropout}
        return {"name": self.name, **sizes, "targets": self.targets, "rslora": self.rslora}


SAMPLED: Final = 2**16  # of a large tensor's numbers, those whose order counts too


def digest_of(module: SequenceModel) -> str:
    """What tells weights from others. Every bit counts, and gigabytes take a second rather than a minute:

    of a tensor's bytes, taken eight at a time, the sum (exact, and so the same on every machine) and a sample.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights_of(module).items()):
        raw = tensor.cpu().contiguous().flatten().view(torch.uint8)
        whole = raw[: len(raw) // 8 * 8].view(torch.int64)
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {int(whole.sum())}\n".encode())
        digest.update(
            whole[:: max(1, len(whole) // SAMPLED)].numpy().tobytes() + raw[len(whole) * 8 :].numpy().tobytes()
        )
    return digest.hexdigest()


NOTE: Final = "\n## What this folder holds\n"


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
