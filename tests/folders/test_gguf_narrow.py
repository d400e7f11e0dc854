"""Packed matrices of GGUF files, which stay as narrow as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.folders.gguf import narrow
from legato.folders.gguf.blocks import Blocks
from legato.folders.model_folder import load_model
from legato.nn.quantized import GROUP, QuantizedEmbedding, QuantizedLinear, is_quantized
from tiny_gguf import CONFIGS, gguf_file

BITS = {"Q8_0": 8, "Q5_0": 8, "Q5_1": 8, "Q4_0": 4, "Q4_1": 4}


def weights(module: Any) -> dict[str, torch.Tensor]:
    layers = {name: part for name, part in module.named_modules() if isinstance(part, torch.nn.Linear)}
    return {"embedding": module.embedding.weight, **{name: layer.weight for name, layer in layers.items()}}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3", "gpt2"])
def test_narrow_matrices_hold_the_numbers_of_the_file(name: str, kind: str, tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf", name, kind=kind)
    kept, plain = legato.load(file).module, load_model(file).module
    assert is_quantized(kept)
    assert not is_quantized(plain)
    assert isinstance(kept.embedding, QuantizedEmbedding)
    layers = [part for part in kept.modules() if isinstance(part, QuantizedLinear)]
    assert kind in ("Q8_0", "Q5_0", "Q5_1") or min(layer.bits for layer in layers) == BITS[kind]
    expected = weights(plain)
    for key, weight in weights(kept).items():
        torch.testing.assert_close(weight, expected[key], rtol=1e-6, atol=1e-7)
    assert set(kept.state_dict()) != set(plain.state_dict())


@pytest.mark.parametrize("name", CONFIGS)
def test_plain_numbers_stay_plain(name: str, tmp_path: Path) -> None:
    assert not is_quantized(legato.load(gguf_file(tmp_path / "m.gguf", name)).module)


def test_texts_are_written_with_narrow_weights(tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "m.gguf", kind="Q4_1")
    texts = legato.load(file).generate(["The dog", "def"], max_tokens=6)
    assert len(texts) == 2
    assert legato.load(file, quantize="int8").module.embedding.bits == 8


def blocks(seed: int, group: int, *, low: int, high: int, minimums: bool) -> Blocks:
    draw = np.random.default_rng(seed)
    codes = draw.integers(low, high + 1, (32, 64)).astype(np.int8)
    scales = draw.random((32, 64 // group), dtype=np.float32).astype(np.float16).astype(np.float32)
    least = draw.random((32, 64 // group), dtype=np.float32).astype(np.float16).astype(np.float32) - 1
    return Blocks(codes, scales, least if minimums else None)


@pytest.mark.parametrize(
    ("first", "second", "bits"),
    [
        (("Q4_0", -8, 7, False), ("Q4_0", -8, 7, False), 4),
        (("Q4_1", 0, 15, True), ("Q4_1", 0, 15, True), 4),
        (("Q4_0", -8, 7, False), ("Q4_1", 0, 15, True), 8),
        (("Q4_1", 0, 15, True), ("Q8_0", -127, 127, False), 8),
        (("Q5_1", 0, 31, True), ("Q4_1", 0, 15, True), 8),
        (("Q8_0", -127, 127, False), ("Q5_0", -16, 15, False), 8),
    ],
)
def test_matrices_of_several_types_are_stacked(first: Any, second: Any, bits: int, monkeypatch: Any) -> None:
    parts = {
        name: blocks(seed, GROUP, low=low, high=high, minimums=minimums)
        for seed, (name, (_, low, high, minimums)) in enumerate({"a": first, "b": second}.items())
    }
    found = narrowed(parts, monkeypatch)
    assert found.bits == bits
    expected = torch.cat([torch.from_numpy(part.dequantized()) for part in parts.values()])
    torch.testing.assert_close(found.dequantize()[:64], expected, rtol=2e-3, atol=2e-3)
    assert not found.dequantize()[64:].any()


def test_other_groups_are_quantised_anew(monkeypatch: Any) -> None:
    part = blocks(0, 16, low=-32, high=31, minimums=False)
    found = narrowed({"a": part}, monkeypatch)
    expected = torch.from_numpy(part.dequantized())
    assert found.bits == 8
    assert (found.dequantize()[:32] - expected).norm() < 0.01 * expected.norm()


def narrowed(parts: dict[str, Blocks], monkeypatch: Any) -> Any:
    class Tensor:
        shape = (32, 64)

    class Header:
        tensors = dict.fromkeys(parts, Tensor)

    monkeypatch.setattr(narrow, "read_blocks", lambda header, name: parts[name])
    return narrow.narrow_matrix(Header, list(parts), 80, lambda name, rows: rows)  # type: ignore[arg-type]
