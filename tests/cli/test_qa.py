"""`legato train qa`, then `predict` and `eval`, as people type them; and what is said of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import legato
from answers import Command
from tiny_questions import SMALL, squad
from tiny_runs import words

TEXT = "nobody saw it. Anna did it in 1806. all went well."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with questions and a run, `home/run`."""
    home = tmp_path_factory.mktemp("questions")
    squad(home / "train.json", 10, 4, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        given = {**SMALL, "data.train": home / "train.json", "train.steps": 4}
        legato.train("qa", given, out=home / "run", quiet=True)
    return home


def test_from_a_file_to_an_answer_in_two_commands(command: Command, tmp_path: Path) -> None:
    file = squad(tmp_path / "train.json", 10, 4, seed=1)
    given = words({**SMALL, "data.train": file, "train.steps": 2, "out": tmp_path / "run"})
    done = command("train", "qa", *given)
    assert done.code == 0, done.err
    said = (done.out + done.err).replace("\n", " ")
    assert "is split by article" in said
    assert "the model will see" in said
    answer = command("predict", tmp_path / "run", f"Who did it?\t{TEXT}")
    assert answer.code == 0
    assert answer.out.strip() in TEXT


def test_a_context_from_a_file(command: Command, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT + "\nIt rained.\n")
    done = command("predict", home / "run", "--context", file, "Who did it?", "When was it?")
    tabbed = command("predict", home / "run", f"Who did it?\t{TEXT}\nIt rained.\n")
    assert done.code == 0
    assert len(done.out.splitlines()) == 2
    assert done.out.splitlines()[0] == tabbed.out.splitlines()[0]


def test_several_answers_with_scores_and_places(command: Command, home: Path) -> None:
    done = command("predict", home / "run", "--nbest", 3, "--scores", f"Who did it?\t{TEXT}")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert [len(line) for line in lines] == [3, 3, 3]
    answers = json.loads(command("predict", home / "run", "--json", f"Who did it?\t{TEXT}").out)["answers"]
    assert TEXT[answers[0]["start"] : answers[0]["end"]] == answers[0]["text"] == lines[0][2]


def test_a_file_of_questions_with_a_bad_one(command: Command, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "asked.txt"
    file.write_text(f"Who did it?\t{TEXT}\nWho did it?\n")
    done = command("predict", home / "run", "--file", file)
    assert done.code == 2
    assert "line 2: there is no text to find the answer in" in done.err
    assert len(done.out.splitlines()) == 2


def test_evaluation_as_a_table_and_as_json(command: Command, home: Path) -> None:
    done = command("eval", home / "run", f"data.test={home / 'train.json'}")
    assert done.code == 0, done.err
    assert "exact match" in done.out
    assert "signature: squad|" in done.out
    scores = json.loads(command("eval", home / "run", f"data.test={home / 'train.json'}", "--json").out)
    assert 0 <= scores["exact_match"] <= scores["f1"] <= 100


def test_other_tasks_take_no_context(command: Command, tmp_path: Path, home: Path) -> None:
    missing = command("predict", home / "run", "--context", tmp_path / "none.txt", "Who?")
    assert missing.code == 2
    assert "none.txt" in missing.err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", '{"rows": []}', "is no SQuAD file"),
        ("a.csv", "question,context,answer\nWho?,Anna did it,Bert\n", "line 2: the answer 'Bert' does not stand"),
        ("a.csv", 'question,context,answer\n"Who?,Anna did it,Anna\n', "quotation mark"),
        ("a.csv", "question,answer\nWho?,Anna\n", "no column looks like the context"),
        ("a.jsonl", '{"question": "Who?", "context": "", "answer": ""}\n', "line 1: the context is empty"),
        ("a.tsv", "question\tcontext\tanswer\nWho?\tAnna did it\tAnna\n", "too few to hold out valid"),
    ],
)
def test_bad_files_get_one_clear_line(command: Command, tmp_path: Path, name: str, content: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    done = command("train", "qa", f"data.train={file}", f"out={tmp_path / 'run'}", "device=cpu")
    assert done.code == 2
    assert said in done.err
    assert len(done.err.strip().splitlines()) <= 2  # a note of the columns may come first
    assert not (tmp_path / "run").exists()
