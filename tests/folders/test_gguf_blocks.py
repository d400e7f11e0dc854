"""The packed types of GGUF files: every weight is the one that the package `gguf` unpacks, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from legato.errors import FolderError
from legato.folders.gguf.blocks import PACKINGS, Packing, check_tensors, read_blocks, read_tensor
from legato.folders.gguf.header import Header, read_header
from tiny_gguf import gguf_file

PACKED = [packing for packing in PACKINGS.values() if packing.unpack is not None]
GROUPS = {"Q6_K": 16}
MADE = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"]  # which the package also packs
ROWS, BLOCKS = 6, 3


def file_of(path: Path, kind: str, raw: Any) -> Header:
    """A file with one matrix of raw bytes (rows, bytes)."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("w", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(path)
    check_tensors(header)
    return header


def random_blocks(packing: Packing) -> Any:
    """Any bytes are blocks, but for float16 numbers, which are to be finite."""
    drawn = np.random.default_rng(1).integers(0, 256, (ROWS * BLOCKS, packing.bytes), dtype=np.uint8)
    halves = {"Q6_K": (208,), "Q8_0": (0,), "Q4_0": (0,), "Q5_0": (0,)}.get(packing.name, (0, 2))
    for start in halves:
        numbers = np.random.default_rng(start).normal(size=len(drawn)).astype(np.float16)
        drawn[:, start : start + 2] = numbers[:, None].view(np.uint8)
    return drawn.reshape(ROWS, -1)


@pytest.mark.parametrize("packing", PACKED, ids=lambda packing: packing.name)
def test_random_blocks_are_unpacked_as_the_package_does(packing: Packing, tmp_path: Path) -> None:
    raw = random_blocks(packing)
    header = file_of(tmp_path / "f.gguf", packing.name, raw)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[packing.name])
    assert np.array_equal(read_tensor(header, "w"), expected)


@pytest.mark.parametrize("packing", PACKED, ids=lambda packing: packing.name)
def test_a_weight_is_its_code_times_a_scale_plus_a_minimum(packing: Packing, tmp_path: Path) -> None:
    raw = random_blocks(packing)
    header = file_of(tmp_path / "f.gguf", packing.name, raw)
    blocks = read_blocks(header, "w")
    assert blocks is not None
    group = GROUPS.get(packing.name, 32)
    assert (blocks.group, blocks.codes.dtype) == (group, np.int8)
    assert blocks.codes.shape == (ROWS, BLOCKS * packing.weights)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[packing.name])
    for n, k in [(0, 0), (2, 33), (ROWS - 1, BLOCKS * packing.weights - 1)]:
        minimum = np.float32(0) if blocks.minimums is None else blocks.minimums[n, k // group]
        assert blocks.scales[n, k // group] * blocks.codes[n, k] + minimum == expected[n, k]


@pytest.mark.parametrize("kind", MADE)
def test_weights_come_back_as_near_as_their_type_allows(kind: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind])
    found = read_tensor(file_of(tmp_path / "f.gguf", kind, packed), "w")
    assert np.array_equal(found, gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind]))
    assert np.abs(found - weights).max() < {"F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}.get(kind, 0.35)


def test_sizes_of_blocks_are_those_of_the_package() -> None:
    for number, packing in PACKINGS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (packing.name, (packing.weights, packing.bytes)) == (kind.name, tuple(gguf.GGML_QUANT_SIZES[kind]))


def test_the_header_is_what_the_packages_own_reader_reads(tmp_path: Path) -> None:
    path = gguf_file(tmp_path / "m.gguf", kind="Q8_0")
    ours, reader = read_header(path), gguf.GGUFReader(path)
    said = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert {*ours.entries} == {*said}
    for key, value in said.items():
        held = ours.entries[key]
        held = list(held) if isinstance(held, tuple) else held
        assert held == (pytest.approx(value) if isinstance(value, float) else value)
    assert [tensor.name for tensor in reader.tensors] == [*ours.tensors]
    for tensor in reader.tensors:
        held = ours.tensors[tensor.name]
        assert held.shape == tuple(reversed(tensor.shape.tolist()))
        assert ours.start + held.offset == tensor.data_offset


def test_a_type_that_is_not_read_is_named_with_those_that_are(tmp_path: Path) -> None:
    for number, name in {23: "IQ4_XS", 10: "Q2_K", 99: "of a type 99"}.items():
        path = gguf_file(tmp_path / f"{number}.gguf", kind="F32")
        data = bytearray(path.read_bytes())
        place = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
        data[place : place + 4] = number.to_bytes(4, "little")
        path.write_bytes(data)
        with pytest.raises(FolderError) as caught:
            check_tensors(read_header(path))
        assert f"'blk.0.attn_q.weight' is {name}" in str(caught.value)
        assert "take a file of F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K" in str(caught.value)
