"""Settings that no computer could carry out, or that are no settings at all: each is one line that names the key."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from legato.config import MAX_COUNT, MAX_SEED, Section
from legato.errors import ConfigError
from legato.registry import MODELS, TASKS
from legato.runs.config import RunConfig, check, settings_for
from refusals import is_one_line

HUGE = (10**25, 2**64, 2**63, -(2**70), int("9" * 4000))


def sections() -> list[type[Section]]:
    """Every group of settings that a run may have."""
    import legato.decoding.options  # noqa: F401

    for registry in (MODELS, TASKS):
        for name in registry.names():
            registry.get(name)

    def below(section: type[Section]) -> list[type[Section]]:
        return [section, *(deeper for inner in section.__subclasses__() for deeper in below(inner))]

    return sorted(
        {one for one in below(Section) if one.__module__.startswith("legato.")}, key=lambda one: one.__name__
    )


def takes(annotation: Any, kind: type) -> bool:
    return annotation is kind or kind in get_args(annotation)


SECTIONS = sections()


def fields_of(section: type[Section], kind: type) -> list[str]:
    return [field.alias or name for name, field in section.model_fields.items() if takes(field.annotation, kind)]


def messages(section: type[Section], key: str, value: Any) -> list[str]:
    """What is said of this key, whatever else the section lacks."""
    from pydantic import ValidationError

    with pytest.raises(ValidationError) as refusal:
        section.model_validate({key: value})
    return [error["msg"] for error in refusal.value.errors() if error["loc"] and error["loc"][0] == key]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_whole_number_of_every_section_has_an_upper_bound(section: type[Section]) -> None:
    for key, value in product(fields_of(section, int), HUGE):
        assert messages(section, key, value), key
        if not takes(section.model_fields[key].annotation, str):
            assert messages(section, key, str(value)), key


@pytest.mark.parametrize("section", SECTIONS)
def test_every_number_of_every_section_is_one_that_float32_holds(section: type[Section]) -> None:
    for key, value in product(fields_of(section, float), ("nan", "inf", "-inf", "1e400", "1e300", 10**400)):
        assert messages(section, key, value), key


@pytest.mark.parametrize("section", SECTIONS)
def test_no_text_of_any_section_holds_what_no_file_can(section: type[Section]) -> None:
    for key, value in product(fields_of(section, str), ("a\0b", "caf\udce9", "\ud83d", "x" * 1_000_000)):
        assert messages(section, key, value), key


def test_a_section_that_comes_later_has_these_rules_by_itself() -> None:
    class Later(Section):
        size: int = 1
        names: tuple[str, ...] = ()
        spans: dict[str, tuple[int, float]] | None = None

    for bad in (
        {"size": MAX_COUNT + 1},
        {"names": ["\udcff"]},
        {"spans": {"a": (2**40, 1.0)}},
        {"spans": {"a": (1, 1e300)}},
        {"spans": {"\0": (1, 1.0)}},
    ):
        assert messages(Later, next(iter(bad)), next(iter(bad.values())))
    assert Later(size=MAX_COUNT, spans={"a": (1, 1e37)}).size == MAX_COUNT


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("seed=18446744073709551616", ("seed=18446744073709551616 should be less than or equal to", str(MAX_SEED))),
        (f"seed={-(2**63)}", ("seed=", "should be greater than or equal to")),
        (f"model.width={10**25}", ("model.width=10000000000000000000000000 should be less than or equal to",)),
        (f"model.width={'9' * 5000}", ("model.width=9999", "…")),
        ("model.layers=1000000", ("model.layers=1000000 should be less than or equal to",)),
        ("train.steps=1e30", ("train.steps=1e30",)),
        ("train.lr=1e300", ("train.lr=", "should be between")),
        ("data.window=99999999999", ("data.window=99999999999 should be less than or equal to",)),
        (".=1", ("'.' is no setting's name",)),
        ("a..b=1", ("'a..b' is no setting's name",)),
        ("model.=1", ("'model.' is no setting's name",)),
        (".".join("abcdefghijkl") + "=1", ("is no setting's name",)),
        ("k" * 10_000 + "=1", ("is no setting's name", "…")),
        ("model.name.x=1", ("'model.name.x' is set inside 'name'",)),
        ("tokenizer.name.x=1", ("tokenizer.name",)),
        ("data.train=[2020-99-99]", ("there is no file 2020-99-99",)),
        ("model.width=[2020-99-99]", ("model.width=",)),
        ("model.width=[0x" + "f" * 5000 + "]", ("is too large a number",)),
        ("model.width=[!!python/object:os.system 1]", ("not a list",)),
        ("model={a: &x [*x]}", ("nested more than",)),
        ("data.train=" + "[" * 2000, ("not a list",)),
        ("out=~nosuchuser/run", ("~nosuchuser", "home folder")),
        ("out=" + "a" * 300, ("the name is too long",)),
        ("data.train=~nosuchuser/a.txt", ("~nosuchuser", "home folder")),
        ("data.train=" + "a" * 300, ("the name is too long",)),
        ("data.root=" + "/a" * 3000, ("the name is too long",)),
        ("data.train=caf\udce9.txt", ("data.train=", "no UTF-8")),
        ("tokenizer.path=" + "a" * 300, ("the name is too long",)),
        ("device=" + "x" * 100_000, ("device=",)),
    ],
    ids=lambda part: part[:30].encode("ascii", "replace").decode() if isinstance(part, str) else "",
)
def test_what_no_setting_can_be_is_one_line(
    word: str, parts: tuple[str, ...], train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = train(word)
    is_one_line(answer, *parts)
    assert len(answer.err) < 600


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("task: lm\nseed: 2020-99-99\n", "seed=2020-99-99 is not a whole number"),
        ("task: lm\nseed: 2020-01-01\n", "seed=2020-01-01 is not a whole number"),
        ("task: lm\nmodel: {width: 1" + "0" * 5000 + "}\n", "is too large a number"),
        ("task: lm\nmodel: {width: .inf}\n", "'model.width': inf is no number"),
        ("task: lm\n1: 2\n", "the name of an entry should be a text, not 1"),
        ("task: lm\nnull: 2\n", "the name of an entry should be a text"),
        ("task: lm\nmodel: " + "[" * 3000, "nested too deeply"),
        ("task: lm\nmodel: " + "[" * 100 + "]" * 100, "nested too deeply"),
        ("task: lm\nabout: !!python/object/apply:os.getcwd []\n", "could not determine a constructor"),
        ("task: lm\nabout: !!binary aGk=\n", "the tag"),
        ('task: lm\nabout: "\\ud800"\n', "bad.yaml"),
        (
            "task: lm\na: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(8)),
            "holds more than",
        ),
        ("task: lm\nmodel:\n  name: {x: 1}\n", "model should be a name, such as model=NAME, not {'x': 1}"),
        ("task: [lm]\n", "task should be a name, such as task=NAME, not ['lm']; legato compare takes a list"),
        ("task: lm\nmodel: [2020-99-99]\n", "model should be a name, such as model=NAME, not ['2020-99-99']"),
        ("task: lm\nexpect: {valid.perplexity: {}}\n", "an expectation has a bound; write at_most or at_least"),
        ("task: lm\nexpect: {perplexity: {at_most: 5}}\n", "lm reports no such figure; did you mean"),
        ("task: lm\nexpect: {test.bleu: {at_least: 5}}\n", "expect.test.bleu: lm reports no such figure"),
        ("task: lm\nexpect: {valid.perplexity: 5}\n", "expect.valid.perplexity"),
        ("task: lm\nexpect: [5]\n", "expect"),
        ("task: lm\ndata: 5\n", "'data' is a group of settings"),
        ("task: lm\nhead: [1]\n", "'head' is a group of settings"),
        ("x" * 600_000, "more than the"),
    ],
    ids=lambda part: part[:40] if isinstance(part, str) else "",
)
def test_a_recipe_that_says_what_cannot_be_is_one_line(content: str, part: str, command: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    answer = command("train", tmp_path / "bad.yaml", f"out={tmp_path}/run")
    is_one_line(answer, part)
    assert len(answer.err) < 600
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["pipe", "folder", "a" * 300, "~nosuchuser/x"])
def test_a_settings_file_that_is_no_file_is_one_line(name: str, command: Any, tmp_path: Path) -> None:
    import os

    if name == "pipe":
        os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    where = name if name.startswith("~") else str(tmp_path / name)
    is_one_line(command("train", f"{where}.yaml"))


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("match=٣", "match"),
        ("match=²", "match=² is not known"),
        ("match=" + "9" * 5000, "match"),
        ("match=[1,2]", "match"),
        ("seed=[1,18446744073709551616]", "18446744073709551616 is too large a number"),
        ("seed=[1,9223372036854775808]", "is too large a number"),
        ("seed=[1,x]", "seed=x is not a whole number"),
        ("seed=[[1]]", "seed"),
        ("seed={a: 1}", "seed"),
        ("seed=[]", ""),
        ("model=[{a: 1},lstm]", "model"),
        ("model=[[a],[b]]", "model"),
        ("out=" + "a" * 300, "the name is too long"),
        ("train.steps=[1,[2]]", "train.steps"),
    ],
)
def test_a_comparison_of_what_cannot_be_is_one_line(
    word: str, part: str, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a b c " * 10)
    words = ["model=[elman,lstm]"] if not word.startswith("model=") else []
    answer = command("compare", "lm", "data.train=a.txt", "data.valid=nowhere.txt", *words, word)
    assert answer.code == 2, answer.err
    assert part in answer.err.splitlines()[-1]


def test_negative_seeds_and_the_largest_one_train_as_before() -> None:
    for seed in (-5, 0, MAX_SEED, -MAX_SEED):
        assert check(settings_for("lm", {"data.train": "a.txt", "seed": seed})).seed == seed


def test_what_every_recipe_expects_is_what_its_task_reports() -> None:
    with pytest.raises(ConfigError, match="reports no such figure"):
        check({"task": "qa", "expect": {"valid.bleu": {"at_least": 1}}})
    config = check({"task": "translation", "expect": {"test.bleu_de-fr": {"at_least": 1}, "minutes": {"at_most": 9}}})
    assert isinstance(config, RunConfig)


def test_a_run_reports_no_figure_that_its_task_does_not_name(home: Path) -> None:
    from fnmatch import fnmatchcase

    from legato.runs.train import finished_result

    result = finished_result(home / "finished")
    assert result is not None
    figures = [name.partition(".")[2] for name, value in result.metrics.items() if not isinstance(value, str)]
    assert figures
    named = [metric.name for metric in TASKS.get("lm").metrics]
    assert all(any(fnmatchcase(name, known) for known in named) for name in figures)
    assert all(TASKS.get(name).metrics for name in TASKS.names())
