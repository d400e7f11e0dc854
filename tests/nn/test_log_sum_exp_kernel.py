"""log Σ eˣ by the C++ library, against PyTorch's."""

from __future__ import annotations

import pytest
import torch

from legato.nn.kernels.library import library
from legato.nn.kernels.log_sum_exp import log_sum_exp

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")


@pytest.mark.parametrize("columns", [1, 7, 64, 1003])
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_it_is_pytorchs(columns: int, scale: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, columns + 3)[:, :columns] * scale
    x[2, 0] = -torch.inf if columns > 1 else 0
    with torch.no_grad():
        found = log_sum_exp(x, x.amax(-1, keepdim=True))
    assert found is not None
    torch.testing.assert_close(found, x.logsumexp(-1, keepdim=True), rtol=1e-6, atol=1e-6)


def test_what_is_not_finite_shows() -> None:
    x = torch.zeros(3, 9)
    x[0, 8], x[1, 1], x[2, 3] = torch.nan, torch.inf, torch.nan
    with torch.no_grad():
        found = log_sum_exp(x, x.amax(-1, keepdim=True))
    assert found is not None
    assert not found.isfinite().any()


def test_who_wants_gradients_or_another_width_asks_pytorch() -> None:
    x = torch.zeros(2, 4)
    assert log_sum_exp(x, x[:, :1]) is None
    with torch.no_grad():
        assert log_sum_exp(x.double(), x[:, :1].double()) is None
