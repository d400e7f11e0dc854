"""What there is: models, recipes, settings, and what `legato doctor` finds."""

from __future__ import annotations

import json
import re
from importlib import metadata
from typing import Any

import pytest
import yaml

import legato
from legato.cli.printing import show
from legato.models.published.entries import value_at
from legato.registry import MODELS, TASKS
from legato.runs import doctor as diagnosis
from legato.runs import product_rates
from legato.runs.config import TO_BE_NAMED, check, describe_settings, list_recipes, settings_for
from tiny_adapted import published_folder
from tiny_pictures import picture_model


def test_every_model_is_listed(command: Any) -> None:
    assert all(name in command("models").out for name in MODELS.names())
    assert json.loads(command("models", "--json").out).keys() == set(MODELS.names())


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_shows_its_settings(name: str, command: Any) -> None:
    others = {"resnet": "embedding", "efficientnet-lite": "width_coefficient", "clip": "vision.width"}
    key = {**others, "llava": "text.width"}.get(name, "width")
    assert f"model.{key}" in command("models", name).out
    settings = json.loads(command("models", name, "--json").out)
    widths = {"word2vec": 100, "resnet": 64, "efficientnet-lite": 1.0}
    assert value_at(settings, key) == widths.get(name, 256)


@pytest.mark.slow
def test_every_recipe_is_listed(command: Any) -> None:
    assert json.loads(command("recipes", "--json").out).keys() == set(list_recipes())
    assert command("recipes").code == 0


Bases = dict[str, str]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """Models for recipes that go on from one: of text, of pictures, and one that writes."""
    folder = tmp_path_factory.mktemp("base")
    return {
        "text": str(published_folder(folder / "m", "bert", layers=4)),
        "image": str(picture_model(folder / "i", layers=1, width=16, heads=2, image=32)),
        "writer": str(published_folder(folder / "w", "llama", layers=1)),
    }


def complete(recipe: dict[str, Any], base: Bases) -> dict[str, Any]:
    start = recipe.get("from")
    if isinstance(start, dict):  # of parts: those that read pictures, and one of text, which writes where it chats
        text = "writer" if recipe["task"] == "visual-chat" else "text"
        return {**recipe, "from": {part: base[text if part == "text" else "image"] for part in start}}
    kind = "image" if "image" in TASKS.get(recipe["task"]).processors else "text"
    return {**recipe, "from": base[kind]} if start == TO_BE_NAMED else recipe


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_valid_and_promises_a_score(name: str, base: Bases) -> None:
    recipe = check(complete(settings_for(name), base))
    assert recipe.task in TASKS
    assert recipe.about
    assert recipe.expect or "not measured yet" in recipe.about


def test_streams_forget_only_where_a_recipe_says_so() -> None:
    assert check({"task": "lm", "data": {"train": "a.txt"}}).data.forget == 0
    measured_with = [name for name in list_recipes() if settings_for(name).get("data", {}).get("forget")]
    assert measured_with == ["lm/ptb-lstm", "lm/shakespeare-lstm", "lm/stdlib-lstm", "lm/wikitext2-lstm"]


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_is_printed_as_a_file_that_can_be_run(name: str, command: Any, base: Bases) -> None:
    printed = yaml.safe_load(command("recipes", name).out)
    assert check(complete(printed, base)) == check(complete(settings_for(name), base))


def test_a_recipe_that_needs_a_model_says_so(command: Any) -> None:
    answer = command("train", "classification/sst2")
    assert (answer.code, answer.err) == (
        2,
        "legato: this recipe goes on from a trained model; name it: from=MODEL\n",
    )


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates of products are measured for a moment."""
    monkeypatch.setattr(product_rates, "PATIENCE", 0.002)
    monkeypatch.setattr(product_rates, "MATRIX", 1 << 20)
    monkeypatch.setattr(product_rates, "WIDTH", {"cpu": 512})


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_doctor_looks_at_this_machine(command: Any) -> None:
    found = json.loads(command("doctor", "--json").out)
    assert found["legato"] == legato.__version__
    assert {"python", "torch", "device", "free disk here"} <= found.keys()
    assert {"sacrebleu", "sentencepiece"} <= found.keys()
    assert "float32 products" in command("doctor").out


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_doctor_asks_for_no_package_that_is_optional(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("ctranslate2", "transformers"):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("legato.runs.doctor.metadata.version", version)
    found = {finding.name: finding for finding in diagnosis.diagnose()}
    assert found["ctranslate2"].good
    assert found["ctranslate2"].value == "not installed (optional: legato export --to ctranslate2)"


def test_every_setting_has_a_meaning() -> None:
    rows = describe_settings({"task": "lm", "model": {"name": "gru"}})
    named = [(row.key, row.meaning) for row in rows if row.key != "model.name"]
    assert all(meaning for _, meaning in named), [key for key, meaning in named if not meaning]


def test_train_lists_its_keys(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    answer = command("train", "lm", "model=window", "--keys")
    assert answer.code == 0
    assert "model.context" in answer.out
    assert "train.batch_tokens" in answer.out


def test_the_length_of_a_run_and_its_rate_are_explained_where_nobody_sets_them() -> None:
    meanings = {row.key: (row.default, row.meaning) for row in describe_settings({"task": "translation"})}
    assert meanings["train.lr"] == ("0.001", "the highest; none: 0.003 for adamw and muon, 1 for sgd and asgd")
    assert meanings["train.epochs"] == ("None", "passes over the data, when train.steps is none; none: 10")


def test_a_setting_that_begins_empty_is_shown_so() -> None:
    shown = {row.key: row.default for row in describe_settings({"task": "unit"})}
    assert shown["data.tasks"] == shown["model.tasks"] == "{}"


@pytest.mark.thinned(3)
@pytest.mark.parametrize("width", [200, 80, 40])
@pytest.mark.parametrize(
    "words",
    [("recipes",), ("train", "classification", "--keys"), ("models",), ("models", "transformer")],
    ids=" ".join,
)
def test_no_word_is_cut_however_narrow_the_terminal(
    words: tuple[str, ...], width: int, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def words_at(columns: int) -> set[str]:
        monkeypatch.setattr("legato.cli.printing.WIDE", columns)
        shown = command(*words).out
        assert max(map(len, shown.splitlines())) <= columns
        return {word.rstrip(":") for word in re.split(r"[\s│┃]+", shown)}

    whole = {word for word in words_at(10_000) if word.isascii() and len(word) <= width - 4}
    assert whole - words_at(width) <= {"recipe", "model", "setting"}  # headings of what stands on a line of its own


def test_a_table_that_is_a_little_too_wide_cuts_no_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width in range(14, 30):
        monkeypatch.setattr("legato.cli.printing.WIDE", width)
        show(("name", "meaning"), [("encoder", "recurrence")])
        assert {"encoder", "recurrence"} <= set(re.split(r"[\s│┃:]+", capsys.readouterr().out))


def test_what_a_setting_may_be_is_said(command: Any) -> None:
    values = {row.key: row.values for row in describe_settings({"task": "classification"})}
    assert values["data.format"] == "auto | tsv | csv | jsonl | parquet"
    assert values["data.valid_share"] == "above 0, below 1"
    assert values["train.steps"] == "at least 1"
    assert values["train.compile"] == "auto | true | false"
    assert values["train.optimizer"] == "adamw | muon | sgd | asgd"
    assert values["data.train"] == values["seed"] == ""
    assert "adamw | muon | sgd | asgd" in command("train", "lm", "--keys").out
    assert "true | false" in command("models", "transformer").out
