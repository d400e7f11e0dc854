"""The weights of a model folder: one safetensors file, or several and an index, as in Hugging Face's folders.

model.safetensors                       all tensors, or
model-00001-of-00003.safetensors …      some each, and
model.safetensors.index.json            {"metadata": {"total_size": bytes}, "weight_map": {tensor: file}}
"""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from legato.errors import FolderError, brief
from legato.folders.file_names import WEIGHTS
from legato.folders.weights import load_tensors, save_tensors
from legato.schema import MAX_VOCABULARY, OPEN, Place, TypedDict, read_json, with_config

INDEX = "model.safetensors.index.json"
LARGEST = 5 * 10**9  # bytes in a file
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")  # how others keep weights
# Other libraries' own weights, which are no pickles of PyTorch.
ELSEWHERE = {"tf_model.h5": "TensorFlow", "flax_model.msgpack": "Flax"}


@with_config(OPEN)
class Index(TypedDict):
    """The index of several files."""

    weight_map: dict[str, Place]


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a model folder, in its own precision; copied into a model it takes the model's."""
    if (folder / WEIGHTS).is_file():
        return load_tensors(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _load_shards(folder)
    raise FolderError(_why_none(folder))


def stamps_of(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """The files of weights, with what tells one that was written over from the one before, and from another file."""
    found = ((file, file.stat()) for file in folder.glob("*.safetensors"))
    return {file: (told.st_ino, told.st_size, told.st_mtime_ns) for file, told in found}


def weights_name(folder: Path) -> str:
    """The file to name where something is wrong with a tensor."""
    return WEIGHTS if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file() else INDEX


def save_weights(tensors: dict[str, Tensor], folder: Path, largest: int = LARGEST) -> None:
    """Write the tensors, in order, into files of at most `largest` bytes; a tensor is never cut."""
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if shards[-1] and filled + tensor.nbytes > largest:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    if len(shards) == 1:
        save_tensors(tensors, folder / WEIGHTS)
        return
    places = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_tensors(shard, folder / file)
        places.update(dict.fromkeys(shard, file))
    total = {
        "total_parameters": sum(tensor.numel() for tensor in tensors.values()),
        "total_size": sum(tensor.nbytes for tensor in tensors.values()),
    }
    index = {"metadata": total, "weight_map": dict(sorted(places.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _load_shards(folder: Path) -> dict[str, Tensor]:
    places = _read_index(folder / INDEX)
    files = sorted(set(places.values()))
    # All that can be told without reading gigabytes comes first.
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FolderError(f"{folder} lacks {missing[0]}{more}, which {INDEX} names; fetch or copy it again")
    tensors: dict[str, Tensor] = {}
    for file in files:
        held = load_tensors(folder / file)
        for name in (name for name, place in places.items() if place == file):
            if name not in held:
                raise FolderError(f"{folder / INDEX} says that '{name}' is in {file}, but it is not")
            tensors[name] = held[name]
    return tensors


def _read_index(path: Path) -> dict[str, str]:
    """Which file each tensor is in."""
    try:
        places = read_json(path, Index, most=MAX_VOCABULARY, loose=True)["weight_map"]
    except FolderError as problem:
        raise FolderError(
            f"{path} is no index of weights: {str(problem).removeprefix(str(path)).lstrip(': ')}"
        ) from None
    if not places:
        raise FolderError(f"{path} is no index of weights: it should map every tensor to its file under 'weight_map'")
    for name, file in places.items():
        # A name with a folder in it could lead anywhere.
        if not file.endswith(".safetensors") or Path(file).name != file:
            raise FolderError(
                f"{path}: '{brief(name)}' should be in a safetensors file beside the index, not in '{brief(file)}'"
            )
    return places


def _why_none(folder: Path) -> str:
    lacks = f"{folder} lacks {WEIGHTS}"
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        return (
            f"{lacks}; its {pickles[0]} is a pickle, which may run any code when it is read and so is refused: save "
            "it again as safetensors, or look for a version of the model that has them"
        )
    for pattern, library in ELSEWHERE.items():
        for file in sorted(folder.glob(pattern)):
            return f"{lacks}; its {file.name} is {library}'s: save the model again as safetensors"
    for file in sorted(folder.glob("*.gguf")):
        return f"{lacks}; its {file.name} is a model by itself: name that file"
    return lacks
