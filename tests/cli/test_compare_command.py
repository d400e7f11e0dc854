"""`legato compare` from end to end: the same data and budget for every model."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import legato
from legato.runs.config import check
from refusals import is_one_line
from tiny_runs import small, words


def test_comparing_models_keeps_parameters_near_and_tokens_equal(command: Any, home: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in small(home, train__steps=4).items() if k not in ("model", "model.width")}
    answer = command(
        *("compare", "lm", "model=[elman,gru,lstm]", "match=20000", "seed=[1,2]", f"out={tmp_path}/c", "--quiet"),
        *words(settings),
    )
    assert answer.code == 0, answer.err
    assert all(name in answer.out for name in ("elman", "gru", "lstm", "parameters", "tokens/s", "bits per"))
    assert answer.out.count(" ± ") == 6  # two figures of three models
    kept = json.loads((tmp_path / "c" / "compare.json").read_text())
    sizes = [entry["parameters"]["mean"] for entry in kept["entries"]]
    assert max(sizes) / min(sizes) < 1.03
    assert {entry["tokens"]["mean"] for entry in kept["entries"]} == {4 * 128}
    assert all(entry["valid.bits_per_byte"]["spread"] > 0 for entry in kept["entries"])
    assert (tmp_path / "c" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "c" / "lstm-seed2" / "best" / "model.safetensors").exists()


def test_a_seed_that_is_named_twice_is_refused_before_anything_trains(
    command: Any, home: Path, tmp_path: Path
) -> None:
    settings = {k: v for k, v in small(home, train__steps=1).items() if k != "model"}
    asked = ("compare", "lm", "model=[elman,lstm]", "seed=[1,2,1]", *words(settings), f"out={tmp_path}/c")
    is_one_line(command(*asked), "seed=[1, 2, 1] has 1 more than once; each repeat needs a seed of its own")
    assert not (tmp_path / "c").exists()


def test_comparing_settings_files_names_them(command: Any, home: Path, tmp_path: Path) -> None:
    for name, model in (("plain", "elman"), ("gated", "lstm")):
        settings = {"task": "lm", **small(home, model=model, train__steps=2)}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    answer = command("compare", tmp_path / "plain.yaml", tmp_path / "gated.yaml", f"out={tmp_path}/c", "--json")
    summary = json.loads(answer.out)
    assert [entry["label"] for entry in summary["entries"]] == ["plain", "gated"]
    assert summary["entries"][0]["valid.bits_per_byte"]["spread"] is None


def test_a_width_that_is_written_down_is_kept(command: Any, home: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in small(home, train__steps=1).items() if k != "model"}
    answer = command("compare", "lm", "model=[elman,lstm]", *words(settings), f"out={tmp_path}/c", "--quiet")
    results = [json.loads((tmp_path / "c" / name / "result.json").read_text()) for name in ("elman", "lstm")]
    elman, lstm = (f"{result['parameters']:,}" for result in results)
    warning = (
        f"match=parameters is not reached for the {elman} parameters of 'elman': 'lstm' {lstm} (its width is set); "
        "leave out model.width, or set match=none"
    )
    assert warning in answer.err
    assert warning.partition(":")[0] in " ".join(answer.out.split())  # under the table, in several lines
    widths = {
        yaml.safe_load((tmp_path / "c" / name / "config.yaml").read_text())["model"]["width"]
        for name in ("elman", "lstm")
    }
    assert widths == {16}


def test_parameters_are_counted_with_what_a_task_puts_on_a_model(tmp_path: Path) -> None:
    """A classifier has a head and no readout: word2vec's would be half of it."""
    rows = "".join(f"{n} words of a text\t{'yes' if n % 2 else 'no'}\n" for n in range(40))
    (tmp_path / "t.tsv").write_text("text\tlabel\n" + rows)
    settings = {"data.train": str(tmp_path / "t.tsv"), "tokenizer": "word", "train.steps": 1, "device": "cpu"}
    models = ["word2vec", "elman"]
    found = legato.compare("classification", settings, model=models, out=tmp_path / "c", quiet=True)
    first, second = (entry.results[0].parameters for entry in found.entries)
    assert abs(second - first) < 0.1 * first
    assert not found.warnings


def test_a_quiet_comparison_tells_what_it_is_at(tmp_path: Path) -> None:
    told: list[str] = []
    settings = {**small(tmp_path, train__steps=4), "model": ["elman", "lstm"], "match": "none"}
    legato.compare("lm", settings, out=tmp_path / "c", quiet=True, tell=told.append)
    kinds = [line.split(":")[0] + line[-1] for line in told]
    assert kinds == ["elman…", "  valid at step 4)", "elmans", "lstm…", "  valid at step 4)", "lstms"]


def test_without_matplotlib_a_comparison_has_no_picture_and_says_so(
    command: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    settings = words({k: v for k, v in small(home, train__steps=1).items() if k != "model"})
    answer = command("compare", "lm", "model=[elman,gru]", *settings, "match=none", f"out={tmp_path}/c", "--quiet")
    assert 'matplotlib is not installed; it comes with: pip install "legato-nn[plots]"' in answer.err
    assert "curves:" not in answer.out
    assert not (tmp_path / "c" / "compare.png").exists()


def test_a_comparison_goes_on_where_it_was_stopped(home: Path, tmp_path: Path) -> None:
    settings = {**small(home, train__steps=4), "model": ["elman", "gru"], "model.width": 16}
    whole = legato.compare("lm", settings, out=tmp_path / "whole", quiet=True)
    stopped = legato.compare("lm", settings, out=tmp_path / "stopped", quiet=True)
    for name in ("compare.json", "compare.png"):
        (tmp_path / "stopped" / name).unlink()
    shutil.rmtree(stopped.entries[1].results[0].run)  # as if it had been killed before the second run
    again = legato.compare("lm", settings, out=tmp_path / "stopped", quiet=True)
    assert [e.results[0].metrics for e in again.entries] == [e.results[0].metrics for e in whole.entries]


def test_a_comparison_keeps_the_seed_of_a_file(home: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        settings = {"task": "lm", "seed": 7, **small(home, train__steps=2)}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(settings, default=str))))
    found = legato.compare([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")], out=tmp_path / "c", quiet=True)
    assert check(yaml.safe_load((found.entries[0].results[0].run / "config.yaml").read_text())).seed == 7
