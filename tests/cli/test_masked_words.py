"""`legato train mlm`, then `predict`, `eval` and `compare`, as people type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from answers import Command
from tiny_runs import SMALL, words, write_text

NOTHING = "the text hides nothing"


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    train, valid = folder / "train.txt", folder / "valid.txt"
    if not train.exists():
        write_text(train, lines=80, seed=1)
        write_text(valid, lines=15, seed=2)
    small = {key: value for key, value in SMALL.items() if key not in ("model", "tokenizer")}
    more = {key.replace("__", "."): value for key, value in changes.items()}
    return {**small, "data.train": str(train), "data.valid": str(valid), "data.window": 24, **more}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a run, `home/run`."""
    home = tmp_path_factory.mktemp("masked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        legato.train("mlm", settings(home, model="bert", model__heads=2), out=home / "run", quiet=True)
    return home


def test_a_word_is_guessed_with_its_probability(command: Command, home: Path) -> None:
    done = command("predict", home / "run", "the cat <mask> on a mat")
    lines = [line.split("\t") for line in done.out.splitlines()]
    assert done.code == 0
    assert [len(line) for line in lines] == [2] * 5
    shares = [float(share) for _, share in lines]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1


def test_the_tokenizers_own_mask_is_understood_too(command: Command, home: Path) -> None:
    ours = command("predict", home / "run", "the cat <mask> on a mat")
    theirs = command("predict", home / "run", "the cat [MASK] on a mat")
    assert ours.out == theirs.out


def test_every_mask_is_listed(command: Command, home: Path) -> None:
    done = command("predict", home / "run", "--nbest", 2, "the <mask> sat on <mask>")
    assert [line.split("\t")[0] for line in done.out.splitlines()] == ["1", "1", "2", "2"]


def test_answers_as_json(command: Command, home: Path) -> None:
    done = command("predict", home / "run", "--nbest", 3, "--json", "the <mask> sat")
    found = json.loads(done.out)
    assert len(found["answers"]) == 3
    assert found["answers"][0]["mask"] == 1
    assert found["answers"][0]["probability"] > found["answers"][2]["probability"]


def test_a_text_without_a_mask_is_one_line_and_exit_code_2(command: Command, home: Path) -> None:
    done = command("predict", home / "run", "the cat sat")
    assert done.code == 2
    assert NOTHING in done.err
    assert done.err.count("\n") == 1


def test_good_lines_of_a_file_are_guessed_whatever_the_others(command: Command, home: Path) -> None:
    file = home / "lines.txt"
    file.write_text("a <mask>\nnothing\n\nthe <mask> sat\n")
    done = command("predict", home / "run", "--file", file, "--nbest", 1)
    assert done.code == 2
    assert done.err.count(NOTHING) == 2
    assert [line.split("\t")[0] for line in done.out.splitlines() if line.count("\t") == 2] == ["0", "3"]


def test_a_text_longer_than_the_model_reads_is_said_so(command: Command, home: Path) -> None:
    done = command("predict", home / "run", "<mask> " + "cat " * 600)
    assert done.code == 2
    assert "reads at most 24" in done.err


def test_a_masked_model_does_not_generate(command: Command, home: Path) -> None:
    done = command("generate", home / "run", "the ")
    assert done.code == 2
    assert "cannot generate" in done.err


def test_eval_prints_accuracy_and_pseudo_perplexity(command: Command, home: Path) -> None:
    done = command("eval", home / "run", f"data.test={home / 'valid.txt'}", "data.max_sentences=3", "--json")
    found = json.loads(done.out)
    assert {"masked_accuracy", "masked_perplexity", "pseudo_perplexity", "loss"} <= set(found)
    assert found["sentences"] == 3


def test_eval_notes_what_a_long_text_costs(command: Command, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.tasks.mlm.task.MANY", 10)
    done = command("eval", home / "run", f"data.test={home / 'valid.txt'}")
    assert done.code == 0
    assert done.err.startswith("legato: note: pseudo-perplexity hides each of")


@pytest.mark.slow
def test_compare_sets_the_three_models_side_by_side(command: Command, tmp_path: Path) -> None:
    given = settings(tmp_path, data__next_sentence="false", train__steps=2)
    del given["model.width"]  # to be chosen
    done = command(
        "compare", "mlm", "model=[window,lstm,bert]", *words(given), "match=40000", f"out={tmp_path / 'three'}"
    )
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "three" / "compare.json").read_text())
    rows = {row["label"]: row for row in told["entries"]}
    assert set(rows) == {"window", "lstm", "bert"}
    sizes = [row["parameters"]["mean"] for row in rows.values()]
    assert max(sizes) / min(sizes) < 1.35
    assert len({row["tokens"]["mean"] for row in rows.values()}) == 1
    assert all("valid.masked_accuracy" in row for row in rows.values())


@pytest.mark.parametrize("pairs", ["true", "false"])
def test_transformers_guesses_the_same_words(pairs: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    wanted = settings(tmp_path, model="bert", model__heads=2, data__next_sentence=pairs)
    legato.train("mlm", wanted, out=tmp_path / "run", quiet=True)
    folder = tmp_path / "run" / "best"
    theirs = transformers.pipeline("fill-mask", model=str(folder), device="cpu")("the cat [MASK] on a mat", top_k=20)
    ours = legato.load(folder, "cpu").predictions(["the cat <mask> on a mat"])[0].answers
    found = {their["token_str"]: their["score"] for their in theirs}  # marks among them, which we do not offer
    assert {our.text: pytest.approx(found[our.text], abs=1e-5) for our in ours} == {
        our.text: our.score for our in ours
    }
