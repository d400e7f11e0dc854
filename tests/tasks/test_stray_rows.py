"""A few rows that say something else than all the others do not turn a task into another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.errors import DataError
from legato.registry import TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from tiny_questions import squad
from tiny_reviews import settings as reviews
from tiny_reviews import write_reviews
from tiny_tagged import sentences, small, write_columns


def prepared(task: str, given: dict[str, Any]) -> tuple[Any, list[str]]:
    """The job, and what it said."""
    said: list[str] = []
    config = check(settings_for(task, given))
    return TASKS.get(task).prepare(plan_of(config, torch.device("cpu")), said.append), said


def tagged(folder: Path, scheme: Any, **spoilt: str) -> str:
    """Sixty sentences, of which the third one's tags are spoilt: `B_PER="B-PER"` puts the first for the second."""
    rows = sentences(60, 1, scheme)
    for new, old in spoilt.items():
        _, tags = next(row for row in rows[2:] if old in row[1])
        tags[tags.index(old)] = new.replace("__", "-")
    return str(write_columns(folder / "spoilt.txt", rows))


@pytest.mark.parametrize(
    ("scheme", "spoilt", "told"),
    [
        ("iob2", {"B_PER": "B-PER"}, "the tag 'B_PER' of '.*' is neither O nor like B-PER, as .* others are; mend"),
        ("iob2", {"PER": "B-PER"}, "the tag 'PER' of '.*' is neither O nor like B-PER"),
        ("iobes", {"o": "O"}, "the tag 'o' of '.*' is neither O nor like B-PER"),
        ("iob2", {"E__LOC": "I-LOC"}, "the tag 'E-LOC' of '.*' is one of IOBES, and .* names have none such"),
        ("iob1", {"U__LOC": "I-LOC"}, "the tag 'U-LOC' of '.*' is one of BILOU, and .* names have none such"),
    ],
)
def test_one_stray_tag_is_refused_by_its_line(scheme: str, spoilt: dict[str, str], told: str, tmp_path: Path) -> None:
    source = tagged(tmp_path, scheme, **spoilt)
    with pytest.raises(DataError, match=rf"spoilt\.txt, line \d+: {told}"):
        prepared("tagging", {**small(tmp_path), "data.train": source})


@pytest.mark.parametrize(
    ("spoilt", "scheme"), [({"B_PER": "B-PER"}, "plain"), ({"E__LOC": "I-LOC"}, "iob2"), ({}, "iob2")]
)
def test_a_scheme_that_is_named_is_taken(spoilt: dict[str, str], scheme: str, tmp_path: Path) -> None:
    source = tagged(tmp_path, "iob2", **spoilt)
    job, _ = prepared(
        "tagging", {**small(tmp_path), "data.train": source, "data.scheme": scheme, "data.valid": source}
    )
    assert job.scheme == scheme


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "iobes", "bilou"])
def test_tags_that_agree_are_read_as_before(scheme: str, tmp_path: Path) -> None:
    job, said = prepared("tagging", small(tmp_path, scheme=scheme))
    assert job.scheme == {"iob1": "iob2", "bilou": "iobes"}.get(scheme, scheme)
    assert f"names in {scheme.upper()}" in said[0]


def test_a_tag_that_is_missing_is_refused_by_its_line(tmp_path: Path) -> None:
    rows = [(["a", "dog", "runs"], ["DET", "NOUN", "VERB"])] * 20
    rows[1] = (["a", "cat", "runs"], ["DET", "nan", "VERB"])
    source = str(write_columns(tmp_path / "pos.txt", rows))
    with pytest.raises(
        DataError, match=r"pos\.txt, line 8: the tag of 'cat' is missing, 'nan' stands there; write it"
    ):
        prepared("tagging", {**small(tmp_path), "data.train": source})


def test_one_question_without_an_answer_is_named(tmp_path: Path) -> None:
    file = squad(tmp_path / "train.json")
    told = json.loads(file.read_text())
    asked = told["data"][1]["paragraphs"][2]["qas"][0]
    asked["answers"] = []
    file.write_text(json.dumps(told))
    base = {"data.train": str(file), "model.width": 16, "device": "cpu", "data.valid": str(file)}
    _, said = prepared("qa", base)
    [line] = [line for line in said if "no answer (" in line]
    assert line.startswith(f"note: 1 of 72 training questions has no answer ({file}, question {asked['id']})")


def test_questions_of_which_many_have_no_answer_are_told_as_before(tmp_path: Path) -> None:
    file = squad(tmp_path / "train.json", silent=True)
    _, said = prepared("qa", {"data.train": str(file), "model.width": 16, "device": "cpu", "data.valid": str(file)})
    assert not any("no answer (" in line for line in said)


def test_one_label_outside_a_models_classes_does_not_make_new_ones_of_all(tmp_path: Path) -> None:
    legato.train("classification", reviews(tmp_path, train__steps=1), out=str(tmp_path / "run"), quiet=True)
    numbered = write_reviews(tmp_path / "numbers.tsv", labels=("0", "1"))
    given = {**reviews(tmp_path), "data.train": str(numbered), "data.valid": str(numbered)}
    given = {
        **{key: value for key, value in given.items() if not key.startswith("model")},
        "from": str(tmp_path / "run"),
    }
    job, _ = prepared("classification", given)
    assert job.labels == ["bad", "good"]
    lines = numbered.read_text().split("\n")
    lines[7] = lines[7][:-1] + "2"
    numbered.write_text("\n".join(lines))
    with pytest.raises(
        DataError, match=r"numbers\.tsv, line 8: the label '2' is none of the numbers 0 to 1 that the"
    ):
        prepared("classification", given)


def test_a_class_called_nan_is_said(tmp_path: Path) -> None:
    source = write_reviews(tmp_path / "words.tsv", labels=("nan", "good"))
    _, said = prepared("classification", {**reviews(tmp_path), "data.train": str(source), "data.valid": str(source)})
    assert "note: 'nan' is read as a class; where it stands for a label that is missing, remove the rows" in said


def test_a_scale_that_hangs_on_some_rows_is_told_with_the_first_of_them(tmp_path: Path) -> None:
    source = write_reviews(tmp_path / "scale.tsv", labels=("0", "1"))
    lines = source.read_text().split("\n")
    for number in (5, 9, 20, 21, 30, 33, 40):
        lines[number] = lines[number][:-1] + "0.5"
    source.write_text("\n".join(lines))
    given = {**reviews(tmp_path), "data.train": str(source), "data.valid": str(source)}
    _, said = prepared("classification", given)
    [line] = [line for line in said if "have fractions" in line]
    assert line.startswith(
        f"note: 7 of 60 labels have fractions, the first '0.5' ({source}, line 6), so all are read"
    )
    _, said = prepared("classification", {**given, "data.kind": "regression"})
    assert not any("have fractions" in line for line in said)
