"""Rows of a narrow table by the C++ library, against `QuantizedWeight.rows`, its plain twin."""

from __future__ import annotations

import pytest
import torch

from legato.nn.kernels.library import library
from legato.nn.quantized import EVEN, GROUP, NORMAL, STEPS, QuantizedEmbedding, QuantizedWeight
from legato.nn.readout import TokenEmbedding

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")


def table_of(
    bits: int, values: tuple[int, ...], minimums: bool, columns: int = 70, rows: int = 128
) -> QuantizedEmbedding:
    torch.manual_seed(0)
    groups = -(-columns // GROUP)
    codes = torch.randint(-127, 128, (rows, columns)) if bits == 8 else torch.randint(16, (rows, columns))
    table = None if bits == 8 else torch.tensor(values, dtype=torch.int8)
    least = torch.randn(rows, groups).half() if minimums else None
    scales = torch.randn(rows, groups).half()
    narrow = QuantizedWeight.of(codes.to(torch.int8), scales, bits, minimums=least, table=table, exponent=-3)
    return QuantizedEmbedding(TokenEmbedding(rows, columns), narrow)


@pytest.mark.parametrize(
    ("bits", "values", "minimums"),
    [(8, (), False), (8, (), True), (4, NORMAL, False), (4, EVEN, False), (4, STEPS, True)],
)
@torch.no_grad()
def test_they_are_what_the_blocks_hold(bits: int, values: tuple[int, ...], minimums: bool) -> None:
    table = table_of(bits, values, minimums)
    for places in (torch.tensor([[3, 0, 127], [17, 3, 16]]), torch.tensor([5]), torch.empty(0, dtype=torch.long)):
        made = table._kernel_rows(places)
        assert made is not None
        torch.testing.assert_close(made, table.quantized.rows(places))
        torch.testing.assert_close(table(places), made, rtol=0, atol=0)
    every = torch.arange(256).view(2, 128)[:, ::2] % 128  # which does not lie in one piece
    torch.testing.assert_close(table(every), table.quantized.rows(every))


@pytest.mark.parametrize("token", [-1, 128])
@torch.no_grad()
def test_a_token_that_is_none_is_refused_and_nothing_is_read(token: int) -> None:
    table = table_of(8, (), False)
    assert table._kernel_rows(torch.tensor([0, token])) is None


def test_gradients_and_other_widths_take_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    table, places = table_of(8, (), False), torch.tensor([1, 2])
    expected = table.quantized.rows(places)
    monkeypatch.setattr(QuantizedEmbedding, "_kernel_rows", None)
    torch.testing.assert_close(table(places), expected, rtol=0, atol=0)
    with torch.no_grad():
        assert table.to(torch.bfloat16)(places).dtype == torch.bfloat16


def test_a_table_narrowed_on_another_device_takes_the_plain_way_there() -> None:
    narrow = table_of(8, (), False).quantized
    narrow = QuantizedWeight(narrow.blocks.to("meta"), narrow.shape, 8, None, narrow.exponent, False)
    table = QuantizedEmbedding(TokenEmbedding(128, 70), narrow)
    with torch.no_grad():
        assert table.wide.is_meta
        assert table.kernels_for(table.wide) is None
        assert table(torch.tensor([1, 2], device="meta")).is_meta
