"""Parsing from end to end by the command line: training on trees, predicting them, scoring, and bad trees."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.data.formats.trees import unflatten
from refusals import is_one_line
from tiny_runs import words

SMALL = {
    "model": "seq2seq",
    "model.width": 32,
    "model.layers": 1,
    "model.dropout": 0,
    "tokenizer": "word",
    "data.beams": 1,
    "train.steps": 80,
    "train.lr": 0.02,
    "train.batch_tokens": 768,
    "train.validate_every": 1000,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
}
QUICK = {"model.width": 8, "train.steps": 1}
SENTENCE = "the dog sees a cat ."
TREE = "(S (NP the dog )NP (VP sees (NP a cat )NP )VP . )S"


def write_trees(path: Path, count: int, seed: int) -> Path:
    """Trees of one rule each: a noun phrase, a verb with or without an object, a full stop."""
    draw = random.Random(seed)

    def noun() -> str:
        return f"({draw.choice(('DT the', 'DT a'))}) (NN {draw.choice(('dog', 'cat', 'man'))})"

    made = []
    for _ in range(count):
        verb = f"(VBZ {draw.choice(('sees', 'hears'))}) (NP {noun()})" if draw.random() < 0.6 else "(VBZ runs)"
        made.append(f"( (S (NP-SBJ {noun()})\n     (VP {verb})\n     (. .)) )\n")
    path.write_text("".join(made))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with trees and a run, `home/run`."""
    home = tmp_path_factory.mktemp("home")
    write_trees(home / "train.mrg", 150, seed=1)
    write_trees(home / "valid.mrg", 12, seed=2)
    files = {"data.train": str(home / "train.mrg"), "data.valid": str(home / "valid.mrg")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        legato.train("parsing", {**files, **SMALL}, out=home / "run", quiet=True)
    return home


def test_a_label_that_training_lacks_counts_as_wrong_and_is_named(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "test.mrg").write_text(
        "(S (NP (DT the) (NN dog)) (VP (VBZ runs)) (. .))\n(FRAG (NP (DT a) (NN cat)))\n"
    )
    done = command("eval", home / "run", f"data.test={tmp_path}/test.mrg", "--json")
    assert json.loads(done.out)["recall"] < 100
    said = "data.test has labels unknown to the model, in 1 of 2 trees: 'FRAG' (1); they count as wrong"
    assert done.err == f"legato: note: {said}\n"


@pytest.fixture
def train(command: Any, home: Path, tmp_path: Path) -> Any:
    """`legato train parsing` for one step, with these settings over the small ones, into `tmp_path/run`."""

    def run(*over: str) -> Any:
        files = (f"data.train={home}/train.mrg", f"data.valid={home}/valid.mrg", f"out={tmp_path}/run")
        return command("train", "parsing", *files, *words({**SMALL, **QUICK}), *over)

    return run


# ── training, predicting, scoring ─────────────────────────────────────────────────────────────────


def test_an_f1_says_how_it_was_searched_for(train: Any) -> None:
    done = train("data.beams=2")
    assert "f1 (greedy) " in done.err
    assert "\nvalid f1 (beam 2): " in done.err


def test_a_trained_parser_parses(command: Any, home: Path) -> None:
    answer = command("predict", home / "run", SENTENCE)
    assert (answer.code, answer.out, answer.err) == (0, f"{TREE}\n", "")


@pytest.mark.parametrize("model", ["transformer", "seq2seq"])
def test_training_shows_what_it_sees_and_the_trees_it_makes(model: str, train: Any) -> None:
    answer = train(f"model={model}", "train.samples=1")
    assert answer.code == 0, answer.err
    assert "data: 150 train, 12 valid trees" in answer.err
    assert "the model will see: " in answer.err
    assert "(NP <word> <word> )NP" in answer.err
    sample = next(line for line in answer.err.splitlines() if line.startswith("  | "))
    unflatten(sample.removeprefix("  | ").split())
    assert "valid well formed: 100" in answer.err


def test_evaluating_finds_what_training_found(command: Any, home: Path) -> None:
    scores = json.loads(command("eval", home / "run", f"data.test={home}/valid.mrg", "--json").out)
    found = json.loads((home / "run" / "result.json").read_text())["metrics"]
    assert scores["f1"] == found["valid.f1"] == 100.0
    assert scores["loss"] == pytest.approx(found["valid.loss"], rel=1e-5)
    assert scores["signature"].startswith("metric:labelled-brackets")


def test_evaluating_prints_every_figure(command: Any, home: Path) -> None:
    answer = command("eval", home / "run", f"data.test={home}/valid.mrg")
    for part in ("precision", "recall", "f1", "complete", "well formed", "signature: metric:labelled-brackets"):
        assert part in answer.out


def test_without_validation_trees_the_last_share_is_held_out(command: Any, home: Path, tmp_path: Path) -> None:
    settings = words({**SMALL, **QUICK, "data.valid_share": 0.2})
    answer = command("train", "parsing", f"data.train={home}/train.mrg", *settings, f"out={tmp_path}/run")
    assert answer.code == 0, answer.err
    assert "data: 120 train, 30 valid trees" in answer.err


def test_any_sentence_gets_a_tree_over_its_words(command: Any, home: Path) -> None:
    texts = ["The dog doesn't run, does it?", "( x )", "🐶 runs .", "狗 跑", "", "<word>", "a" * 100]
    answer = command("predict", home / "run", *texts)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.split("\n")[:-1]
    assert len(lines) == len(texts)
    assert lines[4] == ""
    assert unflatten(lines[0].split()).words == ["The", "dog", "does", "n't", "run", ",", "does", "it", "?"]
    assert unflatten(lines[1].split()).words == ["-LRB-", "x", "-RRB-"]
    assert all(unflatten(line.split()) for line in lines if line)


def test_several_trees_have_falling_scores(command: Any, home: Path) -> None:
    lines = command("predict", home / "run", SENTENCE, "--nbest", "3", "--scores").out.splitlines()
    scores = [float(line.split("\t")[0]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert len({line.split("\t")[1] for line in lines}) == 3


def test_json_has_the_words_that_were_parsed(command: Any, home: Path) -> None:
    told = json.loads(command("predict", home / "run", "the dog runs.", "--json").out)
    assert told["answers"][0]["words"] == ["the", "dog", "runs", "."]


def test_a_parser_comes_back_with_both_its_vocabularies(home: Path) -> None:
    assert (home / "run" / "best" / "target" / "tokenizer.json").is_file()
    assert legato.load(home / "run", "cpu").predict([SENTENCE]) == [TREE]


def test_trees_that_are_too_long_are_not_counted_as_trained_on(train: Any, home: Path) -> None:
    answer = train("data.max_length=13")
    [said] = [line for line in answer.err.splitlines() if line.startswith("data.train: left out ")]
    left_out = int(said.split()[3])
    assert 0 < left_out < 150
    assert f"data: {150 - left_out} train, 12 valid trees" in answer.err


def test_a_parser_does_not_go_where_nothing_keeps_its_trees_whole(command: Any, home: Path, tmp_path: Path) -> None:
    answer = command("export", home / "run", "--to", "ctranslate2", "--out", tmp_path / "out")
    is_one_line(answer, "is a parser, and CTranslate2 has no constraint")
    assert not (tmp_path / "out").exists()


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ("", ("is empty",)),
        ("(S (NP (NN dog))\n(S", ("line 1", "2 not closed")),
        ("(S (NP (NN dog)))\n\n(S (NN x))))", ("line 3", "closes nothing")),
        ("(S (NN x))\ndog", ("line 2", "'dog' is in no bracket")),
        ("(S (NN x))\n(S )", ("line 2", "empty tree")),
        ("(S (NP dog cat))", ("line 1", "'dog' has no part of speech")),
        ("(S (NP (-NONE- *)))", ("bad.mrg: nothing is left of the tree", "no words")),
        ("The dog runs.", ("line 1", "'The' is in no bracket")),
    ],
)
def test_bad_trees_are_named_with_their_line(
    content: str, parts: tuple[str, ...], train: Any, tmp_path: Path
) -> None:
    (tmp_path / "bad.mrg").write_text(content)
    is_one_line(train(f"data.train={tmp_path}/bad.mrg"), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("data.train=none", ("'data.train' is needed", "bracketed trees")),
        ("data.train=no.mrg", ("there is no file no.mrg",)),
        ("data.train=no*.mrg", ("no file matches no*.mrg",)),
        ("data.valid=no.zip!*.mrg", ("there is no file no.zip",)),
        ("model=lstm model.heads=4", ("model=lstm reads no source", "model=seq2seq model.cell=lstm")),
        ("data.trian=x", ("'data.trian'", "'train'")),
        ("data.metric=bleu", ("data.metric=bleu should be 'f1' or 'loss'",)),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    words: str, parts: tuple[str, ...], train: Any, tmp_path: Path
) -> None:
    is_one_line(train(*words.split()), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--nbest", "3", "--beams", "2"), ("nbest=3 is more than the 2 beams",)),
        (("--to", "de"), ("parsing has no option 'to'",)),
        (("--alignments",), ("parsing has no option 'alignments'",)),
        (("--beams", "0"), ("beams=0",)),
    ],
)
def test_options_that_make_no_sense_are_refused(
    words: tuple[str, ...], parts: tuple[str, ...], command: Any, home: Path
) -> None:
    is_one_line(command("predict", home / "run", SENTENCE, *words), *parts)


def test_an_evaluation_without_trees_is_refused(command: Any, home: Path) -> None:
    is_one_line(command("eval", home / "run"), "'data.test' is needed", "bracketed trees")


def test_a_sample_too_long_for_the_model_does_not_stop_training(train: Any, tmp_path: Path) -> None:
    long = "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (DT a) (NN cat))) (. .))\n"
    (tmp_path / "long.mrg").write_text(long + "(S (NP (NN rain)))\n")
    shape = ("model=transformer", "model.length=16", "train.samples=2")
    answer = train(*shape, f"data.train={tmp_path}/long.mrg", f"data.valid={tmp_path}/long.mrg")
    assert answer.code == 0, answer.err
    assert "valid too long: 1" in answer.err


def test_a_parser_does_not_generate(command: Any, home: Path) -> None:
    is_one_line(command("generate", home / "run", "the dog"), "use legato predict")
