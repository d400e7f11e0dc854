"""Extras: what is optional is declared, and whoever lacks it is told in one line how to get it."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from legato.errors import LegatoError
from legato.registry import require_extra

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("vision", ["Pillow", "pycocotools"]),
        ("audio", ["soundfile", "soxr", "jiwer"]),
        ("serve", ["fastapi", "uvicorn", "prometheus-client"]),
        ("retrieval", ["lancedb", "pypdf", "psycopg"]),
        ("ray", ["ray"]),
        ("export", ["ctranslate2"]),
        ("gguf", ["gguf"]),
        ("docs", ["mkdocs"]),
    ],
)
def test_every_extra_is_declared(extra: str, packages: list[str]) -> None:
    declared = PROJECT["optional-dependencies"][extra]
    assert all(any(line.startswith(package) for line in declared) for package in packages)


def test_a_package_that_is_missing_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "fastapi.routing", raising=False)  # which another test may have imported
    with pytest.raises(LegatoError) as caught:
        require_extra("serve", "fastapi.routing")
    assert str(caught.value) == "fastapi is not installed; it comes with: pip install '.[serve]'"


def test_a_package_that_is_there_is_given() -> None:
    assert require_extra("export", "json.decoder") is importlib.import_module("json.decoder")


def test_a_package_that_lacks_something_of_its_own_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halfway.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LegatoError, match=r"halfway cannot be loaded \(No module named 'nowhere_to_be_found'\)"):
        require_extra("serve", "halfway")
