"""`legato predict --ray`: many workers answer a file as one process does, whoever of them is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import legato
from answers import Command
from cli.conftest import command as command
from legato.errors import LegatoError
from legato.registry import require_extra

ROWS = 2100  # of which 512 are a block


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator that has learned nothing."""
    home = tmp_path_factory.mktemp("ray")
    pairs = {"data.train": "toy:language", "data.toy.count": 50, "data.toy.valid_count": 5, "model": "seq2seq"}
    pairs |= {"train.steps": 2, "train.samples": 0, "train.tensorboard": "false", "device": "cpu", "model.width": 16}
    legato.train("translation", {**pairs, "model.layers": 1}, out=home / "run", quiet=True)
    return home / "run"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.txt"
    texts = [f"a{number} b{number % 7} c" for number in range(ROWS)]
    texts[700] = ""
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def words_of(model: Path, file: Path) -> list[str]:
    return ["predict", str(model), "--file", str(file), "--beams", "3", "--max-tokens", "12", "--device", "cpu"]


def started(model: Path, file: Path, out: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "legato", *words_of(model, file), "--ray", "--out", str(out)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for_part(process: subprocess.Popen[str], out: Path) -> Path:
    """The first block's answers, once they are written."""
    part = out.with_name(f"{out.name}.parts") / "00000000.jsonl"
    for _ in range(1200):
        if part.is_file():
            return part
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        time.sleep(0.05)
    raise AssertionError("no block was answered in a minute")


def workers_of(process: subprocess.Popen[str]) -> Iterator[int]:
    """Ray's processes that have the model: those below this one."""
    parents: dict[int, tuple[int, str]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            parents[int(place.name)] = int(fields[1]), (place / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
    for number, (_, name) in parents.items():
        above = number
        while above in parents and above != process.pid:
            above = parents[above][0]
        if above == process.pid and name.startswith("ray::Worker"):
            yield number


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks for Ray's workers where Linux lists processes")
def test_workers_answer_as_one_process_does_whoever_is_killed(
    model: Path, file: Path, tmp_path: Path, command: Command
) -> None:
    pytest.importorskip("ray")
    expected = command(*words_of(model, file), "--json").out
    out = tmp_path / "answers.jsonl"
    first = started(model, file, out)
    part = wait_for_part(first, out)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert not out.exists()
    lines = part.read_text(encoding="utf-8").splitlines()
    marked = json.loads(lines[0]) | {"input": "made before"}
    part.write_text("\n".join([json.dumps(marked), *lines[1:]]) + "\n", encoding="utf-8")  # is it made again?
    (part.parent / "00000001.jsonl").unlink(missing_ok=True)
    second = started(model, file, out)
    while second.poll() is None and not (killed := list(workers_of(second))):
        time.sleep(0.02)
    os.kill(killed[0], signal.SIGKILL)  # as it reads the model, or predicts
    _, told = second.communicate(timeout=120)
    assert second.returncode == 0, told
    wanted = [json.loads(line) for line in expected.splitlines()]
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == [marked, *wanted[1:]]
    assert not part.parent.exists()


@pytest.mark.slow
def test_answers_may_be_a_table_and_bad_rows_are_told_of(
    model: Path, file: Path, tmp_path: Path, command: Command
) -> None:
    pytest.importorskip("ray")
    rows = tmp_path / "rows.txt"
    rows.write_text("a b\n" + "a " * 9000 + "\nc\n", encoding="utf-8")
    expected = command(*words_of(model, rows), "--json")
    out = tmp_path / "answers.parquet"
    told = command(*words_of(model, rows), "--ray", "--out", out)
    assert (told.code, told.err.splitlines()[-1]) == (expected.code, expected.err.splitlines()[-1])
    table = pq.read_table(out).to_pylist()
    wanted = [json.loads(line) for line in expected.out.splitlines()]
    assert [{name: value for name, value in row.items() if value is not None} for row in table] == wanted


def refusal(command: Command, *words: object) -> str:
    told = command(*words)
    assert told.code == 2, told.out
    assert told.err.count("\n") == 1
    return told.err


def test_what_cannot_be_shared_among_workers_is_refused(
    model: Path, file: Path, tmp_path: Path, command: Command
) -> None:
    words = words_of(model, file)
    assert "--ray, --file and --out belong together" in refusal(command, *words, "--ray")
    assert "--ray, --file and --out belong together" in refusal(command, *words, "--out", tmp_path / "x.jsonl")
    assert "a .jsonl or a .parquet" in refusal(command, *words, "--ray", "--out", tmp_path / "x.txt")
    assert "there is no folder" in refusal(command, *words, "--ray", "--out", tmp_path / "none" / "x.jsonl")
    assert "leave out --html" in refusal(command, *words, "--ray", "--out", tmp_path / "x.jsonl", "--html", "x.html")


def test_answers_of_another_job_are_not_gone_on_with(
    model: Path, file: Path, tmp_path: Path, command: Command
) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "x.jsonl"
    parts = tmp_path / "x.jsonl.parts"
    parts.mkdir()
    (parts / "job.json").write_text("{}", encoding="utf-8")
    assert "holds answers of another job" in refusal(command, *words_of(model, file), "--ray", "--out", out)


def test_without_ray_a_line_says_which_extra_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LegatoError, match=r'pip install "legato-nn\[ray\]"'):
        require_extra("ray", "ray")
