"""What every test has: a cache of its own, so that none reads what another wrote."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path / "legato-cache"))
