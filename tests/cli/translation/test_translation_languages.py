"""One model between many languages: tags, directions, and languages that it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refusals import is_one_line
from tiny_pairs import (
    CAT,
    DOG,
    HUND,
    QUICK,
    in_words,
    many_languages,
    metrics_of,
)


@pytest.mark.parametrize(("language", "written"), [("de", HUND), ("fr", "Un chien court.")])
def test_a_tag_chooses_the_language(language: str, written: str, command: Any, many: Path) -> None:
    assert command("predict", many / "many", DOG, "--to", language).out == f"{written}\n"


@pytest.mark.parametrize("text", [f">>fr<< {DOG}", f">>fr<<{DOG}", f"  >>fr<<   {DOG}"])
def test_a_tag_may_be_typed_before_the_text(text: str, command: Any, many: Path) -> None:
    assert command("predict", many / "many", text).out == "Un chien court.\n"


def test_a_tag_that_is_typed_wins(command: Any, many: Path) -> None:
    answer = command("predict", many / "many", f">>fr<< {DOG}", DOG, "--to", "de")
    assert answer.out == f"Un chien court.\n{HUND}\n"


def test_a_direction_that_was_never_trained_can_be_asked_for(command: Any, many: Path) -> None:
    answer = command("predict", many / "many", HUND, "--to", "fr")
    assert answer.code == 0
    assert answer.out.strip()


def test_a_language_that_the_model_lacks_is_named_with_those_it_has(command: Any, many: Path) -> None:
    is_one_line(command("predict", many / "many", DOG, "--to", "it"), "no language 'it'; there is de, en, fr")


def test_a_language_that_is_misspelt_suggests_the_nearest(command: Any, many: Path) -> None:
    is_one_line(command("predict", many / "many", DOG, "--to", "dee"), "no language 'dee'; did you mean 'de'?")


def test_without_a_language_the_known_ones_are_named(command: Any, many: Path) -> None:
    is_one_line(command("predict", many / "many", DOG, CAT), "the model writes de, en, fr; say which, with --to de")


def test_a_language_makes_no_sense_for_a_model_of_one_direction(command: Any, many: Path) -> None:
    is_one_line(command("predict", many / "t", DOG, "--to", "de"), "no language 'de'", "one direction only")


def test_a_line_with_an_unknown_tag_does_not_stop_the_others(command: Any, many: Path, typed: Any) -> None:
    typed(f">>de<< {DOG}\n>>it<< {DOG}\n{DOG}\n\n>>fr<< {DOG}\n".encode())
    answer = command("predict", many / "many")
    assert answer.code == 2
    assert answer.out == f"{HUND}\n\n\n\nUn chien court.\n"
    notes = answer.err.splitlines()
    assert notes[0] == "legato: line 2: the model has no language 'it'; there is de, en, fr"
    assert notes[1].startswith("legato: line 3: the model writes de, en, fr")
    assert notes[2] == "legato: 2 of 5 could not be done; the rest is done"


def test_directions_are_scored_each_and_an_untrained_one_too(many: Path) -> None:
    metrics = metrics_of(many / "many")
    assert {"valid.bleu_en-de", "valid.bleu_fr-en", "test.bleu_en-de", "test.bleu_de-fr"} <= metrics.keys()
    assert "test.bleu_de-en" not in metrics
    assert metrics["test.bleu_en-de"] > metrics["test.bleu_de-fr"]


def test_evaluating_a_model_of_many_needs_directions(command: Any, many: Path) -> None:
    answer = command("eval", many / "many", f"data.test=[{many}/test.en,{many}/test.de]")
    is_one_line(answer, "writes de, en, fr; say which: data.directions=[en-de]")


def test_evaluating_a_model_of_many_takes_the_directions_of_its_training(command: Any, many: Path) -> None:
    scores = json.loads(command("eval", many / "many", f"data.test={many}/test.{{}}", "--json").out)
    assert {"bleu_en-de", "bleu_de-en", "bleu_en-fr", "bleu_fr-en"} <= scores.keys()
    assert "bleu_de-fr" not in scores


def test_an_untrained_direction_can_be_evaluated(command: Any, many: Path) -> None:
    words = (f"data.test={many}/test.{{}}", "data.directions=[de-fr,fr-de]", "--json")
    scores = json.loads(command("eval", many / "many", *words).out)
    assert {"bleu_de-fr", "bleu_fr-de"} <= scores.keys()


def test_a_test_language_that_nothing_teaches_is_refused_before_training(
    command: Any, many: Path, tmp_path: Path
) -> None:
    over = {"data__directions": ["en-de", "de-en"], "data__test_directions": ["en-fr"]}
    settings = many_languages(many, **QUICK, **over, data__test=f"{many}/test.{{}}")
    answer = command("train", "translation", *in_words(settings), f"out={tmp_path}/run")
    is_one_line(answer, "data.test asks for 'fr', which no training pair is in; there is de, en")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_column_of_a_table_may_hold_the_language(train: Any, command: Any, many: Path, tmp_path: Path) -> None:
    sides = {language: (many / f"train.{language}").read_text().splitlines() for language in ("en", "de", "fr")}
    rows = [f"{sides['en'][i]}\t{sides[to][i]}\t{to}\n" for i in range(40) for to in ("de", "fr")]
    (tmp_path / "pairs.tsv").write_text("".join(["english\tother\tlanguage\n", *rows]))
    named = ("data.columns=[english,other]", "data.tag_column=language")
    answer = train(*named, data__train=f"{tmp_path}/pairs.tsv", data__valid=None, data__valid_share=0.2)
    assert answer.code == 0, answer.err
    assert "the model will see: '>>de<<' " in answer.err or "the model will see: '>>fr<<' " in answer.err
    assert {"valid.bleu_de", "valid.bleu_fr"} <= metrics_of(tmp_path / "run").keys()
    assert command("predict", tmp_path / "run", DOG, "--to", "fr").code == 0
