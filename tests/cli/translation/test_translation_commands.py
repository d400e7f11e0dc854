"""Translation from end to end by the command line: training, scoring, going on, comparing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.interrupts import Stopped
from legato.training.loop import Trainer
from refusals import is_one_line
from thinned import some
from tiny_pairs import (
    DOG,
    HUND,
    QUICK,
    SEQ2SEQ,
    in_words,
    metrics_of,
    small_translation,
    write_pairs,
)
from tiny_runs import small, weights_digest

# ── the commands ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", some(["transformer", "seq2seq"], ["transformer"]))
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


@pytest.mark.slow
def test_training_shows_pairs_and_translations_as_it_goes(train: Any, home: Path) -> None:
    answer = train("train.samples=1")
    first = (home / "val.en").read_text().splitlines()[0]
    assert "data: 400 train, 12 valid pairs, vocabulary" in answer.err
    assert "the model will see: '" in answer.err
    assert f"  | {first}\n  | → " in answer.err
    assert "valid bleu signature: nrefs:1|case:mixed" in answer.err


@pytest.mark.slow
def test_a_bleu_says_how_it_was_searched_for(train: Any, command: Any, home: Path, tmp_path: Path) -> None:
    answer = train("data.beams=3")
    assert re.search(r"valid at step 1: loss [\d.]+  bleu \(greedy\) [\d.]+  ", answer.err)
    assert re.search(r"\nvalid bleu \(beam 3\): [\d.]+\n", answer.err)
    assert "valid.bleu" in metrics_of(tmp_path / "run")
    assert "| bleu (greedy) | " in (tmp_path / "run" / "best" / "README.md").read_text()
    test = f"data.test=[{home}/test.en,{home}/test.de]"
    assert "bleu (beam 3)" in command("eval", tmp_path / "run", test).out
    assert "bleu (greedy)" in command("eval", tmp_path / "run", test, "data.beams=1").out
    assert json.loads(command("eval", tmp_path / "run", test, "--json").out)["search"] == "beam 3"


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


@pytest.mark.slow
def test_a_terminal_that_cannot_show_a_letter_gets_its_number(home: Path) -> None:
    words = [sys.executable, "-m", "legato", "predict", str(home / "t"), DOG, "--device", "cpu"]
    told = subprocess.run(words, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, timeout=60)
    assert (told.returncode, told.stdout) == (0, b"Ein Hund l\\xe4uft.\n")


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────


RESUMED = [{}, {**SEQ2SEQ, "model__dropout_recurrent": 0.2}]


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
@pytest.mark.parametrize("kind", some(RESUMED, RESUMED[1:]), ids=["transformer", "seq2seq"])
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


@pytest.mark.slow
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


# ── the wrong verb ────────────────────────────────────────────────────────────────────────────────


def test_a_language_model_does_not_predict(command: Any, tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path, train__steps=1), out=tmp_path / "lm", quiet=True).run
    is_one_line(command("predict", run, "the "), "is a model for lm", "use legato generate")


@pytest.mark.parametrize("words", [(), ("--json",), ("--search", "beam")])
def test_a_translation_model_does_not_generate(words: tuple[str, ...], command: Any, home: Path) -> None:
    is_one_line(command("generate", home / "t", DOG, *words), "turns one text into another: use legato predict")
