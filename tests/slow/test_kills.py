"""Kill it at any moment: every task resumes to the same bits.

A kill leaves on the disk what was there at that moment, and nothing else of a process counts. So a run is watched:
before each of its operations on files, and in the middle of each file that it writes, all that is there is copied.
Each of these copies is what a kill at that moment leaves, and is taken up again. Beside that, real processes end
themselves at some of these moments, and real ones are killed after random times. A run of the tests takes a share of
the copies, deaths and kills, which `campaign_share` says.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_share import select

from tiny_pairs import in_words
from tiny_runs import command, finish, fork, hurry, read_metrics, weights_digest
from tiny_tasks import all_tasks, tiny

DEATHS = 3  # pairs of real ones, each at a moment chosen by chance
KILLS = 4  # from outside, after a time chosen by chance
LIMIT = 600.0  # seconds for one process, far beyond what it takes
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = frozenset(
    ["os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"]
)


# ── watching a run ────────────────────────────────────────────────────────────────────────────────


def watch(see: Callable[[str, Path | None], None]) -> None:
    """Call `see` before each operation on files in this process, and with a file where that is half-written."""
    from legato.folders import atomic, weights

    seeing = False

    def moment(what: str, half: Path | None = None) -> None:
        nonlocal seeing
        if not seeing:  # looking at files is an operation, too
            seeing = True
            try:
                see(what, half)
            finally:
                seeing = False

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & WRITING):
            moment(event)

    sync, exchange, save, write = os.fsync, atomic.exchange, weights.save_file, Path.write_text

    def seen_sync(handle: int) -> None:
        moment("fsync")
        sync(handle)

    def seen_exchange(one: Path, other: Path) -> bool:
        moment("exchange")
        return exchange(one, other)

    def seen_save(tensors: Any, path: str, **options: Any) -> None:
        moment("save")
        save(tensors, path, **options)
        moment("half of a file of tensors", Path(path))

    def seen_write(self: Path, *args: Any, **options: Any) -> int:
        written = write(self, *args, **options)
        moment("half of a file of text", self)
        return written

    sys.addaudithook(heard)
    os.fsync, atomic.exchange = seen_sync, seen_exchange  # type: ignore[assignment]
    weights.save_file, Path.write_text = seen_save, seen_write  # type: ignore[method-assign]


def prepare(folder: Path) -> None:
    """What all of these processes have in common; `folder` holds a run and its cache."""
    from legato.training.loop import Trainer

    hurry()
    os.environ["LEGATO_CACHE"] = str(folder / "cache")
    Trainer._better = lambda *_: True  # type: ignore[method-assign]  # so that models are replaced


def copy_states(task: str, settings: list[str], folder: Path, states: Path) -> None:
    """Make a run and copy what is there at each moment, if it differs from all before."""
    prepare(folder)
    known: set[str] = set()
    moments = 0

    def see(what: str, half: Path | None) -> None:
        nonlocal moments
        moments += 1
        state = content(folder, half)
        digest = hashlib.sha256(repr(sorted(state.items())).encode()).hexdigest()
        if digest in known:
            return
        known.add(digest)
        place = states / str(moments)
        place.mkdir()
        for name, held in state.items():
            if held is None:
                (place / name).mkdir(parents=True, exist_ok=True)
            else:
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(held)
        (place / "moment").write_text(what)

    watch(see)
    assert command(["train", task, *settings, f"out={folder}/run"], folder.parent / "log") == 0
    (states / "moments").write_text(str(moments))


def content(folder: Path, half: Path | None) -> dict[str, bytes | None]:
    """All files below a folder, and the folders as None; of one file only its first half."""
    found: dict[str, bytes | None] = {}
    for path in folder.rglob("*"):
        held = None if path.is_dir() else path.read_bytes()
        if half is not None and path == half and held is not None:
            held = held[: len(held) // 2]
        found[str(path.relative_to(folder))] = held
    return found


# ── taking it up again ────────────────────────────────────────────────────────────────────────────


def go_on(task: str, settings: list[str], folder: Path) -> str | None:
    """Go on with the run in `folder`, as its user would; what went wrong, if anything did."""
    run, log = folder / "run", folder / "log"
    if (run / "result.json").exists():
        return None
    begun = (run / "config.yaml").exists()
    words = [f"resume={run}"] if begun else [task, *settings, f"out={run}"]
    code = command(["train", "-q", *words], log)
    return None if code == 0 else f"exit code {code}: {log.read_text()}"


def take_up(task: str, settings: list[str], whole: Path, places: list[Path], report: Path) -> None:
    """Go on with each of these runs, and compare it with the one that nothing interrupted."""
    wrong = {}
    for place in places:
        prepare(place)
        problem = go_on(task, settings, place)
        if problem is None and outcome(place / "run") != outcome(whole):
            problem = "other bits"
        if problem is not None:
            wrong[place.name] = f"{(place / 'moment').read_text()}: {problem}"
        else:
            shutil.rmtree(place)
    report.write_text(json.dumps(wrong))


def outcome(run: Path) -> Any:
    """What must be the same: the weights to the bit, and the course of the run."""
    course = [(line["step"], line["kind"], line.get("loss"), line.get("accuracy")) for line in read_metrics(run)]
    leftovers = [path.name for path in run.rglob(".*") if path.name != ".lock"]  # which a kill at the very end leaves
    return weights_digest(run), course, leftovers


@pytest.fixture(params=all_tasks(), scope="module")
def watched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str], Path]:
    """A task, its settings, and a folder with a whole run and the states that it went through."""
    task, folder = request.param, tmp_path_factory.mktemp("task")
    settings = in_words(tiny(task, folder / "data"))
    (folder / "whole").mkdir()
    (folder / "states").mkdir()
    process = fork(copy_states, task, settings, folder / "whole", folder / "states")
    assert finish(process, LIMIT) == 0, (folder / "log").read_text()
    return task, settings, folder


def test_a_run_that_dies_at_any_file_operation_resumes_to_the_same_bits(
    watched: tuple[str, list[str], Path],
) -> None:
    task, settings, folder = watched
    whole = folder / "whole" / "run"
    places = sorted(
        (path for path in (folder / "states").iterdir() if path.is_dir()), key=lambda path: int(path.name)
    )
    assert len(places) > 40, "the run should have written more than that"
    places = select(places, offset=all_tasks().index(task))
    reports = [folder / f"report-{half}" for half in (0, 1)]
    halves = [fork(take_up, task, settings, whole, places[half::2], report) for half, report in enumerate(reports)]
    for process in halves:
        assert finish(process, LIMIT) == 0
    wrong = {name: problem for report in reports for name, problem in json.loads(report.read_text()).items()}
    assert wrong == {}


# ── real deaths ───────────────────────────────────────────────────────────────────────────────────


def die_at(task: str, settings: list[str], folder: Path, moment: int) -> None:
    """Go on with a run, and end at an operation on files as `kill -9` does."""
    prepare(folder)
    left = moment

    def see(what: str, half: Path | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if half is not None and half.exists():
                os.truncate(half, half.stat().st_size // 2)
            os._exit(9)

    watch(see)
    problem = go_on(task, settings, folder)
    assert problem is None, problem


def finish_it(task: str, settings: list[str], folder: Path) -> None:
    prepare(folder)
    problem = go_on(task, settings, folder)
    assert problem is None, problem


def test_a_process_that_dies_again_and_again_ends_with_the_same_bits(
    watched: tuple[str, list[str], Path], tmp_path: Path
) -> None:
    task, settings, folder = watched
    moments = int((folder / "states" / "moments").read_text())
    for number in select(range(DEATHS), offset=DEATHS * all_tasks().index(task)):
        draw = random.Random(f"{task} {number}")
        place = tmp_path / str(number)
        place.mkdir()
        for _ in range(2):  # the second one dies while it goes on
            process = fork(die_at, task, settings, place, draw.randint(1, moments))
            assert finish(process, LIMIT) in (0, 9)
        assert finish(fork(finish_it, task, settings, place), LIMIT) == 0
        assert outcome(place / "run") == outcome(folder / "whole" / "run")


def test_a_process_that_is_killed_again_and_again_ends_with_the_same_bits(
    watched: tuple[str, list[str], Path], tmp_path: Path
) -> None:
    task, settings, folder = watched
    if not select([task], offset=all_tasks().index(task)):
        pytest.skip("of another share of the campaign")
    draw = random.Random(f"{task} again")
    for _ in range(KILLS):
        process = fork(finish_it, task, settings, tmp_path)
        process.join(draw.uniform(0.01, 0.5))
        process.kill()
        finish(process)
    assert finish(fork(finish_it, task, settings, tmp_path), LIMIT) == 0
    assert outcome(tmp_path / "run") == outcome(folder / "whole" / "run")


# ── folders outside of a run ──────────────────────────────────────────────────────────────────────


def replace_and_die(place: Path, moment: int, at_once: bool) -> None:
    """Replace a folder, as an export does, and end at an operation on files as `kill -9` does."""
    from legato.folders import atomic

    if not at_once:
        atomic.exchange = lambda *_: False  # type: ignore[assignment]
    left = moment

    def see(what: str, half: Path | None) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os._exit(9)

    watch(see)
    write_version(place, "new")


def write_version(place: Path, version: str) -> None:
    from legato.folders.atomic import replacing

    with replacing(place) as fresh:
        (fresh / "version").write_text(version)
        (fresh / "inner").mkdir()
        (fresh / "inner" / "version").write_text(version)


@pytest.mark.parametrize("at_once", [True, False], ids=["one exchange", "two renames"])
def test_a_folder_whose_writing_is_killed_at_any_file_operation_is_whole_and_can_be_written_again(
    at_once: bool, tmp_path: Path
) -> None:
    for moment in range(1, 1000):
        place = tmp_path / str(moment) / "out"
        write_version(place, "old")
        (place / "mine.txt").write_text("mine")
        code = finish(fork(replace_and_die, place, moment, at_once))
        found = place if place.exists() else place.with_name(".old-out")
        assert (found / "version").read_text() == (found / "inner" / "version").read_text()
        write_version(place, "newest")
        assert [path.name for path in place.parent.iterdir()] == ["out"], moment
        content = {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}
        assert content == {"version": "newest", "inner/version": "newest", "mine.txt": "mine"}, moment
        if code == 0:
            break
    assert moment > 15, "it should have done more than that"


def test_every_task_has_an_example() -> None:
    from tiny_tasks import EXAMPLES

    assert set(EXAMPLES) == set(all_tasks())
