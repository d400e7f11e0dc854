"""The models that a file of tests looks into."""

from __future__ import annotations

import pytest
from tiny_models import train_models

from legato.model import Model


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One for each of the file's RUNS, trained on its TRAINING_TEXT."""
    file = request.module
    return train_models(tmp_path_factory.mktemp("models"), file.TRAINING_TEXT, file.RUNS)
