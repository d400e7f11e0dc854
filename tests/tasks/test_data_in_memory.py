"""Training, scoring and predicting data in memory, and data in several files and folders."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import legato
from legato.errors import ConfigError, DataError
from tiny_reviews import SMALL, review

FEW = {**SMALL, "train.steps": 2, "train.validate_every": 2, "train.samples": 0, "model": "gru", "model.layers": 1}


def reviews(count: int = 24) -> pd.DataFrame:
    draw = random.Random(3)
    return pd.DataFrame([(review(draw, n % 2 == 1), n % 2) for n in range(count)], columns=["text", "label"])


def weights(out: Path, **data: Any) -> str:
    run = legato.train("classification", FEW, quiet=True, out=out, seed=1, **data)
    return hashlib.sha256((run.run / "best" / "model.safetensors").read_bytes()).hexdigest()


def test_tables_in_memory_patterns_and_folders_train_the_bits_of_one_file(tmp_path: Path) -> None:
    frame = reviews().sort_values("label", kind="stable")
    frame.to_csv(tmp_path / "one.csv", index=False)
    frame[:9].to_csv(tmp_path / "part-1.csv", index=False)
    frame[9:].to_csv(tmp_path / "part-2.csv", index=False)
    for number, (text, label) in enumerate(frame.itertuples(index=False)):
        (tmp_path / "texts" / str(label)).mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / str(label) / f"{number:02}.txt").write_text(text)
    one = weights(tmp_path / "a", train=tmp_path / "one.csv")
    assert weights(tmp_path / "b", train=frame) == one
    assert weights(tmp_path / "f", data={"train": frame}) == one
    assert weights(tmp_path / "c", train=[tuple(row) for row in frame.itertuples(index=False)]) == one
    assert weights(tmp_path / "d", train=tmp_path / "part-*.csv") == one
    assert weights(tmp_path / "e", train=tmp_path / "texts") == one


def test_a_run_keeps_its_table_and_goes_on_from_it_wherever_it_lies(tmp_path: Path) -> None:
    frame = reviews()
    run = legato.train("classification", FEW, quiet=True, out=tmp_path / "run", train=frame, valid=frame[:8])
    with pytest.raises(ConfigError, match=r"goes on with the run's own copy of its data; leave out train="):
        legato.train(resume=run.run, train=frame, steps=3, quiet=True)
    moved = run.run.rename(tmp_path / "moved")
    again = legato.train(str(moved / "config.yaml"), quiet=True, out=tmp_path / "again", root=str(tmp_path))
    assert again.metrics == run.metrics
    own = shutil.copytree(moved / "data", tmp_path / "project" / "data").parent / "config.yaml"
    own.write_text((moved / "config.yaml").read_text())
    with pytest.raises(DataError, match=f"there is no file {run.run}"):  # a file beside it is another
        legato.train(str(own), quiet=True, out=tmp_path / "other")
    assert legato.train(resume=moved, steps=3, quiet=True).steps == 3

    model = legato.load(moved)
    frame.to_csv(tmp_path / "test.csv", index=False)
    by_file = model.evaluate(tmp_path / "test.csv")
    assert model.evaluate(frame)["accuracy"] == by_file["accuracy"] == model.evaluate(test=frame)["accuracy"]
    texts = list(frame["text"])
    for inputs in (frame, frame["text"], frame[["text"]].to_dict("records"), {"text": texts}):
        assert model.predict(inputs) == model.predict(texts)


def test_a_start_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^train= \(DataFrame\), row 3: 'label' is missing"):
        legato.train(
            "classification", FEW, quiet=True, out=tmp_path / "run", train=reviews().assign(label=[1, 0, None] * 8)
        )
    with pytest.raises(DataError, match=r"^no file matches .*nix\*\.csv"):
        legato.train("classification", FEW, quiet=True, out=tmp_path / "run", train=tmp_path / "nix*.csv")
    assert not (tmp_path / "run").exists()


def test_pairs_in_tuples_are_predicted_as_pairs(tmp_path: Path) -> None:
    texts = list(reviews()["text"])
    rows = [(one, other, int(one == other)) for one, other in zip(texts, [*texts[:12], *texts[:12]], strict=True)]
    model = legato.train("classification", FEW, quiet=True, out=tmp_path / "run", train=rows).model
    assert model.predict([row[:2] for row in rows]) == model.predict([f"{one}\t{other}" for one, other, _ in rows])
