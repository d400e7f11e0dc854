"""Labels that training never saw, as ATIS has them in its dev and test files: counted as wrong, and named.

Made up here: requests of travellers, each with what they want (an intent) and what its words are (slots).
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from answers import Command
from tiny_runs import words

PLACES = {"from": ("boston", "denver", "new york"), "to": ("dallas", "oakland", "san jose")}
REQUESTS = {"flight": "show flights", "airfare": "how much is it", "ground_service": "a taxi please"}
SMALL = {"model.width": 16, "train.lr": 0.02, "train.batch_rows": 8, "train.samples": 0, "device": "cpu"}
SMALL |= {"train.steps": 60, "train.validate_every": 30, "train.tensorboard": "false"}

Request = tuple[str, str, list[tuple[str, str]]]
"""The intent, the text, and each word with its slot."""


def requests(count: int, seed: int) -> list[Request]:
    """The intents in turn, each from one place to another."""
    draw, made = random.Random(seed), []
    for number in range(count):
        intent, asked = list(REQUESTS.items())[number % len(REQUESTS)]
        tagged = [(word, "O") for word in asked.split()]
        for side, names in PLACES.items():
            first, *more = draw.choice(names).split()
            slot = f"{side}loc.city_name"
            tagged += [(side, "O"), (first, f"B-{slot}"), *((word, f"I-{slot}") for word in more)]
        made.append((intent, " ".join(word for word, _ in tagged), tagged))
    return made


UNSEEN: list[Request] = [
    ("day_name", "what day is it", [("what", "O"), ("day", "B-day_name"), ("is", "O"), ("it", "O")]),
    ("meal", "show dinner flights", [("show", "O"), ("dinner", "B-meal_description"), ("flights", "O")]),
]


@pytest.fixture
def atis(tmp_path: Path) -> Path:
    """Intents in NAME.tsv, slots in NAME.txt; those of UNSEEN are in dev and test alone."""
    for name, made in (("train", requests(90, 1)), ("dev", [*requests(12, 2), *UNSEEN]), ("test", UNSEEN[:1] * 3)):
        made = [*requests(9, 3), *made] if name == "test" else made
        rows = "".join(f"{text}\t{intent}\n" for intent, text, _ in made)
        (tmp_path / f"{name}.tsv").write_text(f"text\tintent\n{rows}")
        blocks = ["".join(f"{word} {slot}\n" for word, slot in tagged) for _, _, tagged in made]
        (tmp_path / f"{name}.txt").write_text("\n".join(blocks))
    return tmp_path


def settings(folder: Path, kind: str) -> list[str]:
    files = {"data.train": f"train.{kind}", "data.valid": f"dev.{kind}", "data.test": f"test.{kind}"}
    return words({**files, "data.root": str(folder), **SMALL, "out": str(folder / "run")})


def test_intents_that_training_lacks_are_counted_and_named(command: Command, atis: Path) -> None:
    done = command("train", "classification", *settings(atis, "tsv"))
    assert done.code == 0, done.err
    dev = "data.valid has labels unknown to the model, in 2 of 14 rows: 'day_name' (1), 'meal' (1)"
    test = "data.test has labels unknown to the model, in 3 of 12 rows: 'day_name' (3); they count as wrong"
    assert f"note: {dev}" in done.err
    assert f"note: {test}" in done.err
    metrics = json.loads((atis / "run" / "result.json").read_text())["metrics"]
    assert metrics["valid.accuracy"] == pytest.approx(12 / 14)
    assert metrics["test.accuracy"] == pytest.approx(9 / 12)

    done = command("eval", atis / "run", f"data.test={atis}/test.tsv", "--json")
    assert done.err == f"legato: note: {test}\n"
    told = json.loads(done.out)
    assert told["accuracy"] == pytest.approx(9 / 12)
    assert told["details"][0]["rows"][-1][0] == "(not learned)"


def test_slots_that_training_lacks_are_counted_and_named(command: Command, atis: Path) -> None:
    done = command("train", "tagging", *settings(atis, "txt"))
    assert done.code == 0, done.err
    dev = "data.valid has tags unknown to the model, in 2 of "
    assert f"note: {dev}" in done.err
    assert "words: 'day_name' (1), 'meal_description' (1); they count as wrong" in done.err
    metrics = json.loads((atis / "run" / "result.json").read_text())["metrics"]
    names = 9 * 2 + 3
    assert metrics["test.names"] == names
    assert metrics["test.recall"] == pytest.approx(100 * 9 * 2 / names)

    done = command("eval", atis / "run", f"data.test={atis}/test.txt", "--json")
    assert "legato: note: data.test has tags unknown to the model, in 3 of " in done.err
    assert json.loads(done.out)["recall"] == pytest.approx(metrics["test.recall"])


@pytest.mark.parametrize(
    ("task", "kind", "setting"), [("classification", "tsv", "labels"), ("tagging", "txt", "tags")]
)
def test_eval_remembers_that_a_run_refuses_what_it_never_saw(
    task: str, kind: str, setting: str, command: Command, atis: Path
) -> None:
    refuse = f"data.unseen_{setting}=refuse"
    known = [word for word in settings(atis, kind) if not word.startswith(("data.valid", "data.test"))]
    assert command("train", task, *known, refuse, "train.steps=2").code == 0
    done = command("eval", atis / "run", f"data.test={atis}/dev.{kind}")
    assert done.code == 2
    assert "'day_name'" in done.err
    assert command("eval", atis / "run", f"data.test={atis}/dev.{kind}", refuse.replace("refuse", "wrong")).code == 0


def test_one_of_several_labels_that_training_lacks_is_counted_and_named(command: Command, atis: Path) -> None:
    for name in ("train", "dev"):
        rows = (atis / f"{name}.tsv").read_text().replace("ground_service", "flight;ground_service")
        (atis / f"{name}.tsv").write_text(rows.replace("day_name", "flight;day_name"))
    given = [word for word in settings(atis, "tsv") if not word.startswith("data.test")]
    done = command("train", "classification", *given, "data.kind=multilabel")
    assert done.code == 0, done.err
    assert "unknown to the model, in 2 of 14 rows: 'day_name' (1), 'meal' (1); they count as wrong" in done.err
    assert json.loads((atis / "run" / "result.json").read_text())["metrics"]["valid.exact"] <= 12 / 14
