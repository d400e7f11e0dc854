"""The table of examples/prompting.py on tiny models and made-up data."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import legato
from legato.errors import DataError
from tiny_published import gpt2_folder

EXAMPLE = Path(__file__).parents[1] / "examples" / "prompting.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("prompting_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SST-2 and T0 in small."""
    root = tmp_path_factory.mktemp("data")
    (root / "glue" / "sst2").mkdir(parents=True)
    rows = ["label\tsentence", *(f"{n % 2}\tthe {'dog' if n % 2 else 'cat'} ran {n}" for n in range(24))]
    with gzip.open(root / "glue" / "sst2" / "train.tsv.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")
    (root / "glue" / "sst2" / "dev.tsv").write_text("\n".join(rows[:13]).replace("ran", "sat") + "\n")
    (root / "t0").mkdir()
    for split in ("train", "valid"):
        with gzip.open(root / "t0" / f"{split}.jsonl.gz", "wt") as file:
            for n in range(12):
                said = [{"role": "user", "content": f"is {n} a cat?"}, {"role": "assistant", "content": "no"}]
                file.write(json.dumps({"messages": said, "template": f"t{n % 2}"}) + "\n")
    return root


def run(example: Any, monkeypatch: pytest.MonkeyPatch, *words: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["prompting.py", *map(str, words)])
    example.main()


@pytest.mark.slow
def test_every_way_has_a_row_and_what_is_done_is_not_done_again(
    example: Any,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = gpt2_folder(tmp_path / "m", length=500)
    words = ["--model", model, "--encoder", model, "--data", data, "--rows", 6, "--seeds", 2, "--only", "sst2"]
    words += ["--steps", 2, "--tuned", 8, "--device", "cpu", "--out", tmp_path / "out", "--json", tmp_path / "a.json"]
    run(example, monkeypatch, *words)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert lines[0] == "| | SST-2, accuracy |"
    assert [line.split("|")[1].strip() for line in lines[1:]] == [way.name for way in example.WAYS]
    assert all(" ± " in line for line in lines[1:])
    written = json.loads((tmp_path / "a.json").read_text())
    assert [len(one["seeds"]) for one in written["figures"]] == [2] * len(example.WAYS)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is done already")

    monkeypatch.setattr(legato, "load", refuse)
    run(example, monkeypatch, *words)
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")] == lines


def test_what_is_missing_is_one_line(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--model", "m", "--encoder", "e", "--data", tmp_path, "--out", tmp_path / "out", "--only"]
    with pytest.raises(DataError, match=r"--data lacks .*train\.tsv\.gz"):
        run(example, monkeypatch, *words, "sst2")
    with pytest.raises(DataError, match="there is no task 'sst'; --only takes sst2, types, wiki"):
        run(example, monkeypatch, *words, "sst")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("1856", "date"),
        ("July 10, 1856", "date"),
        ("the 1880s", "date"),
        ("the 19th century", "date"),
        ("4,000", "number"),
        ("about 12%", "number"),
        ("three years", "number"),
        ("Paris", "place"),
        ("Anna Maria Berg", "person"),
        ("Smith", "person"),
        ("Jordan", None),
        ("Reuters", None),
        ("because of the rain", None),
    ],
)
def test_a_questions_type_is_that_of_its_answer(answer: str, kind: str | None, example: Any, tmp_path: Path) -> None:
    marked = "Paris I-LOC\n\nAnna I-PER\nLee I-PER\n\nSmith I-PER\n\nJordan I-PER\n\nJordan I-LOC\n\nReuters I-ORG\n"
    (tmp_path / "names").write_text(marked)
    assert example.type_of(answer, example.Names.read(tmp_path / "names")) == kind


def test_examples_are_as_many_of_each_label_as_can_be(example: Any) -> None:
    rows = [("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"), ("e", "x"), ("f", "y")]
    assert example.balanced(rows, 4) == [("a", "x"), ("b", "x"), ("d", "y"), ("f", "y")]
    assert example.balanced(rows, 1) == [("a", "x")]


def test_the_nearest_example_stands_next_to_the_text(example: Any) -> None:
    queries, others = np.array([[1.0, 0.0]]), np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    assert example.nearest(queries, others, 2) == [[3, 1]]


def test_answers_are_scored_as_squad_scores_them(example: Any) -> None:
    figures = example.answer_figures([" The 1856.", "in Paris"], [("q", "1856"), ("q", "Paris")])
    assert figures == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 2)}
