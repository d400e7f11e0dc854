"""Extras: what is optional is declared, and whoever lacks it is told in one line how to get it."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
import tomllib
from pathlib import Path

import pytest

from legato.data.sources.tables import read_table
from legato.errors import LegatoError
from legato.registry import require_extra
from legato.training.config import TrainConfig

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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
        ("datasets", ["datasets"]),
        ("tensorboard", ["tensorboard"]),
        ("plots", ["matplotlib"]),
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
    assert str(caught.value) == 'fastapi is not installed; it comes with: pip install "legato-nn[serve]"'


def test_a_package_that_is_there_is_given() -> None:
    assert require_extra("export", "json.decoder") is importlib.import_module("json.decoder")


def test_a_package_that_lacks_something_of_its_own_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halfway.py").write_text("import nowhere_to_be_found\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LegatoError, match=r"halfway cannot be loaded \(No module named 'nowhere_to_be_found'\)"):
        require_extra("serve", "halfway")


def test_events_are_written_where_tensorboard_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TrainConfig().writes_events()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert not TrainConfig().writes_events()
    with pytest.raises(LegatoError, match=r'needs TensorBoard: pip install "legato-nn\[tensorboard\]", or set'):
        TrainConfig(tensorboard=True).writes_events()


@pytest.mark.parametrize("source", ["hub:owner/name", "owner/name"])
def test_a_data_set_on_the_hub_needs_its_library(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    hint = r'the hub\'s dataset \'owner/name\' cannot be read: datasets is not installed; .*"legato-nn\[datasets\]"'
    with pytest.raises(LegatoError, match=hint) as caught:
        read_table(source, ["text"])
    assert str(caught.value).startswith("there is no file") == (source == "owner/name")


def test_the_lock_of_uv_has_what_is_declared_and_what_was_tested() -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    versions: dict[str, set[str]] = {}
    for package in packages:
        versions.setdefault(package["name"], set()).add(package.get("version", ""))
    lines = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    tested = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in lines}
    assert [name for name, version in tested.items() if version not in versions.get(name, {version})] == []
    (own,) = (package["metadata"]["requires-dist"] for package in packages if package["name"] == PROJECT["name"])
    declared = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    assert sorted(each["name"] for each in own) == sorted(map(name_of, declared)), "run uv lock"


def name_of(requirement: str) -> str:
    """
    >>> name_of("psycopg[binary]>=3.2,<4")
    'psycopg'
    """
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~! ]", requirement)[0]).lower()
