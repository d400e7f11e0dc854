"""The demo's report at its end, of models that learned next to nothing: it is the same code as `make demo` runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.runs.compare import Comparison
from reports import reports_in

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
QUICK: dict[str, Any] = {"train.steps": 2, "train.samples": 0, "train.tensorboard": "false", "device": "cpu"}
ASKED = "young old dog sees red horse"


@pytest.fixture(scope="module")
def demo() -> Any:
    found = importlib.util.spec_from_file_location("demo", DEMO)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def remembered(demo: Any, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    settings = {"model": demo.MODELS, "model.width": 8, "model.layers": 1, "match": "none"}
    toy = {"data.train": "toy:recall", "data.toy.distance": [1, max(demo.DISTANCES)], "data.toy.count": 20}
    toy |= {"data.toy.valid_count": 4, "train.batch_tokens": 256}
    return legato.compare("lm", {**QUICK, **settings, **toy}, out=tmp_path_factory.mktemp("recall"), quiet=True)


@pytest.fixture(scope="module")
def translator(demo: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = {**demo.TRANSLATORS[demo.ATTENTIVE], "model.width": 8, "model.layers": 1}
    toy = {"data.train": "toy:language", "data.toy.length": [3, max(demo.LENGTHS)], "data.toy.count": 200}
    toy |= {"data.toy.valid_count": 4, "data.scored": 2}
    return legato.train(
        "translation", {**QUICK, **own, **toy}, out=tmp_path_factory.mktemp("t") / "run", quiet=True
    ).run


@pytest.fixture(scope="module")
def told(
    demo: Any, remembered: Comparison, translator: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The report's JSON."""
    page, said = tmp_path_factory.mktemp("page") / "demo.html", []
    demo.show_inside(remembered, translator, ASKED, page, said.append)
    assert len(said) == 1
    assert str(page) in said[0]
    (report,) = reports_in(page)
    return report


def test_it_shows_where_the_translator_looks(told: dict[str, Any]) -> None:
    assert (told["model"]["name"], told["given"]) == ("seq2seq", ASKED)
    (layer,) = told["views"]["alignment"]["layers"]
    assert (layer["stream"], layer["keys"]) == ("target", "source")
    shape = told["arrays"][layer["weights"]]["shape"]
    assert shape == [1, len(told["streams"]["target"]["names"]), len(told["streams"]["source"]["names"])]
    assert [name.strip() for name in told["streams"]["source"]["names"]][: len(ASKED.split())] == ASKED.split()


def test_it_shows_how_far_each_models_gradient_reaches(
    told: dict[str, Any], demo: Any, remembered: Comparison
) -> None:
    view = told["views"]["gradient"]
    lines = {line["name"]: line for line in view["lines"]}
    labels = [entry.label for entry in remembered.entries]
    assert [name for name in labels if name in lines] == [name for name in labels if "window" not in name]
    assert view["left"] == [name for name in labels if "window" in name]  # it hands no state on
    for line in lines.values():
        tokens = [token.strip() for token in line["tokens"]]
        assert line["wanted"].strip() == "c"  # the answer, which was said first
        assert tokens[-2:] == ["?", "="]
        assert tokens.index("?") - tokens.index("c") == max(demo.DISTANCES) + 1
        assert told["arrays"][line["norms"]]["shape"] == [len(tokens)]
    assert [name for name, line in lines.items() if line["factor"] is not None] == ["elman"]
