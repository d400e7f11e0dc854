"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import legato

SOURCE = Path(legato.__file__).parent
FILES = {
    ".".join(("legato", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.name != "__main__.py"
}
NEEDED = {"legato.nn.kernels.cuda.": "triton", "legato.lm_eval": "lm_eval"}  # what is not installed for tests
EXAMPLES = [name for name, path in FILES.items() if ">>>" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_a_docstring_shows_is_so(name: str) -> None:
    for start, library in NEEDED.items():
        if name.startswith(start):
            pytest.importorskip(library)
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in FILES if "." in name}))
def test_every_file_of_a_room_can_be_imported(room: str) -> None:
    for name in FILES:
        if f"{name}.".startswith(f"legato.{room}.") and not name.startswith(tuple(NEEDED)):
            importlib.import_module(name)
