"""One command in a process of its own, and whether it ended as it may: refused in one line, or with a right answer.

Processes are forked from one that has imported everything, so that each takes a fraction of a second and what it does
to itself, a crash, an endless loop or all memory, is its alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import select
import shutil
import signal
import stat
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from fuzzing.damage import SECRET

SECONDS: Final = 10  # of computing
WALL: Final = 60  # seconds on a machine that is busy with other things; what only waits is ended at the former
MEMORY: Final = 2 << 30  # bytes above the start
MOST_MEMORY: Final = 5 << 30  # that the process is given at all, so that the machine survives
LONGEST: Final = 2200  # characters in a refusal

FAULT: Final = ("a fault of ours", "Traceback (most recent call last)", "panicked at", "Fatal Python error")
NOTE: Final = re.compile(r"legato: (note|(line|text|row|picture|sound|clip|question) \d+): ")

Stamp = tuple[int, int, int, int]


@dataclass
class Outcome:
    """What a command left."""

    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float
    peak: int  # bytes above the start
    problem: str = ""  # the exception behind a refusal, and where it was raised
    changed: list[str] = field(default_factory=list)  # files that are not the command's own
    written: list[str] = field(default_factory=list)  # files that are


def tree_of(root: Path) -> dict[str, Stamp]:
    """Every entry under a folder, and what tells whether it was changed."""
    found: dict[str, Stamp] = {}
    folders = [str(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                state = entry.stat(follow_symlinks=False)
                folder = stat.S_ISDIR(state.st_mode)
                name = os.path.relpath(entry.path, root)
                # That something was put into a folder shows in what is in it.
                found[name] = (state.st_mode, 0, 0, 0) if folder else _stamp(state)
                if folder:
                    folders.append(entry.path)
    return found


def _stamp(state: os.stat_result) -> Stamp:
    return state.st_mode, state.st_size, state.st_mtime_ns, state.st_ino


def run(root: Path, words: list[str], stdin: str, own: tuple[str, ...]) -> Outcome:
    """`legato WORDS` in `root/in`; `own` is what it may write to there."""
    (root / "stdin").write_text(stdin)
    for name in ("tmp", "home"):
        (root / name).mkdir(exist_ok=True)
    before = tree_of(root)
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _inside(root, words)
    code, usage = _wait(child, began)
    seconds = time.monotonic() - began
    start = int((root / "start").read_text() or 0) if (root / "start").exists() else 0
    ours = [f"in/{name}" for name in (*own, "cache", "runs")] + ["tmp", "home", "out", "err", "start", "problem"]
    after = tree_of(root)
    differing = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    written = [name for name in differing if any(name == place or name.startswith(f"{place}/") for place in ours)]
    changed = [name for name in differing if name not in written]
    problem = (root / "problem").read_text() if (root / "problem").exists() else ""
    out, err = ((root / name).read_bytes().decode("utf-8", "replace") for name in ("out", "err"))
    return Outcome(code, out, err, max(seconds, 0), max(0, usage.ru_maxrss * 1024 - start), problem, changed, written)


def _wait(child: int, began: float) -> tuple[int, Any]:
    """The exit code, once it has ended or its time is over; whatever it started ends with it."""
    handle = os.pidfd_open(child)
    idle = 0
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        wait = SECONDS
        while not poll.poll(wait * 1000):
            wait = 0.2
            idle = 0 if _computes(child) else idle + 1
            if idle > 10 or time.monotonic() - began > WALL:
                os.killpg(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
    finally:
        os.close(handle)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), usage


def _computes(leader: int) -> bool:
    """Whether the process or one that it started is computing, or would if the machine had time for it."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                _, _, rest = Path(entry.path, "stat").read_text().rpartition(") ")
                state, _, group, *_ = rest.split()
                if int(group) == leader and state == "R":
                    return True
    return False


def _inside(root: Path, words: list[str]) -> NoReturn:
    """What the forked process does; it never returns."""
    code = 70
    try:
        os.setsid()
        end_with_parent()
        os.chdir(root / "in")
        for handle, name, how in ((0, "stdin", os.O_RDONLY), (1, "out", _WRITE), (2, "err", _WRITE)):
            opened = os.open(root / name, how, 0o644)
            os.dup2(opened, handle)
            os.close(opened)
        sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), _writer(1), _writer(2)  # noqa: SIM115
        os.environ.update(LEGATO_CACHE=str(root / "in" / "cache"), HOME=str(root / "home"), TMPDIR=str(root / "tmp"))
        os.environ["COLUMNS"] = "100"
        import tempfile

        tempfile.tempdir = None
        resident, size = _memory()
        (root / "start").write_text(str(resident))
        resource.setrlimit(resource.RLIMIT_AS, (size + MOST_MEMORY, size + MOST_MEMORY))
        used = int(sum(os.times()[:2]))
        resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _main(root, words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
    finally:
        os._exit(code)


def end_with_parent() -> None:
    """Have the system end this process when the one that forked it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _writer(handle: int) -> Any:
    return open(handle, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _memory() -> tuple[int, int]:
    """Resident and mapped bytes of this process."""
    size, resident, *_ = Path("/proc/self/statm").read_text().split()
    return int(resident) * resource.getpagesize(), int(size) * resource.getpagesize()


def _main(root: Path, words: list[str]) -> int:
    from legato.cli import main

    sys.argv = ["legato", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.__context__ is not None:
            (root / "problem").write_text(_place(ended.__context__))
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException as problem:
        (root / "problem").write_text(_place(problem))
        raise
    return 0


def _place(problem: BaseException) -> str:
    """The exception's type, and the innermost line of ours that it came through."""
    frames = traceback.extract_tb(problem.__traceback__)
    ours = [frame for frame in frames if "/legato/" in frame.filename and "/cli/__init__" not in frame.filename]
    where = ours[-1] if ours else frames[-1] if frames else None
    place = "" if where is None else f" at {where.filename.rpartition('/legato/')[2]}:{where.lineno} {where.name}"
    return f"{type(problem).__name__}{place}"


# --- what may be ---------------------------------------------------------------------------------------


def failure(outcome: Outcome, root: Path, *, json_lines: bool, answers: set[int] | None, verb: str) -> str | None:
    """Why an outcome is none that may be; None where it is one."""
    if outcome.code < 0:
        name = signal.Signals(-outcome.code).name
        over = {"SIGXCPU": f"more than {SECONDS} s of computing", "SIGKILL": "waits without end"}
        return f"killed: {over.get(name, name)}"
    if outcome.peak > MEMORY:
        return f"memory: more than {MEMORY >> 30} GB above the start"
    for sign in FAULT:
        if sign in outcome.err or sign in outcome.out:
            return f"fault: {outcome.problem or sign}"
    if outcome.changed:
        return f"changed: {', '.join(outcome.changed[:3])}"
    if verb == "export" and (leak := _leak(outcome, root)):
        return f"leak: {leak}"
    if outcome.code == 2:
        return _refusal(outcome)
    if outcome.code != 0:
        return f"exit code {outcome.code}"
    return _answer(outcome, root, json_lines, answers)


def _refusal(outcome: Outcome) -> str | None:
    lines = outcome.err.splitlines()
    said = [line for line in lines if line.startswith("legato: ") and not NOTE.match(line)]
    if not lines or not lines[-1].startswith("legato: ") or len(said) != 1:
        return f"not one line: {outcome.problem}"
    if len(said[0]) > LONGEST:
        return f"a refusal of {len(said[0]):,} characters: {outcome.problem}"
    if said[0].endswith((": ", ":")) or said[0].strip() == "legato:":
        return f"says nothing: {outcome.problem}"
    return _noise(outcome)


def _noise(outcome: Outcome) -> str | None:
    for line in outcome.err.splitlines():
        if found := re.search(r"(\w+\.py):\d+: (\w*Warning)", line):
            return f"noise: {found[2]} of {found[1]}"
    return None


def _answer(outcome: Outcome, root: Path, json_lines: bool, answers: set[int] | None) -> str | None:
    if json_lines:
        # A text may hold rarer kinds of line ends.
        told = outcome.out.removesuffix("\n").split("\n") if outcome.out else []
        for line in told:
            try:
                _strict(line)
            except ValueError as problem:
                return f"no JSON: {problem}"
        if answers is not None and len(told) not in answers:
            return f"{len(told)} answers to {sorted(answers)} texts"
    for file in _files(outcome, root):
        if file.suffix in (".json", ".jsonl"):
            try:
                for line in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
                    _strict(line)
            except ValueError as problem:
                return f"no JSON in {file.name}: {problem}"
    return _noise(outcome)


def _strict(line: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number")

    return json.loads(line, parse_constant=refuse)


def _files(outcome: Outcome, root: Path) -> list[Path]:
    """What the command wrote where others will read it; what it keeps for itself has a form of its own."""
    told = [name for name in outcome.written if name.startswith("in/") and not name.startswith("in/cache/")]
    return [file for name in told if _is_plain(file := root / name)]


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def _leak(outcome: Outcome, root: Path) -> str | None:
    """A file of the command's own that holds what was outside of its folder."""
    return next((file.name for file in _files(outcome, root) if SECRET.encode() in file.read_bytes()), None)


def clean(root: Path) -> None:
    """Remove a case's folder."""
    shutil.rmtree(root, ignore_errors=True)
