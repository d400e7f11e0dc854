"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import legato

MODULES = [found.name for found in pkgutil.walk_packages(legato.__path__, "legato.") if "__main__" not in found.name]


@pytest.mark.parametrize("name", MODULES)
def test_what_a_docstring_shows_is_so(name: str) -> None:
    if name.startswith("legato.nn.kernels.cuda."):
        pytest.importorskip("triton")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
