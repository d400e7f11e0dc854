"""Translations as they are given: several, scored, aligned, as JSON, and to Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.errors import LegatoError
from legato.folders.model_folder import load_model
from refusals import is_one_line
from thinned import some
from tiny_pairs import (
    CAT,
    DOG,
    HUND,
    KATZE,
    SEQ2SEQ,
)

# ── predicting: what comes out ────────────────────────────────────────────────────────────────────


def test_several_answers_have_falling_scores(command: Any, home: Path) -> None:
    lines = command("predict", home / "t", DOG, "--nbest", "3", "--scores").out.splitlines()
    scores = [float(line.split("\t")[1]) for line in lines]
    assert len(lines) == 3
    assert scores == sorted(scores, reverse=True)
    assert len({line.split("\t")[2] for line in lines}) == 3


def test_several_answers_tell_by_number_which_text_they_belong_to(command: Any, home: Path, typed: Any) -> None:
    typed(f"{DOG}\n\n{'A dog runs and ' * 20}\n{CAT}\n".encode())
    answer = command("predict", home / "t", "--nbest", "2")
    lines = [line.split("\t") for line in answer.out.splitlines()]
    assert [number for number, _ in lines] == ["0", "0", "1", "2", "3", "3"]
    assert [text for _, text in lines[::2]] == [HUND, "", KATZE]
    assert "legato: line 3: 81 tokens" in answer.err


def test_a_single_answer_has_no_number(command: Any, home: Path) -> None:
    assert command("predict", home / "t", DOG, "--nbest", "1").out == f"{HUND}\n"


def test_more_answers_than_the_models_own_beams_widen_the_beam(command: Any, home: Path) -> None:
    assert len(command("predict", home / "t", DOG, "--nbest", "6").out.splitlines()) == 6


def test_more_answers_than_beams_are_refused(command: Any, home: Path) -> None:
    words = ("--nbest", "6", "--beams", "3")
    is_one_line(command("predict", home / "t", DOG, *words), "nbest=6 is more than the 3 beams; ask for --beams 6")


def test_left_out_the_beams_are_those_of_the_model(command: Any, home: Path) -> None:
    assert load_model(home / "t" / "best").about["beams"] == 1
    assert command("predict", home / "t", CAT).out == command("predict", home / "t", CAT, "--beams", 1).out
    assert command("predict", home / "t", CAT, "--beams", 5).code == 0


def test_the_length_penalty_divides_the_scores(command: Any, home: Path) -> None:
    answers = [
        json.loads(command("predict", home / "t", DOG, "--length-penalty", penalty, "--json").out)["answers"][0]
        for penalty in (0, 1)
    ]
    assert answers[0]["score"] == pytest.approx(answers[0]["logprob"], abs=1e-6)
    assert answers[1]["score"] == pytest.approx(answers[1]["logprob"] / 5, abs=1e-6)  # four tokens and the end


@pytest.mark.parametrize("run", some(["t", "recurrent", "many"], ["t", "recurrent"]))
def test_alignments_name_words_that_are_there(run: str, command: Any, request: pytest.FixtureRequest) -> None:
    home = request.getfixturevalue("many" if run == "many" else "home")
    words = ("--to", "de") if run == "many" else ()
    for line, text in zip(
        command("predict", home / run, CAT, "dog", "A  dog   runs.", "--alignments", *words).out.splitlines(),
        (CAT, "dog", "A dog runs."),
        strict=True,
    ):
        translation, pairs = line.split("\t")
        found = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
        assert [target for _, target in found] == list(range(len(translation.split())))
        assert all(0 <= source < len(text.split()) for source, _ in found)


def test_a_recurrent_model_that_has_learned_looks_at_the_right_words(command: Any, home: Path) -> None:
    assert command("predict", home / "recurrent", DOG, "--alignments").out == f"{HUND}\t0-0 1-1 2-2\n"


@pytest.mark.parametrize("run", ["t", "recurrent"])
def test_soft_alignments_have_rows_that_sum_to_one(run: str, command: Any, home: Path) -> None:
    answer = json.loads(command("predict", home / run, CAT, "--alignments", "--json").out)["answers"][0]
    assert answer["source_tokens"][-1] == "<eos>"
    assert "".join(answer["target_tokens"]) == answer["text"]
    assert len(answer["alignment"]) == len(answer["target_tokens"])
    for row in answer["alignment"]:
        assert len(row) == len(answer["source_tokens"])
        assert sum(row) == pytest.approx(1, abs=0.005)  # each is rounded to four digits


@pytest.mark.slow
def test_a_model_without_attention_has_nothing_to_align(train: Any, command: Any, tmp_path: Path) -> None:
    assert train("model.attention=none", **{**SEQ2SEQ, "train__steps": 1}).code == 0
    assert command("predict", tmp_path / "run", DOG).code == 0
    is_one_line(command("predict", tmp_path / "run", DOG, "--alignments"), "no attention", "nothing to align")


def test_json_has_one_object_a_text(command: Any, home: Path, typed: Any) -> None:
    typed(f"{DOG}\n\n🐶\n".encode())
    answer = command("predict", home / "t", "--json", "--nbest", "2")
    told = [json.loads(line) for line in answer.out.splitlines()]
    assert [each["input"] for each in told] == [DOG, "", "🐶"]
    assert [len(each["answers"]) for each in told] == [2, 1, 2]
    assert told[0]["answers"][0].keys() == {"text", "score", "logprob", "finished"}
    assert "🐶" in answer.out


def test_an_answer_may_be_cut_short(command: Any, home: Path) -> None:
    answer = json.loads(command("predict", home / "t", CAT, "--max-tokens", "2", "--json").out)["answers"][0]
    assert KATZE.startswith(answer["text"])
    assert not answer["finished"]


# ── from Python ───────────────────────────────────────────────────────────────────────────────────


def test_python_translates_a_text_or_several(home: Path) -> None:
    model = legato.load(home / "t", "cpu")
    assert model.predict(DOG) == HUND
    assert model.predict([DOG, "", CAT]) == [HUND, "", KATZE]
    assert model.predict([]) == []


def test_python_gets_several_answers_a_text(home: Path) -> None:
    model = legato.load(home / "t", "cpu")
    found = model.predict([DOG, CAT], nbest=3)
    assert [len(set(texts)) for texts in found] == [3, 3]
    assert model.predict(DOG, nbest=2, beams=3) == found[0][:2]


def test_python_says_which_text_cannot_be_read(home: Path) -> None:
    with pytest.raises(LegatoError, match=r"^text 2: 81 tokens, more than the model's 48"):
        legato.load(home / "t", "cpu").predict([DOG, "A dog runs and " * 20])


def test_python_says_which_option_there_is_not(home: Path) -> None:
    with pytest.raises(LegatoError, match=r"translation has no option 'beam'; did you mean 'beams'\?"):
        legato.load(home / "t", "cpu").predict(DOG, beam=3)


def test_half_a_character_spoils_its_text_only(home: Path) -> None:
    bad, good = legato.load(home / "t", "cpu").predictions(["A \ud83d dog", DOG])
    assert bad.problem is not None
    assert "half a surrogate pair" in bad.problem
    assert good.answers[0].text == HUND
