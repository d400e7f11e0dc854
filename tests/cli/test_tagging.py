"""`legato train tagging`, then `predict`, `eval` and `compare`, as people type them; and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from answers import Command
from legato.runs.config import check, find_recipe, list_recipes
from tiny_runs import weights_digest, words, write_text
from tiny_tagged import sentences, small, write_columns


def trained(folder: Path, name: str, **changes: Any) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(folder / "cache"))
        legato.train("tagging", small(folder, **changes), out=folder / name, quiet=True)
    return folder / name


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tagged words and a run that has learned them, `home/run`."""
    home = tmp_path_factory.mktemp("tagging")
    trained(home, "run", head__crf=True, model__characters=6, train__epochs=12)
    return home


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder that has guessed hidden words."""
    home = tmp_path_factory.mktemp("encoder")
    text = write_text(home / "text.txt", lines=40)
    settings: dict[str, Any] = {"data.train": str(text), "data.valid": str(text), "data.window": 32}
    settings |= {"model.layers": 4, "model.width": 16, "model.heads": 2, "tokenizer.size": 120, "device": "cpu"}
    settings |= {"train.steps": 2, "train.batch_tokens": 128, "train.samples": 0, "train.tensorboard": "false"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        legato.train("mlm", settings, out=home / "mlm", quiet=True)
    return home / "mlm"


def on_encoder(home: Path, encoder: Path, **changes: Any) -> dict[str, Any]:
    settings = small(home, **{"from": str(encoder), "train__epochs": 1, **changes})
    return {key: value for key, value in settings.items() if not key.startswith("model.")}


def test_words_get_their_tags(command: Command, home: Path) -> None:
    done = command("predict", home / "run", "Carl Orff goes to New York City .")
    assert done.code == 0
    assert done.out == "Carl/B-PER Orff/I-PER goes/O to/O New/B-LOC York/I-LOC City/I-LOC ./O\n"


def test_names_as_json_have_their_place_in_the_text(command: Command, home: Path) -> None:
    text = "the  rain in Rome"
    done = command("predict", home / "run", "--json", text)
    answer = json.loads(done.out)["answers"][0]
    assert answer["words"] == text.split()
    assert answer["tags"] == ["O", "O", "O", "B-LOC"]
    (name,) = answer["entities"]
    assert (name["type"], name["text"], name["words"]) == ("LOC", "Rome", [3, 4])
    assert text[name["start"] : name["end"]] == "Rome"
    assert 0.5 < name["probability"] <= 1
    assert len(answer["probabilities"]) == 4


def test_punctuation_is_no_part_of_a_name_in_raw_text(command: Command, home: Path) -> None:
    text = "Anna goes to Rome, (New York City). Carl Orff sees Rome."
    answer = json.loads(command("predict", home / "run", "--json", text).out)["answers"][0]
    assert " ".join(answer["words"]) == "Anna goes to Rome , ( New York City ) . Carl Orff sees Rome ."
    names = [(name["type"], text[name["start"] : name["end"]]) for name in answer["entities"]]
    expected = [("PER", "Anna"), ("LOC", "Rome"), ("LOC", "New York City"), ("PER", "Carl Orff"), ("LOC", "Rome")]
    assert names == expected
    assert [name["text"] for name in answer["entities"]] == [name for _, name in expected]


def test_a_model_of_words_with_glued_punctuation_splits_at_spaces(tmp_path: Path) -> None:
    rows = [([*words[:-1], words[-1].rstrip(".") + ","], tags) for words, tags in sentences(20, 1)]
    write_columns(tmp_path / "train.txt", rows)
    write_columns(tmp_path / "valid.txt", rows)
    run = trained(tmp_path, "run", train__epochs=1)
    model = legato.load(run, "cpu")
    assert model.about["splitting"] == "spaces"
    assert model.predictions(["to Rome, Anna."])[0].answers[0].more["words"] == ["to", "Rome,", "Anna."]


def test_a_folder_that_says_nothing_of_it_splits_raw_text(home: Path) -> None:
    model = legato.load(home / "run", "cpu")
    assert model.about.pop("splitting") == "treebank"
    assert model.predictions(["to Rome."])[0].answers[0].more["words"] == ["to", "Rome", "."]


def test_an_empty_text_is_said(command: Command, home: Path, tmp_path: Path) -> None:
    done = command("predict", home / "run", "")
    assert (done.code, done.out, done.err) == (2, "\n", "legato: the text is empty\n")
    (tmp_path / "in.txt").write_text("Anna\n\nRome 1996\n")
    done = command("predict", home / "run", "--file", tmp_path / "in.txt")
    assert done.code == 2
    assert done.out.splitlines()[:2] == ["Anna/B-PER", ""]
    assert len(done.out.splitlines()) == 3
    assert "line 2: the text is empty" in done.err


def test_scores_have_a_signature_and_tables_below(command: Command, home: Path) -> None:
    done = command("eval", home / "run", f"data.test={home / 'valid.txt'}")
    assert done.code == 0, done.err
    assert "f1" in done.out
    assert "signature: seqeval:" in done.out
    for title in ("scores by kind", "taken for", "the worst errors"):
        assert title in done.out
    scores = json.loads(command("eval", home / "run", f"data.test={home / 'valid.txt'}", "--json").out)
    assert scores["f1"] > 95
    assert scores["names"] > 12


def test_a_test_in_another_scheme_scores_the_same(command: Command, home: Path, tmp_path: Path) -> None:
    write_columns(tmp_path / "iobes.txt", sentences(12, 2, "iobes"))
    found = [
        json.loads(command("eval", home / "run", f"data.test={file}", "--json").out)["f1"]
        for file in (home / "valid.txt", tmp_path / "iobes.txt")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("model", ["window", "gru", "gpt2"])
def test_every_model_that_reads_a_text_can_learn_it(model: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"model": model, "train__epochs": 1}
    changes |= {"model__heads": 2} if model == "gpt2" else {}
    settings = small(tmp_path, **changes)
    if model == "gpt2":
        settings = {k: v for k, v in settings.items() if k != "model.embedding"} | {"tokenizer.size": 270}
    result = legato.train("tagging", settings, out=tmp_path / "run", quiet=True)
    assert result.metrics["valid.loss"] < 2
    assert "seqeval" in result.metrics["signature"]
    assert "/" in legato.load(tmp_path / "run").predict("Anna sees Rome")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"adapt": "lora"}, {"adapt": "head", "head__layers": "concat-last-4", "head__lstm": 1, "head__crf": True}],
)
def test_a_trained_encoder_is_tuned(home: Path, encoder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    legato.train("tagging", on_encoder(home, encoder, **changes), out=tmp_path / "run", quiet=True)
    model = legato.load(tmp_path / "run")
    assert model.task == "tagging"
    long = " ".join(["Anna sees Rome"] * 30)  # more tokens than the encoder's 32
    assert len(model.predict(long).split()) == 90


def test_parts_of_speech_are_read_from_conllu(command: Command, tmp_path: Path) -> None:
    rows = [(["a", "dog", "barks"], ["DET", "NOUN", "VERB"]), (["the", "cat", "sleeps"], ["DET", "NOUN", "VERB"])] * 9
    lines = [
        "".join(f"{i}\t{w}\t_\t{t}\t_\t_\t0\t_\t_\t_\n" for i, (w, t) in enumerate(zip(*row, strict=True), start=1))
        for row in rows
    ]
    (tmp_path / "t.conllu").write_text("\n".join(lines), encoding="utf-8")
    settings = small(tmp_path, data__train=tmp_path / "t.conllu", data__valid=tmp_path / "t.conllu")
    done = command("train", "tagging", *words(settings), f"out={tmp_path}/run")
    assert done.code == 0, done.err
    assert "reading column form as words and upos as tags, plain tags" in done.out + done.err
    assert "valid accuracy: 100.00%\n" in done.out + done.err
    assert command("predict", tmp_path / "run", "the dog sleeps").out == "the/DET dog/NOUN sleeps/VERB\n"
    scores = command("eval", tmp_path / "run", f"data.test={tmp_path}/t.conllu")
    assert "scores by tag" in scores.out


@pytest.mark.slow
def test_one_command_prints_the_layer_table(command: Command, home: Path, encoder: Path, tmp_path: Path) -> None:
    layers = ["first", "last", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "mix"]
    settings = on_encoder(home, encoder, adapt="head", train__steps=2)
    done = command(
        "compare", "tagging", f"head.layers=[{','.join(layers)}]", *words(settings), f"out={tmp_path}/table"
    )
    assert done.code == 0, done.err
    for layer in layers:
        assert f"head.layers={layer}" in done.out
    assert "valid f1" in done.out


def test_a_tagger_goes_on_with_what_it_knows(home: Path, tmp_path: Path) -> None:
    settings = {key: value for key, value in small(home).items() if not key.startswith("model.")}
    settings |= {
        "from": str(home / "run"),
        "head.crf": True,
        "train.steps": 1,
        "train.epochs": None,
        "train.lr": 1e-6,
    }
    result = legato.train("tagging", settings, out=tmp_path / "more", quiet=True)
    assert result.metrics["valid.f1"] > 95


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_resumes_to_the_same_bits(home: Path, tmp_path: Path) -> None:
    settings = {
        **small(home),
        "head.crf": True,
        "model.dropout": 0.3,
        "train.epochs": None,
        "train.validate_every": 3,
    }
    settings |= {"train.schedule": "constant", "train.warmup": 0}
    legato.train("tagging", {**settings, "train.steps": 6}, out=tmp_path / "whole", quiet=True)
    legato.train("tagging", {**settings, "train.steps": 3}, out=tmp_path / "half", quiet=True)
    legato.train(None, {"resume": str(tmp_path / "half"), "train.steps": 6}, quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "half")


@pytest.mark.parametrize("name", [name for name in list_recipes() if name.startswith("tagging/")])
def test_recipes_are_sound(name: str, encoder: Path) -> None:
    recipe = find_recipe(name)
    assert recipe is not None
    needs = recipe.get("from") == "???"
    assert check({**recipe, "from": str(encoder)} if needs else recipe).task == "tagging"


# --- bad input ---------------------------------------------------------------------------------------


@pytest.fixture
def refused(command: Command, home: Path, tmp_path: Path) -> Any:
    """Training that is refused in one line with these parts, leaving nothing behind."""

    def run(*parts: str, **changes: Any) -> None:
        done = command("train", "tagging", *words(small(home, **changes)), f"out={tmp_path}/run")
        assert done.code == 2, done.err
        assert len(done.err.splitlines()) == 1, done.err
        assert done.out == ""
        for part in ("legato: ", *parts):
            assert part in done.err
        assert not (tmp_path / "run").exists()

    return run


def test_a_line_without_a_tag_is_named(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("Anna X B-PER\nsees\n")
    refused("bad.txt, line 2: 1 column where the file has 3", "'sees'", data__train=tmp_path / "bad.txt")


def test_as_many_tags_as_words(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"words": ["a", "b", "c"], "tags": ["O", "O"]}\n')
    refused("bad.jsonl, line 1: 3 words but 2 tags", data__train=tmp_path / "bad.jsonl")


def test_a_tag_that_training_lacks_counts_as_wrong_and_is_named(
    refused: Any, command: Command, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "dev.txt").write_text("Anna X B-PER\nsees X O\nIBM X B-ORG\nsays X VERB\n")
    done = command("eval", home / "run", f"data.test={tmp_path}/dev.txt", "--json")
    assert done.code == 0
    said = "data.test has tags unknown to the model, in 2 of 4 words: 'ORG' (1), 'VERB' (1); they count as wrong"
    assert f"legato: note: {said}\n" == done.err
    assert json.loads(done.out)["recall"] < 100
    done = command("eval", home / "run", f"data.test={tmp_path}/dev.txt", "data.unseen_tags=refuse")
    assert done.code == 2
    assert "lacks the tag 'ORG'" in done.err
    parts = ("dev.txt, line 3", "data.train lacks the tag 'ORG'", "it has LOC, O, PER", "data.unseen_tags=wrong")
    refused(*parts, data__valid=tmp_path / "dev.txt", data__unseen_tags="refuse")


def test_a_file_of_which_no_tag_is_known_is_refused(command: Command, home: Path, tmp_path: Path) -> None:
    (tmp_path / "pos.txt").write_text("Anna X NN\nsees X VB\n")
    done = command("eval", home / "run", f"data.test={tmp_path}/pos.txt")
    assert done.code == 2
    assert "pos.txt: the model knows none of its tags, such as 'NN'; it knows LOC, O, PER: set data.tag" in done.err


def test_a_tag_of_no_scheme_is_named(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("Anna X B-PER\nsees X VERB\n")
    said = "dev.txt, line 2: the tag 'VERB' of 'sees' is neither O nor like B-PER"
    refused(said, data__valid=tmp_path / "dev.txt", data__unseen_tags="refuse")


def test_an_empty_file_is_named(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    refused("empty.txt is empty", data__train=tmp_path / "empty.txt")


def test_a_missing_file_is_named(refused: Any, tmp_path: Path) -> None:
    refused("there is no file", "none.txt", data__train=tmp_path / "none.txt")
