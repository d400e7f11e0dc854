"""`legato predict --html`: alignments, beams and learned trees of what was predicted, in one page."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.inspect.report.predictions import MOST
from legato.tasks.translation import translator
from refusals import ends_in_one_line, is_one_line
from reports import reports_in
from tiny_tasks import tiny

TEXT = "a dog runs and a man sings"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predicted")
    tasks = {"pairs": "translation", "trees": "parsing", "texts": "classification", "pictures": "captioning"}
    tasks["lines"] = "lm"
    for name, task in tasks.items():
        legato.train(task, tiny(task, folder / f"{name}-data"), out=folder / name, quiet=True)
    tagged = tiny("translation", folder / "many-data", data__directions=["en-de", "de-en"])
    tagged |= {
        "data.train": str(folder / "many-data" / "train.{}"),
        "data.valid": str(folder / "many-data" / "val.{}"),
    }
    legato.train("translation", tagged, out=folder / "many", quiet=True)
    return folder


def test_alignments_are_of_what_was_predicted(runs: Path, command: Any, tmp_path: Path) -> None:
    page = tmp_path / "new folder" / "p.html"
    plain = command("predict", runs / "pairs", TEXT, "a cat", "--alignments")
    answer = command("predict", runs / "pairs", TEXT, "a cat", "--alignments", "--html", page)
    assert (answer.code, answer.out) == (0, plain.out)
    assert answer.err == f"legato: note: the report is in {page}: 2 texts\n"
    reports = reports_in(page)
    assert [report["given"] for report in reports] == [TEXT, "a cat"]
    for report, line in zip(reports, plain.out.splitlines(), strict=True):
        assert report["opens"] == "alignment"
        assert {"alignment", "tree", "attention", "map"} <= set(report["views"])
        *tokens, end = report["written"]
        assert ("".join(tokens).strip(), end) == (line.split("\t")[0], "<eos>")


@pytest.mark.parametrize(
    "words",
    [
        ("--beams", "3"),
        ("--beams", "3", "--max-tokens", "2"),
        ("--beams", "3", "--nbest", "2", "--length-penalty", "0.2"),
    ],
)
def test_a_beam_is_the_one_that_was_asked_for(
    words: tuple[str, ...], runs: Path, command: Any, tmp_path: Path
) -> None:
    answer = command("predict", runs / "pairs", TEXT, *words, "--html", tmp_path / "p.html")
    (report,) = reports_in(tmp_path / "p.html")
    beam = report["views"]["tree"]["strategies"][0]
    assert (report["opens"], beam["title"]) == ("tree", "beam of 3")
    assert beam["length_penalty"] == (0.2 if "0.2" in words else 1.0)
    lines = [line.split("\t")[-1] for line in answer.out.splitlines()]
    assert [hypothesis["text"] for hypothesis in beam["hypotheses"][: len(lines)]] == lines


@pytest.mark.slow
def test_a_learned_tree_is_drawn_whole(runs: Path, command: Any, tmp_path: Path) -> None:
    answer = command("predict", runs / "trees", "the dog sees cats .", "--html", tmp_path / "p.html")
    (report,) = reports_in(tmp_path / "p.html")
    assert report["opens"] == "tree"
    labels = [symbol.lstrip("(") for symbol in answer.out.split() if not symbol.startswith(")")]
    assert [node["label"] for node in report["views"]["tree"]["parse"]] == labels
    assert "".join(report["written"]).count("<word>") == 5
    assert "<unk>" not in "".join(report["written"])


@pytest.mark.slow
def test_of_many_texts_the_first_are_drawn(runs: Path, command: Any, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n" + f"{TEXT}\n" * (MOST + 3))
    page = tmp_path / "p.html"
    answer = command("predict", runs / "pairs", "--file", tmp_path / "texts.txt", "--html", page)
    assert answer.err == f"legato: note: the report is in {page}: {MOST} of {MOST + 4} texts\n"
    assert len(reports_in(page)) == MOST
    assert f"the first {MOST}," in " ".join(command("predict", "--help").out.replace("│", " ").split())


@pytest.mark.slow
def test_what_cannot_be_read_is_left_out(runs: Path, command: Any, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    answer = command("predict", runs / "many", "a cat", ">>xx<< a cat", ">>de<< a dog", "--to", "en", "--html", page)
    assert answer.code == 2
    assert f"the report is in {page}: 2 of 3 texts" in answer.err
    assert [report["given"] for report in reports_in(page)] == [">>en<< a cat", ">>de<< a dog"]


def test_a_picture_has_its_name_above_it(runs: Path, command: Any, tmp_path: Path) -> None:
    picture = next((runs / "pictures-data").rglob("*.png"))
    answer = command("predict", runs / "pictures", picture, "--html", tmp_path / "p.html")
    assert answer.code == 0, answer.err
    (report,) = reports_in(tmp_path / "p.html")
    assert (report["given"], report["opens"]) == (str(picture), "alignment")


@pytest.mark.parametrize(
    ("run", "place", "said"),
    [
        ("pairs", "", "which is a folder; name a file in it"),
        ("pairs", "file/p.html", "file is no folder; name another place"),
        ("texts", "p.html", "is a model for classification, which writes nothing token by token; leave out --html"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_line(
    run: str, place: str, said: str, runs: Path, command: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    is_one_line(command("predict", runs / run, TEXT, "--html", tmp_path / place), said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "is a model for lm, which generates: use legato generate"),
        (
            ("--task", "classification", "--labels", "good,bad"),
            "how likely each label is, and nothing is written",
        ),
    ],
)
def test_what_a_language_model_does_instead_is_said(
    more: tuple[str, ...], said: str, runs: Path, command: Any, tmp_path: Path
) -> None:
    refused = command("predict", runs / "lines", TEXT, *more, "--html", tmp_path / "p.html")
    is_one_line(refused, said)
    if not more:
        assert refused.err == command("predict", runs / "lines", TEXT).err


@pytest.mark.parametrize("texts", [(TEXT,), (TEXT, " ")])
def test_why_no_report_was_written_is_said(
    texts: tuple[str, ...], runs: Path, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator, "longest_of", lambda model: 3)
    answer = command("predict", runs / "pairs", *texts, "--html", tmp_path / "p.html")
    assert answer.code == 2
    last = answer.err.splitlines()[-1]
    assert re.fullmatch(
        r"legato: no report was written: \d+ tokens, more than the model's 3; split the text", last
    ), last
    assert not (tmp_path / "p.html").exists()


def test_where_there_is_no_text_no_report_is_written(
    runs: Path, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "p.html"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b""), encoding="utf-8"))
    ends_in_one_line(
        command("predict", runs / "pairs", "--html", page), "there is nothing to draw, so", "give a text"
    )
    ends_in_one_line(
        command("predict", runs / "pairs", " ", "--html", page), "no report was written: the text is empty"
    )
    assert not page.exists()
