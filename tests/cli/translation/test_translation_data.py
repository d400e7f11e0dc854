"""What a translation run learns from: tables, shares that are held out, toys, vocabularies."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from legato.folders.model_folder import load_model
from tiny_pairs import (
    DOG,
    metrics_of,
)
from tiny_runs import weights_digest

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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_a_table_is_read_by_columns_that_are_named(kind: str, train: Any, home: Path, tmp_path: Path) -> None:
    table = write_table(kind, home, tmp_path / "pairs", ("hither", "thither"))
    answer = train("data.columns=[thither,hither]", data__train=str(table), data__valid=None)
    assert answer.code == 0, answer.err
    assert "the model will see: 'E" in answer.err or "the model will see: 'D" in answer.err  # from German


@pytest.mark.slow
def test_without_validation_pairs_a_share_is_held_out(train: Any, tmp_path: Path) -> None:
    answer = train(data__valid=None, data__valid_share=0.2)
    assert answer.code == 0, answer.err
    counts = next(line for line in answer.err.splitlines() if line.startswith("data: "))
    held, valid = (int(part.split()[0]) for part in counts.removeprefix("data: ").split(",")[:2])
    assert held + valid == 400
    assert 20 <= valid <= 160
    assert metrics_of(tmp_path / "run")["valid.sentences"] == valid


@pytest.mark.slow
@pytest.mark.parametrize(("share", "few"), [(0.02, True), (0.5, False)])
def test_a_share_too_small_to_score_well_is_said(share: float, few: bool, train: Any) -> None:
    said = train(data__valid=None, data__valid_share=share).err
    assert ("held out, so its scores are rough; raise data.valid_share=0.02, or give data.valid\n" in said) == few


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_bpe_dropout_changes_what_is_learned_from(train: Any, tmp_path: Path) -> None:
    digests = []
    for name, chance in (("a", 0), ("b", 0.3)):
        assert train(f"data.bpe_dropout={chance}", "train.steps=3", f"out={tmp_path}/{name}").code == 0
        digests.append(weights_digest(tmp_path / name)["last"])
    assert digests[0] != digests[1]
