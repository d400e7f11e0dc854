"""The card of a model folder says what Hugging Face's hub asks for: licence, base model, task and data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import legato
from legato.tasks.model_card import license_of
from tiny_runs import small


def test_a_card_names_the_base_its_licence_the_task_and_the_data(tmp_path: Path) -> None:
    base = legato.train("lm", out=tmp_path / "base", **small(tmp_path, train__steps=1)).run
    assert "No licence is stated" in (base / "best" / "README.md").read_text()
    cached = tmp_path / "models--me--small" / "snapshots" / "12ab"
    cached.parent.mkdir(parents=True)
    (base / "best").rename(cached)
    (cached / "README.md").write_text("---\nlicense: mit\n---\n\nA model.\n")
    run = legato.train("lm", out=tmp_path / "run", **{"from": cached}, **settings_of_data(tmp_path)).run
    card = (run / "best" / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head == {
        "library_name": "legato",
        "license": "mit",
        "pipeline_tag": "text-generation",
        "base_model": "me/small",
        "tags": ["legato", "lm"],
    }
    assert "It began with `me/small`." in card
    assert str(tmp_path) not in card.split("## Data")[1]


def settings_of_data(folder: Path) -> dict[str, object]:
    settings = small(folder, train__steps=1)
    return {key: value for key, value in settings.items() if key.split(".")[0] in ("data", "train", "device")}


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("---\nlicense: 'mit'\ntags:\n- x\n---\n", "mit"),
        ("license: mit\n", None),
        ("---\ntags: []\n---\nlicense: mit\n", None),
        ("---\nlicense: [mit](javascript:x)\n---\n", None),
    ],
)
def test_a_licence_is_read_from_the_head_of_a_card_alone(card: str, license: str | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(card)
    assert license_of(tmp_path) == license


def test_a_folder_without_a_card_states_no_licence(tmp_path: Path) -> None:
    assert license_of(tmp_path) is None
