"""A model as a GGUF file, which llama.cpp and whatever is made of it reads.

Matrices are written as `--quantize` says: f32, bf16 and f16 are plain numbers, q8_0 and q4_0 blocks of 32
(blocks.py). What is no matrix stays f32, and so do learned positions; beside q4_0 the embedding and the readout,
which lose most, are q8_0. Rows that no blocks of 32 fill are f16.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from legato.errors import ConfigError, LegatoError, suggest
from legato.folders.gguf.blocks import PACKINGS
from legato.folders.gguf.families import (
    EMBEDDING,
    POSITIONS,
    READOUT,
    architecture_for,
    as_array,
    entries_of,
    tensors_of,
)
from legato.folders.gguf.token_entries import token_entries
from legato.folders.loaded import Loaded
from legato.output_files import replacing_file
from legato.registry import require_extra

# What --quantize may say, and the number that llama.cpp shows such a file by.
QUANTIZED: Final = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2}
MOST_OF_A_NAME: Final = 100  # characters


def check_quantize(quantize: str | None) -> None:
    if quantize is not None and quantize not in QUANTIZED:
        raise ConfigError(f"a GGUF file cannot be written as '{quantize}' here; {suggest(quantize, QUANTIZED)}")


def export_gguf(loaded: Loaded, target: Path, quantize: str | None) -> None:
    """Write a model to `target`."""
    module, chosen = loaded.module, quantize or "f32"
    if not module.can_generate:
        raise LegatoError(
            f"{loaded.folder} is a model for {loaded.task}, and GGUF files are written of those that write"
        )
    architecture = architecture_for(module)
    entries: dict[str, Any] = {
        **entries_of(module, architecture),
        "general.type": "model",
        "general.name": _name_of(loaded.folder)[:MOST_OF_A_NAME],
        "general.file_type": QUANTIZED[chosen],
        **({"general.quantization_version": 2} if chosen.startswith("q") else {}),
        **token_entries(loaded),
    }
    tensors = tensors_of(module, architecture)
    gguf = require_extra("gguf", "gguf")
    with replacing_file(target) as fresh:
        _write(gguf, fresh, architecture.name, entries, tensors, chosen)


def _write(
    gguf: Any, file: Path, architecture: str, entries: Mapping[str, Any], tensors: Mapping[str, Tensor], chosen: str
) -> None:
    writer = gguf.GGUFWriter(str(file), architecture)  # which writes `general.architecture` itself
    try:
        for key, value in entries.items():
            if key != "general.architecture":
                _put(writer, key, value)
        kinds = {name: gguf.GGMLQuantizationType[_kind_of(name, tensor, chosen)] for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            packing = PACKINGS[int(kinds[name])]
            size = tensor.numel() // packing.weights * packing.bytes
            writer.add_tensor_info(name, list(tensor.shape), None, size, raw_dtype=kinds[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, tensor in tensors.items():  # one at a time, so that no second model lies in memory
            writer.write_tensor_data(gguf.quants.quantize(as_array(tensor), kinds[name]))
    finally:
        writer.close()


def _name_of(folder: Path) -> str:
    """What a model is called: its folder, or the run that it is the best of."""
    place = folder.resolve()
    return place.parent.name if place.name in ("best", "last") else place.stem if place.is_file() else place.name


def _put(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _kind_of(name: str, tensor: Tensor, chosen: str) -> str:
    """The type that a tensor is written as."""
    if tensor.dim() < 2 or name == POSITIONS:
        return "F32"
    if chosen == "q4_0" and name in (EMBEDDING, READOUT):
        chosen = "q8_0"
    if chosen.startswith("q") and tensor.shape[-1] % 32:
        return "F16"
    return chosen.upper()
