"""What `legato doctor` says of products: every width has a rate, and what is chosen because of it is told."""

from __future__ import annotations

import shutil
import time
import warnings
from typing import Any

import pytest
import torch

from legato.nn.kernels import library
from legato.runs import doctor, product_rates
from legato.runs.product_rates import FLOATS, NARROW, copy_rate
from legato.training import devices

WIDTHS = (*FLOATS, *NARROW)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_rates, "PATIENCE", 0.002)
    monkeypatch.setattr(product_rates, "MATRIX", 1 << 20)
    monkeypatch.setattr(product_rates, "WIDTH", {"cpu": 512})


def test_every_width_has_a_rate() -> None:
    rates = product_rates.product_rates(CPU)
    assert tuple(rates) == WIDTHS
    for name, rate in rates.items():
        if name in ("float32", *NARROW):
            assert rate is not None
        assert rate is None or (rate.many > 0 and rate.one > 0)
    assert copy_rate(CPU) > 0


def test_a_width_that_is_slow_is_measured_on_little(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def slow(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        asked.append(weight.numel())
        time.sleep(0.01)
        return x

    monkeypatch.setattr(product_rates.F, "linear", slow)
    rate = product_rates._measured("float32", CPU)
    assert rate is not None
    assert max(asked) <= 16 * 512  # of (1 << 18)


def test_a_product_that_there_is_not_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(x: Any, weight: Any) -> None:
        raise RuntimeError("not implemented for 'Half'")

    monkeypatch.setattr(product_rates.F, "linear", fail)
    assert product_rates._measured("float16", CPU) is None
    found = {finding.name: finding for finding in doctor._products(CPU)}
    assert found["float16 products"].value == "no such products here"
    assert found["float16 products"].good
    assert not found["float32 products"].good


def test_what_auto_means_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEGATO_BF16", raising=False)
    for flags, told in (
        ("fp asimd bf16", "bf16: the processor has BF16"),
        ("fp asimd", "float32: the processor has no"),
    ):
        monkeypatch.setattr(devices, "processor", lambda flags=flags: (f"Features\t: {flags}",))
        found = doctor._products(CPU)[-1]
        assert found.name == "dtype=auto, train.precision=auto"
        assert found.value.startswith(told)


@pytest.mark.skipif(library.library() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("has", [True, False])
def test_whether_encoders_are_faster_in_float16_is_told(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_rates, "encoder_rate", {"float32": 70.0, "float16": 130.0 if has else None}.get)
    found = {finding.name: finding.value for finding in doctor._products(CPU)}["encoders (BERT, …)"]
    more = ", 130 in float16: dtype=float16 is faster for them"
    assert found == "70 GFLOP/s in float32" + (more if has else "")


@pytest.mark.skipif(library.library() is None, reason="needs a C++ compiler")
def test_products_of_encoders_have_a_rate_where_there_are_such() -> None:
    kernels = library.library()
    assert kernels is not None
    assert (product_rates.encoder_rate("float32") or 0) > 0
    assert (product_rates.encoder_rate("float16") is not None) == kernels.multiplies_halves
    assert product_rates.encoder_rate("bfloat16") is None


def test_whether_there_are_kernels_is_told_and_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = doctor._kernels()
    assert found.value.startswith("none: there is no C++ compiler")
    assert not found.good
    monkeypatch.setenv("LEGATO_KERNELS", "off")
    assert doctor._kernels() == doctor.Finding("CPU kernels", "none: LEGATO_KERNELS=off", True)


@pytest.mark.skipif(library.library() is None, reason="needs a C++ compiler")
def test_kernels_that_are_there_are_told_of() -> None:
    assert doctor._kernels() == doctor.Finding("CPU kernels", "compiled for this processor", True)
