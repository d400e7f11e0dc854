"""The registry: what is ours, and what other packages bring through entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import legato
from legato.errors import ConfigError
from legato.models.base import SequenceModel
from legato.registry import MODELS, TASKS, Registry
from legato.runs.config import check, settings_for

MODEL = """
from typing import Literal

import torch
from torch import nn

from legato.models.base import ModelConfig, SequenceModel
from legato.nn.linear import Linear
from legato.nn.pooling import pool
from legato.nn.state import Output


class BigramConfig(ModelConfig):
    name: Literal["bigram"] = "bigram"
    width: int = 4


class BigramState:
    length = 0

    def reorder(self, rows):
        pass

    def rewind(self, length):
        self.length = length


class Bigram(SequenceModel):
    Config = BigramConfig
    summary = "counts pairs, by gradient descent"
    lora_targets = ("inner",)

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.embedding = nn.Embedding(sizes.vocabulary, config.width)
        self.inner = Linear(config.width, config.width)
        self.output = nn.Linear(config.width, sizes.vocabulary)

    def forward(self, batch, state=None):
        return Output(self.inner(self.embedding(batch.inputs.ids)), batch.inputs.ids[:, :0])

    def reset_state(self, state, keep):
        return state

    def readout(self, hidden):
        return self.output(hidden)

    def start(self, rows, capacity, memory=None):
        return BigramState()

    def prefill(self, inputs, state):
        state.length += inputs.ids.shape[1]
        return self.readout(pool(self.inner(self.embedding(inputs.ids)), inputs.lengths, "last"))

    def step(self, tokens, state):
        state.length += 1
        return self.readout(self.inner(self.embedding(tokens)))
"""

TASK = """
from legato.config import Section
from legato.tasks.defaults import Defaults
from legato.tasks.lm.task import LanguageData, LanguageModelling


class Letters(LanguageData):
    alphabet: str = "latin"


class LetterModelling(LanguageModelling):
    name = "letters"
    summary = "language modelling, letter by letter"
    Data = Letters

    @classmethod
    def defaults(cls, given):
        return Defaults(tokenizer={"name": "char"})
"""


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another package, installed as pip installs it."""
    site = tmp_path / "site-packages"
    about = site / "outside_pack-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-pack\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[legato.models]\n"
        "bigram = outside_pack.models:Bigram\n"
        "gone = outside_pack.gone:Model\n"
        "failing = outside_pack.failing:Model\n"
        "nameless = outside_pack.models:Missing\n"
        "lstm = outside_pack.models:Bigram\n"
        "[legato.tasks]\n"
        "letters = outside_pack.tasks:LetterModelling\n"
    )
    package = site / "outside_pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(MODEL)
    (package / "tasks.py").write_text(TASK)
    (package / "failing.py").write_text("raise RuntimeError('first line\\nsecond line')\n")
    monkeypatch.syspath_prepend(str(site))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "outside_pack"]:
        del sys.modules[name]


# --- ours ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_has_a_config_and_a_line_about_itself(name: str) -> None:
    model = MODELS.get(name)
    assert issubclass(model, SequenceModel)
    needed = {"encoder": "vit"} if name in ("vqa", "frames") else {}
    assert model.Config(name=name, **needed).name == name
    assert model.summary
    assert "\n" not in model.summary


@pytest.mark.parametrize("name", TASKS.names())
def test_every_task_knows_its_own_name(name: str) -> None:
    assert TASKS.get(name).name == name


def test_the_models_of_the_recurrent_lineage_are_there() -> None:
    assert {"window", "elman", "gru", "lstm"} <= set(MODELS.names())


def test_an_unknown_model_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="there is no model 'lsmt'; did you mean 'lstm'"):
        MODELS.get("lsmt")


def test_an_unknown_task_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"there is no task 'zzz'; there is .*lm"):
        TASKS.get("zzz")


def test_listing_names_imports_none_of_them() -> None:
    registry = Registry("thing", "legato.none", {"broken": "no_such_module:Thing"})
    assert registry.names() == ["broken"]
    assert "broken" in registry


def test_a_script_adds_a_model_for_its_own_process() -> None:
    registry = Registry("thing", "legato.none", {})
    registry.add("mine", int)
    assert registry.get("mine") is int
    assert registry.names() == ["mine"]


# --- from outside ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("outside")
def test_a_model_from_outside_is_listed_after_ours() -> None:
    names = MODELS.names()
    assert names.index("bigram") > max(names.index(ours) for ours in ("window", "elman", "gru", "lstm"))


@pytest.mark.usefixtures("outside")
def test_a_model_from_outside_is_found() -> None:
    assert MODELS.get("bigram").summary == "counts pairs, by gradient descent"


@pytest.mark.usefixtures("outside")
def test_the_settings_of_a_model_from_outside_are_checked_by_its_own_class() -> None:
    assert check(settings_for("lm", ["model=bigram", "model.width=6"])).model.model_dump() == {
        "name": "bigram",
        "width": 6,
    }
    with pytest.raises(ConfigError, match=r"unknown key 'model\.widht'; did you mean 'width'"):
        check(settings_for("lm", ["model=bigram", "model.widht=6"]))


@pytest.mark.usefixtures("outside")
def test_nothing_from_outside_takes_the_name_of_ours() -> None:
    assert MODELS.names().count("lstm") == 1
    assert MODELS.get("lstm").__module__ == "legato.models.recurrent"


def train_tiny(folder: Path, what: str, **settings: object) -> Path:
    text = folder / "a.txt"
    text.write_text("the cat sat on the mat. " * 40)
    small = {"data.train": str(text), "data.window": 8, "train.batch_tokens": 32, "train.steps": 2}
    quiet = {"train.tensorboard": False, "train.samples": 0, "device": "cpu"}
    quiet |= {} if "from" in settings else {"tokenizer": "char"}
    return legato.train(what, {**small, **quiet, **settings}, out=str(folder / "run"), quiet=True).run


@pytest.mark.usefixtures("outside")
def test_a_model_from_outside_trains_and_is_loaded_and_writes(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "lm", model="bigram")
    model = legato.load(run, device="cpu")
    assert type(model.module).__name__ == "Bigram"
    assert len(model.generate("the ", max_tokens=5)) <= 5


@pytest.mark.usefixtures("outside")
def test_a_model_from_outside_is_tuned_with_adapters_and_saved(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "lm", model="bigram")
    (tmp_path / "tuned").mkdir()
    tuned = train_tiny(tmp_path / "tuned", "lm", **{"from": str(run), "adapt": "lora", "adapt.rank": 2})
    before, after = legato.load(run, device="cpu"), legato.load(tuned, device="cpu")
    assert (tuned / "best" / "adapter_model.safetensors").exists()
    assert not torch.equal(before.module.inner.weight, after.module.inner.weight)
    assert torch.equal(before.module.output.weight, after.module.output.weight)
    assert len(after.generate("the ", max_tokens=5)) <= 5


@pytest.mark.usefixtures("outside")
def test_a_task_from_outside_is_found_and_listed() -> None:
    assert TASKS.names()[-1] == "letters"
    assert TASKS.get("letters").summary == "language modelling, letter by letter"


@pytest.mark.usefixtures("outside")
def test_a_task_from_outside_checks_its_own_data_and_adjusts_the_settings() -> None:
    config = check(settings_for("letters", ["data.alphabet=greek"]))
    assert config.data.alphabet == "greek"  # type: ignore[attr-defined]
    assert config.tokenizer.name == "char"


@pytest.mark.usefixtures("outside")
def test_a_task_from_outside_trains(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "letters", model="elman", **{"model.width": 8})
    assert (run / "best" / "model.safetensors").exists()


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone", r"comes from 'outside_pack\.gone:Model', which does not load: No module named 'outside_pack\.gone'"),
        ("failing", r"comes from 'outside_pack\.failing:Model', which does not load: first line second line"),
        ("nameless", r"comes from 'outside_pack\.models:Missing', which does not load: .*'Missing'"),
    ],
)
def test_a_broken_entry_point_gives_one_clear_line(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"model '{name}' {reason}") as caught:
        MODELS.get(name)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("outside")
def test_a_broken_entry_point_hides_no_other_model() -> None:
    assert "gone" in MODELS.names()
    assert MODELS.get("gru") is MODELS.get("elman")


def test_others_names_come_in_the_order_of_their_package(outside: None) -> None:
    assert [name for name in MODELS.names() if name not in MODELS.builtin] == [
        "bigram",
        "gone",
        "failing",
        "nameless",
    ]
