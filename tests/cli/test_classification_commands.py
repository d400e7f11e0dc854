"""Classification on the command line: from a table to a prediction in two commands, bad input in one line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from tiny_reviews import settings, write_pairs, write_reviews
from tiny_runs import small, words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, and the run `run` that was trained on them."""
    folder = tmp_path_factory.mktemp("reviews")
    legato.train("classification", settings(folder, model__layers=1), out=folder / "run", quiet=True)
    return folder


@pytest.mark.slow
def test_from_a_table_to_a_prediction_in_two_commands(command: Any, tmp_path: Path) -> None:
    trained = command("train", "classification", *words(settings(tmp_path, model__layers=1)), f"out={tmp_path / 'c'}")
    assert trained.code == 0
    assert "reading 'sentence' as text and 'label' as label" in trained.out + trained.err
    found = command("predict", tmp_path / "c", "a lovely film and song")
    name, share = found.out.strip().split("\t")
    assert name == "good"
    assert 0.5 < float(share) <= 1


def test_a_header_above_numbered_columns_is_no_class(command: Any, tmp_path: Path) -> None:
    rows = "".join(f"a {word} film number {n};{'ab'[n % 2]}\n" for n in range(20) for word in ("fine", "grim"))
    (tmp_path / "h.csv").write_text(f"kommentar;klasse\n{rows}")
    wanted = settings(tmp_path, model__layers=1) | {"data.train": str(tmp_path / "h.csv"), "train.steps": 2}
    wanted.pop("data.valid")
    found = command("train", "classification", *words(wanted), "data.columns=[1,2]", f"out={tmp_path / 'c'}")
    assert found.code == 0, found.err
    told = found.out + found.err
    assert "data.train: its columns separated by semicolons, taking the first line for a header" in told
    assert "klasse" not in told.replace("['kommentar', 'klasse']", "")


def test_a_trained_model_is_adapted_in_two_commands(command: Any, tmp_path: Path) -> None:
    tiny = {"model": "bert", "model.heads": 2, "tokenizer": "wordpiece", "tokenizer.size": 200, "train.steps": 2}
    legato.train("mlm", {**small(tmp_path), **tiny}, out=tmp_path / "base", quiet=True)
    wanted = {key: value for key, value in settings(tmp_path).items() if not key.startswith("model")}
    write_reviews(tmp_path / "train.tsv", seed=1)
    write_reviews(tmp_path / "valid.tsv", 20, seed=2)
    wanted |= {"data.train": str(tmp_path / "train.tsv"), "data.valid": str(tmp_path / "valid.tsv"), "train.steps": 3}
    trained = command(
        *(
            "train",
            "classification",
            *words(wanted),
            f"from={tmp_path / 'base'}",
            "adapt=lora",
            f"out={tmp_path / 'c'}",
        )
    )
    assert trained.code == 0, trained.err
    assert "trainable: " in trained.out + trained.err
    assert command("predict", tmp_path / "c", "a lovely film").out.split("\t")[0] in ("good", "bad")


def test_each_text_has_a_line_and_each_of_the_nbest_its_number(command: Any, folder: Path) -> None:
    texts = ("a lovely film and song", "a grim play and book")
    lines = command("predict", folder / "run", *texts).out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["good", "bad"]
    lines = command("predict", folder / "run", *texts, "--nbest", 2).out.splitlines()
    assert [line.split("\t")[:2] for line in lines] == [["0", "good"], ["0", "bad"], ["1", "bad"], ["1", "good"]]


def test_json_has_the_probabilities_of_all_classes(command: Any, folder: Path) -> None:
    found = json.loads(command("predict", folder / "run", "a fine book", "--json").out)
    assert found["answers"][0]["probabilities"].keys() == {"bad", "good"}


def test_an_empty_line_of_a_file_is_named_and_the_others_are_done(command: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a fine book\n\na sad song\n")
    found = command("predict", folder / "run", "--file", tmp_path / "texts.txt")
    assert found.code == 2
    assert len(found.out.splitlines()) == 3
    assert "line 2: the text is empty" in found.err


def test_an_evaluation_ends_with_tables(command: Any, folder: Path) -> None:
    found = command("eval", folder / "run", f"data.test={folder / 'valid.tsv'}")
    assert found.code == 0
    for part in (
        "accuracy",
        "macro f1",
        "f1 signature: f1:positive=good",
        "confusion",
        "true \\ guessed",
        "precision",
    ):
        assert part in found.out
    told = json.loads(command("eval", folder / "run", f"data.test={folder / 'valid.tsv'}", "--json").out)
    assert told["details"][0]["columns"] == ["true \\ guessed", "bad", "good"]
    assert told["columns"] == "sentence, label"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tsv", "sentence\tlabel\na film\tfine\na song\todd\n", "a.tsv, line 2: the label 'fine' is not among"),
        ("a.tsv", "sentence\tlabel\na film\tgood\n\tbad\n", "a.tsv, line 3: the text is empty"),
        ("a.csv", 'sentence,label\n"a film,good\na song,bad\n', "is a quotation mark missing?"),
        ("a.tsv", "sentence1\tsentence2\tlabel\na\tb\tgood\n", "the model reads single texts, not pairs"),
        ("a.tsv", "sentence\na film\n", "has one column, where tabs separate them; give a label beside each text"),
    ],
)
def test_bad_tables_are_one_clear_line(
    name: str, content: str, said: str, command: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    found = command("eval", folder / "run", f"data.test={tmp_path / name}")
    assert found.code == 2
    assert said in found.err
    assert len(found.err.strip().splitlines()) == 1


def test_a_pair_task_given_one_column_says_what_it_needs(command: Any, tmp_path: Path) -> None:
    wanted = settings(tmp_path, model__layers=1, train__steps=2)
    write_pairs(tmp_path / "train.tsv")
    found = command("train", "classification", *words(wanted), f"out={tmp_path / 'c'}")
    assert found.code == 2
    assert "valid.tsv: the model reads pairs, and these were read as single texts; " in found.err
    assert "set data.columns=[FIRST,SECOND,LABEL]" in found.err
    write_pairs(tmp_path / "valid.tsv", 20)
    assert command("train", "classification", *words(wanted), f"out={tmp_path / 'c'}").code == 0
    lone = command("predict", tmp_path / "c", "a sad film")
    assert lone.code == 2
    assert "this model reads pairs: write two texts with a tab between them" in lone.err
    assert command("predict", tmp_path / "c", "a sad film\ta grim song").code == 0
