"""Translation from end to end by the command line: training, predicting, scoring, many languages, going on."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.cli.lines import Lines
from legato.errors import LegatoError
from legato.folders.model_folder import load_model
from legato.training.loop import Stopped, Trainer
from tiny_pairs import (
    SEQ2SEQ,
    in_words,
    many_languages,
    small_translation,
    train_translation,
    write_pairs,
)
from tiny_runs import small, weights_digest

DOG, CAT = "A dog runs.", "The cat eats and A man sleeps."
HUND, KATZE = "Ein Hund läuft.", "Das Katze isst und Ein Mann schläft."
# A run that is started for what it says or leaves, not for what it learns.
QUICK: dict[str, Any] = {"model__width": 8, "train__steps": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts in three languages and three runs: `t`, `recurrent`, and `many` between languages."""
    home = tmp_path_factory.mktemp("home")
    train_translation(home, "t", small_translation(home))
    train_translation(home, "recurrent", small_translation(home, **SEQ2SEQ))
    many = {**SEQ2SEQ, "train__steps": 200}
    tested = {"data__test": f"{home}/test.{{}}", "data__test_directions": ["en-de", "de-fr"]}
    train_translation(home, "many", many_languages(home, **many, **tested))
    return home


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Lets these bytes come from standard input."""

    def give(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))

    return give


@pytest.fixture
def train(command: Any, home: Path, tmp_path: Path) -> Callable[..., Any]:
    """`legato train translation` for one step, with these settings, into `tmp_path/run`."""

    def run(*over: str, **changes: Any) -> Any:
        settings = small_translation(home, **{**QUICK, **changes})
        return command("train", "translation", *in_words(settings), f"out={tmp_path}/run", *over)

    return run


def is_one_line(answer: Any, *parts: str) -> None:
    """The command was refused in one line that holds `parts`, and said nothing else."""
    assert answer.code == 2, answer.err
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1, answer.err
    for part in ("legato: ", *parts):
        assert part in answer.err


def metrics_of(run: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((run / "result.json").read_text())["metrics"]
    return metrics


# ── the commands ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["transformer", "seq2seq"])
def test_the_three_commands_train_translate_and_score(
    model: str, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pairs(tmp_path)
    monkeypatch.chdir(tmp_path)
    changes = SEQ2SEQ if model == "seq2seq" else {}
    extra = small_translation(tmp_path, **{**changes, "model": None, "data__train": None, "data__valid": None})
    files = ("data.train=[train.en,train.de]", "data.valid=[val.en,val.de]", f"model={model}", "out=runs/t")
    trained = command("train", "translation", *files, *in_words(extra))
    assert trained.code == 0, trained.err
    translated = command("predict", "runs/t", DOG)
    assert (translated.code, translated.out, translated.err) == (0, f"{HUND}\n", "")
    scored = command("eval", "runs/t", "data.test=[test.en,test.de]")
    assert scored.code == 0, scored.err
    assert "runs/t/best on test.en + test.de" in scored.out
    assert "nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:" in scored.out


def test_training_shows_pairs_and_translations_as_it_goes(train: Any, home: Path) -> None:
    answer = train("train.samples=1")
    first = (home / "val.en").read_text().splitlines()[0]
    assert "data: 400 train, 12 valid pairs, vocabulary" in answer.err
    assert "the model will see: '" in answer.err
    assert f"  | {first}\n  | → " in answer.err
    assert "valid bleu signature: nrefs:1|case:mixed" in answer.err


def test_evaluating_finds_what_training_found(command: Any, home: Path) -> None:
    scores = json.loads(command("eval", home / "t", f"data.test=[{home}/val.en,{home}/val.de]", "--json").out)
    found = metrics_of(home / "t")
    assert scores["loss"] == pytest.approx(found["valid.loss"], rel=1e-5)
    assert {name: scores[name] for name in ("bleu", "bleu_lower", "chrf", "sentences")} == {
        name: found[f"valid.{name}"] for name in ("bleu", "bleu_lower", "chrf", "sentences")
    }


def test_signatures_are_shown_whole_however_narrow_the_terminal(
    command: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = command("eval", home / "t", f"data.test=[{home}/test.en,{home}/test.de]").out
    told = legato.load(home / "t", "cpu").evaluate(test=[f"{home}/test.en", f"{home}/test.de"])
    assert f"bleu signature: {told['bleu_signature']}\n" in shown
    assert f"chrf signature: {told['chrf_signature']}\n" in shown


def test_pairs_that_are_too_long_are_not_counted_as_trained_on(train: Any) -> None:
    answer = train("data.max_length=7")
    [said] = [line for line in answer.err.splitlines() if line.startswith("data.train: left out ")]
    left_out = int(said.split()[3])
    assert 0 < left_out < 400
    assert f"data: {400 - left_out} train, 12 valid pairs" in answer.err


def test_a_terminal_that_cannot_show_a_letter_gets_its_number(home: Path) -> None:
    words = [sys.executable, "-m", "legato", "predict", str(home / "t"), DOG, "--device", "cpu"]
    told = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60)
    assert (told.returncode, told.stdout) == (0, b"Ein Hund l\\xe4uft.\n")


# ── where pairs come from ─────────────────────────────────────────────────────────────────────────


def write_table(kind: str, home: Path, path: Path, names: tuple[str, str] | None) -> Path:
    """The training pairs as a table with these column names, or without a header."""
    sides = [(home / f"train.{language}").read_text().splitlines() for language in ("en", "de")]
    rows = list(zip(*sides, strict=True))
    path = path.with_suffix(f".{kind}")
    if kind == "parquet":
        import pyarrow
        import pyarrow.parquet

        assert names is not None
        pyarrow.parquet.write_table(pyarrow.table(dict(zip(names, sides, strict=True))), path)
    elif kind == "jsonl":
        assert names is not None
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",")
            writer.writerows([names, *rows] if names else rows)
    return path


@pytest.mark.parametrize(
    ("kind", "names", "note"),
    [
        ("tsv", None, "columns 1 and 2, no header"),
        ("tsv", ("source", "target"), "columns source and target"),
        ("csv", ("en", "de"), "columns en and de"),
        ("jsonl", ("src", "tgt"), "columns src and tgt"),
        ("parquet", ("en", "de"), "columns en and de"),
    ],
)
def test_a_table_is_read_by_columns_that_are_guessed_and_said(
    kind: str, names: tuple[str, str] | None, note: str, train: Any, home: Path, tmp_path: Path
) -> None:
    table = write_table(kind, home, tmp_path / "pairs", names)
    answer = train(data__train=str(table))
    assert answer.code == 0, answer.err
    assert f"data.train: {note}\n" in answer.err
    assert "data: 400 train, 12 valid pairs" in answer.err


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_a_table_is_read_by_columns_that_are_named(kind: str, train: Any, home: Path, tmp_path: Path) -> None:
    table = write_table(kind, home, tmp_path / "pairs", ("hither", "thither"))
    answer = train("data.columns=[thither,hither]", data__train=str(table), data__valid=None)
    assert answer.code == 0, answer.err
    assert "the model will see: 'E" in answer.err or "the model will see: 'D" in answer.err  # from German


def test_without_validation_pairs_a_share_is_held_out(train: Any, tmp_path: Path) -> None:
    answer = train(data__valid=None, data__valid_share=0.2)
    assert answer.code == 0, answer.err
    counts = next(line for line in answer.err.splitlines() if line.startswith("data: "))
    held, valid = (int(part.split()[0]) for part in counts.removeprefix("data: ").split(",")[:2])
    assert held + valid == 400
    assert 20 <= valid <= 160
    assert metrics_of(tmp_path / "run")["valid.sentences"] == valid


@pytest.mark.parametrize(("share", "few"), [(0.02, True), (0.5, False)])
def test_a_share_too_small_to_score_well_is_said(share: float, few: bool, train: Any) -> None:
    said = train(data__valid=None, data__valid_share=share).err
    assert ("held out, so its scores are rough; raise data.valid_share=0.02, or give data.valid\n" in said) == few


def test_a_share_can_be_held_out_for_testing_too(train: Any, tmp_path: Path) -> None:
    assert train(data__valid=None, data__valid_share=0.1, data__test_share=0.2).code == 0
    assert metrics_of(tmp_path / "run")["test.sentences"] > 0


def test_a_toy_language_trains_and_is_scored_at_the_end(train: Any, tmp_path: Path) -> None:
    toy = {"data__toy__count": 60, "data__toy__valid_count": 6, "tokenizer__size": None}
    answer = train(data__train="toy:language", data__valid=None, data__test="toy:language", data__beams=None, **toy)
    assert answer.code == 0, answer.err
    metrics = metrics_of(tmp_path / "run")
    assert (metrics["valid.sentences"], metrics["test.sentences"]) == (6, 6)
    assert load_model(tmp_path / "run" / "best").about["beams"] == 1


# ── vocabularies ──────────────────────────────────────────────────────────────────────────────────


def test_separate_vocabularies_come_back_as_they_were(train: Any, command: Any, tmp_path: Path) -> None:
    answer = train("data.joint=false")
    assert answer.code == 0, answer.err
    best = tmp_path / "run" / "best"
    assert (best / "target" / "tokenizer.json").is_file()
    first, again = load_model(best), load_model(best)
    assert first.tokenizer.fingerprint() != first.target.fingerprint()
    assert first.target.fingerprint() == again.target.fingerprint()
    assert (first.module.sizes.source, first.module.vocabulary) == (first.tokenizer.size, first.target.size)
    assert command("predict", best, DOG).code == 0


def test_bpe_dropout_changes_what_is_learned_from(train: Any, tmp_path: Path) -> None:
    digests = []
    for name, chance in (("a", 0), ("b", 0.3)):
        assert train(f"data.bpe_dropout={chance}", "train.steps=3", f"out={tmp_path}/{name}").code == 0
        digests.append(weights_digest(tmp_path / name)["last"])
    assert digests[0] != digests[1]


# ── many languages ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("language", "written"), [("de", HUND), ("fr", "Un chien court.")])
def test_a_tag_chooses_the_language(language: str, written: str, command: Any, home: Path) -> None:
    assert command("predict", home / "many", DOG, "--to", language).out == f"{written}\n"


@pytest.mark.parametrize("text", [f">>fr<< {DOG}", f">>fr<<{DOG}", f"  >>fr<<   {DOG}"])
def test_a_tag_may_be_typed_before_the_text(text: str, command: Any, home: Path) -> None:
    assert command("predict", home / "many", text).out == "Un chien court.\n"


def test_a_tag_that_is_typed_wins(command: Any, home: Path) -> None:
    answer = command("predict", home / "many", f">>fr<< {DOG}", DOG, "--to", "de")
    assert answer.out == f"Un chien court.\n{HUND}\n"


def test_a_direction_that_was_never_trained_can_be_asked_for(command: Any, home: Path) -> None:
    answer = command("predict", home / "many", HUND, "--to", "fr")
    assert answer.code == 0
    assert answer.out.strip()


def test_a_language_that_the_model_lacks_is_named_with_those_it_has(command: Any, home: Path) -> None:
    is_one_line(command("predict", home / "many", DOG, "--to", "it"), "no language 'it'; there is de, en, fr")


def test_a_language_that_is_misspelt_suggests_the_nearest(command: Any, home: Path) -> None:
    is_one_line(command("predict", home / "many", DOG, "--to", "dee"), "no language 'dee'; did you mean 'de'?")


def test_without_a_language_the_known_ones_are_named(command: Any, home: Path) -> None:
    is_one_line(command("predict", home / "many", DOG, CAT), "the model writes de, en, fr; say which, with --to de")


def test_a_language_makes_no_sense_for_a_model_of_one_direction(command: Any, home: Path) -> None:
    is_one_line(command("predict", home / "t", DOG, "--to", "de"), "no language 'de'", "one direction only")


def test_a_line_with_an_unknown_tag_does_not_stop_the_others(command: Any, home: Path, typed: Any) -> None:
    typed(f">>de<< {DOG}\n>>it<< {DOG}\n{DOG}\n\n>>fr<< {DOG}\n".encode())
    answer = command("predict", home / "many")
    assert answer.code == 2
    assert answer.out == f"{HUND}\n\n\n\nUn chien court.\n"
    notes = answer.err.splitlines()
    assert notes[0] == "legato: line 2: the model has no language 'it'; there is de, en, fr"
    assert notes[1].startswith("legato: line 3: the model writes de, en, fr")
    assert notes[2] == "legato: 2 of 5 could not be done; the rest is done"


def test_directions_are_scored_each_and_an_untrained_one_too(home: Path) -> None:
    metrics = metrics_of(home / "many")
    assert {"valid.bleu_en-de", "valid.bleu_fr-en", "test.bleu_en-de", "test.bleu_de-fr"} <= metrics.keys()
    assert "test.bleu_de-en" not in metrics
    assert metrics["test.bleu_en-de"] > metrics["test.bleu_de-fr"]


def test_evaluating_a_model_of_many_needs_directions(command: Any, home: Path) -> None:
    answer = command("eval", home / "many", f"data.test=[{home}/test.en,{home}/test.de]")
    is_one_line(answer, "writes de, en, fr; say which: data.directions=[en-de]")


def test_evaluating_a_model_of_many_takes_the_directions_of_its_training(command: Any, home: Path) -> None:
    scores = json.loads(command("eval", home / "many", f"data.test={home}/test.{{}}", "--json").out)
    assert {"bleu_en-de", "bleu_de-en", "bleu_en-fr", "bleu_fr-en"} <= scores.keys()
    assert "bleu_de-fr" not in scores


def test_an_untrained_direction_can_be_evaluated(command: Any, home: Path) -> None:
    words = (f"data.test={home}/test.{{}}", "data.directions=[de-fr,fr-de]", "--json")
    scores = json.loads(command("eval", home / "many", *words).out)
    assert {"bleu_de-fr", "bleu_fr-de"} <= scores.keys()


def test_a_test_language_that_nothing_teaches_is_refused_before_training(
    command: Any, home: Path, tmp_path: Path
) -> None:
    over = {"data__directions": ["en-de", "de-en"], "data__test_directions": ["en-fr"]}
    settings = many_languages(home, **QUICK, **over, data__test=f"{home}/test.{{}}")
    answer = command("train", "translation", *in_words(settings), f"out={tmp_path}/run")
    is_one_line(answer, "data.test asks for 'fr', which no training pair is in; there is de, en")
    assert not (tmp_path / "run").exists()


def test_a_column_of_a_table_may_hold_the_language(train: Any, command: Any, home: Path, tmp_path: Path) -> None:
    sides = {language: (home / f"train.{language}").read_text().splitlines() for language in ("en", "de", "fr")}
    rows = [f"{sides['en'][i]}\t{sides[to][i]}\t{to}\n" for i in range(40) for to in ("de", "fr")]
    (tmp_path / "pairs.tsv").write_text("".join(["english\tother\tlanguage\n", *rows]))
    named = ("data.columns=[english,other]", "data.tag_column=language")
    answer = train(*named, data__train=f"{tmp_path}/pairs.tsv", data__valid=None, data__valid_share=0.2)
    assert answer.code == 0, answer.err
    assert "the model will see: '>>de<<' " in answer.err or "the model will see: '>>fr<<' " in answer.err
    assert {"valid.bleu_de", "valid.bleu_fr"} <= metrics_of(tmp_path / "run").keys()
    assert command("predict", tmp_path / "run", DOG, "--to", "fr").code == 0


# ── predicting: what comes in ─────────────────────────────────────────────────────────────────────


def test_texts_on_the_command_line_are_translated_in_order(command: Any, home: Path) -> None:
    assert command("predict", home / "t", CAT, DOG).out == f"{KATZE}\n{HUND}\n"


def test_a_file_is_translated_line_by_line_in_order(command: Any, home: Path) -> None:
    answer = command("predict", home / "t", "--file", home / "test.en")
    assert answer.out == (home / "test.de").read_text()


@pytest.mark.parametrize("words", [(), ("--file", "-")])
def test_standard_input_is_translated_line_by_line_in_order(
    words: tuple[str, ...], command: Any, home: Path, typed: Any
) -> None:
    typed(f"{DOG}\n{CAT}\nA cat sleeps.\n{CAT}\n".encode())
    assert command("predict", home / "t", *words).out == f"{HUND}\n{KATZE}\nEin Katze schläft.\n{KATZE}\n"


def test_empty_lines_stay_empty_lines(command: Any, home: Path, typed: Any) -> None:
    typed(f"\n\n{DOG}\n \t \n{CAT}\n\n".encode())
    answer = command("predict", home / "t")
    assert (answer.code, answer.out, answer.err) == (0, f"\n\n{HUND}\n\n{KATZE}\n\n", "")


def test_a_last_line_without_its_newline_counts(command: Any, home: Path, typed: Any) -> None:
    typed(f"{CAT}\n{DOG}".encode())
    assert command("predict", home / "t").out == f"{KATZE}\n{HUND}\n"


def test_lines_may_end_as_on_windows_and_begin_with_a_byte_order_mark(command: Any, home: Path, typed: Any) -> None:
    typed(f"\ufeff{CAT}\r\n{DOG}\r\n".encode())
    assert command("predict", home / "t").out == f"{KATZE}\n{HUND}\n"


def test_no_input_gives_no_output(command: Any, home: Path, typed: Any) -> None:
    typed(b"")
    answer = command("predict", home / "t")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_bytes_that_are_no_text_spoil_their_line_only(command: Any, home: Path, typed: Any) -> None:
    typed(DOG.encode() + b"\nA d\xffg \xc3runs.\n" + CAT.encode() + b"\n\xff\n")
    answer = command("predict", home / "t")
    lines = answer.out.splitlines()
    assert (answer.code, len(lines), lines[0], lines[2]) == (0, 4, HUND, KATZE)
    assert answer.err == "legato: note: line 2 is not valid UTF-8; bad bytes were replaced\n"  # once, of the first


def test_a_replacement_character_of_ones_own_is_text(command: Any, home: Path, typed: Any) -> None:
    typed("A d\ufffdg runs.\n".encode())
    assert command("predict", home / "t").err == ""


def test_an_argument_that_is_no_text_is_read_as_in_a_file(command: Any, home: Path, typed: Any) -> None:
    broken = b"A d\xffg runs."
    typed(broken + b"\n")
    expected = command("predict", home / "t").out
    answer = command("predict", home / "t", DOG, broken.decode("utf-8", "surrogateescape"))
    assert (answer.code, answer.out) == (0, f"{HUND}\n{expected}")
    assert answer.err == "legato: note: text 2 is not valid UTF-8; bad bytes were replaced\n"


@pytest.mark.parametrize(
    "text",
    [
        "A dog\x00 runs.\x1b[31m\x07",
        "🐶🏃‍♀️ runs",
        "狗在跑 — الكلب يجري — कुत्ता — собака",
        "\u202eA dog\u200b runs\u2028.",
        "<eos> <pad> >>de<< </s>",
    ],
)
def test_any_characters_give_one_line(text: str, command: Any, home: Path) -> None:
    answer = command("predict", home / "recurrent", text, DOG)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith(f"\n{HUND}\n")
    assert answer.out.count("\n") == 2


def test_a_control_character_reads_as_a_space(command: Any, home: Path) -> None:
    assert command("predict", home / "t", "A\x00dog\x07runs.\x1f").out == f"{HUND}\n"


def test_a_missing_file_is_named(command: Any, home: Path, tmp_path: Path) -> None:
    is_one_line(command("predict", home / "t", "--file", tmp_path / "no.en"), f"{tmp_path}/no.en cannot be read")


def test_texts_and_a_file_together_are_refused(command: Any, home: Path) -> None:
    is_one_line(command("predict", home / "t", DOG, "--file", home / "test.en"), "not both")


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


@pytest.mark.parametrize("run", ["t", "recurrent", "many"])
def test_alignments_name_words_that_are_there(run: str, command: Any, home: Path) -> None:
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


# ── what cannot be read ───────────────────────────────────────────────────────────────────────────


def test_a_line_too_long_for_the_model_does_not_stop_the_others(command: Any, home: Path, typed: Any) -> None:
    typed(f"{DOG}\n{'A dog runs and ' * 20}\n{CAT}\n".encode())
    answer = command("predict", home / "t")
    assert answer.code == 2
    assert answer.out == f"{HUND}\n\n{KATZE}\n"
    note, last = answer.err.splitlines()
    assert note == "legato: line 2: 81 tokens, more than the model's 48; split the text"
    assert last == "legato: 1 of 3 could not be done; the rest is done"


def test_a_line_too_long_is_told_in_json_too(command: Any, home: Path, typed: Any) -> None:
    typed(f"{'A dog runs and ' * 20}\n{DOG}\n".encode())
    first, second = (json.loads(line) for line in command("predict", home / "t", "--json").out.splitlines())
    assert (first["answers"], first["problem"]) == ([], "81 tokens, more than the model's 48; split the text")
    assert "problem" not in second


def test_a_single_text_too_long_is_one_line(command: Any, home: Path) -> None:
    answer = command("predict", home / "t", "A dog runs and " * 20)
    assert (answer.code, answer.out) == (2, "\n")
    assert answer.err == "legato: 81 tokens, more than the model's 48; split the text\n"


def test_a_validation_sentence_too_long_for_the_model_does_not_stop_training(
    train: Any, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "v.en").write_text("A dog runs and " * 20 + f"\n{DOG}\n")
    (tmp_path / "v.de").write_text(f"{HUND}\n{HUND}\n")
    answer = train("train.samples=1", data__valid=[f"{tmp_path}/v.en", f"{tmp_path}/v.de"])
    assert answer.code == 0, answer.err
    assert f"  | {DOG}\n" in answer.err
    assert "valid too long: 1" in answer.err


def test_a_recurrent_model_takes_a_line_of_any_length(command: Any, home: Path) -> None:
    assert command("predict", home / "recurrent", "A dog runs and " * 20).code == 0


# ── the shell ─────────────────────────────────────────────────────────────────────────────────────


def test_a_reader_that_leaves_early_ends_it_quietly(home: Path, tmp_path: Path) -> None:
    (tmp_path / "many.en").write_text(f"{DOG}\n" * 1500)
    line = f'"{sys.executable}" -m legato predict "{home}/recurrent" --file "{tmp_path}/many.en" --beams 1 | head -1'
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{HUND}\n", "")


def test_standard_input_that_is_closed_is_said(home: Path) -> None:
    line = f'"{sys.executable}" -m legato predict "{home}/t" <&-'
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "legato: there is no text, and standard input is closed; give a text or --file\n"


def test_somebody_who_types_gets_each_answer_at_once_and_may_leave_by_an_interrupt(home: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "legato", "predict", str(home / "t")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has its children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    for text, written in ((DOG, HUND), (CAT, KATZE)):
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{written}\n"
    process.send_signal(signal.SIGINT)  # while it waits for a line
    assert process.wait(60) == 130
    assert process.stderr.read() == ""
    process.stdin.close()


class Breaking(io.BytesIO):
    """A stream that breaks after its lines."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(b"one\ntwo\n")
        self.problem = problem

    def __next__(self) -> bytes:
        line = self.readline()
        if not line:
            raise self.problem
        return line


def test_lines_that_came_before_standard_input_broke_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "_open", lambda self: Breaking(OSError("the cable is out")))
    blocks = Lines(None).blocks(8)
    assert next(blocks) == ["one", "two"]
    with pytest.raises(OSError, match="the cable is out"):
        next(blocks)


def test_standard_input_that_is_closed_midway_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "_open", lambda self: Breaking(ValueError("I/O operation on closed file")))
    assert list(Lines(None).blocks(8)) == [["one", "two"]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_file_comes_in_full_blocks(size: int, home: Path) -> None:
    blocks = list(Lines(str(home / "test.en")).blocks(size))
    assert [len(block) for block in blocks] == [size] * (12 // size)
    assert [line for block in blocks for line in block] == (home / "test.en").read_text().splitlines()


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [{}, {**SEQ2SEQ, "model__dropout_recurrent": 0.2}], ids=["transformer", "seq2seq"])
def test_a_run_that_is_stopped_and_resumed_ends_with_the_same_bits(
    kind: dict[str, Any], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        **QUICK,
        **kind,
        "train__steps": 14,
        "train__validate_every": 4,
        "train__average": 0.6,
        "model__dropout": 0.2,
        "data__bpe_dropout": 0.2,
    }
    settings = small_translation(home, **changes)
    whole = legato.train("translation", settings, out=tmp_path / "whole", quiet=True).run
    update = Trainer._update

    def interrupted(self: Trainer) -> None:
        if self.step == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        update(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", interrupted)
        with pytest.raises(Stopped):
            legato.train("translation", settings, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "result.json").exists()
    legato.train(resume=tmp_path / "run", quiet=True)
    assert weights_digest(tmp_path / "run") == weights_digest(whole)
    assert metrics_of(tmp_path / "run") == metrics_of(whole)


# ── comparing ─────────────────────────────────────────────────────────────────────────────────────


def test_comparing_gives_a_table_with_bleu(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = ("compare", "translation", "model=[seq2seq,transformer]", "data.train=toy:language", "train.steps=2")
    toy = ("data.toy.count=60", "data.toy.valid_count=6", "train.samples=0", "train.tensorboard=false")
    answer = command(*words, *toy, "match=20000", "model.layers=1", f"out={tmp_path}/c", "--quiet", "device=cpu")
    assert answer.code == 0, answer.err
    assert all(name in answer.out for name in ("seq2seq", "transformer", "valid bleu", "parameters"))
    kept = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert all("valid.bleu" in entry for entry in kept["entries"])
    sizes = [entry["parameters"]["mean"] for entry in kept["entries"]]
    assert max(sizes) / min(sizes) < 1.15  # as near as widths that heads divide come


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


# ── the wrong verb ────────────────────────────────────────────────────────────────────────────────


def test_a_language_model_does_not_predict(command: Any, tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path, train__steps=1), out=tmp_path / "lm", quiet=True).run
    is_one_line(command("predict", run, "the "), "is a model for lm", "use legato generate")


@pytest.mark.parametrize("words", [(), ("--json",), ("--search", "beam")])
def test_a_translation_model_does_not_generate(words: tuple[str, ...], command: Any, home: Path) -> None:
    is_one_line(command("generate", home / "t", DOG, *words), "turns one text into another: use legato predict")
