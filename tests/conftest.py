"""What every test has: a cache of its own, so that none reads what another wrote, and no hub of models to ask."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

os.environ.setdefault("LEGATO_BF16", "off")  # `auto` is float32 on every processor
os.environ["HF_HUB_OFFLINE"] = "1"  # before the library is imported, which looks once
# The CPU kernels are compiled once for all tests, and not anew for each cache.
os.environ.setdefault("LEGATO_KERNELS", str(Path(__file__).parent.parent / ".pytest_cache" / "kernels"))


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path / "legato-cache"))
