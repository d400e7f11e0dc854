"""A forced prefix: what is read back begins with it, and so does every search of the tree beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

import legato
from legato.errors import DataError
from legato.inspect.report.build import report_of
from legato.serving.studio import Studio
from serving.served import client_of, error_of

TEXT = "dog sees cat"


def words_of(runs: Path) -> list[str]:
    target = legato.load(runs / "pairs", "cpu").loaded.target
    return [target.token(index) for index in range(target.size) if index not in target.special_ids]


def first_words(strategy: dict[str, Any], count: int) -> set[tuple[str, ...]]:
    """What all that a search wrote begins with."""
    return {tuple(each["text"].split()[:count]) for each in strategy["hypotheses"]}


def test_every_search_of_a_translator_begins_with_the_prefix(translator: TestClient, runs: Path) -> None:
    one, two = words_of(runs)[2:4]
    told = translator.post("/api/inspect", json={"text": TEXT, "prefix": f"{one} {two}"}).json()
    strategies = told["views"]["tree"]["strategies"]
    assert [each["name"] for each in strategies] == ["beam", "greedy", "sample"]
    for each in strategies:
        assert each["forced"] == 2
        assert first_words(each, 2) == {(one, two)}
        kept = [place for place, (step, state) in enumerate(zip(*_columns(each), strict=True)) if step == 1 and state]
        assert [each["nodes"]["text"][place].strip() for place in kept] == [one]
    written = "".join(told["written"][:-1]).split()
    assert written == strategies[0]["hypotheses"][0]["text"].split()  # the views beside it are of the same text


def _columns(strategy: dict[str, Any]) -> tuple[list[int], list[int]]:
    return strategy["nodes"]["step"], strategy["nodes"]["state"]


def test_without_a_prefix_nothing_is_forced(translator: TestClient) -> None:
    told = translator.post("/api/inspect", json={"text": TEXT}).json()
    empty = translator.post("/api/inspect", json={"text": TEXT, "prefix": ""}).json()
    assert [each["forced"] for each in told["views"]["tree"]["strategies"]] == [0, 0, 0]
    assert told["views"]["tree"] == empty["views"]["tree"]


def test_what_is_chosen_in_the_tree_changes_what_comes_behind_it(translator: TestClient, runs: Path) -> None:
    """Another branch: of a token that the search did not take, the tree has the probability that it had."""
    free = translator.post("/api/inspect", json={"text": TEXT}).json()["views"]["tree"]["strategies"][1]
    nodes = free["nodes"]
    taken = next(
        place for place, (step, state) in enumerate(zip(*_columns(free), strict=True)) if step == 1 and state
    )
    known = set(words_of(runs))
    other = next(
        place
        for place, step in enumerate(nodes["step"])
        if step == 1 and place != taken and nodes["text"][place].strip() in known
    )
    word = nodes["text"][other].strip()
    forced = translator.post("/api/inspect", json={"text": TEXT, "prefix": word}).json()["views"]["tree"][
        "strategies"
    ][1]
    place = next(
        place for place, (step, state) in enumerate(zip(*_columns(forced), strict=True)) if step == 1 and state
    )
    assert forced["nodes"]["token"][place] == nodes["token"][other]
    assert forced["nodes"]["logprob"][place] == pytest.approx(nodes["logprob"][other], abs=1e-3)


def test_a_text_is_continued_from_behind_the_prefix(client: TestClient, runs: Path) -> None:
    told = client.post("/api/inspect", json={"text": "the ", "prefix": "dog r"}).json()
    whole = client.post("/api/inspect", json={"text": "the dog r"}).json()
    assert told["given"] == "the dog r"
    assert told["views"]["tree"] == whole["views"]["tree"]
    assert [each["forced"] for each in told["views"]["tree"]["strategies"]] == [0, 0, 0]  # it is read, not searched
    names = told["streams"]["input"]["names"]
    assert told["views"]["tree"]["position"] == len(names) - 1


def test_in_python_a_language_model_is_forced_without_reading_it(runs: Path) -> None:
    report = report_of(legato.load(runs / "lstm", "cpu"), "the ", prefix="dog r")
    assert report.given == "the "
    for each in report.views["tree"]["strategies"]:
        assert each["forced"] == 5  # of characters
        assert all(one["text"].startswith("dog r") for one in each["hypotheses"])
    with pytest.raises(DataError, match=r"the prefix 'dög': token 2 is none that .* can write"):
        report_of(legato.load(runs / "lstm", "cpu"), "the ", prefix="dög")


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        ("elephants", "the prefix 'elephants': token 1 is none that"),
        (" ", "has no token in it"),
    ],
)
def test_a_prefix_that_nobody_writes_is_refused_in_a_line(runs: Path, prefix: str, said: str) -> None:
    shown = client_of(Studio(runs / "pairs", "cpu"))
    assert said in error_of(shown.post("/api/inspect", json={"text": TEXT, "prefix": prefix}), 400)
