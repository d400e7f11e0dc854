"""Races between real processes: of two that want one folder one gets it, whole; a reader always gets one version.

The processes live through all rounds, and begin each round at one moment. A run of the tests takes a share of the
rounds, which `campaign_share` says.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from campaign_share import rounds, seed

from tiny_runs import command, finish, fork, hurry, small, words

PAIRS = 1000
BAD_PAIRS = 200  # in which one of the two fails after it has claimed the folder
NAMELESS = 100  # in which none says where
READS = 1000
LIMIT = 900.0  # seconds for all rounds; far beyond what they take
REFUSALS = ("already holds a run", "is being trained by another process")


def settings(folder: Path, **changes: Any) -> list[str]:
    once = {"train__steps": 1, "train__validate_every": 1, "train__batch_tokens": 32, "model__width": 4}
    return words(small(folder, **once, **changes))


class Meeting:
    """Where two processes wait for each other, to go on at one moment: a little after the later one has come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, number: int, me: int) -> None:
        mine, theirs = (self.folder / f"came-{number}-{who}" for who in (me, 1 - me))
        come = time.monotonic()
        fresh = self.folder / f"coming-{me}"
        fresh.write_text(str(come))
        os.replace(fresh, mine)
        while not theirs.exists():
            assert time.monotonic() < come + LIMIT, "the other process has gone"
            time.sleep(0.001)
        moment = max(come, float(theirs.read_text())) + 0.004
        while time.monotonic() < moment:  # closer together than any sleep ends
            pass


def race(folder: Path, me: int, arguments: list[str], outs: list[str], campaign: int) -> None:
    """Train with these settings, round after round; how each ended goes into a file."""
    hurry()
    os.environ["LEGATO_CACHE"] = str(folder / f"cache-{me}")
    os.chdir(folder)
    draw, meeting = random.Random(f"{me} {campaign}"), Meeting(folder)
    ended = []
    for number, out in enumerate(outs):
        log = folder / f"log-{me}-{number}"
        late = draw.choice((0, 0, 0.0002, 0.001, 0.003)) * draw.random()
        meeting.at(number, me)
        time.sleep(late)
        code = command(["train", "lm", "-q", *arguments, *([out] if out else [])], log)
        ended.append((code, log.read_text()))
    (folder / f"ended-{me}.json").write_text(json.dumps(ended))


def run_races(folder: Path, settings_of: list[list[str]], outs: list[str]) -> list[tuple[tuple[int, str], ...]]:
    """How both ended in each round; `settings_of` may differ between the two."""
    processes = [fork(race, folder, me, settings_of[me % len(settings_of)], outs, seed()) for me in (0, 1)]
    for process in processes:
        assert finish(process, LIMIT) == 0
    both = [json.loads((folder / f"ended-{me}.json").read_text()) for me in (0, 1)]
    return list(zip(*both, strict=True))


def is_whole(run: Path) -> bool:
    needed = ("config.yaml", "provenance.json", "result.json", "best/model.safetensors", "last/model.safetensors")
    return all((run / name).is_file() for name in needed) and not (run / ".lock").exists()


def is_refusal(said: str) -> bool:
    return said.count("\n") == 1 and any(text in said for text in REFUSALS)


def test_of_two_runs_that_begin_at_one_moment_one_wins_and_is_whole(tmp_path: Path) -> None:
    outs = [f"out={tmp_path}/run-{number}" for number in range(rounds(PAIRS))]
    for number, ends in enumerate(run_races(tmp_path, [settings(tmp_path)], outs)):
        assert sorted(code for code, _ in ends) == [0, 2], (number, ends)
        loser = next(said for code, said in ends if code == 2)
        assert is_refusal(loser), (number, ends)
        assert is_whole(tmp_path / f"run-{number}"), number


def test_a_run_that_fails_at_its_start_takes_nothing_from_one_that_does_not(tmp_path: Path) -> None:
    bad = tmp_path / "empty.txt"
    bad.write_text("")
    outs = [f"out={tmp_path}/run-{number}" for number in range(rounds(BAD_PAIRS))]
    both = [settings(tmp_path), settings(tmp_path, data__train=str(bad))]
    for number, (good, failed) in enumerate(run_races(tmp_path, both, outs)):
        assert failed[0] == 2, (number, failed)
        assert failed[1].count("\n") == 1, (number, failed)
        run = tmp_path / f"run-{number}"
        if good[0] == 0:
            assert is_whole(run), number
        else:  # the other one had the folder just then, and has taken it back
            assert is_refusal(good[1]), (number, good)
            assert not run.exists() or not any(run.iterdir()), number


def test_two_runs_without_a_name_get_two(tmp_path: Path) -> None:
    ends = run_races(tmp_path, [settings(tmp_path)], [""] * rounds(NAMELESS))
    assert {code for pair in ends for code, _ in pair} == {0}
    made = sorted((tmp_path / "runs").iterdir())
    assert len(made) == 2 * rounds(NAMELESS)
    assert all(map(is_whole, made))


# ── reading while it is written ───────────────────────────────────────────────────────────────────


def replace_at_every_step(folder: Path, arguments: list[str], at_once: bool) -> None:
    """Train; every step is the best one, and each version says in two of its files which one it is."""
    import torch
    from safetensors.torch import load_file, save_file

    from legato.folders import atomic
    from legato.tasks.lm.job import LanguageJob
    from legato.training.loop import Trainer

    hurry()
    os.environ["LEGATO_CACHE"] = str(folder / "cache")
    if not at_once:
        atomic.exchange = lambda *_: False  # type: ignore[assignment]
    Trainer._better = lambda *_: True  # type: ignore[method-assign]
    write, versions = LanguageJob.write, iter(range(1, 10**9))

    def stamped(self: Any, model: Any, place: Path, metrics: Any) -> None:
        write(self, model, place, metrics)
        version = next(versions)
        config = json.loads((place / "config.json").read_text())
        config["legato"]["version"] = version
        (place / "config.json").write_text(json.dumps(config))
        held = load_file(place / "model.safetensors")
        tensors = {name: torch.full_like(tensor, version) for name, tensor in held.items()}
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})

    LanguageJob.write = stamped  # type: ignore[method-assign]
    command(arguments, folder / "log")


@pytest.mark.parametrize("at_once", [True, False], ids=["one exchange", "two renames"])
def test_every_read_of_a_model_that_is_replaced_at_every_step_is_of_one_version(
    at_once: bool, tmp_path: Path
) -> None:
    import legato

    run = tmp_path / "run"
    steps = {"train__steps": 10**9, "train__validate_every": 1, "train__checkpoint_every": 10**9, "model__width": 4}
    arguments = ["train", "lm", "-q", *words(small(tmp_path, **steps)), f"out={run}"]
    writer = fork(replace_at_every_step, tmp_path, arguments, at_once)
    try:
        end = time.monotonic() + LIMIT
        while not (run / "best").exists():
            assert writer.is_alive(), (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.01)
        seen = set()
        for number in range(rounds(READS) if at_once else rounds(READS // 10)):
            model = legato.load(run if number % 2 else run / "best", "cpu")
            versions = {float(value) for tensor in model.module.state_dict().values() for value in tensor.unique()}
            assert versions == {float(model.about["version"])}, number
            seen |= versions
        assert writer.is_alive(), (tmp_path / "log").read_text()
        assert len(seen) > 1, "it should have been replaced between the reads"
    finally:
        writer.kill()
        writer.join()
